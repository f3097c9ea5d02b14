"""What XLA for TPUs sends for windows over all of a split dimension: of running sums one row of each block of 128, else all rows.

Every device gets the results of all blocks, and what is summed before each block; this has a row more than there are blocks, so that
parts do not lie where they are read. Blocks whose number does not divide by the devices are not made: all rows go everywhere.
"""

from collections.abc import Iterator

from autoshard.check.emitted import Compiler, Sent, is_gathered_by_sum, sent_for
from autoshard.check.halo import rows_from_others
from autoshard.mlir.listing import Window
from autoshard.sharding import AxisRef, TensorType

_BLOCK = 128


def runs_over(window: Window, rows: int) -> bool:
    """Whether windows are no shorter than the dimension."""
    return 1 < rows <= window.size and {window.stride, window.dilation, window.base_dilation} == {1}


def sent_for_running(
    compiler: Compiler,
    op: str,
    window: Window,
    rows: int,
    axes: tuple[AxisRef, ...],
    row_bytes: int,
    dtype: str,
) -> tuple[Sent, ...]:
    """For rows of so many bytes on a device; `dtype` where a row is one element, else ""."""
    devices, found = Sent("", axes, 0).devices, list[Sent]()
    levels = 0
    runs = op == "stablehlo.reduce_window" and (window.count, window.size) == (rows, rows)
    if not runs or window.low not in (0, rows - 1):
        return _everywhere(compiler, _parts(rows, devices), axes, row_bytes, dtype)
    while True:
        own, blocks = _parts(rows, devices), _parts(rows, _BLOCK)
        if rows <= _BLOCK or blocks % devices:
            found += _everywhere(compiler, own, axes, row_bytes, dtype)
            break
        gap = (devices - 1) * (blocks // devices * _BLOCK - own)
        for _ in ("to blocks", "back"):
            found += _moved(compiler, _from_before(gap, own), axes, row_bytes)
        if blocks <= _BLOCK:
            found += _everywhere(compiler, blocks // devices, axes, row_bytes, dtype)
            found += _moved(compiler, _apart(blocks, devices, window.low == 0), axes, row_bytes)
            break
        rows, levels = blocks, levels + 1
    found += _moved(compiler, [1] * levels, axes, row_bytes)
    return tuple(found)


def _apart(blocks: int, devices: int, is_from_the_end: bool) -> list[int]:
    held, reach = blocks // devices + 1, devices - (2 if is_from_the_end else 1)
    if reach <= 2 * held:
        return _from_before(reach, held)
    part = Window(0, blocks, 1, 1, -1 if is_from_the_end else 0, 1, 1)
    return rows_from_others(part, blocks + 1, devices)


def _from_before(count: int, held: int) -> list[int]:
    """So many rows from neighbours that hold some each."""
    whole, rest = divmod(count, held)
    return [held] * whole + ([rest] if rest else [])


def _moved(
    compiler: Compiler, counts: list[int], axes: tuple[AxisRef, ...], row_bytes: int
) -> Iterator[Sent]:
    for count in counts:
        yield from sent_for(compiler, "collective_permute", axes, count * row_bytes)


def _everywhere(
    compiler: Compiler, count: int, axes: tuple[AxisRef, ...], row_bytes: int, dtype: str
) -> tuple[Sent, ...]:
    one = Sent("all_reduce", axes, count * row_bytes)
    whole = one.bytes * one.devices
    if dtype and is_gathered_by_sum(TensorType((count * one.devices,), dtype), count):
        return (Sent("all_reduce", axes, whole),)
    return sent_for(compiler, "all_gather", axes, whole)


def _parts(rows: int, size: int) -> int:
    return -(-rows // size)
