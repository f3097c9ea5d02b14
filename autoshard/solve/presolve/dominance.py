"""Strategy b of a node goes if some strategy a is at least as good whatever the neighbours do.

    cost[a] - cost[b] + sum_e max_t (M_e[a, t] - M_e[b, t]) <= 0,  t over the partners allowed to b,

and a uses at most the bytes of b in every item. Equal strategies dominate each other; the first one stays. This is
dead-end elimination: J. Desmet et al., Nature 356, 1992; R. Goldstein, Biophysical Journal 66, 1994.
"""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Bools, Ints
from autoshard.solve.graph import FINITE_BELOW, FORBIDDEN, Graph

_AT_ONCE = 1_000_000  # entries of one temporary
_TOO_LARGE = 200_000_000


def drop_dominated(graph: Graph, node: int) -> list[int]:
    cost = graph.cost[node]
    if len(cost) < 2:
        return []
    worse = cost[:, None] - cost[None, :]
    for matrix in graph.adjacent[node].values():
        if matrix.size * len(cost) > _TOO_LARGE:
            return []
        worse = np.minimum(worse + graph.memo.call(largest_loss, matrix), FORBIDDEN)
    dominates = worse <= 0
    if np.count_nonzero(dominates) == len(cost):
        return []
    np.fill_diagonal(dominates, False)
    _keep_if_no_more_memory(graph, node, dominates)
    earlier = np.arange(len(cost))[:, None] < np.arange(len(cost))[None, :]
    removes = dominates & (~dominates.T | earlier)
    dropped = removes.any(axis=0)
    if not dropped.any():
        return []
    keep = np.flatnonzero(~dropped)
    graph.keep_strategies(node, keep, _replacement(removes, keep))
    return [node, *graph.adjacent[node]]


def _keep_if_no_more_memory(graph: Graph, node: int, dominates: Bools) -> None:
    """Clear dominates[a, b] where a uses more bytes than b in some item."""
    for _, _, usage in graph.node_items[node]:
        dominates &= usage[:, None] <= usage[None, :]
    for other in graph.adjacent[node] if graph.edge_items else ():
        for _, _, usage in graph.items_between(node, other):
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


def largest_loss(matrix: Ints) -> Ints:
    """[K, K] max_t (M[a, t] - M[b, t]) over t allowed to b; FORBIDDEN where a lacks a partner that b has."""
    rows, columns = matrix.shape
    step = max(1, _AT_ONCE // max(1, rows * columns))
    loss = np.empty((rows, rows), dtype=np.int64)
    for begin in range(0, rows, step):
        differences = matrix[begin : begin + step, None, :] - matrix[None, :, :]
        loss[begin : begin + step] = differences.max(axis=2)  # b forbidden: hugely negative, or 0 if a is too
    if (matrix >= FINITE_BELOW).any():
        return _with_forbidden(matrix, loss)
    return loss


def _with_forbidden(matrix: Ints, loss: Ints) -> Ints:
    """Partners forbidden to both gave 0, which may hide a negative maximum: leave them out."""
    for b in range(len(matrix)):
        partners = matrix[b] < FINITE_BELOW
        if not partners.all():
            loss[:, b] = (matrix[:, partners] - matrix[b, partners]).max(axis=1, initial=-FINITE_BELOW)
    return np.where(loss >= FINITE_BELOW // 2, FORBIDDEN, loss)
