"""Values that nothing split comes into, as random numbers: their own readers alone decide by propagation how they are split.

XLA simplifies a module before it propagates, and what it then takes for noise that a product and its gradient read need not be what
Shardy makes of the module as it is written: a generator's 65536 x 128 numbers were split along the 128, as the gradient of the weight that
they meet was, and what goes back to the product was gathered whole (67 MB an operand; libtpu 0.0.51, v5e).
"""

from autoshard.mlir.flops import MATMULS
from autoshard.mlir.listing import Listing
from autoshard.mlir.variants import Choices


def split_noise(listing: Listing, choices: Choices) -> frozenset[int]:
    """Those that the plan splits and a product reads."""
    anchored = {
        argument.value
        for argument in listing.arguments
        if not choices.settled(argument.value).is_fully_replicated
    }
    before = -1
    while before != len(anchored):
        before = len(anchored)
        for op in listing.ops:
            if not anchored.isdisjoint(op.operands):
                anchored.update(op.results)
        for flow in listing.data_flows:
            if any(source.value in anchored for source in flow.sources):
                anchored.add(flow.target)
    return frozenset(
        value
        for op in listing.ops
        if op.name in MATMULS
        for value in op.operands
        if value not in anchored
        and not choices.is_recomputed(value)
        and not choices.settled(value).is_fully_replicated
    )
