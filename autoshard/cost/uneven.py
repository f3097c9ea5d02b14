"""What XLA sends where a dimension does not divide by its shards, and of short vectors.

Every device holds ceil(size / shards) elements of a dimension, the last ones padding. An exchange pads the dimension that it splits in the
same way, so that all parts are of one size. Where a dimension that is split already is split further, or less, the parts of the two
shardings do not begin at the same elements unless ceil(size / many) * (many / few) = ceil(size / few). XLA then

- first moves the rows that lie with another device: in all (few - 1) * (the difference of the two sides) rows, by a permute from each
  neighbour that has some of them, of no more than it holds,
- and gathers over all devices that hold a part, and slices, where axes are to be exchanged.

A vector of up to 64 KiB (seen: 53 kB, and not 120 kB, over 4 and over 16 devices) is gathered by summing zero-padded ones, in its own
type, unless its parts fill rows of the vector registers, of 128 elements each: over 16 devices 1024, 1536, 2560 and 3072 elements of
bf16 and of f32 are summed, 2048, 4096 and 6144 are not.

Narrow rows, of fewer elements together than a register has lanes, lie with the dimension before them along the lanes. Where that is
gathered over all of many devices on a torus of two dimensions and takes 256 KiB or more, a sum is not made in the place of the gather (34
gathers on v5e 8x8, 8x16 and v6e 8x8; on v5p 4x4x4 one is, and of bfloat16 half of that sufficed in one of seven).

A dimension of at most half as many elements as parts of it come together (2 over 4; only where a user wants it so) is not gathered:
each device puts what it holds into zeros of the whole, in the type that the value has, and those are summed, after a gather of the
other dimensions (seen on v5e 2x4, libtpu 0.0.52; XLA's `PartitionedHlo::ReplicatePartial`).

Seen in what libtpu 0.0.51 compiles for v5e 4x4: dimensions of 52 and 197 over axes of 4 and 4, all pairs of shardings of two dimensions.
"""

import math
from collections.abc import Iterable, Iterator

from autoshard.cost.lowering import Emitted, is_gathered_by_sum
from autoshard.mlir.collective import CollectiveStep
from autoshard.sharding import AxisRef, TensorSharding, TensorType, dtype_bits, total_size

_LANES, _WORD_BYTES = 128, 4
_LONG_COLUMN_BYTES = 256 * 1024


def has_long_columns(type_: TensorType) -> bool:
    """Whether some gather of what travels so may be `is_along_lanes`."""
    return any(_is_long_column(type_, dim, _WORD_BYTES * size) for dim, size in enumerate(type_.shape))


def is_along_lanes(step: CollectiveStep, before: TensorSharding, type_: TensorType, widening: int) -> bool:
    """Whether a step gathers a long dimension of narrow rows; `widening`: how many times as wide the value is as what travels."""
    after = step.out_sharding
    gathered = [dim for dim, axes in enumerate(before.axes) if axes != after.axes[dim]]
    if step.kind != "all_gather" or len(gathered) != 1:
        return False
    (dim,) = gathered
    return _is_long_column(type_, dim, type_.shape[dim] * dtype_bits(type_.dtype) * widening // 8)


def _is_long_column(type_: TensorType, dim: int, column_bytes: int) -> bool:
    return 1 < math.prod(type_.shape[dim + 1 :]) < _LANES and column_bytes >= _LONG_COLUMN_BYTES


def emitted_step(
    step: CollectiveStep, before: TensorSharding, type_: TensorType, widening: int = 1
) -> tuple[Emitted, ...]:
    """What XLA makes of one collective of a reshard, by the parts that devices really hold; `widening` as of `is_along_lanes`."""
    after, held = step.out_sharding, before.local_bytes(type_)
    match step.kind:
        case "all_gather":
            shifts = _shifts(step.axes, before, after, type_)
            return (*shifts, *_gathered(step, before, type_, widening))
        case "all_slice":
            return tuple(_shifts(after.used_axes(), before, after, type_))
        case "all_to_all" if any(_shifts(step.axes, before, after, type_)):
            return (Emitted("all_gather", tuple(before.used_axes()), held),)
        case "all_to_all":
            return (Emitted("all_to_all", step.axes, _exchanged_bytes(before, after, type_)),)
        case _:
            return (Emitted(step.kind, step.axes, held),)


def _gathered(
    step: CollectiveStep, before: TensorSharding, type_: TensorType, widening: int
) -> Iterator[Emitted]:
    after, held = step.out_sharding, before.local_bytes(type_)
    left = after.local_shape(type_.shape)
    few = [
        axis
        for size, old, new in zip(left, before.dims, after.dims, strict=True)
        if 2 * size * new.num_shards <= old.num_shards
        for axis in old.axes
    ]
    summed = tuple(axis for axis in step.axes if any(axis.overlaps(other) for other in few))
    rest = tuple(axis for axis in step.axes if axis not in summed)
    if is_gathered_by_sum(type_, math.prod(before.local_shape(type_.shape))) and not summed:
        yield Emitted("all_reduce", step.axes, held * total_size(step.axes))
    elif rest:
        yield Emitted("all_gather", rest, held)
    if summed:
        yield Emitted("all_reduce", summed, after.local_bytes(type_) * widening)


def _exchanged_bytes(before: TensorSharding, after: TensorSharding, type_: TensorType) -> int:
    """Of the operand of an exchange on one device: the parts that it holds, what is to be sent padded to parts of one size."""
    held, sent = before.local_shape(type_.shape), after.local_shape(type_.shape)
    sizes = [
        part * (new.num_shards // old.num_shards) if new.num_shards > old.num_shards else own
        for own, part, old, new in zip(held, sent, before.dims, after.dims, strict=True)
    ]
    return TensorType(tuple(sizes), type_.dtype).num_bytes


def _shifts(
    axes: Iterable[AxisRef], before: TensorSharding, after: TensorSharding, type_: TensorType
) -> Iterator[Emitted]:
    """Permutes for each dimension of which parts before and after begin at different elements."""
    held, axes = before.local_shape(type_.shape), tuple(axes)
    for dim, (size, old, new) in enumerate(zip(type_.shape, before.dims, after.dims, strict=True)):
        few, many = sorted((old.num_shards, new.num_shards))
        if few == 1 or few == many or many % few:
            continue
        left = (few - 1) * (-(-size // many) * (many // few) - -(-size // few))
        for _ in range(few - 1):
            rows = min(left, held[dim])
            left -= rows
            if rows:
                moved = TensorType((*held[:dim], rows, *held[dim + 1 :]), type_.dtype)
                yield Emitted("collective_permute", axes, moved.num_bytes)
