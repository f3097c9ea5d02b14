"""What a product takes in memory whose sum XLA for TPUs completes over devices.

An all-reduce does not write over what it sums: both are there for a moment, also where parts of the sum are all that is kept (every large
one in dumps of a vision transformer's random plans, libtpu 0.0.51). Where XLA makes a loop of the product, to scatter its sum while it
runs (`sharding.scattering`), that is handed its operands as they are, so elementwise work that products otherwise repeat inside is stored
for it: while the loop runs, and from when it could first be done where that is behind the product that makes what it works on (one fusion
makes both). The operand that each turn takes a slice of is copied into a layout in which slices are whole, while the loop runs. Seen in
what libtpu 0.0.51 compiles for v5e 4x4: of the training step of a multilayer perceptron with activations of 4.3 GB on a device, both what
a rectifier reads and what it makes are stored.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from autoshard.cost.graph import Graph, Node
from autoshard.cost.sizes import Item, Sizes
from autoshard.program import KernelShape, Lifetime, repeated_values
from autoshard.sharding import PRODUCT, is_cut_over_all
from autoshard.space import Strategy


class LoopedSums:
    """Items of memory beside those of values, of every sum that may be scattered so, also where the product is too short for a loop."""

    def __init__(self, graph: Graph, sizes: Sizes, lives: Mapping[int, Lifetime]) -> None:
        self._graph, self._sizes, self._lives = graph, sizes, lives
        self._repeated = repeated_values(graph.program)

    def items(self, node: Node) -> Iterator[Item]:
        """Bytes are of every choice of the node."""
        if node.space is None or not node.space.shape.is_matmul:
            return
        shape, kernel = node.space.shape, self._graph.program.kernels[node.kernel]
        cuts = [self._cut(shape, strategy) for strategy in node.space.strategies]
        summed = [bool(one.reduced) and not _is_scattered_at_once(one) for one in node.space.strategies]
        if any(summed):
            minor = self._graph.program.minor_dims.get(kernel.results[0])
            before = self._sizes.temporary(shape.results[0], node.space.produced[0], minor)
            yield Item(kernel.time, kernel.time + 1, np.where(summed, before, 0))
        if all(cut < 0 for cut in cuts):
            return
        for operand, use in enumerate(kernel.uses):
            bytes_ = self._sizes.temporary(shape.travels[operand], node.choices.demands[operand])
            sliced = [cut >= 0 and _has_dim(shape, operand, cut) for cut in cuts]
            if any(sliced):
                yield Item(kernel.time, kernel.time + 1, np.where(sliced, bytes_, 0))
            repeated = self._repeated.get(use.value)
            if repeated is not None and not self._lives[repeated.origin].is_own_buffer:
                begin = repeated.stored_from(self._lives, kernel.time)
                yield Item(begin, kernel.time + 1, np.where([cut >= 0 for cut in cuts], bytes_, 0))

    def _cut(self, shape: KernelShape, strategy: Strategy) -> int:
        """The dimension of the result that such a sum is cut along; -1: the strategy has none."""
        if shape.name != PRODUCT or not strategy.is_scattered:
            return -1
        before, after = strategy.produced[0], strategy.settled[0]
        if not is_cut_over_all(before, after, shape.results[0].shape, self._graph.mesh):
            return -1
        return next(dim for dim, axes in enumerate(after.axes) if axes)


def _is_scattered_at_once(strategy: Strategy) -> bool:
    """Whether parts along one dimension are kept of a sum: XLA sums and cuts in one fusion then."""
    dims = zip(strategy.produced[0].axes, strategy.settled[0].axes, strict=True)
    return strategy.is_scattered and sum(before != after for before, after in dims) == 1


def _has_dim(shape: KernelShape, operand: int, dim: int) -> bool:
    return not {*shape.rule.results[0][dim]}.isdisjoint(
        factor for factors in shape.rule.operands[operand] for factor in factors
    )
