"""What a step returns beside its state, such as its loss, is worked out as soon as what it reads is there.

A framework may have that behind the backward pass, where it is needed. XLA:TPU orders instructions by the memory that they take and leave
first, so that sums of logits, which take none, come in front of what goes back to these, which takes as much as they do: 42 training steps
of a transformer whose loss is taken of one-hot labels in 14 ways, with logits in bfloat16 and float32, capped and not (libtpu 0.0.52, v5e,
v6e and v5p). Of what is done in loops nothing is known.
"""

from collections.abc import Sequence

from autoshard.mlir.listing import Listing
from autoshard.program.records import Kernel

_PARTS = 64
"""What is reported takes no more than one in so many parts of the largest value: sums, or what is one for each word."""


def run_early(
    kernels: Sequence[Kernel], listing: Listing, pairs: Sequence[tuple[int, int]]
) -> dict[int, int]:
    """Of kernels that only such results wait for, when they run, by their times; those that run where they are have none.

    Args:
        kernels: in the order of the program.
        pairs: (result index, argument index) of the state.
    """
    times: dict[int, int] = {}
    runs: dict[int, int] = {}  # when each value is made
    flows = {flow.target: flow.end for flow in listing.data_flows}
    reported = _reported(listing, pairs)
    for kernel in kernels:
        if not kernel.shape.is_matmul and kernel.results and reported.issuperset(kernel.results):
            ready = (flows.get(use.value, runs.get(use.value, 0)) for use in kernel.uses)
            time = max(ready, default=kernel.time)
            if time < kernel.time:
                times[kernel.time] = time
        runs.update(dict.fromkeys(kernel.results, times.get(kernel.time, kernel.time)))
    return times


def _reported(listing: Listing, pairs: Sequence[tuple[int, int]]) -> frozenset[int]:
    """Small values made outside of loops that such results alone need."""
    state = {result for result, _ in pairs}
    kept = {one.value for number, one in enumerate(listing.results) if number in state}
    kept |= {source.value for flow in listing.data_flows for source in flow.sources}
    found = {one.value for one in listing.results} - kept
    inside = {time for flow in listing.data_flows for time in range(flow.begin, flow.end)}
    sizes = [one.type.num_elements if one.type is not None else 0 for one in listing.values]
    largest = max(sizes, default=0)
    for time, op in reversed([*enumerate(listing.ops)]):
        is_reported = time not in inside and bool(op.results) and found.issuperset(op.results)
        is_reported = is_reported and all(sizes[value] * _PARTS <= largest for value in op.results)
        if not is_reported:
            kept.update(op.operands)
            found.difference_update((*op.results, *op.operands))
            continue
        found.update(value for value in op.operands if value not in kept)
    return frozenset(found)
