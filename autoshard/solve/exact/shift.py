"""Costs that begin at zero: what every node and every edge costs at least, taken out of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.core import Core
from autoshard.solve.graph import FINITE_BELOW


@dataclass(frozen=True, slots=True, eq=False)
class Shifted:
    """The functions of a core less their minima; `least` is what was taken out, the core's constant included."""

    core: Core
    node_least: Ints  # [n]
    edge_least: Ints  # [m] of the finite entries
    least: int
    above_all: int  # more than any allowed choice costs, `least` included

    def node_cost(self, node: int) -> Ints:
        """[K] at least zero."""
        core = self.core
        return core.cost[core.start[node] : core.start[node + 1]] - self.node_least[node]

    def matrix(self, edge: int) -> Ints:
        """[Ku, Kv] at least zero; forbidden entries as they were."""
        matrix = self.core.matrix(edge)
        return np.where(matrix < FINITE_BELOW, matrix - self.edge_least[edge], matrix)


def shifted(core: Core) -> Shifted:
    node_least, node_most = (
        reduction.reduceat(core.cost, core.start[:-1]) if core.node_count else core.cost
        for reduction in (np.minimum, np.maximum)
    )
    ranges = [_finite_range(core.matrix(edge)) for edge in range(len(core.ends))]
    return Shifted(
        core,
        node_least,
        np.array([least for least, _ in ranges], dtype=np.int64),
        core.constant + int(node_least.sum()) + sum(least for least, _ in ranges),
        core.constant + int(node_most.sum()) + sum(most for _, most in ranges) + 1,
    )


def _finite_range(matrix: Ints) -> tuple[int, int]:
    """Least and largest finite entry; zeros where all are forbidden."""
    finite = matrix[matrix < FINITE_BELOW]
    return (int(finite.min()), int(finite.max())) if finite.size else (0, 0)
