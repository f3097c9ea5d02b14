"""The rows that devices need of each other where windows are split over space: XLA's halo exchange.

Device i holds rows [i * L, (i + 1) * L) of the operand, L = ceil(rows / shards), and makes its share of the results. What it needs for
those is an interval of rows; the part of it that lies d devices away comes by one permute for each d, as large as the largest.
Windows of one row are slices and pads, whose parts need not lie beside those that a device has:

- where no part lies farther away than the next device, each permute brings all rows up to the farthest one;
- else each device takes its parts from others in order of rows. The first ones of all devices go together, the second ones, and so on;
  of those a device sends several, in that order, there is a permute for each. A permute sends from each device the rows that any part of
  it needs, and a new one begins where those would be more than the rows before and the part together.

Where rows are reversed the devices swap their whole parts first, and a last part that is short moves all by what it lacks, by one permute
for each distance.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from autoshard.program import Window


@cache
def halo_rows(window: Window, rows: int, shards: int) -> tuple[int, ...]:
    """Rows that each permute brings to a device, nearest neighbours first, those before it before those after it."""
    local = -(-rows // shards)
    if window.stride < 0:
        lacking = local * shards - rows
        moved = replace(window, count=local * shards, stride=1, low=lacking)
        return local, *_by_distance([_needed(moved, rows, shards, d) for d in range(shards)], local)
    needed = [_needed(window, rows, shards, device) for device in range(shards)]
    return tuple(_parts_sent(needed, local)) if window.size == 1 else _by_distance(needed, local)


def _by_distance(needed: list[tuple[int, int]], local: int) -> tuple[int, ...]:
    """Rows that each permute between devices so far apart brings, for rows [first, last] that devices need."""
    largest: Counter[int] = Counter()
    for device, (first, last) in enumerate(needed):
        for other in range(first // local, last // local + 1) if first <= last else ():
            held = min(last, (other + 1) * local - 1) - max(first, other * local) + 1
            largest[device - other] = max(largest[device - other], held)
    distances = sorted((d for d in largest if d), key=lambda d: (abs(d), -d))
    return tuple(largest[d] for d in distances)


def _parts_sent(needed: list[tuple[int, int]], local: int) -> Iterator[int]:
    """Rows of each permute for rows [first, last] that devices need."""
    wanted = [(device, first, last + 1) for device, (first, last) in enumerate(needed) if first <= last]
    before = max((device * local - first for device, first, _ in wanted), default=0)
    after = max((end - (device + 1) * local for device, _, end in wanted), default=0)
    if max(before, after) <= local:
        yield from (rows for rows in (before, after) if rows > 0)
        return
    permutes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    uses: Counter[tuple[int, int]] = Counter()
    for device, first, end in wanted:
        others = [other for other in range(first // local, (end - 1) // local + 1) if other != device]
        for part, other in enumerate(others):
            begin = other * local
            permutes.setdefault((part, uses[part, other]), []).append(
                (max(first - begin, 0), min(end - begin, local))
            )
            uses[part, other] += 1
    for parts in permutes.values():
        yield from _together(parts)


def _together(parts: list[tuple[int, int]]) -> Iterator[int]:
    low, high = parts[0]
    for first, end in parts[1:]:
        joint = min(low, first), max(high, end)
        if joint[1] - joint[0] > high - low + end - first:
            yield high - low
            joint = first, end
        low, high = joint
    yield high - low


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
