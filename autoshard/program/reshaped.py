"""Broadcasts that are stored whole, because the reshape that merges their dimensions is an op of its own.

Decomposed relative positions cut both sides of an attention's scores into rows and columns, add what belongs to the rows of the keys and
what belongs to their columns, each broadcast along the other, and merge the sides again. XLA:TPU (`tpu-broadcast-rewriter`) takes the
reshapes over the additions, so that the scores keep their shape and each broadcast is reshaped instead. That is free outside the tiles,
and along the sublanes where they hold whole tiles of the minor part. Along the lanes it is not: the broadcast is written, its minor part
padded to the lanes, and then merged, and what is merged is read by the product, which writes the sum. So the broadcasts are made before
it, one by one, and the last is there twice for a moment. What one of them lacks as a whole it gets behind the merging, for nothing: what
groups are normalized by stays small.

Seen in what libtpu 0.0.51 compiles for v5e of 60 small programs: sides of 14 to 128 by as many, with one to three broadcasts, added,
multiplied or selected by, of bfloat16, float32 and Booleans, from queries and from tables, heads apart from the batch or merged with it,
two and three spatial dimensions, and gradients. Scores without a batch stay cut. Where one side alone is cut, the product may write the
other one along the lanes; which it does depends on more, and nothing is counted.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, RESHAPE, is_elementwise
from autoshard.program.minor import minor_of_sum
from autoshard.program.records import Kernel, MinorDims, Whole
from autoshard.program.repeating import Readers, read_times, readers_of
from autoshard.sharding import TensorType

_SUBLANES = 8

Sides = tuple[tuple[int, ...], ...]
"""The dimensions, minor last, that each dimension of a reshape's result is merged from."""


def merged_broadcasts(
    kernels: Sequence[Kernel], listing: Listing, free: frozenset[int]
) -> Iterator[tuple[int, Whole]]:
    """By the value whose sharding they have: elementwise work before it is merged, or the name that it gets by that.

    Args:
        free: constants and what is made of them.
    """
    made = {value: kernel for kernel in kernels for value in kernel.results}
    readers = readers_of(kernels)
    for kernel in kernels:
        merging = _merging(kernel, listing, readers)
        sides = None if merging is None else _sides(merging, listing)
        if merging is None or sides is None or all(len(side) != 1 for side in sides):
            continue
        (merged,) = merging.results
        product = _product_behind(kernel, _shape(merged, listing), listing, made, readers)
        dims = None if product is None else minor_of_sum(product.shape)
        whole = sorted(_broadcasts(kernel, listing, sides, free), key=lambda type_: type_.num_bytes)
        if (
            product is None
            or dims is None
            or not whole
            or _is_free(dims, sides, _shape(kernel.results[0], listing))
        ):
            continue
        begin = max(product.time - 1, 0)
        end = min(read_times(merged, readers), default=kernel.time) + 1
        padded: MinorDims = (tuple(side[-1] for side in sides if side), (), True)
        yield kernel.results[0], Whole(begin, begin + 1, whole[-1], padded)
        yield from ((merged, Whole(begin, end, _merge(type_, sides), dims)) for type_ in whole)


def _merging(kernel: Kernel, listing: Listing, readers: Readers) -> Op | None:
    """The reshape that alone reads an elementwise kernel."""
    if not is_elementwise(listing.ops[kernel.time]):
        return None
    reading = readers.get(kernel.results[0], [])
    op = listing.ops[reading[0].time] if len(reading) == 1 else None
    return op if op is not None and op.name == RESHAPE else None


def _sides(merging: Op, listing: Listing) -> Sides | None:
    """None of a reshape that does more than to merge."""
    if merging.rule is None:
        return None
    (before,), (after,) = merging.rule.operands, merging.rule.results
    dim_of = {factors[0]: dim for dim, factors in enumerate(before) if len(factors) == 1}
    shape, merged = (_shape(values[0], listing) for values in (merging.operands, merging.results))
    sides = tuple(
        tuple(dim_of[f] for f in factors if f in dim_of and shape[dim_of[f]] > 1) for factors in after
    )
    is_merging = all(
        math.prod(shape[dim] for dim in side) == size for side, size in zip(sides, merged, strict=True)
    )
    return sides if is_merging else None


def _product_behind(
    kernel: Kernel,
    shape: tuple[int, ...],
    listing: Listing,
    made: Mapping[int, Kernel],
    readers: Readers,
) -> Kernel | None:
    """The product of that shape that an elementwise kernel has cut, if nothing else reads it."""
    cut = (
        made.get(use.value)
        for use, mapping in zip(kernel.uses, kernel.shape.rule.operands, strict=True)
        if mapping == kernel.shape.rule.results[0]
    )
    names = [maker for maker in cut if maker is not None and listing.ops[maker.time].name == RESHAPE]
    step = next((name for name in names if name.shape.operands[0].shape == shape), None)
    while step is not None and not step.shape.is_matmul:
        alike = [
            use.value
            for use, type_ in zip(step.uses, step.shape.operands, strict=True)
            if type_.shape == shape and len(readers[use.value]) == 1
        ]
        is_work = listing.ops[step.time].name == RESHAPE or is_elementwise(listing.ops[step.time])
        step = made.get(alike[0]) if is_work and len(alike) == 1 else None
    is_here = step is not None and listing.ops[step.time].region == listing.ops[kernel.time].region
    return step if is_here else None


def _broadcasts(kernel: Kernel, listing: Listing, sides: Sides, free: frozenset[int]) -> Iterator[TensorType]:
    """What an elementwise kernel broadcasts along a part of a side, without the sides that it has nothing of."""
    inside = dict(kernel.inner)
    inside.update((listing.ops[op].operands[operand], mapping) for op, operand, mapping in kernel.free_reads)
    for op in (listing.ops[number] for number in kernel.ops):
        if op.name != BROADCAST or not free.isdisjoint(op.operands):
            continue
        (value,) = op.results
        if inside.get(value) != kernel.shape.rule.results[0]:
            continue
        type_, has = listing.values[value].type, _given_dims(op)
        if type_ is not None and any(0 < len(has.intersection(side)) < len(side) for side in sides):
            lacking = {dim for side in sides if has.isdisjoint(side) for dim in side}
            shape = (1 if dim in lacking else size for dim, size in enumerate(type_.shape))
            yield TensorType(tuple(shape), type_.dtype)


def _given_dims(op: Op) -> frozenset[int]:
    """The dimensions of a broadcast's result that its operand has."""
    if op.rule is None:
        return frozenset()
    given = {f for dim in op.rule.operands[0] for f in dim if op.rule.factors[f].size > 1}
    return frozenset(dim for dim, factors in enumerate(op.rule.results[0]) if not given.isdisjoint(factors))


def _is_free(dims: MinorDims, sides: Sides, shape: tuple[int, ...]) -> bool:
    """Whether the product may be written so that nothing is merged along the lanes, and whole tiles along the sublanes."""
    first, second, _ = dims
    pairs = [*itertools.product(first, second), *itertools.product(second, first)]
    return any(
        len(sides[lanes]) < 2 and (len(sides[rows]) < 2 or shape[sides[rows][-1]] % _SUBLANES == 0)
        for lanes, rows in pairs
    )


def _merge(type_: TensorType, sides: Sides) -> TensorType:
    return TensorType(tuple(math.prod(type_.shape[dim] for dim in side) for side in sides), type_.dtype)


def _shape(value: int, listing: Listing) -> tuple[int, ...]:
    type_ = listing.values[value].type
    return () if type_ is None else type_.shape
