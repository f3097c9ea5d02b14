"""Memory items of one owner -> fewer ones with the same bytes in use at every time point, exactly."""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Ints


def merged(items: Ints) -> list[tuple[int, int, int, tuple[tuple[int, int], ...]]]:
    """[I, 4] (owner, begin, end, usage) -> (owner, begin, end, ((usage, how often), ...)), sorted by the first three.

    Where one interval of an owner's usage ends as another one begins, the two become one: only the begins and the ends
    matter, not which belong together. Usages over the same interval come together.
    """
    items = items[items[:, 1] < items[:, 2]]
    changes = np.concatenate([items[:, [0, 3, 1]], items[:, [0, 3, 2]]])
    kinds, inverse = np.unique(changes, axis=0, return_inverse=True)
    rise = np.zeros(len(kinds), dtype=np.int64)
    np.add.at(rise, inverse.ravel(), np.repeat([1, -1], len(items)))
    begins = np.repeat(
        kinds, np.maximum(rise, 0), axis=0
    )  # as many as ends for each owner and usage, and earlier
    ends = np.repeat(kinds, np.maximum(-rise, 0), axis=0)
    intervals = np.column_stack([begins[:, 0], begins[:, 2], ends[:, 2], begins[:, 1]])
    together: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    distinct, times = np.unique(intervals, axis=0, return_counts=True)
    for (owner, begin, end, usage), count in zip(distinct.tolist(), times.tolist(), strict=True):
        together.setdefault((owner, begin, end), []).append((usage, count))
    return [(*interval, tuple(usages)) for interval, usages in together.items()]
