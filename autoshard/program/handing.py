"""Data flow that hands a buffer on: into and out of manual computations, and through loops that carry a value unchanged.

What such a flow makes is its source's buffer, or where the sharding changes the copy that the change makes. A loop does not store
constants that it carries either: XLA sinks them into the body (`WhileLoopConstantSinking`). What is made of an iota it stores.
"""

from collections import Counter

from autoshard.mlir.listing import DataFlow, Listing


def handing_flows(listing: Listing, free: frozenset[int]) -> tuple[DataFlow, ...]:
    """In program order; `free` are the values that are recomputed wherever they are used."""
    varying = _made_of_iota(listing)
    return tuple(
        flow
        for flow in listing.data_flows
        if flow.crossing is not None or (is_invariant(flow) and flow.sources[0].value not in free & varying)
    )


def is_invariant(flow: DataFlow) -> bool:
    """Whether it is what a loop carries from trip to trip as it is."""
    return flow.kind == "while" and all(source.value == flow.target for source in flow.sources[1:])


def residuals(listing: Listing) -> dict[int, int]:
    """Of values that leave one manual computation only to enter others: what they are there, and what left.

    Those are what the forward pass of a `shard_map` keeps for its backward pass. XLA sees no edge between the two.
    """
    others = {value for op in listing.ops for value in op.operands} | {
        result.value for result in listing.results
    }
    leaving, sources = dict[int, int](), Counter[int]()
    for flow in listing.data_flows:
        sources.update(source.value for source in flow.sources)
        if flow.crossing is None:
            others.update(source.value for source in flow.sources)
        elif not flow.crossing.is_entering:
            leaving[flow.target] = flow.sources[0].value
    return {
        flow.target: leaving[source]
        for flow in listing.data_flows
        if flow.crossing is not None
        and flow.crossing.is_entering
        and (source := flow.sources[0].value) in leaving
        and source not in others
        and sources[leaving[source]] == 1
        and listing.values[flow.target].type == listing.values[leaving[source]].type
    }


def _made_of_iota(listing: Listing) -> frozenset[int]:
    found: set[int] = set()
    for op in listing.ops:
        if op.name == "stablehlo.iota" or not found.isdisjoint(op.operands):
            found.update(op.results)
    return frozenset(found)
