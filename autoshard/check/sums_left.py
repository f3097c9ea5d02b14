"""Sums whose all-reduce Shardy's passes merge with a slice behind it: what is left of both is a reduce-scatter, and the steps behind it.

They do so where all that reads the sum begins with the slice, through constraints that change nothing, as often as the sum is made. A plan
pays for that where a demand keeps the sum as it is made, or asks for the slice, of one reader and in equal parts; what Shardy merges beside
that shows only as written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autoshard.check.moves import Prices
from autoshard.check.planned import Planned
from autoshard.check.reads import KernelRead, Read, Reads, addends_of, summed_parts
from autoshard.mlir.collective import CollectiveStep
from autoshard.mlir.passes import decompose_reshards
from autoshard.program import MOVES
from autoshard.sharding import TensorSharding


@dataclass(frozen=True, slots=True)
class LeftSums:
    """By value.

    Attributes:
        scattered: of what a kernel makes and does not sum: how it is found behind the reduce-scatter.
        addends: of what is sliced, the same value or what constraints make of it: the sum that is still to be made.
    """

    scattered: Mapping[int, TensorSharding] = field(default_factory=dict[int, TensorSharding])
    addends: Mapping[int, TensorSharding] = field(default_factory=dict[int, TensorSharding])


@dataclass(frozen=True, slots=True)
class _Sum:
    value: int  # that the kernel makes
    sliced: int  # that is read
    addends: TensorSharding
    target: TensorSharding

    @property
    def change(self) -> tuple[int, TensorSharding, TensorSharding]:
        return self.addends.rank, self.addends, self.target


def find_left_sums(planned: Planned, reads: Reads, prices: Prices) -> LeftSums:
    if not prices.merges_slices:
        return LeftSums()
    found = list(_sums(planned, reads, prices))
    changes = list(dict.fromkeys(one.change for one in found))
    steps = dict(zip(changes, decompose_reshards(planned.mesh, changes), strict=True)) if changes else {}
    merged = [one for one in found if _is_merged(planned, one, steps[one.change][0], prices)]
    return LeftSums(
        {one.value: steps[one.change][0].out_sharding for one in merged},
        {one.sliced: one.addends for one in merged},
    )


def _is_merged(planned: Planned, one: _Sum, first: CollectiveStep, prices: Prices) -> bool:
    """As it is paid for into equal parts, as written into any."""
    is_even = first.out_sharding.divides(planned.type_of(one.value).shape)
    return first.kind == "reduce_scatter" and (is_even or prices.leaves_loops)


def _sums(planned: Planned, reads: Reads, prices: Prices) -> Iterator[_Sum]:
    """Those that are moved."""
    by_op = {read.kernel.ops[-1]: read for read in reads.kernels}
    for made in reads.kernels:
        if not summed_parts(planned, made) or len(made.kernel.results) != 1:
            continue
        value = sliced = made.kernel.results[0]
        held, is_demanded = planned.produced.get(value), made.kernel.shape.demands[0] is not None
        read = _only_read(planned, reads, value, prices)
        while read is not None and (mover := by_op.get(read.op)) is not None and _is_move(mover):
            is_demanded = True
            if not _keeps(planned, mover, held):
                break
            sliced = mover.kernel.results[0]
            read = _only_read(planned, reads, sliced, prices)
        if (
            held is None
            or read is None
            or read.repeat != made.kernel.repeat
            or planned.settled[value] != held
        ):
            continue
        is_paid = is_demanded and not made.kernel.shape.manual_axes
        if (is_paid or prices.leaves_loops) and _is_moved(held, read.sharding):
            yield _Sum(value, sliced, addends_of(planned, made, value), read.sharding)


def _only_read(planned: Planned, reads: Reads, value: int, prices: Prices) -> Read | None:
    """The one read of a value; as written, one of several that share a copy, all of them."""
    mine = reads.of_value.get(value, [])
    if len(mine) == 1 and value not in planned.shared:
        return mine[0]
    asked = {read.sharding for read in mine}
    is_one = prices.leaves_loops and len(asked) == 1 and asked == {planned.shared.get(value)}
    return mine[0] if is_one else None


def _is_move(read: KernelRead) -> bool:
    return read.kernel.shape.name in MOVES and len(read.kernel.results) > 0


def _keeps(planned: Planned, mover: KernelRead, held: TensorSharding | None) -> bool:
    """Whether a constraint reads and leaves a value as it is held."""
    result = mover.kernel.results[0]
    return {mover.shardings[0], planned.produced.get(result), planned.settled.get(result)} == {held}


def _is_moved(before: TensorSharding, after: TensorSharding) -> bool:
    return before != after and before.mesh == after.mesh and not before.unreduced and not after.unreduced
