"""Row and column minima of a matrix move into its two nodes; an edge of zeros is no edge.

M[s, t] = r[s] + c[t] + M'[s, t]   with  min_t M'[s, .] = min_s M'[., t] = 0
"""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.graph import FINITE_BELOW, FORBIDDEN, Graph


def move_minima(graph: Graph, node: int) -> list[int]:
    touched: list[int] = []
    for other, matrix in list(graph.adjacent[node].items()):
        rows, columns, rest, nothing_left = graph.memo.call(_separate, matrix)
        if rest is not matrix:
            graph.cost[node] = graph.cost[node] + rows
            graph.cost[other] = graph.cost[other] + columns
            graph.set_matrix(node, other, rest)
        if nothing_left and not graph.items_between(node, other):
            graph.remove_edge(node, other)
            touched += [node, other]
    return touched


def _separate(matrix: Ints) -> tuple[Ints, Ints, Ints, bool]:
    """(r, c, M', is M' zero); every row and column has an allowed entry, or its minimum counts as zero."""
    rows = _finite(matrix.min(axis=1))
    rest = matrix - rows[:, None]
    columns = _finite(rest.min(axis=0))
    rest -= columns
    if not rows.any() and not columns.any():
        return rows, columns, matrix, not matrix.any()
    rest[matrix >= FINITE_BELOW] = FORBIDDEN
    return rows, columns, rest, not rest.any()


def _finite(minima: Ints) -> Ints:
    return np.where(minima >= FINITE_BELOW // 2, 0, minima)
