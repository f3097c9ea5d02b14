"""What XLA for TPUs exchanges for windows over all rows of a dimension that is split, as of a running sum, product or largest.

- Up to 128 rows are gathered whole, and so are more whose blocks of 128 rows do not divide by the devices, and all that are not read
  from the first or to the last: sums over neighbours, convolutions as long as what they read.
- Else it runs within blocks, which a device has as a whole (first moving rows, and back, where the last block is short), and then over the
  results of the blocks: those are gathered, and what runs over them has one row more, so that devices take rows from others: by distance
  up to the second neighbour, else as slices do (`cost.halo`). More than 128 blocks are made in blocks again, with a permute of one row.

Seen in what libtpu 0.0.51 compiles for v5e 4x4 and 2x4: 100 to 65536 rows over 4, 8 and 16 devices, forward and backward. Blocks of blocks
that do not divide have a few more permutes of one row, which are left out.
"""

from collections.abc import Iterator

from autoshard.cost.halo import halo_rows
from autoshard.cost.lowering import CollectivePrices, Emitted, is_gathered_by_sum
from autoshard.program import Window
from autoshard.sharding import AxisRef, TensorType, total_size

BLOCK_ROWS = 128
_NEAR = 2  # neighbours
_REDUCE_WINDOW = "stablehlo.reduce_window"


def spans_all(window: Window, rows: int) -> bool:
    """Whether a window has as many rows as there are."""
    return window.size >= rows > 1 and window.stride == window.dilation == window.base_dilation == 1


def emitted_spanning(
    name: str, window: Window, rows: int, axes: tuple[AxisRef, ...], row: TensorType, prices: CollectivePrices
) -> tuple[Emitted, ...]:
    """For rows split over the axes, of an op of that name; `row` is one of them on a device."""
    is_running = (
        name == _REDUCE_WINDOW and window.size == window.count == rows and window.low in (0, rows - 1)
    )
    if not is_running:
        return tuple(_gathered(-(-rows // total_size(axes)), axes, row, prices))
    return tuple(_emitted(window.low == 0, rows, axes, row, prices))


def _emitted(
    is_backward: bool, rows: int, axes: tuple[AxisRef, ...], row: TensorType, prices: CollectivePrices
) -> Iterator[Emitted]:
    devices = total_size(axes)
    local, blocks = -(-rows // devices), -(-rows // BLOCK_ROWS)
    if rows <= BLOCK_ROWS or blocks % devices:
        yield from _gathered(local, axes, row, prices)
        return
    lacking = (devices - 1) * (blocks * BLOCK_ROWS // devices - local)
    for moved in 2 * _taken(lacking, local):
        yield from _permuted(moved, axes, row, prices)
    if blocks > BLOCK_ROWS:
        yield from _emitted(is_backward, blocks, axes, row, prices)
        yield from _permuted(1, axes, row, prices)
        return
    yield from _gathered(blocks // devices, axes, row, prices)
    for moved in _shifted(blocks, devices, int(is_backward)):
        yield from _permuted(moved, axes, row, prices)


def _shifted(blocks: int, devices: int, first: int) -> tuple[int, ...]:
    """Rows of each permute for a part of the blocks on each device, of one block more of which `first` are left out at the beginning."""
    held, farthest = blocks // devices + 1, devices - 1 - first
    if farthest <= _NEAR * held:
        return _taken(farthest, held)
    return halo_rows(Window(0, blocks, 1, 1, -first, 1, 1), blocks + 1, devices)


def _taken(count: int, local: int) -> tuple[int, ...]:
    """Rows of each permute for so many rows before a device's own, of neighbours that hold `local` each."""
    return tuple(min(count - begin, local) for begin in range(0, count, local))


def _gathered(
    rows: int, axes: tuple[AxisRef, ...], row: TensorType, prices: CollectivePrices
) -> Iterator[Emitted]:
    held, devices = rows * row.num_bytes, total_size(axes)
    whole = TensorType((rows * devices,), row.dtype)
    if row.num_elements == 1 and is_gathered_by_sum(whole, rows):
        yield Emitted("all_reduce", axes, held * devices)
    else:
        yield from prices.emitted("all_gather", held * devices, axes)


def _permuted(
    rows: int, axes: tuple[AxisRef, ...], row: TensorType, prices: CollectivePrices
) -> Iterator[Emitted]:
    yield from prices.emitted("collective_permute", rows * row.num_bytes, axes)
