"""Random problems of every shape that the solver tells apart, and all their choices priced at once."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.random import Generator

from autoshard.problem import Problem, ProblemBuilder, Table
from autoshard.problem.model import Bools, Ints
from autoshard.solve.core import Core
from autoshard.solve.exact.usage import usage_in_row
from autoshard.solve.graph import FINITE_BELOW
from tests.problem.strategies import KINDS, random_problem

SHAPES = ("chain", "clique", "crowded", *KINDS)


def problem_of(seed: int) -> Problem:
    """One of every shape after the other; its limit, if any, is near a peak that it can reach."""
    rng = np.random.default_rng(seed)
    shape = SHAPES[seed % len(SHAPES)]
    if shape == "crowded":
        return crowded(rng)
    return dense(rng, shape) if shape in ("chain", "clique") else random_problem(rng, kind=shape)


def dense(rng: Generator, shape: str) -> Problem:
    """Items on every node, up to three, and on some edges; costs of nothing, a few or 10**12 ns; functional,
    forbidden and separable edges; a limit within a byte of a peak that some choice has."""
    builder = ProblemBuilder()
    count = int(rng.integers(2, 7 if shape == "chain" else 5))
    sizes = rng.integers(1, 5, count).tolist()
    highest = int(rng.choice([1, 20, 10**12]))
    for node, size in enumerate(sizes):
        allowed = rng.random(size) < 0.85
        allowed[rng.integers(size)] = True
        builder.add_node(rng.integers(0, highest, size), allowed)
        for _ in range(int(rng.integers(0, 4))):
            start = int(rng.integers(0, 6))
            builder.add_node_usage(node, start, start + int(rng.integers(0, 4)), rng.integers(0, 9, size))
    pairs = [(u, v) for v in range(count) for u in range(v) if shape == "clique" or u + 1 == v]
    for u, v in pairs:
        u, v = (u, v) if rng.random() < 0.5 else (v, u)
        usage = rng.integers(0, 9, (sizes[u], sizes[v]))
        edge = builder.add_edge(u, v, _table(rng, sizes[u], sizes[v], highest))
        if rng.random() < 0.5:
            start = int(rng.integers(0, 6))
            builder.add_edge_usage(edge, start, start + int(rng.integers(0, 4)), usage)
    problem = builder.build()
    peaks = Priced(problem).peak
    limit = max(0, int(rng.choice(peaks)) + int(rng.integers(-1, 2)))
    return replace(problem, memory_limit=limit) if rng.random() < 0.8 else problem


def _table(rng: Generator, rows: int, columns: int, highest: int) -> Table:
    cost = rng.integers(0, highest, (rows, columns))
    kind = rng.integers(4)
    if kind == 0:
        return Table(cost, np.arange(columns)[None, :] == rng.integers(0, columns, rows)[:, None])
    if kind == 1:
        return Table(cost, rng.random((rows, columns)) < 0.8)
    return Table(cost[:, :1] + cost[:1] if kind == 2 else cost)


def crowded(rng: Generator) -> Problem:
    """Several items on every node and edge, forbidden strategies and pairs, and a limit within 3 of the smallest peak."""
    builder = ProblemBuilder()
    sizes = rng.integers(1, 5, int(rng.integers(2, 6))).tolist()
    for node, size in enumerate(sizes):
        allowed = rng.random(size) < 0.75
        allowed[rng.integers(size)] = True
        builder.add_node(rng.integers(0, 12, size), allowed)
        for start in rng.integers(0, 6, int(rng.integers(1, 5))).tolist():
            builder.add_node_usage(node, start, start + int(rng.integers(0, 4)), rng.integers(0, 9, size))
    for _ in range(int(rng.integers(1, 2 * len(sizes)))):
        u, v = rng.choice(len(sizes), 2, replace=False).tolist()
        shape = (sizes[u], sizes[v])
        mask = rng.random(shape) < 0.75 if rng.random() < 0.6 else None
        edge = builder.add_edge(u, v, Table(rng.integers(0, 12, shape), mask))
        for start in rng.integers(0, 6, int(rng.integers(0, 3))).tolist():
            builder.add_edge_usage(edge, start, start + int(rng.integers(0, 4)), rng.integers(0, 9, shape))
    problem = builder.build()
    smallest = Priced(problem).smallest_peak or 0
    return replace(problem, memory_limit=max(0, smallest + int(rng.integers(-3, 4))))


def _combinations(counts: Ints) -> Ints:
    """[C, n] every choice, the last node's strategy changing first."""
    return (
        np.indices(counts.tolist()).reshape(len(counts), -1).T
        if len(counts)
        else np.zeros((1, 0), dtype=np.int64)
    )


class Priced:
    """All choices of a Problem, priced from its definition, time point by time point: brute force, quickly."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.choices = _combinations(problem.strategy_counts)
        rows = problem.node_start[:-1] + self.choices
        self.cost = problem.node_cost[rows].sum(axis=1)
        self.allowed: Bools = np.logical_and.reduce(problem.node_allowed[rows], axis=1)
        for (u, v), index in zip(problem.edge_nodes.tolist(), problem.edge_table.tolist(), strict=True):
            table, pair = problem.tables[index], (self.choices[:, u], self.choices[:, v])
            self.cost = self.cost + table.cost[pair]
            if table.allowed is not None:
                np.logical_and(self.allowed, table.allowed[pair], out=self.allowed)

    @cached_property
    def peak(self) -> Ints:
        problem, choices = self.problem, self.choices
        last = max([*problem.node_item[:, 2].tolist(), *problem.edge_item[:, 2].tolist(), 0])
        profile = np.zeros((len(choices), last + 1), dtype=np.int64)
        for item, (node, begin, end) in enumerate(problem.node_item.tolist()):
            profile[:, begin:end] += problem.item_usage(item)[choices[:, node], None]
        for edge, begin, end, table in problem.edge_item.tolist():
            u, v = problem.edge_nodes[edge].tolist()
            profile[:, begin:end] += problem.usage_tables[table][choices[:, u], choices[:, v], None]
        return profile.max(axis=1)

    @cached_property
    def valid(self) -> Bools:
        limit = self.problem.memory_limit
        return self.allowed if limit is None else self.allowed & (self.peak <= limit)

    @property
    def optimum(self) -> int | None:
        return int(self.cost[self.valid].min()) if self.valid.any() else None

    @property
    def smallest_peak(self) -> int | None:
        return int(self.peak[self.allowed].min()) if self.allowed.any() else None

    def number(self, choice: Ints) -> int:
        """Where a choice [N] stands among all."""
        number = 0
        for count, strategy in zip(self.problem.strategy_counts.tolist(), choice.tolist(), strict=True):
            number = number * count + strategy
        return number


class PricedCore:
    """The same for a Core."""

    def __init__(self, core: Core) -> None:
        self.choices = _combinations(core.counts)
        self.cost = core.constant + core.cost[core.start[:-1] + self.choices].sum(axis=1)
        self.valid: Bools = np.ones(len(self.choices), dtype=np.bool_)
        for edge, (u, v) in enumerate(core.ends.tolist()):
            cost = core.matrix(edge)[self.choices[:, u], self.choices[:, v]]
            self.valid &= cost < FINITE_BELOW
            self.cost = self.cost + np.where(cost < FINITE_BELOW, cost, 0)
        self.allowed = self.valid.copy()
        for row, room in enumerate(core.room.tolist()):
            used = np.zeros(len(self.choices), dtype=np.int64)
            for owner, usage in usage_in_row(core, row).items():
                position = self.choices[:, owner] if owner < core.node_count else self._pairs(core, owner)
                used += usage[position]
            self.valid &= used <= room

    def _pairs(self, core: Core, owner: int) -> Ints:
        u, v = core.ends[owner - core.node_count].tolist()
        return self.choices[:, u] * int(core.counts[v]) + self.choices[:, v]

    @property
    def optimum(self) -> int | None:
        return int(self.cost[self.valid].min()) if self.valid.any() else None
