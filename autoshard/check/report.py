"""What a check found: named findings, each with what was expected and what the plan says."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

MAX_OFFENDERS = 5
TEXT_WIDTH = 150

Figure = int | str


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim about the plan; `expected` is what the checker works out, `found` what the plan says."""

    name: str
    ok: bool
    expected: Figure
    found: Figure
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CheckReport:
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...] = ()  # findings that could not be made because an earlier one failed

    @property
    def passed(self) -> bool:
        return not self.unchecked and all(finding.ok for finding in self.findings)

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.ok)

    def to_text(self) -> str:
        console = Console(width=TEXT_WIDTH, highlight=False, color_system=None)
        with console.capture() as capture:
            console.print(_table(self))
            console.print(Text(_verdict(self)))
        return capture.get().rstrip()

    def to_json(self) -> str:
        data = {"passed": self.passed, "findings": self.findings, "unchecked": self.unchecked}
        return msgspec.json.format(msgspec.json.encode(data), indent=1).decode()


def _table(report: CheckReport) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("finding", "", "expected", "in the plan", ""):
        table.add_column(heading, overflow="fold")
    for finding in report.findings:
        verdict = "ok" if finding.ok else "FAILED"
        cells = (finding.name, verdict, str(finding.expected), str(finding.found), finding.detail)
        table.add_row(*map(Text, cells))
    return table


def _verdict(report: CheckReport) -> str:
    if report.passed:
        return f"passed: all {len(report.findings)} findings hold"
    unchecked = f"; not checked: {', '.join(report.unchecked)}" if report.unchecked else ""
    return f"FAILED: {', '.join(finding.name for finding in report.failures)}{unchecked}"


def of_offenders(name: str, offenders: Sequence[str], num_checked: int, what: str) -> Finding:
    """The finding that none of `num_checked` things offends; names the first few that do."""
    shown = "\n".join(offenders[:MAX_OFFENDERS])
    more = f"\nand {len(offenders) - MAX_OFFENDERS} more" if len(offenders) > MAX_OFFENDERS else ""
    found = f"{len(offenders)} of {num_checked} do not" if offenders else f"all {num_checked} do"
    return Finding(name, not offenders, what, found, shown + more)


def of_equality(name: str, expected: Figure, found: Figure, detail: str = "") -> Finding:
    """The finding that the plan's figure is the checker's; `detail` is kept for a difference only."""
    return Finding(name, expected == found, expected, found, "" if expected == found else detail)
