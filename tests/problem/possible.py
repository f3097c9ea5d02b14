"""Choices drawn at random, mended where a pair of them is forbidden."""

import numpy as np
from numpy.typing import NDArray

from autoshard.problem import Problem


def mended(problem: Problem, choice: NDArray[np.int64], possible: NDArray[np.int64]) -> NDArray[np.int64]:
    """`choice` with nodes taken from `possible`, which is allowed, until no edge forbids what its ends choose."""
    found = choice.copy()
    masked = [
        (u, v, allowed)
        for (u, v), table in zip(problem.edge_nodes, problem.edge_table, strict=True)
        if (allowed := problem.tables[table].allowed) is not None
    ]
    while clashes := [(u, v) for u, v, allowed in masked if not allowed[found[u], found[v]]]:
        for ends in clashes:
            found[list(ends)] = possible[list(ends)]
    return found


def drawn(problem: Problem, seed: int, possible: NDArray[np.int64]) -> NDArray[np.int64]:
    return mended(problem, np.random.default_rng(seed).integers(0, problem.strategy_counts), possible)
