"""A core -> the index arrays that the compiled engines walk along, computed once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.core import Core


class Layout(NamedTuple):
    """Around node i: positions near_start[i]:near_start[i + 1], in the order of the neighbours' numbers."""

    start: Ints  # [n + 1] strategies
    ends: Ints  # [m, 2]
    near_start: Ints  # [n + 1]
    near_edge: Ints  # [2 m]
    near_node: Ints  # [2 m]
    message: Ints  # [m, 2] where the message of the edge to its first and to its second node begins
    own_items: Ints
    """[n + m + 1] items of a node or of n + an edge: item_order[own_items[o]:own_items[o + 1]]."""
    item_order: Ints  # [I]


def lay_out(core: Core) -> Layout:
    ends = core.ends.astype(np.int64)
    edges = np.arange(len(ends))
    here = np.concatenate([ends[:, 0], ends[:, 1]])
    there = np.concatenate([ends[:, 1], ends[:, 0]])
    order = np.lexsort((there, here))
    sizes = core.counts[ends]
    message = np.concatenate([[0], np.cumsum(sizes.ravel())])[:-1].reshape(-1, 2)
    return Layout(
        start=core.start,
        ends=ends,
        near_start=_starts(here, core.node_count),
        near_edge=np.concatenate([edges, edges])[order],
        near_node=there[order],
        message=message.astype(np.int64),
        own_items=_starts(core.item_owner, core.node_count + len(ends)),
        item_order=np.argsort(core.item_owner, kind="stable").astype(np.int64),
    )


def message_size(core: Core) -> int:
    return int(core.counts[core.ends].sum())


def most_neighbours(layout: Layout) -> int:
    """Of any node; one at least."""
    return max(1, int(np.diff(layout.near_start).max(initial=1)))


def _starts(keys: Ints, groups: int) -> Ints:
    return np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=groups))]).astype(np.int64)
