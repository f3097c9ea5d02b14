"""Random problems for the tests of problem/ and solve/, small enough to try every choice."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from numpy.random import Generator

from autoshard.problem import Problem, ProblemBuilder, Table, evaluate

KINDS = ("sparse", "tree", "grid", "functional", "forbidden", "zero", "huge")


def random_problem(rng: Generator, *, kind: str | None = None, memory: bool | None = None) -> Problem:
    """Up to eight nodes and at most some thousand choices; a memory limit near a peak that some choice has."""
    kind = kind or str(rng.choice(KINDS))
    count = int(rng.integers(1, 9))
    highest = {"zero": 1, "huge": 3_000_000_000_000}.get(kind, 20)
    sizes = [int(rng.integers(1, 4 if count > 5 else 5)) for _ in range(count)]
    builder = ProblemBuilder()
    for size in sizes:
        allowed = rng.random(size) < 0.8
        allowed[rng.integers(size)] = True
        builder.add_node(rng.integers(0, highest, size), allowed if rng.random() < 0.3 else None)
    tables: dict[tuple[int, int], list[Table]] = {}
    usage_tables: dict[tuple[int, int], np.ndarray[tuple[int, int], np.dtype[np.int64]]] = {}
    with_memory = bool(rng.random() < 0.6) if memory is None else memory
    for u, v in _edges(rng, kind, count):
        shared = tables.setdefault((sizes[u], sizes[v]), [])
        if not shared or rng.random() < 0.6:
            shared.append(_table(rng, kind, sizes[u], sizes[v], highest))
        edge = builder.add_edge(u, v, shared[int(rng.integers(len(shared)))])
        if with_memory and rng.random() < 0.3:
            shape = (sizes[u], sizes[v])
            usage = usage_tables.setdefault(shape, rng.integers(0, 10, shape))
            start = int(rng.integers(0, 8))
            builder.add_edge_usage(edge, start, start + int(rng.integers(0, 3)), usage)
    for node, size in enumerate(sizes if with_memory else []):
        for _ in range(int(rng.integers(0, 3))):
            start = int(rng.integers(0, 8))
            builder.add_node_usage(node, start, start + int(rng.integers(0, 5)), rng.integers(0, 10, size))
    problem = builder.build()
    return replace(problem, memory_limit=_near_a_peak(rng, problem)) if with_memory else problem


def problems(*, memory: bool | None = None) -> st.SearchStrategy[Problem]:
    """`random_problem` as a Hypothesis strategy; it shrinks to a small seed only."""
    return st.integers(0, 2**32 - 1).map(
        lambda seed: random_problem(np.random.default_rng(seed), memory=memory)
    )


def all_choices(problem: Problem) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    ranges = [range(count) for count in problem.strategy_counts.tolist()]
    return [np.array(choice, dtype=np.int64) for choice in itertools.product(*ranges)]


def random_choice(rng: Generator, problem: Problem) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return rng.integers(0, problem.strategy_counts)


def valid_choices(
    problem: Problem, seed: int, draws: int
) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Of so many random choices those that are allowed."""
    rng = np.random.default_rng(seed)
    drawn = [random_choice(rng, problem) for _ in range(draws)]
    return [choice for choice in drawn if evaluate(problem, choice).cost is not None]


def _edges(rng: Generator, kind: str, count: int) -> list[tuple[int, int]]:
    if kind == "tree":
        return [(int(rng.integers(node)), node) for node in range(1, count)]
    if kind == "grid":
        across = [(node, node + 1) for node in range(count - 1) if node % 2 == 0]
        return across + [(node, node + 2) for node in range(count - 2)]
    pairs = [(u, v) for u in range(count) for v in range(count) if u != v]
    number = int(rng.integers(0, 2 * count)) if pairs else 0
    return [pairs[int(index)] for index in rng.integers(0, len(pairs), number)] if pairs else []


def _table(rng: Generator, kind: str, rows: int, columns: int, highest: int) -> Table:
    cost = rng.integers(0, highest, (rows, columns))
    if kind == "functional" and rng.random() < 0.6:
        allowed = np.zeros((rows, columns), dtype=np.bool_)
        allowed[np.arange(rows), rng.integers(0, columns, rows)] = True
        return Table(cost, allowed)
    if rng.random() < 0.3:
        cost = cost * 0 + cost[:, :1] + cost[:1]
    if kind == "forbidden" or rng.random() < 0.2:
        return Table(cost, rng.random((rows, columns)) < 0.7)
    return Table(cost)


def _near_a_peak(rng: Generator, problem: Problem) -> int:
    peak = min(evaluate(problem, random_choice(rng, problem)).peak for _ in range(int(rng.integers(1, 8))))
    return max(0, peak + int(rng.integers(-1, 2)))
