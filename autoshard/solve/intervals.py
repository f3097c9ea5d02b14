"""Memory items of one owner -> fewer ones with the same bytes in use at every time point, exactly."""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.distinct import distinct

Parts = tuple[tuple[int, int], ...]  # (usage, how often)


def merged(items: Ints) -> list[tuple[int, int, int, Parts]]:
    """[I, 4] (owner, begin, end, usage) -> (owner, begin, end, parts), sorted by the first three.

    Where one interval of an owner's usage ends as another one begins, the two become one: only the begins and the ends
    matter, not which belong together. Usages over the same interval come together.
    """
    changes = distinct(np.concatenate([items[:, [0, 3, 1]], items[:, [0, 3, 2]]]))
    rise = np.zeros(len(changes.rows), dtype=np.int64)
    np.add.at(rise, changes.number, np.repeat([1, -1], len(items)))
    # for each owner and usage there are as many begins as ends, and the k-th begin is before the k-th end
    owner, usage, begin = np.repeat(changes.rows, np.maximum(rise, 0), axis=0).T
    end = np.repeat(changes.rows[:, 2], np.maximum(-rise, 0))
    intervals = distinct(np.column_stack([owner, begin, end, usage]))
    together: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for (*interval, part), count in zip(intervals.rows.tolist(), intervals.counts.tolist(), strict=True):
        together.setdefault((interval[0], interval[1], interval[2]), []).append((part, count))
    return [(*interval, tuple(parts)) for interval, parts in together.items()]
