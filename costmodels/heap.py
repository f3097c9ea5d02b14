"""How large a heap becomes in which buffers that come and go leave gaps.

XLA:TPU places buffers in the order of time, each into the smallest gap that holds it, at the end where none does. With its own live ranges
that gives the heaps of nine compiled plans in ten within 6 % (libtpu 0.0.51). Ours differ in what is written in place and in order, so
that the part that gaps take is bounded by `MOST_GAPS`.
"""

from bisect import bisect, insort
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MOST_GAPS = 0.1
"""Of what is alive at the peak. Where more were found by placing our buffers, the compiled heaps have about half of it, none or all
(13 of 255 programs on v5e, v6e and v5p, libtpu 0.0.52); three heaps in four have no more.
"""

SMALLEST_PARTS = (100, 300, 1000)
"""Buffers below one in so many parts of what is alive are left out, once each: where a small one lies decides which gap a large one finds,
so that the heap with the most gaps counts."""

LASTING = 0.05
"""Of the program, what small buffers are there for that keep apart what was freed on both sides of them: gradients of biases and scales,
statistics. They take the small gaps between large buffers that others left (of 14 convolutional networks with pools behind their first
layer, the gradient of which is as large as what is alive by a fifth, it finds no place on v5e and v6e in 13, and in two of 24 others)."""


class Occupancy(NamedTuple):
    """Main memory when it holds the most: what is alive there, and gaps beyond the usual ones."""

    peak_bytes: int
    held: NDArray[np.bool_]  # of each buffer, whether it is there then
    gap_bytes: int


def alive_bytes(begin: Ints, end: Ints, bytes: Ints) -> int:
    """The most at any time of what is alive in half-open intervals."""
    return most_alive(begin, end, bytes)[0]


def most_alive(begin: Ints, end: Ints, bytes: Ints) -> tuple[int, int]:
    """The most at any time of what is alive in half-open intervals, and the first time that has it."""
    if not len(bytes):
        return 0, 0
    changes = np.concatenate([bytes, -bytes])
    times = np.concatenate([begin, end])
    order = np.lexsort((changes, times))
    alive = np.cumsum(changes[order])
    first = int(alive.argmax())
    return int(alive[first]), int(times[order][first])


def gap_bytes(begin: Ints, end: Ints, bytes: Ints) -> int:
    """What gaps add to the heap of buffers that are alive in half-open intervals, none of them empty."""
    begin, end, bytes = begin[bytes > 0], end[bytes > 0], bytes[bytes > 0]
    alive = alive_bytes(begin, end, bytes)
    gaps = 0
    for part in SMALLEST_PARTS:
        counts = bytes * part > alive
        large = begin[counts], end[counts], bytes[counts]
        gaps = max(gaps, packed_bytes(*large) - alive_bytes(*large))
    if len(bytes):
        is_large, is_lasting = (
            bytes * SMALLEST_PARTS[0] > alive,
            (end - begin) > LASTING * (end.max() - begin.min()),
        )
        is_small = (bytes * SMALLEST_PARTS[-1] < alive) & is_lasting
        large = begin[is_large], end[is_large], bytes[is_large]
        held_apart = packed_bytes(*large, between=(begin[is_small], end[is_small]))
        gaps = max(gaps, held_apart - alive_bytes(*large))
    return min(gaps, int(alive * MOST_GAPS))


def packed_bytes(begin: Ints, end: Ints, bytes: Ints, *, between: tuple[Ints, Ints] | None = None) -> int:
    """The heap in which each buffer, in the order of time and of those that begin together the longest-lived first, takes the smallest gap
    that holds it; the order of the arguments does not matter.

    Args:
        between: when small buffers begin and end that lie where the last large one began that is gone; each takes a byte.
    """
    if between is not None:
        begin, end = (np.concatenate(both) for both in zip((begin, end), between, strict=True))
        bytes = np.concatenate([bytes, np.zeros(len(between[0]), dtype=np.int64)])
    order = np.lexsort((-bytes, -end, begin))
    begin, end, bytes = begin[order], end[order], bytes[order]
    size = 0
    taken: list[tuple[int, int]] = []  # (first byte, end) of what is alive
    freed: list[int] = []  # first bytes of what is gone
    places: dict[int, tuple[int, int]] = {}
    numbers = range(len(bytes))
    times = [(int(begin[i]), 1, i) for i in numbers] + [(int(end[i]), 0, i) for i in numbers]
    for _, is_begun, number in sorted(times):
        if is_begun:
            taken_bytes = int(bytes[number])
            first = _smallest_gap(taken, taken_bytes) if taken_bytes else _last_free(taken, freed)
            if first is not None:
                place = places[number] = first, first + (taken_bytes or 1)
                insort(taken, place)
                size = max(size, place[1])
        elif number in places:
            first, last = places.pop(number)
            del taken[bisect(taken, (first, last)) - 1]
            if bytes[number]:
                freed.append(first)
    return size


def _last_free(taken: list[tuple[int, int]], freed: list[int]) -> int | None:
    """The last of those bytes that is free still, which is no longer among them; None where none is."""
    while freed:
        first = freed.pop()
        number = bisect(taken, (first, first + 1))
        is_free = not number or taken[number - 1][1] <= first
        if is_free and (number == len(taken) or taken[number][0] > first):
            return first
    return None


def _smallest_gap(taken: list[tuple[int, int]], bytes: int) -> int:
    best, first, free = None, 0, 0
    for begin, end in taken:
        if begin - free >= bytes and (best is None or begin - free < best):
            best, first = begin - free, free
        free = end
    return free if best is None else first
