"""Which rows a device needs of others under split windows, by intersecting ranges of rows with every device's own."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from autoshard.mlir.listing import Window


@cache
def rows_from_others(window: Window, rows: int, shards: int) -> list[int]:
    """For every distance between devices over which rows are needed, the most that one device takes.

    Reversed rows come as whole parts first, so that every device has the part of its mirror image; the rows then lie at the beginning of
    all parts, are wanted at their end, and move up by the rows that the last part lacks.
    """
    local = -(-rows // shards)
    if window.stride > 0 and window.size == 1:
        return _of_slice([_touched(device, window, rows, shards) for device in range(shards)], local)
    if window.stride > 0:
        return _by_distance((_touched(device, window, rows, shards) for device in range(shards)), local)
    lacking = shards * local - rows
    moved = (
        range(max(device * local - lacking, 0), max((device + 1) * local - lacking, 0))
        for device in range(shards)
    )
    return [local, *_by_distance(moved, local)]


def _of_slice(touched: Sequence[range], local: int) -> list[int]:
    """Rows from neighbours, up to the farthest; where others have some, first what each device sends and takes once."""
    reach = [
        (device * local - needed[0], needed[-1] + 1 - (device + 1) * local)
        for device, needed in enumerate(touched)
        if needed
    ]
    sent: Counter[tuple[int, int]] = Counter()
    below, above = (max(0, *each) for each in zip(*reach, strict=True)) if reach else (0, 0)
    if below <= local and above <= local:
        return [rows for rows in (below, above) if rows]
    rounds: dict[tuple[int, int], list[range]] = {}
    for device, needed in enumerate(touched):
        owners = sorted({row // local for row in needed} - {device})
        for position, owner in enumerate(owners):
            turn = sent[position, owner]
            sent[position, owner] += 1
            rows = range(max(needed[0] - owner * local, 0), min(needed[-1] + 1 - owner * local, local))
            rounds.setdefault((position, turn), []).append(rows)
    return [len(rows) for parts in rounds.values() for rows in _joined(parts)]


def _joined(parts: Sequence[range]) -> list[range]:
    """One range for parts that follow each other, as long as it is no longer than they are."""
    found = [parts[0]]
    for part in parts[1:]:
        joint = range(min(found[-1].start, part.start), max(found[-1].stop, part.stop))
        if len(joint) <= len(found[-1]) + len(part):
            found[-1] = joint
        else:
            found.append(part)
    return found


def _by_distance(touched: Iterable[Sequence[int]], local: int) -> list[int]:
    """`touched` has the ascending rows that each device needs; owners hold `local` rows each."""
    most: dict[int, int] = {}
    for device, needed in enumerate(touched):
        for owner in range(needed[0] // local, needed[-1] // local + 1) if needed else ():
            count = bisect_left(needed, (owner + 1) * local) - bisect_left(needed, owner * local)
            if owner != device and count:
                most[owner - device] = max(most.get(owner - device, 0), count)
    return list(most.values())


def _touched(device: int, window: Window, rows: int, shards: int) -> range:
    indices = _run_by(device, window, rows, shards)
    return _rows(window, indices, rows) if indices else range(0)


def _rows(window: Window, indices: Sequence[int], rows: int) -> range:
    """The rows of the operand from the first to the last of these windows, without padding."""
    begin, last = (index * window.stride - window.low for index in (indices[0], indices[-1]))
    places = range(begin, last + (window.size - 1) * window.dilation + 1)
    filled = places[-begin % window.base_dilation :: window.base_dilation]
    first = filled.start // window.base_dilation
    found = range(first, first + len(filled))
    return found[bisect_left(found, 0) : bisect_left(found, rows)]


def _run_by(device: int, window: Window, rows: int, shards: int) -> Sequence[int]:
    """The windows whose results, or rows, are this device's."""
    if not window.is_scattered:
        share = -(-window.count // shards)
        return range(device * share, min((device + 1) * share, window.count))
    local = -(-rows // shards)
    mine = range(device * local, min((device + 1) * local, rows))
    return [index for index in range(window.count) if _meets(_rows(window, [index], rows), mine)]


def _meets(some: range, others: range) -> bool:
    return bool(some) and bool(others) and some[0] <= others[-1] and others[0] <= some[-1]
