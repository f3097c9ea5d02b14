"""What binds a value's sharding and what others would cost, as a person reads it, and as plain data for `--json`."""

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.explanations import Alternative, Why
from autoshard.report.clash import clash_text
from autoshard.report.units import bytes_text, time_text

MOST_MOVED = 24


def why_text(found: Why, *, is_asked: bool, show_all: bool = False) -> RenderableType:
    """What binds the value, a row for each other sharding, and, for one that was asked for, all that would move."""
    parts: list[RenderableType] = [Text(line) for line in _headline(found)]
    if found.alternatives:
        parts.append(_table(found))
    elif not is_asked:
        parts.append(Text("nothing else is possible for it"))
    if found.left_out:
        parts.append(
            Text(f"{found.left_out} more were not tried: ask for one, as in VALUE='[{{\"x\"}}, {{}}]'")
        )
    if is_asked:
        parts += _details(found.alternatives[0], show_all)
    return Group(*parts)


def why_data(found: Why) -> dict[str, Any]:
    """The same as plain data: times in ns, sizes in bytes."""
    data: dict[str, Any] = msgspec.to_builtins(found)
    for row in data["alternatives"]:
        if row["step_ns"] is not None:
            row["step_difference_ns"] = row["step_ns"] - found.step_ns
            row["peak_difference_bytes"] = row["peak_bytes"] - found.peak_bytes
    return data


def _headline(found: Why) -> Iterator[str]:
    yield f"{found.value} is {found.sharding}"
    step = "step in the scheduler's order" if found.is_by_order else "predicted step"
    yield f"{step} {time_text(found.step_ns)}, peak memory {bytes_text(found.peak_bytes)}"
    if found.bound_by:
        yield from ("bound by", *(f"  {reason}" for reason in found.bound_by))
    else:
        yield "nothing binds it: it is what the cheapest plan found has"


def _table(found: Why) -> Table:
    table = Table(title="instead, all else planned anew", title_justify="left", box=None, pad_edge=False)
    for heading in ("sharding", "step", "difference", "peak", "difference", "others that move", "proved", ""):
        table.add_column(heading, justify="left" if heading in ("sharding", "proved", "") else "right")
    for row in found.alternatives:
        figures = ("-",) * 6
        if row.step_ns is not None and row.peak_bytes is not None:
            figures = (
                time_text(row.step_ns),
                _signed(row.step_ns - found.step_ns, time_text),
                bytes_text(row.peak_bytes),
                _signed(row.peak_bytes - found.peak_bytes, bytes_text),
                str(len(row.moved)),
                "yes" if row.is_proved else "no",
            )
        table.add_row(Text(row.sharding), *figures, row.note)
    return table


def _signed(amount: int, text: Any) -> str:
    return f"{'-' if amount < 0 else '+'}{text(abs(amount))}"


def _details(row: Alternative, show_all: bool) -> list[RenderableType]:
    if row.clash is not None:
        return [clash_text(row.clash)]
    parts: list[RenderableType] = []
    if row.moved:
        shown = row.moved if show_all else row.moved[:MOST_MOVED]
        heading = (
            "" if len(shown) == len(row.moved) else f" ({len(shown)} of {len(row.moved)}; --all shows all)"
        )
        table = Table(title=f"others that move{heading}", title_justify="left", box=None, pad_edge=False)
        for column in ("value", "in the plan", "instead"):
            table.add_column(column, overflow="fold")
        for moved in shown:
            table.add_row(*map(Text, (moved.value, moved.before, moved.after)))
        parts.append(table)
    if row.changed:
        table = Table(title="collectives that change", title_justify="left", box=None, pad_edge=False)
        for column in ("kind", "axes", "count", "instead", "time", "instead"):
            table.add_column(column, justify="left" if column in ("kind", "axes") else "right")
        for one in row.changed:
            times = map(time_text, one.ns)
            table.add_row(one.kind, ",".join(one.axes), *map(str, one.count), *times)
        parts.append(table)
    return parts
