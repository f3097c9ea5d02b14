"""A choice -> what it costs and uses. The oracle: every answer of every solver is priced again by this file.

Sums are exact: `validate` refuses problems whose sums could leave int64.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from autoshard.problem.model import Ints, Problem


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`cost` is None where a forbidden strategy or pair is used; `violations` name all that is wrong."""

    cost: int | None
    peak: int  # bytes at the worst time point
    peak_time: int  # the first time point that has the peak; 0 where nothing uses memory
    violations: tuple[str, ...]

    @property
    def feasible(self) -> bool:
        return not self.violations


def evaluate(problem: Problem, choice: ArrayLike) -> Evaluation:
    """Price `choice`, [N] a strategy (row within its node) for every node.

    Raises:
        ValueError: the choice has another length, or a number that is no strategy of its node.
    """
    chosen = np.asarray(choice, dtype=np.int64)
    if chosen.shape != (problem.node_count,):
        raise ValueError(f"a choice for {len(chosen)} nodes; the problem has {problem.node_count}")
    outside = np.flatnonzero((chosen < 0) | (chosen >= problem.strategy_counts))
    if len(outside):
        raise ValueError(f"node {outside[0]} has no strategy {chosen[outside[0]]}")
    rows = problem.node_start[:-1] + chosen
    edge_cost, edge_allowed = _price_edges(problem, chosen)
    forbidden = [
        f"node {i}: strategy {chosen[i]} is forbidden" for i in np.flatnonzero(~problem.node_allowed[rows])
    ]
    for e in np.flatnonzero(~edge_allowed):
        u, v = problem.edge_nodes[e]
        forbidden.append(f"edge {e}: pair ({chosen[u]}, {chosen[v]}) of nodes {u} and {v} is forbidden")
    cost = None if forbidden else int(problem.node_cost[rows].sum()) + int(edge_cost.sum())
    times, profile = memory_profile(problem, chosen)
    peak, peak_time = 0, 0
    if len(profile):
        worst = int(profile.argmax())
        peak, peak_time = int(profile[worst]), int(times[worst])
    violations = forbidden
    if problem.memory_limit is not None and peak > problem.memory_limit:
        violations.append(f"time {peak_time}: {peak} bytes used, {problem.memory_limit} allowed")
    return Evaluation(cost, peak, peak_time, tuple(violations))


def memory_profile(problem: Problem, choice: Ints) -> tuple[Ints, Ints]:
    """(times, bytes): from times[k] up to the next of them the choice uses bytes[k]."""
    starts = np.concatenate([problem.node_item[:, 1], problem.edge_item[:, 1]])
    ends = np.concatenate([problem.node_item[:, 2], problem.edge_item[:, 2]])
    return _profile(starts, ends, np.concatenate(item_usages(problem, choice)))


def peak_of(starts: Ints, ends: Ints, usage: Ints) -> int:
    """The most bytes in use at any time, of items that each use so many from its start up to its end."""
    _, profile = _profile(starts, ends, usage)
    return max(int(profile.max(initial=0)), 0)


def _profile(starts: Ints, ends: Ints, usage: Ints) -> tuple[Ints, Ints]:
    alive = starts < ends
    starts, ends, usage = starts[alive], ends[alive], usage[alive]
    times, index = np.unique(np.concatenate([starts, ends]), return_inverse=True)
    delta = np.zeros(len(times), dtype=np.int64)
    np.add.at(delta, index[: len(starts)], usage)
    np.subtract.at(delta, index[len(starts) :], usage)
    return times, np.cumsum(delta)


def item_usages(problem: Problem, choice: Ints) -> tuple[Ints, Ints]:
    """Bytes of every node item and of every edge item under the choice."""
    node = problem.node_usage[problem.node_usage_start[:-1] + choice[problem.node_item[:, 0]]]
    edge = np.zeros(len(problem.edge_item), dtype=np.int64)
    ends = choice[problem.edge_nodes[problem.edge_item[:, 0]]]
    for table, members in group_by(problem.edge_item[:, 3]):
        edge[members] = problem.usage_tables[table][ends[members, 0], ends[members, 1]]
    return node, edge


def _price_edges(problem: Problem, choice: Ints) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    cost = np.zeros(problem.edge_count, dtype=np.int64)
    allowed = np.ones(problem.edge_count, dtype=np.bool_)
    ends = choice[problem.edge_nodes]
    for index, members in group_by(problem.edge_table):
        table = problem.tables[index]
        pairs = (ends[members, 0], ends[members, 1])
        cost[members] = table.cost[pairs]
        if table.allowed is not None:
            allowed[members] = table.allowed[pairs]
    return cost, allowed


def group_by(keys: np.ndarray[tuple[int], np.dtype[np.integer]]) -> list[tuple[int, Ints]]:
    """Every distinct key with the positions that have it."""
    if not len(keys):
        return []
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    cuts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(keys)]
    firsts = ordered[cuts[:-1]].tolist()
    return [(key, order[begin:end]) for key, (begin, end) in zip(firsts, pairwise(cuts), strict=True)]
