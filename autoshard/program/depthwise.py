"""Exact GELU of what a depthwise convolution makes: what is stored beside the convolution's result for the backward pass.

XLA:TPU makes what the error function reads, which is that result scaled, beside the result as the convolution ends, and keeps both. Where
channels are moved between the two, as torch moves them behind the convolution of a Mix-FFN (SegFormer, PVT v2), it works with channels
where they are: the error function of bfloat16 stays in float32, that of float32 takes the place of what it reads, and what the next product
reads is stored as well. Seen of libtpu 0.0.52 (six layers of 16 x 16 positions and 1024 channels, moved and not, bfloat16 and float32, v5e
4x4, v5p 2x2x4 and v6e 4x4: 1.14 to 2.02 of what is said otherwise, with tanh's GELU 0.87 to 1.12).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import is_elementwise
from autoshard.program.nested import is_convolution, is_depthwise
from autoshard.program.records import Kernel, Lifetime, Whole
from autoshard.program.repeating import Readers, read_times, readers_of
from autoshard.program.widths import Widths
from autoshard.sharding import TensorType, dtype_bits

_ERFC, _TRANSPOSE, _WIDE_BITS = "chlo.erfc", "stablehlo.transpose", 32
_SCALING = frozenset(
    f"stablehlo.{name}" for name in ("add", "convert", "multiply", "negate", "reshape", "transpose")
)


class _Source(NamedTuple):
    """The convolution that a value is worked out from, and whether dimensions are moved on the way."""

    kernel: Kernel
    is_moved: bool


def error_functions(
    listing: Listing, kernels: Sequence[Kernel], lives: Mapping[int, Lifetime], widths: Widths
) -> Iterator[tuple[int, Whole]]:
    """What is stored, by the values whose sharding it has; nothing where no backward pass reads it."""
    readers, made = readers_of(kernels), {value: kernel for kernel in kernels for value in kernel.results}
    for kernel in kernels:
        if listing.ops[kernel.time].name != _ERFC:
            continue
        read, (value,) = kernel.uses[0].value, kernel.results
        source, type_ = _source(read, made, listing), listing.values[read].type
        if source is None or type_ is None:
            continue
        begin, life = source.kernel.time, lives.get(value)
        is_kept = life is not None and life.is_own_buffer
        is_narrow = dtype_bits(type_.dtype) < _WIDE_BITS
        end = max(read_times(read, readers, besides=value), default=0) + 1
        if end > begin + 1 and (is_narrow or not (source.is_moved and is_kept)):
            yield read, Whole(begin, end, type_)
        if source.is_moved and is_kept:
            assert life is not None
            if is_narrow:
                yield value, Whole(life.begin, life.end, type_)
            yield from _operands_of_products(value, kernel.time, readers, listing, lives, widths)


def _source(value: int, made: Mapping[int, Kernel], listing: Listing) -> _Source | None:
    """Over what is scaled, shifted and moved; None of any other."""
    left, seen = [(value, False)], set[int]()
    while left:
        one, is_moved = left.pop()
        kernel = made.get(one)
        if kernel is None or one in seen:
            continue
        seen.add(one)
        if is_convolution(kernel):
            return _Source(kernel, is_moved) if is_depthwise(kernel) else None
        name = listing.ops[kernel.time].name
        if name in _SCALING:
            left.extend((use.value, is_moved or name == _TRANSPOSE) for use in kernel.uses)
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
        made = reader.results[0]
        is_stored = made in lives and lives[made].is_own_buffer
        if is_stored or not is_elementwise(listing.ops[reader.time]):
            continue
        type_, times = listing.values[made].type, read_times(made, readers)
        is_operand = any(one.shape.is_matmul for one in readers.get(made, ()))
        if is_operand and len(times) > 1 and type_ is not None:
            yield made, Whole(time, max(times) + 1, TensorType(type_.shape, widths.of_value(made).dtype))
