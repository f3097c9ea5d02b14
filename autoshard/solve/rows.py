"""Time points -> the few memory rows that can bind.

An item uses low..high bytes over [begin, end), whatever is chosen. A row whose highest total fits never binds. A
row whose items are all used in a neighbouring row too, which has no more room, says nothing new; so what is left
is a maximal clique of the interval graph each. Low bytes are certain and leave the room at once.
"""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Ints


def binding_rows(begin: Ints, end: Ints, low: Ints, high: Ints, room: Ints) -> tuple[Ints, Ints]:
    """(kept rows, room in them once the low bytes are taken) for items [I] over rows [T]."""
    used_low = _profile(begin, end, low, len(room))
    used_high = _profile(begin, end, high, len(room))
    left = room - used_low
    varying = (high > low) & (begin < end)
    starts = np.bincount(begin[varying], minlength=len(room) + 1).cumsum()
    ends = np.bincount(end[varying], minlength=len(room) + 1).cumsum()
    candidates = np.flatnonzero((used_high > room) | (left < 0))
    kept: list[int] = []
    for row in candidates.tolist():
        while kept and ends[row] == ends[kept[-1]] and left[kept[-1]] >= left[row]:
            kept.pop()
        if not kept or starts[row] != starts[kept[-1]] or left[row] < left[kept[-1]]:
            kept.append(row)
    rows = np.array(kept, dtype=np.int64)
    return rows, left[rows]


def onto_rows(rows: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Intervals over all rows -> intervals over the kept ones, empty where they hold none."""
    return np.searchsorted(rows, begin), np.searchsorted(rows, end)


class RangeMinimum:
    """Minimum of a row vector over many ranges: a sparse table of the minima of power-of-two windows."""

    def __init__(self, values: Ints) -> None:
        self._levels = [values]
        width = 1
        while 2 * width <= len(values):
            previous = self._levels[-1]
            self._levels.append(np.minimum(previous[:-width], previous[width:]))
            width *= 2

    def over(self, begin: int, end: int) -> int:
        """Minimum of values[begin:end], which is not empty."""
        level = (end - begin).bit_length() - 1
        row = self._levels[level]
        return int(min(row[begin], row[end - (1 << level)]))


def _profile(begin: Ints, end: Ints, amount: Ints, rows: int) -> Ints:
    delta = np.zeros(rows + 1, dtype=np.int64)
    np.add.at(delta, begin, amount)
    np.subtract.at(delta, end, amount)
    return np.cumsum(delta[:-1])
