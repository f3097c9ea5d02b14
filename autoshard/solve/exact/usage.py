"""The bytes that a memory row sums up, owner by owner."""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.core import Core


def usage_in_row(core: Core, row: int) -> dict[int, Ints]:
    """Owner (a node, or n + an edge) -> bytes by strategy or by pair, row-major, over its items alive in the row."""
    usage: dict[int, Ints] = {}
    for item in np.flatnonzero((core.item_begin <= row) & (row < core.item_end)).tolist():
        owner, where = int(core.item_owner[item]), int(core.item_usage[item])
        amount = core.usage_pool[where : where + owner_size(core, owner)]
        usage[owner] = usage[owner] + amount if owner in usage else amount
    return usage


def owner_size(core: Core, owner: int) -> int:
    """Strategies of a node, pairs of an edge."""
    if owner < core.node_count:
        return int(core.counts[owner])
    u, v = core.ends[owner - core.node_count]
    return int(core.counts[u] * core.counts[v])
