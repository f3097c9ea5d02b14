"""Why there is no plan, as a person reads it, and as plain data for `--json`."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.explanations import Clashing, Explanation
from autoshard.report.units import bytes_text, time_text

_NO_CLASH = {
    "plan": "there is a plan: nothing clashes",
    "unknown": "not decided within the time limit: no clash was found, and no plan",
}


def clash_text(found: Explanation) -> RenderableType:
    """The demands that clash, and what dropping each would bring."""
    if found.status != "clash":
        return Text(_NO_CLASH[found.status])
    parts: list[RenderableType] = [Text(line) for line in _headline(found)]
    parts.append(_drops(found))
    if found.to_drop is not None and len(found.clashing) > 1:
        parts.append(Text(f"cheapest to drop: {found.to_drop.text}"))
    return Group(*parts)


def clash_lines(found: Explanation) -> str:
    """The clash alone, one demand a line, for an error."""
    return "\n".join(
        [_what(found), *(f"  {one.text}" for one in found.clashing), *map("  {}".format, found.context)]
    )


def clash_data(found: Explanation) -> dict[str, Any]:
    """The same as plain data: times in ns, sizes in bytes."""
    return {
        "status": found.status,
        "minimal": found.is_minimal,
        "clash": [_row(one) for one in found.clashing],
        "context": list(found.context),
        "drop": None if found.to_drop is None else found.to_drop.text,
        "memory_bytes": found.memory_bytes,
        "smallest_peak_bytes": found.smallest_peak_bytes,
        "peak_bound_bytes": found.peak_bound_bytes,
    }


def _row(one: Clashing) -> dict[str, Any]:
    return {
        "kind": one.kind,
        "demand": one.text,
        "step_ns_without": one.step_ns,
        "peak_bytes_without": one.peak_bytes,
        "proved": one.is_proved,
        "note": one.note,
    }


def _headline(found: Explanation) -> list[str]:
    lines = clash_lines(found).splitlines()
    if found.smallest_peak_bytes is not None:
        lines.append(f"smallest peak found without any demand: {bytes_text(found.smallest_peak_bytes)}")
    if found.peak_bound_bytes is not None:
        lines.append(f"no plan can peak below {bytes_text(found.peak_bound_bytes)}")
        if any(
            one.peak_bytes is not None and one.peak_bytes < found.peak_bound_bytes for one in found.clashing
        ):
            lines.append(
                "a plan's own peak, as below, is beside vector memory; what the compiler may keep there has to fit as well,"
                " because it need not keep it there"
            )
    return lines


def _what(found: Explanation) -> str:
    if len(found.clashing) == 1:
        return "this cannot hold, whatever else is asked:"
    proof = "leave out any one and the others can" if found.is_minimal else "not proved minimal"
    return f"these {len(found.clashing)} cannot hold together ({proof}):"


def _drops(found: Explanation) -> Table:
    table = Table(title="the cheapest plan without", title_justify="left", box=None, pad_edge=False)
    for heading in ("demand", "step", "peak", "proved", ""):
        table.add_column(heading, justify="right" if heading in ("step", "peak") else "left", overflow="fold")
    for one in found.clashing:
        figures = ("-", "-", "-")
        if one.step_ns is not None and one.peak_bytes is not None:
            figures = (time_text(one.step_ns), bytes_text(one.peak_bytes), "yes" if one.is_proved else "no")
        table.add_row(Text(one.text), *figures, one.note)
    return table
