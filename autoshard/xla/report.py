"""What `verify` found, as a value and as text."""

import io
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.table import Table

from autoshard.xla.compare import FAILED, NOT_COMPARABLE, PASSED, Row

_MOST_ROWS = 40


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`collectives`: how often each kind stands in the planned module as XLA compiled it."""

    num_devices: int
    seed: int
    narrowest_float: str  # its rounding sets the tolerance
    rows: tuple[Row, ...]
    collectives: dict[str, int]

    @property
    def passed(self) -> bool:
        """No result fails and at least half of them could be compared."""
        return not self.rows_with(FAILED) and 2 * len(self.rows_with(PASSED)) >= len(self.rows)

    def rows_with(self, verdict: str) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.verdict == verdict)

    def to_text(self, width: int = 120) -> str:
        """The verdict, the results (the worst ones of many) with errors and tolerances, the collectives."""
        file = io.StringIO()
        console = Console(file=file, width=width)
        console.print(self._headline(), highlight=False)
        console.print(self._table())
        counts = ", ".join(f"{count} {kind}" for kind, count in self.collectives.items())
        console.print(f"Collectives compiled by XLA for CPU devices: {counts or 'none'}", highlight=False)
        return file.getvalue()

    def to_json(self) -> str:
        """The same as data; errors that are not finite are null."""
        data = {"passed": self.passed, **msgspec.to_builtins(self)}
        return msgspec.json.format(msgspec.json.encode(data), indent=1).decode()

    def _headline(self) -> str:
        verdict = "passed" if self.passed else "FAILED"
        counts = ", ".join(
            f"{len(rows)} {name}"
            for name in (PASSED, FAILED, NOT_COMPARABLE)
            if (rows := self.rows_with(name))
        )
        return f"Verification {verdict} on {self.num_devices} devices, seed {self.seed}; results: {counts}"

    def _table(self) -> Table:
        table = Table(
            "result", "type", "max error", "relative", "tolerance", "verdict", box=None, pad_edge=False
        )
        shown = sorted(self.rows, key=_badness)[:_MOST_ROWS]
        for row in shown if len(shown) < len(self.rows) else self.rows:
            verdict = f"{row.verdict}: {row.remark}" if row.remark else row.verdict
            table.add_row(
                row.name,
                row.type,
                *(f"{x:.2g}" for x in (row.max_error, row.relative_error, row.tolerance)),
                verdict,
            )
        if len(shown) < len(self.rows):
            table.add_row(f"… {len(self.rows) - len(shown)} more, each nearer to the original")
        return table


def _badness(row: Row) -> tuple[int, float]:
    verdicts = (FAILED, NOT_COMPARABLE, PASSED)
    return verdicts.index(row.verdict), -row.max_error / row.tolerance if row.tolerance > 0 else 0.0
