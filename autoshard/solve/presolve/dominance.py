"""Strategy b of a node goes if some strategy a is at least as good whatever the neighbours do.

    cost[a] - cost[b] + sum_e max_t (M_e[a, t] - M_e[b, t]) <= 0,  t over the partners allowed to b,

and a uses at most the bytes of b in every item. Equal strategies dominate each other; the first one stays. This is
dead-end elimination: J. Desmet et al., Nature 356, 1992; R. Goldstein, Biophysical Journal 66, 1994.

With the least entry of each row taken out of the matrices and put on the costs every term of the sum is at least zero, and at least
M_e[a, t] at the t where b has that entry: nearly all pairs are left behind by this, and the others by their first edges.
"""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Bools, Ints
from autoshard.solve.graph import FINITE_BELOW, FORBIDDEN, Graph

_AT_ONCE = 1_000_000  # entries of one temporary
_SMALL = 100_000  # entries that are compared with one another at once
_TOO_LARGE = 200_000_000


def drop_dominated(graph: Graph, node: int) -> list[int]:
    cost = graph.cost[node]
    matrices = sorted(graph.adjacent[node].values(), key=lambda matrix: matrix.shape[1])
    if len(cost) < 2 or any(matrix.size * len(cost) > _TOO_LARGE for matrix in matrices):
        return []
    a, b = _at_least_as_good(cost, [graph.memo.call(Above, matrix) for matrix in matrices])
    if not len(a):
        return []
    dominates = np.zeros((len(cost), len(cost)), dtype=np.bool_)
    dominates[a, b] = True
    _keep_if_no_more_memory(graph, node, dominates)
    earlier = np.arange(len(cost))[:, None] < np.arange(len(cost))[None, :]
    removes = dominates & (~dominates.T | earlier)
    dropped = removes.any(axis=0)
    if not dropped.any():
        return []
    keep = np.flatnonzero(~dropped)
    graph.keep_strategies(node, keep, _replacement(removes, keep))
    return [node, *graph.adjacent[node]]


def _at_least_as_good(cost: Ints, edges: list[Above]) -> tuple[Ints, Ints]:
    """The pairs of different strategies of which the first costs no more than the second."""
    cost = cost + sum(edge.least for edge in edges)
    worse = cost[:, None] - cost[None, :]
    for edge in edges:
        worse = np.minimum(worse + edge.least_losses, FORBIDDEN)
    np.fill_diagonal(worse, FORBIDDEN)
    a, b = np.nonzero(worse <= 0)
    room = -worse[a, b]
    for edge in edges:
        if not edge.is_exact and len(a):
            room = room - (edge.losses(a, b) - edge.least_losses[a, b])
            stays = room >= 0
            a, b, room = a[stays], b[stays], room[stays]
    return a, b


class Above:
    """A matrix less the least entry of each row, which counts as zero where nothing is allowed; `least_losses` [K, K] are `losses` of all
    pairs where the matrix is small, else a bound from the partners where b has its least entry and where a has its largest.
    """

    def __init__(self, matrix: Ints) -> None:
        where = matrix.argmin(axis=1)
        least = matrix[np.arange(len(matrix)), where]
        self.least = np.where(least >= FINITE_BELOW, 0, least)
        mine = matrix - self.least[:, None]
        is_forbidden = matrix >= FINITE_BELOW
        mine[is_forbidden] = FORBIDDEN
        theirs = mine + np.where(is_forbidden, FORBIDDEN, 0)  # what both forbid is no loss
        self.is_exact = matrix.size * len(matrix) <= _SMALL
        if self.is_exact:
            self.least_losses = (mine[:, None, :] - theirs[None, :, :]).max(axis=2)
            return
        self._mine = mine  # one of the two, as both are as large as the matrix
        worst = mine.argmax(axis=1)
        of_worst = mine[np.arange(len(matrix)), worst] - theirs[:, worst]
        self.least_losses = np.maximum(mine[:, where], of_worst.T)

    def losses(self, a: Ints, b: Ints) -> Ints:
        """[N] max_t (M[a, t] - M[b, t]) over t allowed to b, at least FORBIDDEN / 2 where a lacks a partner that b has."""
        step = max(1, _AT_ONCE // max(1, self._mine.shape[1]))
        parts = (slice(begin, begin + step) for begin in range(0, len(a), step))
        return np.concatenate([self._losses(a[p], b[p]) for p in parts])

    def _losses(self, a: Ints, b: Ints) -> Ints:
        theirs = self._mine[b]
        theirs[theirs >= FINITE_BELOW] += FORBIDDEN
        return (self._mine[a] - theirs).max(axis=1)


def _keep_if_no_more_memory(graph: Graph, node: int, dominates: Bools) -> None:
    """Clear dominates[a, b] where a uses more bytes than b in some item."""
    for _, _, usage in graph.node_items[node]:
        dominates &= usage[:, None] <= usage[None, :]
    for other in graph.adjacent[node] if graph.edge_items else ():
        usages = {id(usage): usage for _, _, usage in graph.items_between(node, other)}
        for usage in usages.values():
            a, b = np.nonzero(dominates)
            step = max(1, _AT_ONCE // max(1, usage.shape[1]))
            for begin in range(0, len(a), step):
                part = slice(begin, begin + step)
                dominates[a[part], b[part]] = (usage[a[part]] <= usage[b[part]]).all(axis=1)


def _replacement(removes: Bools, keep: Ints) -> Ints:
    """[K] position in keep of the strategy that stands in; dominance is transitive, so a kept one always does."""
    stands_in = removes[keep]
    stands_in[np.arange(len(keep)), keep] = True
    return stands_in.argmax(axis=0)
