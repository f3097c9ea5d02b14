"""A node with at most two neighbours and no memory is minimised out, its best strategy noted for every pair.

    M'[t, w] = min_s (cost[s] + M_v[s, t] + M_w[s, w])

The step of bucket elimination that makes nothing larger than a matrix: U. Bertele, F. Brioschi, Nonserial Dynamic
Programming, 1972.
"""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.graph import FORBIDDEN, Graph, clamped, positions

_AT_ONCE = 1_000_000  # entries of one temporary
_TOO_LARGE = 30_000_000
_LARGEST_RESULT = 40_000  # entries of a new matrix


def eliminate(graph: Graph, node: int) -> list[int]:
    neighbours = list(graph.adjacent[node])
    if len(neighbours) > 2 or graph.node_items[node]:
        return []
    if any(graph.items_between(node, other) for other in neighbours):
        return []
    if len(neighbours) == 2 and not _worth_it(graph, node, *neighbours):
        return []
    cost = graph.cost[node]
    matrices = [graph.adjacent[node][other] for other in neighbours]
    graph.log.append(Eliminated(node, neighbours, cost, matrices))
    if not neighbours:
        graph.constant += int(cost.min())
    elif len(neighbours) == 2:
        product = graph.memo.call(_minimised, graph.memo.intern(cost), *matrices)
        graph.add_matrix(neighbours[0], neighbours[1], product)
    graph.remove_node(node)
    if len(neighbours) != 1:
        return neighbours
    return neighbours + _pay(graph, neighbours[0], clamped((cost[:, None] + matrices[0]).min(axis=0)))


def _pay(graph: Graph, node: int, price: Ints) -> list[int]:
    """Add to the costs of a node; a strategy that cannot pay goes."""
    possible = price < FORBIDDEN
    graph.cost[node] = graph.cost[node] + np.where(possible, price, 0)
    if possible.all():
        return []
    graph.keep_strategies(node, np.flatnonzero(possible), positions(possible))
    return list(graph.adjacent[node])


def _worth_it(graph: Graph, node: int, v: int, w: int) -> bool:
    result = len(graph.cost[v]) * len(graph.cost[w])
    return result <= _LARGEST_RESULT and result * len(graph.cost[node]) <= _TOO_LARGE


def _minimised(cost: Ints, to_v: Ints, to_w: Ints) -> Ints:
    left = cost[:, None] + to_v
    result = np.full((to_v.shape[1], to_w.shape[1]), FORBIDDEN, dtype=np.int64)
    step = max(1, _AT_ONCE // max(1, result.size))
    for begin in range(0, len(cost), step):
        part = slice(begin, begin + step)
        np.minimum(result, (left[part, :, None] + to_w[part, None, :]).min(axis=0), out=result)
    return clamped(result)


class Eliminated:
    """The node takes what is best for its neighbours."""

    def __init__(self, node: int, neighbours: list[int], cost: Ints, matrices: list[Ints]) -> None:
        self.node, self.neighbours, self.cost, self.matrices = node, neighbours, cost, matrices

    def project(self, choice: Ints) -> None:
        choice[self.node] = 0

    def expand(self, choice: Ints) -> None:
        total = self.cost
        for other, matrix in zip(self.neighbours, self.matrices, strict=True):
            total = total + matrix[:, choice[other]]
        choice[self.node] = int(total.argmin())
