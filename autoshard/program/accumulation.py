"""Sums that a loop only adds up: XLA makes them once, after it (its pass while-loop-all-reduce-code-motion).

What every device has of an addend is added to what it has of the others in each trip, and the totals go over the network. That holds
for a value that is read by nothing but such additions to what the loop carries, through ops that keep elements, cut it into parts or
convert it; and where each total is read by nothing but the next trip. Totals are summed: half of a value where half of it is added up,
twice its bytes where there are two totals of it or where they are float32 and it is bfloat16. But where such a sum is transposed, reshaped
or sliced on the way, and constrained so that XLA does not do that before, its total is converted back first (18 small loops).

Seen in what libtpu 0.0.51 compiles for v5e: gradients of weights and biases in the backward loop of a recurrent network, whose gates are
slices of one product. Not of what is scaled, negated, padded or subtracted on the way, and not where the device keeps a slice of the sum.
Nor is it counted where the user asks for a sharding of what is on the way, for which it may have to be summed; of the total itself the
same may be asked in each trip as of what is carried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.mlir.listing import DataFlow, Listing, Op, Site
from autoshard.sharding import dtype_bits

_KEEPING = frozenset({"stablehlo.convert", "sdy.sharding_constraint", "sdy.reshard"})
_PASSES = _KEEPING | {"stablehlo.reshape", "stablehlo.transpose", "stablehlo.slice"}


@dataclass(frozen=True, slots=True)
class AddedUp:
    """What a loop adds up of a value."""

    runs: int  # how often the loop itself runs
    bytes: int  # of all totals, undivided
    elements: int
    is_handed_on: bool = False  # in another shape
    is_narrowed: bool = False  # to be summed


def sums_after_loops(listing: Listing) -> dict[int, AddedUp]:
    """Of each value that a compiler may sum after a loop, what is summed there."""
    sites = listing.sites
    made = {value: index for index, op in enumerate(listing.ops) for value in op.results}
    totals = {
        added: AddedUp(flow.sources[0].repeat, total.num_bytes, total.num_elements)
        for flow in listing.data_flows
        if (added := _added(listing, flow, made, sites)) is not None
        and (total := listing.values[flow.target].type) is not None
        and total.num_bytes
    }
    found: dict[int, AddedUp] = {}
    grouped = {member.value for group in listing.groups for member in group.members}
    for op in reversed(listing.ops):
        if len(op.results) != 1 or not grouped.isdisjoint(op.results):
            continue
        parts = [
            _summed(listing, site, op.results[0], totals, found) for site in sites.get(op.results[0], ())
        ]
        known = [part for part in parts if part is not None]
        if known and len(known) == len(parts) and len({part.runs for part in known}) == 1:
            found[op.results[0]] = _together(listing, op, known)
    return found


def _together(listing: Listing, op: Op, parts: Sequence[AddedUp]) -> AddedUp:
    """What is summed of an op's result for all its uses."""
    type_ = listing.values[op.results[0]].type
    assert type_ is not None, "it is added up"
    own = [part.elements * dtype_bits(type_.dtype) // 8 for part in parts]
    summed = [
        min(mine, part.bytes) if part.is_handed_on else part.bytes
        for mine, part in zip(own, parts, strict=True)
    ]
    return AddedUp(
        parts[0].runs,
        sum(summed),
        sum(part.elements for part in parts),
        (op.name not in _KEEPING and _hands_on(listing, op)) or any(part.is_handed_on for part in parts),
        not _hands_on(listing, op) and sum(summed) < sum(part.bytes for part in parts),
    )


def _added(
    listing: Listing, flow: DataFlow, made: Mapping[int, int], sites: Mapping[int, tuple[Site, ...]]
) -> tuple[int, int] | None:
    """The addition by which each trip adds a value to what it carries, doing nothing else with that; and the value."""
    if flow.kind != "while" or len(flow.sources) != 2:
        return None
    total = flow.sources[1].value
    index = made.get(total, -1)
    readers = [op for op, _ in sites.get(flow.target, ()) if flow.begin <= op < flow.end]
    if index < 0 or readers != [index] or listing.ops[index].name != "stablehlo.add":
        return None
    if listing.ops[index].demand not in (None, flow.demand):
        return None
    others = [value for value in listing.ops[index].operands if value != flow.target]
    return (index, others[0]) if len(others) == 1 and len(sites[total]) == 1 else None


def _summed(
    listing: Listing,
    site: Site,
    value: int,
    totals: Mapping[tuple[int, int], AddedUp],
    found: Mapping[int, AddedUp],
) -> AddedUp | None:
    """What is summed after the loop of a value for one use of it; None: it is needed in the loop."""
    index, _ = site
    if index < 0:
        return None
    reader = listing.ops[index]
    if reader.demand is not None and (index, value) not in totals:
        return None
    return found.get(reader.results[0]) if _hands_on(listing, reader) else totals.get((index, value))


def _hands_on(listing: Listing, op: Op) -> bool:
    """Reductions and broadcasts do over dimensions of one element."""
    if op.name in _PASSES:
        return True
    if op.name not in ("stablehlo.reduce", "stablehlo.broadcast_in_dim") or len(op.results) != 1:
        return False
    before, after = (listing.values[value].type for value in (op.operands[0], op.results[0]))
    return before is not None and after is not None and before.num_elements == after.num_elements
