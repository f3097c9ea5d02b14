"""Two choices of a core -> the best of what they differ in.

Nodes on which they differ fall into connected pieces, and taking one piece over from the other choice changes the cost
by an amount that does not depend on the other pieces: partition crossover [1]. Pieces that gain are taken over, the
best first, while every memory row stays within its room.

[1] D. Whitley, D. Hains, A. Howe, Tunneling between optima: partition crossover for the traveling salesman problem,
GECCO 2009.
"""

from __future__ import annotations

import numpy as np

from autoshard.problem.evaluate import group_by
from autoshard.problem.model import Ints
from autoshard.solve.core import Core
from autoshard.solve.graph import FINITE_BELOW

_MOST_PIECES = 200  # that gain


def recombined(core: Core, choice: Ints, other: Ints) -> Ints:
    """`choice` [n], which fits, with the pieces of `other` that make it cheaper; both are allowed."""
    piece = pieces(core, choice != other)
    count = int(piece.max(initial=-1)) + 1
    if not count:
        return choice
    node_piece = piece[np.flatnonzero(piece >= 0)]
    rows = core.start[:-1]
    gains = core.cost[rows + other] - core.cost[rows + choice]
    delta = np.zeros(count, dtype=np.int64)
    np.add.at(delta, node_piece, gains[piece >= 0])
    u, v = core.ends.T
    edge_piece = np.maximum(piece[u], piece[v])
    touched = edge_piece >= 0
    columns = core.counts[v]
    was, becomes = (core.pool[core.table + x[u] * columns + x[v]] for x in (choice, other))
    if (becomes[touched] >= FINITE_BELOW).any():
        return choice
    np.add.at(delta, edge_piece[touched], (becomes - was)[touched])
    return _taken(core, choice, other, piece, edge_piece, delta)


def pieces(core: Core, differs: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Ints:
    """[n] the number of the connected piece of the nodes that differ, -1 for the others."""
    label = np.where(differs, np.arange(core.node_count), -1)
    u, v = core.ends[differs[core.ends[:, 0]] & differs[core.ends[:, 1]]].T
    while True:
        before = label.copy()
        lowest = np.minimum(label[u], label[v])
        np.minimum.at(label, u, lowest)
        np.minimum.at(label, v, lowest)
        label[differs] = label[label[differs]]
        if (label == before).all():
            break
    numbers = np.unique(label[differs])
    return np.where(differs, np.searchsorted(numbers, label), -1)


def _taken(core: Core, choice: Ints, other: Ints, piece: Ints, edge_piece: Ints, delta: Ints) -> Ints:
    """Pieces that gain, the best first, as far as memory allows; those that did not fit have a second chance."""
    best_first = np.argsort(delta, kind="stable")
    waiting = best_first[delta[best_first] < 0][:_MOST_PIECES].tolist()
    owner_piece = np.concatenate([piece, edge_piece])[core.item_owner]
    items = dict(group_by(owner_piece)) if len(owner_piece) else {}
    now, then = core.item_bytes(choice), core.item_bytes(other)
    profile = core.profile_of(choice)
    takes = np.zeros(len(delta) + 1, dtype=np.bool_)
    for _ in range(2):
        for number in list(waiting):
            mine = items.get(number, np.zeros(0, dtype=np.int64))
            change = np.zeros(len(profile) + 1, dtype=np.int64)
            np.add.at(change, core.item_begin[mine], (then - now)[mine])
            np.subtract.at(change, core.item_end[mine], (then - now)[mine])
            after = profile + np.cumsum(change[:-1])
            if (after <= core.room).all():
                profile = after
                takes[number] = True
                waiting.remove(number)
    return np.where(takes[piece], other, choice)  # piece -1 is the last entry, which stays False
