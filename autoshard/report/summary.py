"""A plan as a person reads it, and the same figures as plain data for `--json`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.plans import NamedSharding, Plan, Price, priced_groups
from autoshard.report.units import bytes_text, time_text

MAX_ROWS = 24
_SHOWN_DEVICES = 8


def print_summary(plan: Plan, console: Console, *, show_all: bool = False) -> None:
    """Time, collectives, memory, shardings, bound and baselines."""
    console.print(summary(plan, show_all=show_all))


def summary(plan: Plan, *, show_all: bool = False) -> RenderableType:
    parts: list[RenderableType] = [_headline(plan), *([_prices(plan)] if plan.baselines else [])]
    parts.append(_collectives(plan.price))
    if plan.levels:
        parts.insert(1, _levels(plan))
    for title, rows in (("arguments", plan.arguments), ("results", plan.results)):
        parts.append(_shardings(title, rows, show_all=show_all))
    parts += [Text(f"warning: {warning}", style="yellow") for warning in plan.warnings]
    return Group(*parts)


def _headline(plan: Plan) -> Text:
    price = plan.price
    mesh = ", ".join(f"{name}={size}" for name, size in plan.mesh)
    limit = (
        "a device, no limit" if plan.memory_bytes is None else f"of {bytes_text(plan.memory_bytes)} a device"
    )
    lines = [
        f"mesh {mesh} on {plan.hardware} {shape_text(plan.topology, plan.slices)}",
        *_placement_lines(plan),
        f"predicted step {time_text(price.step_ns)} = compute {time_text(price.compute_ns)}"
        f" + communication {time_text(price.communication_ns)}{_hidden_text(plan)}",
        *_made_before_lines(plan),
        *_scheduled_lines(price),
        f"peak memory {bytes_text(price.peak_bytes)} {limit}" + ("" if plan.fits else "  DOES NOT FIT"),
    ]
    if plan.status in ("optimal", "feasible") and plan.lower_bound_ns:
        lines.append(f"lower bound {time_text(plan.lower_bound_ns)}, gap {plan.gap:.2%}: {plan.proved}")
        lines += _folded_lines(plan)
    else:
        lines.append(plan.proved)
    if not plan.fits:
        bound = plan.statistics.get("peak_bound_bytes")
        known = f" (no plan can peak below {bytes_text(bound)})" if isinstance(bound, int) else ""
        lines.append(f"smallest peak found: {bytes_text(plan.smallest_peak_bytes)}{known}")
        stored = plan.statistics.get("stored_peak_bytes")
        if isinstance(stored, int):
            lines.append(
                f"beside vector memory the plan is predicted to take {bytes_text(stored)}; what the compiler may keep there"
                " has to fit as well, because it need not keep it there (a larger --memory with --confirm asks it)"
            )
    return Text("\n".join(lines))


def shape_text(topology: Sequence[int], slices: int | None) -> str:
    """Of devices, as "4x4" or "2 slices of 4x4"."""
    of_slices = f"{slices} slices of " if slices is not None and slices > 1 else ""
    return of_slices + "x".join(map(str, topology))


def _placement_lines(plan: Plan) -> list[str]:
    """What rides on what, and the devices that the mesh is to be made of."""
    if not plan.placement:
        return []
    if not plan.device_order:
        return [f"placement {plan.placement} (row-major: devices in the order of their ids)"]
    first = ", ".join(map(str, plan.device_order[:_SHOWN_DEVICES]))
    more = ", …" if len(plan.device_order) > _SHOWN_DEVICES else ""
    return [
        f"placement {plan.placement}: make the mesh of devices {first}{more}, by their ids (device_order in --json)"
    ]


def _hidden_text(plan: Plan) -> str:
    """What runs behind compute, where the plan assumes that something does."""
    if plan.overlap == "none":
        return ""
    hidden = sum(c.hidden_ns * c.repeat for c in plan.price.collectives)
    behind = f"{time_text(hidden)} more" if hidden else "nothing"
    return f" ({behind} behind compute: overlap {plan.overlap})"


def _made_before_lines(plan: Plan) -> list[str]:
    """What the predicted step has twice, where it is a thousandth of it."""
    ns = plan.made_before_ns
    if ns * 1000 < plan.price.step_ns or not ns:
        return []
    return [f"of which {time_text(ns)} are for what the compiler has sent for another reader already"]


def _scheduled_lines(price: Price) -> list[str]:
    """What the compiler's scheduler makes of the step, at its prices."""
    found = price.scheduled
    if found is None:
        return []
    waited = ""
    if found.asynchronous_ns:
        waited = f", waiting for {time_text(found.waited_ns)} of {time_text(found.asynchronous_ns)} of asynchronous collectives"
    return [f"by the compiler's scheduler, at its prices, {time_text(found.step_ns)}{waited}"]


def _folded_lines(plan: Plan) -> list[str]:
    """What came of planning repeated layers alike, where that was tried."""
    cost, loss = (plan.statistics.get(f"folded {figure}") for figure in ("cost", "loss"))
    if not isinstance(cost, int) or not isinstance(loss, float):
        return []
    return [
        f"repeated layers planned alike: {time_text(cost)}, gap {loss:.2%}; the search went on from there"
    ]


def _prices(plan: Plan) -> RenderableType:
    table = Table(title="against baselines, same model", title_justify="left", box=None, pad_edge=False)
    in_order = ("in order",) if plan.is_by_order else ()
    for heading in ("plan", *in_order, "step", "compute", "communication", "peak", "fits", ""):
        table.add_column(heading, justify="left" if heading in ("plan", "fits", "") else "right")
    rows = [("this plan", plan.price, plan.fits, "")]
    rows += [(b.name, b.price, b.fits, b.note) for b in plan.baselines]
    for name, price, fits, note in rows:
        ordered = (price.compared_ns(is_by_order=True),) if in_order else ()
        times = (*ordered, price.step_ns, price.compute_ns, price.communication_ns)
        figures = [*map(time_text, times), bytes_text(price.peak_bytes)]
        if not price.step_ns and note:
            table.add_row(name, *("-" for _ in figures), "-", note)
        else:
            table.add_row(name, *figures, "yes" if fits else "no", note)
    return table


def _levels(plan: Plan) -> RenderableType:
    table = Table(
        title="priority by priority",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for heading in ("priority", "demands", "step", "peak", "proved", ""):
        table.add_column(heading, justify="right" if heading in ("demands", "step", "peak") else "left")
    for level in plan.levels:
        figures = (
            (time_text(level.step_ns), bytes_text(level.peak_bytes), "yes" if level.is_proved else "no")
            if level.step_ns or not level.note
            else ("-", "-", "-")
        )
        table.add_row(f"p{level.priority}", str(level.demands), *figures, level.note)
    return table


def _collectives(price: Price) -> RenderableType:
    groups = priced_groups(price)
    if not groups:
        return Text("no collectives")
    table = Table(title="collectives", title_justify="left", box=None, pad_edge=False)
    for heading in ("kind", "axes", "count", "bytes", "time", "share"):
        table.add_column(heading, justify="left" if heading in ("kind", "axes") else "right")
    for (kind, axes), group in groups.items():
        time = sum(c.ns * c.repeat for c in group)
        table.add_row(
            kind,
            ",".join(axes),
            str(sum(c.repeat for c in group)),
            bytes_text(sum(c.bytes * c.repeat for c in group)),
            time_text(time),
            f"{time / max(price.step_ns, 1):.1%}",
        )
    return table


def _shardings(title: str, rows: tuple[NamedSharding, ...], *, show_all: bool) -> RenderableType:
    """The largest first when there are many; all of them on request."""
    shown = (
        rows if show_all or len(rows) <= MAX_ROWS else tuple(sorted(rows, key=lambda r: -r.bytes)[:MAX_ROWS])
    )
    heading = (
        title
        if len(shown) == len(rows)
        else f"{title} (the {len(shown)} largest of {len(rows)}; --all shows all)"
    )
    table = Table(title=heading, title_justify="left", box=None, pad_edge=False)
    for column in ("name", "type", "sharding", "a device"):
        table.add_column(column, justify="right" if column == "a device" else "left", overflow="fold")
    for row in shown:
        name = f"{row.name} (carried)" if row.is_carried else row.name
        table.add_row(Text(name), Text(row.type), Text(row.sharding), bytes_text(row.bytes))
    return table


def summary_data(plan: Plan) -> dict[str, Any]:
    """The summary as plain data: times in ns, sizes in bytes."""

    def price(p: Price) -> dict[str, Any]:
        return {
            "step_ns": p.step_ns,
            "compute_ns": p.compute_ns,
            "communication_ns": p.communication_ns,
            "peak_bytes": p.peak_bytes,
            "scheduled": None if p.scheduled is None else asdict(p.scheduled),
        }

    def shardings(rows: tuple[NamedSharding, ...]) -> list[dict[str, Any]]:
        return [
            {
                "name": r.name,
                "type": r.type,
                "sharding": r.sharding,
                "bytes": r.bytes,
                "carried": r.is_carried,
            }
            for r in rows
        ]

    return {
        "mesh": dict(plan.mesh),
        "hardware": plan.hardware,
        "topology": list(plan.topology),
        "slices": plan.slices,
        "placement": plan.placement,
        "device_order": list(plan.device_order),
        "overlap": plan.overlap,
        "memory_bytes": plan.memory_bytes,
        "status": plan.status,
        "proved": plan.proved,
        "fits": plan.fits,
        "predicted": price(plan.price),
        "lower_bound_ns": plan.lower_bound_ns,
        "gap": plan.gap,
        "smallest_peak_bytes": plan.smallest_peak_bytes,
        "collectives": [
            {
                "kind": kind,
                "axes": list(axes),
                "count": sum(c.repeat for c in group),
                "bytes": sum(c.bytes * c.repeat for c in group),
                "ns": sum(c.ns * c.repeat for c in group),
                "hidden_ns": sum(c.hidden_ns * c.repeat for c in group),
            }
            for (kind, axes), group in priced_groups(plan.price).items()
        ],
        "levels": [
            {
                "priority": level.priority,
                "demands": level.demands,
                "step_ns": level.step_ns,
                "peak_bytes": level.peak_bytes,
                "proved": level.is_proved,
                "note": level.note,
            }
            for level in plan.levels
        ],
        "baselines": {b.name: {**price(b.price), "fits": b.fits, "note": b.note} for b in plan.baselines},
        "arguments": shardings(plan.arguments),
        "results": shardings(plan.results),
        "warnings": list(plan.warnings),
        "statistics": plan.statistics,
        "provenance": plan.provenance,
    }
