"""Arc consistency: a strategy without an allowed partner at some neighbour goes; a node with one strategy is fixed.

A. Mackworth, Consistency in networks of relations, Artificial Intelligence 8, 1977.
"""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Bools, Ints
from autoshard.solve.graph import FINITE_BELOW, Graph, positions


def drop_unsupported(graph: Graph, node: int) -> list[int]:
    supported = np.ones(len(graph.cost[node]), dtype=np.bool_)
    for matrix in graph.adjacent[node].values():
        supported &= graph.memo.call(_has_partner, matrix)
    if supported.all():
        return []
    keep = np.flatnonzero(supported)
    graph.keep_strategies(node, keep, positions(supported))
    return [node, *graph.adjacent[node]]


def fix_single(graph: Graph, node: int) -> list[int]:
    """A node with one strategy: its costs go to the neighbours, its bytes leave the room."""
    if len(graph.cost[node]) != 1:
        return []
    graph.constant += int(graph.cost[node][0])
    for begin, end, usage in graph.node_items[node]:
        graph.use_memory(begin, end, int(usage[0]))
    touched = list(graph.adjacent[node])
    for other in touched:
        matrix = graph.adjacent[node][other]
        allowed = matrix[0] < FINITE_BELOW
        graph.cost[other] = graph.cost[other] + np.where(allowed, matrix[0], 0)
        graph.node_items[other] += [
            (begin, end, usage[0]) for begin, end, usage in graph.items_between(node, other)
        ]
        graph.remove_edge(node, other)
        if not allowed.all():
            graph.keep_strategies(other, np.flatnonzero(allowed), positions(allowed))
            touched = [*touched, *graph.adjacent[other]]
    graph.log.append(Fixed(node))
    graph.remove_node(node)
    return touched


class Fixed:
    """The node had one strategy left."""

    def __init__(self, node: int) -> None:
        self.node = node

    def project(self, choice: Ints) -> None:
        choice[self.node] = 0

    def expand(self, choice: Ints) -> None:
        choice[self.node] = 0


def _has_partner(matrix: Ints) -> Bools:
    return np.any(matrix < FINITE_BELOW, axis=1)
