"""Manual computations in a plan: what is handed over at their edges, and that nothing in them is split by manual axes.

Outside the edge each dimension is split by the manual axes that the user wrote there, then by what the plan adds; inside by the
latter alone.
"""

from collections.abc import Iterator
from dataclasses import replace

from autoshard.check.parts import axis_refs, parts_of
from autoshard.check.planned import Planned, site_value
from autoshard.check.report import Finding, of_offenders
from autoshard.program import RESULT_SITE
from autoshard.sharding import AxisRef, TensorSharding


def before_edge(planned: Planned, number: int, found: TensorSharding) -> TensorSharding:
    """What data flow `number` is handed for its target to be `found`."""
    crossing = planned.listing.data_flows[number].crossing
    if crossing is None:
        return found
    dims = [parts_of(dim.axes) for dim in found.dims]
    manual = [parts_of(axes) for axes in crossing.axes]
    if crossing.is_entering:
        dims = [(*first, *rest) for first, rest in zip(manual, dims, strict=True)]
    else:
        dims = [
            parts[len(first) :] if parts[: len(first)] == first else parts
            for first, parts in zip(manual, dims, strict=True)
        ]
    split = TensorSharding.closed([axis_refs(parts, planned.mesh) for parts in dims])
    return replace(split, unreduced=found.unreduced)


def manual_axes(planned: Planned) -> Finding:
    """Inside, no value and no read is split by a manual axis; outside, those of the user come first and no dimension has others."""
    offenders: list[str] = []
    count = 0
    for what, sharding, banned in (*_inside(planned), *_leaving(planned)):
        count += 1
        names = {axis.name for axis in banned}
        used = [axis.name for axis in (*sharding.used_axes(), *sharding.unreduced) if axis.name in names]
        if used:
            offenders.append(f'{what}: {sharding} uses axis "{used[0]}", which is manual')
    for number, flow in enumerate(planned.listing.data_flows):
        crossing = flow.crossing
        if crossing is not None and not crossing.is_entering and planned.is_ranked(flow.target):
            dims = zip(crossing.axes, planned.settled[flow.target].axes, strict=True)
            if any(axes[: len(manual)] != manual for manual, axes in dims):
                what = f"{flow.kind} {flow.location} value {flow.target}"
                offenders.append(
                    f"{what}: {planned.settled[flow.target]} lacks manual axes of data flow {number}"
                )
    return of_offenders("manual axes", offenders, count, "manual axes are left to the user")


Split = tuple[str, TensorSharding, tuple[AxisRef, ...]]


def _inside(planned: Planned) -> Iterator[Split]:
    """Shardings of values and reads within manual computations."""
    listing = planned.listing
    for number, op in enumerate(listing.ops):
        if not op.manual_axes:
            continue
        for value in op.results:
            for kind in (planned.produced, planned.settled, planned.shared):
                if value in kind:
                    yield planned.where(number), kind[value], op.manual_axes
    for (op, operand), sharding in planned.uses.items():
        if op >= 0 and listing.ops[op].manual_axes:
            yield planned.where(op), sharding, listing.ops[op].manual_axes
        elif op < 0 and op != RESULT_SITE:
            crossing, axes = listing.data_flows[-1 - op].crossing, listing.data_flows[-1 - op].manual_axes
            assert site_value(listing, (op, operand)) is not None, "reads are of the module's values"
            if crossing is None or not crossing.is_entering:
                yield f"data flow {-1 - op}", sharding, axes
    for flow in listing.data_flows:
        for kind in (planned.settled, planned.shared):
            if flow.target in kind and (flow.crossing is None or flow.crossing.is_entering):
                yield f"{flow.kind} {flow.location}", kind[flow.target], flow.manual_axes


def _leaving(planned: Planned) -> Iterator[Split]:
    """What the plan adds to manual axes outside."""
    for number, flow in enumerate(planned.listing.data_flows):
        if flow.crossing is not None and not flow.crossing.is_entering and flow.target in planned.settled:
            added = before_edge(planned, number, planned.settled[flow.target])
            yield f"{flow.kind} {flow.location}", added, flow.manual_axes
