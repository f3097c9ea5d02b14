"""Slices that gathers make and scatters take as rows, where the dimension before a slice does not fill tiles.

XLA:TPU gathers and scatters rows, as if all dimensions of the indices were one. Where the last of these is a multiple of 8 that is another
name of the same buffer; where it is not, the tiles of what is asked for have gaps, and it is copied: both are there meanwhile (libtpu
0.0.51, v5e: eleven small programs with 3, 8, 77 and 80 indices in the last dimension, forward and gradients). What it is copied from or
to has along the lanes what takes less: 128 elements of a slice or 4 of 3 indices do, 4 or 32 of 100 and 64 of 77 do not, and then
the indices have (libtpu 0.0.52, v5e: 17 small recommenders).

Tables are in rows for that, unless these take more than twice the smallest layout and much is padded (40 small programs of 3 to 64
columns). A table to gather from may be padded by up to 128 MiB, on v5e, v6e and v5p alike (3 columns of float32: 270,400 rows, not
270,800; 32 columns 349,000, not 350,500; 48 columns 410,000, not 430,000; 3 of bfloat16 530,000, not 550,000). One to scatter into may
take a twentieth of the memory, as copies of it do (`costmodels.tiles`; 3 columns: 1.6 million rows on v5e, not 1.7; 3.3 on v6e, not 3.4),
and be padded by 128 MiB or 30,720 elements for each slice that is scattered.
Beyond that slices lie as whoever else makes or reads them likes. Both are decided here by the whole table; copies of arguments that are
read so (`minor.gathered_rows`) are counted by what a device has of them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import is_elementwise
from autoshard.program.records import Compiler, Kernel, Lifetime, MinorDims, Whole
from autoshard.program.repeating import readers_of
from autoshard.sharding import TensorType, dtype_bits

_TILE_ROWS, _LANES, _WORD_BITS = 8, 128, 32
_PADDED_TIMES = 2
_MOST_GATHERED_PADDING, _PADDING_OF_A_SLICE, _MOST_SCATTERED = 128 * 2**20, 240 * 128, Fraction(1, 20)
_FEWEST_DIMS = 3


def copied_slices(
    kernels: Sequence[Kernel],
    listing: Listing,
    dims: Mapping[int, MinorDims],
    lives: Mapping[int, Lifetime],
    compiler: Compiler,
) -> Iterator[tuple[int, Whole]]:
    """Values that are copied from or into rows, and these, for as long as it takes; of work that has no buffer what scatters take.

    Args:
        dims: how what gathers make and scatters take lies; slices are along the lanes.
    """
    made = {value: kernel for kernel in kernels for value in kernel.results if value in lives}
    readers = readers_of(kernels)
    for kernel in kernels:
        op = listing.ops[kernel.time]
        if op.name == "stablehlo.gather":
            value, is_in_rows = op.results[0], gathers_rows(listing.values[op.operands[0]].type)
        elif op.name == "stablehlo.scatter" and len(op.operands) == 3:
            value, table = op.operands[2], listing.values[op.results[0]].type
            is_in_rows = scatters_rows(table, compiler.memory_bytes, scattered_slices(op, listing))
        else:
            continue
        type_ = listing.values[value].type
        if value not in made or type_ is None:
            continue
        if value != op.results[0] and is_elementwise(listing.ops[made[value].time]):
            begin = min(reader.time for reader in readers[value])
            if begin < kernel.time:  # made beside what something else makes of it
                yield value, Whole(begin, kernel.time + 1, type_, dims.get(value), is_value=True)
        last, times = type_.rank - 1, (kernel.time, kernel.time + 1)
        if not is_in_rows and type_.rank >= _FEWEST_DIMS:
            yield value, Whole(*times, type_, (tuple(range(last)), (last,), True))


def as_asked(type_: TensorType, dims: MinorDims) -> MinorDims:
    """How a value lies for elementwise work that is copied from or into rows: slices or the last indices along the lanes."""
    slice_, last, before = (type_.rank - n for n in (1, 2, 3))
    return ((slice_, last), (last, before), "paired") if _has_gaps(type_, dims) else dims


def rows_apart(type_: TensorType, dims: MinorDims | None) -> MinorDims | None:
    """How rows lie that are another buffer than what is asked for, where that has gaps between them."""
    if dims is None or not _has_gaps(type_, dims):
        return None
    return (type_.rank - 1,), tuple(range(type_.rank - 2)), True


def _has_gaps(type_: TensorType, dims: MinorDims) -> bool:
    lanes, _, is_in_order = dims
    is_sliced = is_in_order and lanes == (type_.rank - 1,) and type_.rank >= _FEWEST_DIMS
    return is_sliced and type_.shape[-2] % _TILE_ROWS != 0


def gathers_rows(table: TensorType | None) -> bool:
    """Whether gathers read a table in rows, whole slices along the lanes."""
    rows, least = _table_bytes(table)
    return rows <= _PADDED_TIMES * least or rows - least <= _MOST_GATHERED_PADDING


def scatters_rows(table: TensorType | None, memory_bytes: int | None, slices: int) -> bool:
    """Whether scatters write a table in rows, so many slices of it and into so much memory."""
    rows, least = _table_bytes(table)
    if table is None or memory_bytes is None or rows <= _PADDED_TIMES * least:
        return True
    most = max(_MOST_GATHERED_PADDING, slices * _PADDING_OF_A_SLICE * dtype_bits(table.dtype) // 8)
    return rows <= memory_bytes * _MOST_SCATTERED and rows - least <= most


def scattered_slices(op: Op, listing: Listing) -> int:
    """How many a scatter adds to each table."""
    indices = listing.values[op.operands[len(op.operands) // 2]].type
    updates = listing.values[op.operands[-1]].type
    if indices is None or updates is None or op.rule is None:
        return 0
    of_index = {f for dim in op.rule.operands[len(op.operands) // 2] for f in dim}
    sizes = zip(updates.shape, op.rule.operands[-1], strict=True)
    return math.prod(size for size, factors in sizes if not of_index.isdisjoint(factors))


def _table_bytes(table: TensorType | None) -> tuple[int, int]:
    """Of a matrix in rows, and with its columns along the rows of tiles; nothing of others."""
    if table is None or table.rank != 2:
        return 0, 0
    (rows, columns), bits = table.shape, dtype_bits(table.dtype)
    packed = max(_WORD_BITS // bits, 1)
    tile = min(max(1 << (columns - 1).bit_length(), packed), max(_TILE_ROWS, packed))
    along_lanes = _up(rows, max(_TILE_ROWS, packed)) * _up(columns, _LANES)
    return along_lanes * bits // 8, _up(columns, tile) * _up(rows, _LANES) * bits // 8


def _up(size: int, tile: int) -> int:
    return math.ceil(size / tile) * tile
