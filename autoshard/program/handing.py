"""Data flow that hands a buffer on: into and out of manual computations, through barriers, and through loops that carry a value unchanged.

What such a flow makes is its source's buffer, or where the sharding changes the copy that the change makes. A loop does not store
constants that it carries either: XLA sinks them into the body (`WhileLoopConstantSinking`). What is made of an iota it stores, and so are
constants and broadcasts behind a barrier, which have no buffer in front of it.
"""

from collections import Counter
from collections.abc import Collection

from autoshard.mlir.listing import DataFlow, Listing
from autoshard.program.additions import PASSED
from autoshard.program.fusion import BROADCAST
from autoshard.program.records import MOVES

BARRIER = "optimization_barrier"


def handing_flows(listing: Listing, free: frozenset[int]) -> tuple[DataFlow, ...]:
    """In program order; `free` are the values that are recomputed wherever they are used."""
    varying = _made_of(listing, "stablehlo.iota")
    spread = _made_of(listing, BROADCAST, MOVES | PASSED)  # under other shapes too
    return tuple(
        flow
        for flow in listing.data_flows
        if flow.crossing is not None
        or (flow.kind == BARRIER and flow.sources[0].value not in free | spread)
        or (is_invariant(flow) and flow.sources[0].value not in free & varying)
    )


def is_invariant(flow: DataFlow) -> bool:
    """Whether it is what a loop carries from trip to trip as it is."""
    return flow.kind == "while" and all(source.value == flow.target for source in flow.sources[1:])


def residuals(listing: Listing) -> dict[int, int]:
    """Of values that leave one manual computation only to enter others: what they are there, and what left.

    Those are what the forward pass of a `shard_map` keeps for its backward pass. XLA sees no edge between the two where both have it in
    the same parts.
    """
    others = {value for op in listing.ops for value in op.operands} | {
        result.value for result in listing.results
    }
    leaving, sources = dict[int, DataFlow](), Counter[int]()
    for flow in listing.data_flows:
        sources.update(source.value for source in flow.sources)
        if flow.crossing is None:
            others.update(source.value for source in flow.sources)
        elif not flow.crossing.is_entering:
            leaving[flow.target] = flow
    found: dict[int, int] = {}
    for flow in listing.data_flows:
        if flow.crossing is None or not flow.crossing.is_entering:
            continue
        handed = flow.sources[0].value
        left = leaving.get(handed)
        if left is None or left.crossing is None or handed in others:
            continue
        (source,) = (one.value for one in left.sources)
        if sources[source] == 1 and left.crossing.axes == flow.crossing.axes:
            found[flow.target] = source
    return found


def _made_of(listing: Listing, name: str, through: Collection[str] | None = None) -> frozenset[int]:
    """What such ops make, and what is made of that by others; `through` are their names, any unless given."""
    found: set[int] = set()
    for op in listing.ops:
        goes_on = (through is None or op.name in through) and not found.isdisjoint(op.operands)
        if op.name == name or goes_on:
            found.update(op.results)
    return frozenset(found)
