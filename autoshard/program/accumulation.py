"""Sums that a loop only adds up: XLA makes them once, after it (its pass while-loop-all-reduce-code-motion).

What every device has of an addend is added to what it has of the others in each trip, and the total goes over the network. That holds
for a value whose only reader, through ops that keep its elements, adds it to what the loop carries; that is read by nothing else in the
loop, and the sum by nothing but the next trip.

Seen in what libtpu 0.0.51 compiles for v5e 4x4: gradients of weights and biases in the backward loop of a recurrent network. Not where
the device keeps a slice of the sum.
"""

from collections.abc import Mapping

from autoshard.mlir.decisions import Site, sites_of
from autoshard.mlir.listing import DataFlow, Listing, Op

_PASSES = ("stablehlo.reshape", "stablehlo.transpose", "sdy.sharding_constraint", "sdy.reshard")


def sums_after_loops(listing: Listing) -> dict[int, int]:
    """How often the sum of each such value is made after its loop."""
    sites = sites_of(listing)
    made = {value: index for index, op in enumerate(listing.ops) for value in op.results}
    found: dict[int, int] = {}
    for flow in listing.data_flows:
        if flow.kind != "while" or len(flow.sources) != 2:
            continue
        value = _addend(listing, flow, made, sites)
        while value is not None and len(sites[value]) == 1 and value in made:
            found[value] = flow.sources[0].repeat
            op = listing.ops[made[value]]
            value = op.operands[0] if _keeps_elements(listing, op) else None
    return found


def _addend(
    listing: Listing, flow: DataFlow, made: Mapping[int, int], sites: Mapping[int, tuple[Site, ...]]
) -> int | None:
    """What each trip adds to the carried value, and does nothing else with that."""
    total = flow.sources[1].value
    index = made.get(total, -1)
    readers = [op for op, _ in sites.get(flow.target, ()) if flow.begin <= op < flow.end]
    if index < 0 or readers != [index] or listing.ops[index].name != "stablehlo.add":
        return None
    others = [value for value in listing.ops[index].operands if value != flow.target]
    return others[0] if len(others) == 1 and len(sites[total]) == 1 else None


def _keeps_elements(listing: Listing, op: Op) -> bool:
    """A reduction does over dimensions of one element."""
    before, after = (listing.values[value].type for value in (op.operands[0], op.results[0]))
    is_same = before is not None and after is not None and before.num_elements == after.num_elements
    return op.name in _PASSES or (op.name == "stablehlo.reduce" and len(op.results) == 1 and is_same)
