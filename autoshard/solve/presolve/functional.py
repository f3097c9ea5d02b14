"""Where every strategy of u has one allowed partner f(s) at v, v merges into u through f.

Costs come over as cost[u] + cost[v][f] + M[s, f(s)], the edges of v as matrix[f, :], its items as usage[f]; so a
node may come to have several items.
"""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.graph import FINITE_BELOW, Graph, rows_of

_MOST_GROWTH = 20_000  # entries that the matrices of v may gain by the merge


def contract_functional(graph: Graph, node: int) -> list[int]:
    """The node takes in the neighbours that it determines, or disappears into one that determines it."""
    touched: list[int] = []
    for other in list(graph.adjacent[node]):
        if other not in graph.adjacent[node]:
            continue
        image = graph.memo.call(_image, graph.adjacent[other][node])
        if image is not None and _growth(graph, other, node) <= _MOST_GROWTH:
            return touched + _merge(graph, other, node, image)
        image = graph.memo.call(_image, graph.adjacent[node][other])
        if image is not None and _growth(graph, node, other) <= _MOST_GROWTH:
            touched += _merge(graph, node, other, image)
    return touched


def _growth(graph: Graph, u: int, v: int) -> int:
    more = len(graph.cost[u]) - len(graph.cost[v])
    return more * sum(len(graph.cost[w]) for w in graph.adjacent[v] if w != u)


def _merge(graph: Graph, u: int, v: int, image: Ints) -> list[int]:
    """v into u."""
    pairs = (np.arange(len(image)), image)
    graph.cost[u] = graph.cost[u] + graph.cost[v][image] + graph.adjacent[u][v][pairs]
    graph.node_items[u] += [(begin, end, usage[image]) for begin, end, usage in graph.node_items[v]]
    graph.node_items[u] += [(begin, end, usage[pairs]) for begin, end, usage in graph.items_between(u, v)]
    graph.remove_edge(u, v)
    moved = list(graph.adjacent[v])
    for other in moved:
        items = graph.rows_of_items(graph.items_between(v, other), image)
        graph.add_matrix(
            u, other, graph.memo.call(rows_of, graph.adjacent[v][other], graph.memo.intern(image))
        )
        graph.add_items_between(u, other, items)
    graph.log.append(Contracted(u, v, image))
    graph.remove_node(v)
    return [u, *moved]


class Contracted:
    """v takes image[strategy of u]."""

    def __init__(self, u: int, v: int, image: Ints) -> None:
        self.u, self.v, self.image = u, v, image

    def project(self, choice: Ints) -> None:
        choice[self.v] = 0

    def expand(self, choice: Ints) -> None:
        choice[self.v] = self.image[choice[self.u]]


def _image(matrix: Ints) -> Ints | None:
    allowed = matrix < FINITE_BELOW
    return allowed.argmax(axis=1) if (np.count_nonzero(allowed, axis=1) == 1).all() else None
