"""Exact GELU of what a depthwise convolution makes of images that are rows from then on: what is stored beside the convolution's result.

A Mix-FFN (SegFormer, PVT v2) merges rows and columns of images behind its depthwise convolution. XLA:TPU then makes what the error function
reads, which is the convolution's result scaled, beside that as the convolution ends, and keeps both for the backward pass. Where channels
are moved, too, as torch moves them, it works with channels where they are: the error function of bfloat16 stays in float32, that of float32
takes the place of what it reads, and what the next product reads is stored as well. Seen of libtpu 0.0.52 (six layers of 16 x 16 positions
and 1024 channels, moved and not, bfloat16 and float32, v5e 4x4, v5p 2x2x4 and v6e 4x4: 1.14 to 2.02 of what is said otherwise). Of what
stays an image, of what something is added to behind the reshape, and with tanh's GELU it stores nothing of these.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, FREE_LEAVES, is_elementwise
from autoshard.program.lifetime import has_buffer
from autoshard.program.nested import is_convolution, is_depthwise
from autoshard.program.records import Kernel, Lifetime, Whole
from autoshard.program.repeating import Readers, read_times, readers_of
from autoshard.program.widths import Widths
from autoshard.sharding import dtype_bits

_ERFC, _TRANSPOSE, _ADD, _WIDE_BITS = "chlo.erfc", "stablehlo.transpose", "stablehlo.add", 32
_SCALING = frozenset({"sdy.sharding_constraint", "sdy.reshard", _ADD, _TRANSPOSE}) | {
    f"stablehlo.{name}" for name in ("convert", "multiply", "negate", "reshape")
}


class _Source(NamedTuple):
    """When the convolution runs that a value is worked out from, and whether dimensions are moved on the way."""

    time: int
    is_moved: bool


def error_functions(
    listing: Listing, kernels: Sequence[Kernel], lives: Mapping[int, Lifetime], widths: Widths
) -> Iterator[tuple[int, Whole]]:
    """What is stored, by the values whose sharding it has; nothing where no backward pass reads it."""
    readers, made = readers_of(kernels), {value: kernel for kernel in kernels for value in kernel.results}
    made_by = {value: op for op in listing.ops for value in op.results}
    for kernel in kernels:
        if listing.ops[kernel.time].name != _ERFC:
            continue
        (read,), (value,) = listing.ops[kernel.time].operands, kernel.results
        source, type_ = _source(read, made, made_by, listing), listing.values[read].type
        if source is None or type_ is None:
            continue
        is_kept, is_narrow = has_buffer(value, lives), dtype_bits(type_.dtype) < _WIDE_BITS
        end = max(read_times(read, readers, besides=value), default=0) + 1
        is_read_later = end > kernel.time + 1 and not has_buffer(read, lives)
        if is_read_later and (is_narrow or not (source.is_moved and is_kept)):
            yield read, Whole(source.time, end, type_)
        if source.is_moved and is_kept:
            if is_narrow:
                yield value, Whole(lives[value].begin, lives[value].end, type_)
            yield from _operands_of_products(value, kernel.time, readers, listing, lives, widths)


def _source(
    value: int, made: Mapping[int, Kernel], made_by: Mapping[int, Op], listing: Listing
) -> _Source | None:
    """Over what is scaled, shifted as an image, merged and moved; None of any other, and of images."""
    left, seen = [(value, False, -1)], set[int]()
    while left:
        one, is_moved, shifted = left.pop()
        op, kernel = made_by.get(one), made.get(one)
        if op is None or one in seen:
            continue
        seen.add(one)
        if kernel is not None and is_convolution(kernel):
            rank = kernel.shape.results[0].rank
            is_image = rank == _rank(value, listing) or shifted not in (-1, rank)
            return _Source(kernel.time, is_moved) if is_depthwise(kernel) and not is_image else None
        if op.name in _SCALING:
            is_moved = is_moved or op.name == _TRANSPOSE
            shifted = _rank(one, listing) if op.name == _ADD and shifted < 0 else shifted
            left.extend((operand, is_moved, shifted) for operand in op.operands)
        elif op.name != BROADCAST and op.name not in FREE_LEAVES:
            return None
    return None


def _operands_of_products(
    value: int,
    time: int,
    readers: Readers,
    listing: Listing,
    lives: Mapping[int, Lifetime],
    widths: Widths,
) -> Iterator[tuple[int, Whole]]:
    """What products read of elementwise work on the value, one now and one later, without a buffer of its own."""
    for reader in readers.get(value, ()):
        if not reader.results or not is_elementwise(listing.ops[reader.time]):
            continue
        made = reader.results[0]
        times = read_times(made, readers)
        is_operand = any(one.shape.is_matmul for one in readers.get(made, ()))
        if is_operand and len(times) > 1 and not has_buffer(made, lives):
            yield made, Whole(time, max(times) + 1, widths.of_value(made))


def _rank(value: int, listing: Listing) -> int:
    type_ = listing.values[value].type
    return -1 if type_ is None else type_.rank
