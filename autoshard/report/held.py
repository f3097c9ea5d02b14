"""Where the memory goes, as a table for people and as plain data for `--json`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoshard.held import HeldBuffer, HeldMemory
from autoshard.report.units import bytes_text

MAX_ROWS = 24


@dataclass(frozen=True, slots=True)
class _Row:
    """Buffers of one kind and type that ops of one name make; `where`: of the first, as an example."""

    kind: str
    what: str
    type: str
    count: int
    bytes: int
    where: str


def print_held(found: HeldMemory, console: Console, *, show_all: bool = False) -> None:
    """Buffers of one kind and type in one row, the largest rows or all."""
    rows = _rows(found.buffers)
    shown = rows if show_all else rows[:MAX_ROWS]
    title = f"memory at its peak, {bytes_text(found.peak_bytes)} a device"
    if len(shown) < len(rows):
        title += f" (the {len(shown)} largest of {len(rows)}; --all shows all)"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in ("held", "by", "type"):
        table.add_column(heading, overflow="fold")
    for heading in ("buffers", "bytes", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("one of them", overflow="fold")
    whole = max(found.peak_bytes, 1)
    for row in shown:
        share = f"{row.bytes / whole:.1%}"
        table.add_row(
            row.kind, Text(row.what), row.type, str(row.count), bytes_text(row.bytes), share, Text(row.where)
        )
    for name, size in found.beside:
        sign = "-" if size < 0 else ""
        table.add_row("", name, "", "", sign + bytes_text(abs(size)), f"{size / whole:.1%}")
    console.print(table)


def held_data(found: HeldMemory) -> dict[str, Any]:
    """Bytes on one device; every buffer by itself."""
    return {"held": asdict(found)}


def _rows(buffers: Sequence[HeldBuffer]) -> list[_Row]:
    """The largest first."""

    def key(buffer: HeldBuffer) -> tuple[str, str, str]:
        return buffer.kind, _what(buffer), buffer.type

    found: list[_Row] = []
    for (kind, what, type_), members in groupby(sorted(buffers, key=key), key):
        same = list(members)
        found.append(_Row(kind, what, type_, len(same), sum(one.bytes for one in same), _place(same[0])))
    return sorted(found, key=lambda row: (-row.bytes, row.kind, row.what, row.type))


def _what(buffer: HeldBuffer) -> str:
    op = buffer.op.removeprefix("stablehlo.")
    return ", ".join(part for part in (op, buffer.note) if part)


def _place(buffer: HeldBuffer) -> str:
    return buffer.name or buffer.location
