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
"""Of the program: small buffers that are there for longer, as gradients of biases and scales are, keep what was freed on both sides of
them apart. XLA:TPU places them in small gaps between large buffers. Where a pool follows the first layer of a convolutional network, its
gradient has a fifth of what is alive, comes last and then finds no place: so in 13 of 14 steps on v5e and v6e, and in two of 24 of other
networks (libtpu 0.0.52)."""


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
        is_large = bytes * SMALLEST_PARTS[0] > alive
        is_lasting = end - begin > LASTING * (end.max() - begin.min())
        is_small = (bytes * SMALLEST_PARTS[-1] < alive) & is_lasting
        counts = is_large | is_small
        held_apart = packed_bytes(begin[counts], end[counts], bytes[counts], is_between=is_small[counts])
        gaps = max(gaps, held_apart - alive_bytes(begin[is_large], end[is_large], bytes[is_large]))
    return min(gaps, int(alive * MOST_GAPS))


def packed_bytes(begin: Ints, end: Ints, bytes: Ints, *, is_between: NDArray[np.bool_] | None = None) -> int:
    """The heap in which each buffer, in the order of time and of those that begin together the longest-lived first, takes the smallest gap
    that holds it; the order of the arguments does not matter.

    Args:
        is_between: which of them lie where the last other began that is gone, and take one byte, or nothing where there is none.
    """
    is_between = np.zeros(len(bytes), dtype=np.bool_) if is_between is None else is_between
    order = np.lexsort((-bytes, -end, begin))
    begin, end, bytes, is_between = begin[order], end[order], bytes[order], is_between[order]
    size = 0
    taken: list[tuple[int, int]] = []  # (first byte, end) of what is alive
    freed: list[int] = []  # first bytes of what is gone
    places: dict[int, tuple[int, int]] = {}
    numbers = range(len(bytes))
    times = [(int(begin[i]), 1, i) for i in numbers] + [(int(end[i]), 0, i) for i in numbers]
    for _, is_begun, number in sorted(times):
        if is_begun:
            needed = 1 if is_between[number] else int(bytes[number])
            first = _last_free(taken, freed) if is_between[number] else _smallest_gap(taken, needed)
            if first is not None:
                place = places[number] = first, first + needed
                insort(taken, place)
                size = max(size, place[1])
        elif number in places:
            place = places.pop(number)
            del taken[bisect(taken, place) - 1]
            if not is_between[number]:
                freed.append(place[0])
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
