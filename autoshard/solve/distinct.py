"""The distinct rows of a matrix of whole numbers, by one stable sort of its columns.

`numpy.unique(axis=0)` answers the same, but compares rows as bytes, which takes ten times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.problem.model import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Distinct:
    """D distinct rows of R."""

    rows: Ints  # [D, columns] in rising order
    first: Ints  # [D] where each stands first
    number: Ints  # [R] which of the distinct rows each row is
    counts: Ints  # [D]

    def in_order_of_appearance(self) -> Ints:
        """[R] `number`, but counted in the order of `first`."""
        rank = np.empty(len(self.first), dtype=np.int64)
        rank[np.argsort(self.first)] = np.arange(len(self.first))
        return rank[self.number]


def distinct(rows: Ints) -> Distinct:
    """Sort the rows [R, columns] out."""
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    starts = np.flatnonzero(new)
    number = np.empty(len(rows), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return Distinct(ordered[starts], order[starts], number, np.diff(starts, append=len(rows)))
