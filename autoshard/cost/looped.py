"""What a product takes in memory whose sum XLA for TPUs completes over devices.

On v5e an all-reduce does not write over what it sums (`Tiles.sums_in_place`): both are there for a moment, also where parts of the sum are
all that is kept (every large one in dumps of a vision transformer's random plans; five products of 0.5 and 1 GB cut over all sixteen
devices; not what is cut along one dimension over some, which XLA splits otherwise first). Where XLA makes a loop of the product, to
scatter its sum while it runs (`sharding.scattering`), nothing whole is made: it takes six parts, two that come, two that go and two in the
gaps between, one of which is the result in the end (products of 0.5 to 2 GB on v5e 4x4, cut along either dimension), of which none or two
are left in main memory where vector memory has room for all (parts of 17 MB and less). The loop is handed its operands as they are, so
elementwise work that products otherwise repeat inside is stored for it: while it runs, and from when it could first be done where that is
behind the product that makes what it works on (one fusion makes both), unless that is stored as it is handed (`program/packed.py`). What
it is handed the product in front of it that reads the same reads so too, other loops, and other products until the last, unless what the
loop is handed is padded: then they repeat the work. So it is of normalized values (two a layer in GPT-2 and one in CLIP, libtpu 0.0.52),
and of gradients of float32 logits, of which there is the narrow one alone (eleven training steps on v5e, v5p and v6e). At the least it is
so of what is handed narrower than it is made. The first operand is transposed in front of the loop where its first dimension is summed
over, whichever is cut and whichever is larger (four gradients of weights on v5e 4x4), in the place of what it is worked out from where
that is gone then (`program/sources.py`). Of a part that lies column by column, as that pads less (`Tiles.lie_across`: 4096 by 96, not by
128, thirteen products on v5p 2x2x4), it is the second, and the other products read what the loop is handed of the first. What goes back to
logits is stored for it from when labels are picked, where that is beside it (`program/picking.py`). Seen in what libtpu 0.0.51 compiles.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.graph import Graph, KernelSpace, Node
from autoshard.cost.kernel import KernelPrices
from autoshard.cost.scattering import is_scattered_in_product
from autoshard.cost.sizes import Item, Shared, Sizes
from autoshard.program import Lives, SharedReads, Sources, repeated_values, stored_beside, sums_rows
from autoshard.sharding import dtype_bits
from autoshard.space import Strategy

Looped = Mapping[KernelSpace, NDArray[np.bool_]]
"""Of each strategy, whether it scatters its sum in a loop with the product; spaces without such strategies are left out."""

_PARTS = 6


def looped_sums(prices: Mapping[KernelSpace, KernelPrices]) -> Looped:
    found = {
        space: np.asarray([is_scattered_in_product(one) for one in price.collectives], dtype=np.bool_)
        for space, price in prices.items()
    }
    return {space: are for space, are in found.items() if are.any()}


class LoopedSums:
    """Items of memory beside those of values, of every sum that goes over devices."""

    def __init__(self, graph: Graph, sizes: Sizes, looped: Looped) -> None:
        self._graph, self._sizes, self._looped = graph, sizes, looped
        self._repeated, self._beside = repeated_values(graph.program), stored_beside(graph.program)
        self._shared, self._sources = SharedReads(graph.program), Sources(graph.program)
        self._whole: dict[KernelSpace, NDArray[np.bool_]] = {}

    def items(self, node: Node, lives: Lives) -> Iterator[Item]:
        """Bytes are of every choice of the node."""
        if node.space is None or not node.space.shape.is_matmul:
            return
        shape, kernel = node.space.shape, self._graph.program.kernels[node.kernel]
        looped = self._looped.get(node.space)
        summed = self._are_whole(node.space)
        if looped is not None:
            summed = summed & ~looped
        if summed.any() and not self._sizes.sums_in_place:
            minor = self._graph.program.minor_dims.get(kernel.results[0])
            before = self._sizes.temporary(shape.results[0], node.space.produced[0], minor)
            partial = np.where(summed, before, 0)
            yield Item(kernel.time, kernel.time + 1, partial, note="before it is summed")
        if looped is None:
            return
        part = self._sizes.temporary(shape.results[0], node.choices.supplies[0])
        parts = np.where(looped, (_PARTS - 1) * part, 0)
        yield Item(kernel.time, kernel.time + 1, parts, note="parts that a loop sums")
        for operand in range(len(kernel.uses)):
            yield from self._handed(node, operand, looped, lives)

    def _handed(self, node: Node, operand: int, looped: NDArray[np.bool_], lives: Lives) -> Iterator[Item]:
        assert node.space is not None
        kernel, shape = self._graph.program.kernels[node.kernel], node.space.shape
        layouts = node.choices.demands[operand]
        bytes_ = self._sizes.temporary(shape.travels[operand], layouts)
        repeated = self._repeated.get(kernel.uses[operand].value)
        is_worked_out = repeated is not None and not lives.of_values[repeated.origin].is_own_buffer
        source = self._sources.of(repeated.origin) if repeated is not None and is_worked_out else None
        is_even = self._graph.layouts[shape.operands[operand].rank].divide(shape.operands[operand], layouts)
        is_first = operand == 0
        are_across = self._sizes.lie_across(shape.results[0], node.choices.supplies[0])
        if sums_rows(shape, operand):
            looped_so = looped & (are_across != is_first)
            is_in_place = source is not None and source.is_gone(lives.of_values, kernel.time)
            copied = np.where(looped_so & ~(is_even & is_in_place), bytes_, 0)
            yield Item(kernel.time, kernel.time + 1, copied, note="operand transposed for a loop")
        if repeated is None or not is_worked_out:
            return
        program = self._graph.program
        if source is not None and program.packed.get(source.value) is not None:
            minor = program.minor_dims.get(source.value)
            looped = looped & ~self._sizes.are_packed(shape.operands[operand], layouts, minor)
        for whole in program.wholes.get(repeated.origin, ()):
            if whole.beside is not None:
                looped = looped & ~self._sizes.lie_beside(whole, layouts)
        begin, end = repeated.stored_from(lives.of_values, kernel.time), lives.end_of_handed(kernel.time)
        own, beside = "operand worked out for a loop", "operand made with what labels are picked from"
        handed = [(begin, looped, own)]
        picked = self._graph.program.picked.get((kernel.results[0], operand))
        if picked is not None and picked.time < begin:
            are_so = np.asarray(
                [
                    picked.is_beside(one.operands[operand], one.produced[0], one.settled[0])
                    for one in node.space.strategies
                ]
            )
            handed = [(picked.time, looped & are_so, beside), (begin, looped & ~are_so, own)]
        bits = dtype_bits(shape.travels[operand].dtype)
        for value, life in self._beside.get((kernel.time, operand), ()):
            if not lives.of_values[value].is_own_buffer:
                wide = bytes_ * dtype_bits(program.widths.of_value(value).dtype) // bits
                made_so = np.where(looped, wide, 0)
                yield Item(life.begin, life.end, made_so, note="made with what a loop is handed")
        is_narrowed = shape.operands[operand] != shape.travels[operand]
        is_made_anew = repeated.is_made_with_product or repeated.is_of_little
        is_shared = (is_narrowed or not lives.is_least) and not is_made_anew
        alike = Shared(repeated.origin, shape.travels[operand], layouts)
        for since, are_handed, note in handed:
            yield Item(since, end, np.where(are_handed, bytes_, 0), note=note, shared=alike)
            shared = np.where(are_handed & is_even & ~(are_across & is_first), bytes_, 0)
            for spell in (
                self._shared.spells(kernel, operand, (since, end), lives.waiting) if is_shared else ()
            ):
                note = "as a loop is handed it, for other products"
                yield Item(*spell, shared, note=note, shared=alike)

    def _are_whole(self, space: KernelSpace) -> NDArray[np.bool_]:
        """Of each strategy; kernels of equal layers share a space."""
        if space not in self._whole:
            self._whole[space] = np.asarray([self._is_whole(one) for one in space.strategies], dtype=np.bool_)
        return self._whole[space]

    def _is_whole(self, strategy: Strategy) -> bool:
        """Whether there is a sum of the whole that the product makes, also where only parts of it are kept."""
        if not strategy.reduced:
            return False
        before, after = strategy.produced[0], strategy.settled[0]
        changed = sum(one != other for one, other in zip(before.axes, after.axes, strict=True))
        is_cut_at_once = strategy.is_scattered and changed == 1
        is_cut_over_all = before.num_shards == 1 and after.num_shards == self._graph.mesh.num_devices
        return not is_cut_at_once or is_cut_over_all
