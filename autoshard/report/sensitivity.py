"""The ranges of hardware figures over which a plan stays the best, as a person reads them, and as plain data for `--json`."""

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.explanations import End, FigureRange, Replacement, Sensitivity
from autoshard.report.units import times_text

MOST_MOVED = 6


def sensitivity_text(found: Sensitivity, *, show_all: bool = False) -> RenderableType:
    """A row for each figure, and below what is cheaper beyond each end."""
    lines = [Text(line) for line in _headline(found)]
    if found.better is not None:
        return Group(*lines, *(Text(f"  {line}") for line in _moved(found.better, show_all)))
    beyond = [
        Text(line)
        for row in found.figures
        for end in (row.low, row.high)
        if end is not None and end.beyond is not None
        for line in _beyond(row, end.beyond, show_all)
    ]
    looked = Text(
        f"the plan stays the best while one figure is multiplied by (looked at: {1 / found.span:.3g} to {found.span:.3g})"
    )
    return Group(
        *lines,
        looked,
        _table(found),
        *([Text("beyond")] if beyond else []),
        *beyond,
        *map(Text, _notes(found)),
    )


def sensitivity_data(found: Sensitivity) -> dict[str, Any]:
    """The same as plain data: times in ns, sizes in bytes, values in the unit beside them."""
    data: dict[str, Any] = msgspec.to_builtins(found)
    for row, figure in zip(data["figures"], found.figures, strict=True):
        row["is_proved"] = figure.is_proved
    return data


def _headline(found: Sensitivity) -> Iterator[str]:
    step, planned = times_text(found.step_ns, found.planned_ns)
    yield f"predicted step {step} on {found.hardware}"
    if found.is_interrupted:
        yield "interrupted: what was known by then"
    if found.planned_ns != found.step_ns:
        yield f"the plan says {planned}: it was priced by another version or profile"
    if found.better is not None:
        better, mine = times_text(found.better.step_ns, found.step_ns)
        if found.is_by_order:
            yield f"by price alone a plan of {better} is better than {mine}: this one was chosen for its step in the scheduler's order"
        else:
            yield f"a plan of {better} is better than {mine} at the profile's own figures: plan again"


def _table(found: Sensitivity) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("figure", "value", "from", "to", "that is", "proved"):
        table.add_column(heading, justify="left" if heading in ("figure", "proved") else "right")
    for row in found.figures:
        assert row.low is not None and row.high is not None
        values = f"{row.low.value:.4g} to {row.high.value:.4g} {row.unit}"
        table.add_row(
            row.figure,
            f"{row.value:.4g} {row.unit}",
            _end(row.low, "<=", found.is_interrupted),
            _end(row.high, ">=", found.is_interrupted),
            values,
            _certainty(row),
        )
    return table


def _end(end: End, open_: str, is_interrupted: bool) -> str:
    if end.is_cut_short:
        return f"{end.factor:.3g}, then {'interrupted' if is_interrupted else 'out of time'}"
    return f"{end.factor:.3g}" if end.beyond is not None else f"{open_} {end.factor:.3g}"


def _certainty(row: FigureRange) -> str:
    count = len(row.looked_at)
    where = "" if row.is_linear else f" at the {count} factor{'' if count == 1 else 's'} looked at"
    if row.is_proved:
        return f"yes{where}"
    return f"no: nothing better found{where}; at most {100 * row.gap:.2g} % better exists there"


def _beyond(row: FigureRange, found: Replacement, show_all: bool) -> Iterator[str]:
    better, mine = times_text(found.step_ns, found.plan_ns)
    yield (
        f"  {row.figure} times {found.factor:.3g} ({found.value:.4g} {row.unit}): {better} instead of {mine}"
    )
    yield from (f"    {line}" for line in _moved(found, show_all))


def _moved(found: Replacement, show_all: bool) -> Iterator[str]:
    if not found.moved:
        yield "all arguments and results stay; values in between move"
    shown = found.moved if show_all else found.moved[:MOST_MOVED]
    yield from (f"{moved.value}: {moved.before} -> {moved.after}" for moved in shown)
    if len(shown) < len(found.moved):
        yield f"{len(found.moved) - len(shown)} more: --all"


def _notes(found: Sensitivity) -> Iterator[str]:
    yield f"better: by more than {100 * found.tolerance:.2g} % of the step; ends to {100 * found.precision:.2g} %"
    if any(row.is_linear for row in found.figures):
        yield "a range that is proved at its ends holds in between where the price of a plan is a straight line in the figure"
