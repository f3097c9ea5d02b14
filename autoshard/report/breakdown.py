"""Where the time goes, as tables for people and as plain data for `--json`."""

from dataclasses import asdict
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.breakdown import Breakdown
from autoshard.report.units import bytes_text, time_text

MAX_ROWS = 24


def print_breakdown(found: Breakdown, console: Console, *, show_all: bool = False) -> None:
    """The roofline of every kind of kernel, then the reason of every collective; the costliest of each, or all."""
    step = max(found.compute_ns + found.communication_ns, 1)
    console.print(_kernels(found, step, show_all))
    console.print(_collectives(found, step, show_all))


def breakdown_data(found: Breakdown) -> dict[str, Any]:
    """Times in ns of one run, sizes in bytes; `share` is of the step."""
    step = max(found.compute_ns + found.communication_ns, 1)
    kernels = [
        {
            **asdict(group),
            "flop_per_byte": group.intensity if group.bytes else None,
            "share": group.total_ns / step,
        }
        for group in found.kernels
    ]
    collectives = [{**asdict(c), "share": c.ns * c.repeat / step} for c in found.collectives]
    return {"kernels": kernels, "explained": collectives}


def _kernels(found: Breakdown, step: int, show_all: bool) -> RenderableType:
    rows = found.kernels if show_all else found.kernels[:MAX_ROWS]
    table = _table(
        _title("kernels on one device", len(rows), len(found.kernels)),
        ("op", "work", "bound"),
        ("runs", "GFLOP", "bytes", "FLOP/byte", "time", "all", "share"),
    )
    for group in rows:
        table.add_row(
            group.op,
            Text(group.work),
            group.bound,
            str(group.count),
            f"{group.flops / 1e9:.3g}",
            bytes_text(group.bytes),
            f"{group.intensity:.3g}" if group.bytes else "-",
            time_text(group.ns),
            time_text(group.total_ns),
            f"{group.total_ns / step:.1%}",
        )
    return table


def _collectives(found: Breakdown, step: int, show_all: bool) -> RenderableType:
    if not found.collectives:
        return Text("no collectives to explain")
    rows = found.collectives if show_all else found.collectives[:MAX_ROWS]
    table = _table(
        _title("why each collective", len(rows), len(found.collectives)),
        ("kind", "axes", "why", "for op"),
        ("runs", "bytes", "time", "share"),
    )
    for c in rows:
        op = f"{c.op} {c.location}".strip() or "arguments and results"
        table.add_row(
            c.kind,
            Text(",".join(c.axes)),
            Text(c.why),
            Text(op),
            str(c.repeat),
            bytes_text(c.bytes),
            time_text(c.ns),
            f"{c.ns * c.repeat / step:.1%}",
        )
    return table


def _table(title: str, words: tuple[str, ...], figures: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for heading in words:
        table.add_column(heading, overflow="fold")
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _title(what: str, shown: int, count: int) -> str:
    return what if shown == count else f"{what} (the {shown} costliest of {count}; --all shows all)"
