"""The rows that devices need of each other where windows are split over space: XLA's halo exchange.

Device i holds rows [i * L, (i + 1) * L) of the operand, L = ceil(rows / shards), and makes its share of the results. What it needs for
those is an interval of rows; the part of it that lies d devices away comes by one permute for each d, as large as the largest.
Where rows are reversed the devices swap their whole parts first, and a last part that is short moves all by what it lacks.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

from autoshard.program import Window


@cache
def halo_rows(window: Window, rows: int, shards: int) -> tuple[int, ...]:
    """Rows that each permute brings to a device, nearest neighbours first, those before it before those after it."""
    local = -(-rows // shards)
    if window.stride < 0:
        lacking = local * shards - rows
        return local, *halo_rows(replace(window, count=local * shards, stride=1, low=lacking), rows, shards)
    largest: Counter[int] = Counter()
    for device in range(shards):
        first, last = _needed(window, rows, shards, device)
        for other in range(first // local, last // local + 1) if first <= last else ():
            held = min(last, (other + 1) * local - 1) - max(first, other * local) + 1
            largest[device - other] = max(largest[device - other], held)
    distances = sorted((d for d in largest if d), key=lambda d: (abs(d), -d))
    return tuple(largest[d] for d in distances)


def halo_sizes(window: Window, rows: int, shards: int) -> tuple[int, int]:
    """How many rows before and after its own a device needs at most; none of reversed rows, which come as whole parts."""
    local = -(-rows // shards)
    if window.stride < 0:
        return 0, 0
    needed = [(d * local, *_needed(window, rows, shards, d)) for d in range(shards)]
    reach = [(own - first, last - own - local + 1) for own, first, last in needed if first <= last]
    return max((b for b, _ in reach if b > 0), default=0), max((a for _, a in reach if a > 0), default=0)


def _needed(window: Window, rows: int, shards: int, device: int) -> tuple[int, int]:
    """First and last row that a device's results take part of; (0, -1) where it makes none."""
    first, last = _windows_of(window, rows, shards, device)
    if first > last:
        return 0, -1
    begin = first * window.stride - window.low
    end = last * window.stride - window.low + (window.size - 1) * window.dilation
    return max(-(-begin // window.base_dilation), 0), min(end // window.base_dilation, rows - 1)


def _windows_of(window: Window, rows: int, shards: int, device: int) -> tuple[int, int]:
    """First and last window that a device's results come from."""
    if not window.is_scattered:
        share = -(-window.count // shards)
        return device * share, min((device + 1) * share, window.count) - 1
    local = -(-rows // shards)
    first, last = device * local, min((device + 1) * local, rows) - 1
    if first > last:
        return 0, -1
    earliest = -(-(first + window.low - window.size + 1) // window.stride)
    return max(earliest, 0), min((last + window.low) // window.stride, window.count - 1)
