"""Among choices of the same cost, one that takes less memory: nothing stays gathered, or is copied, without a reason.

A node moves alone, its neighbours stay: to the strategy of the smallest volume (bytes times time points, of its items
and of those of its edges) among those that cost no more, if no time point then uses more than the peak so far. Nodes
without an edge between them move together, their changes add up. Costs and peaks are exact, a volume is a preference.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoshard.problem import Problem, evaluate
from autoshard.problem.evaluate import group_by
from autoshard.problem.model import Bools, Ints
from autoshard.solve.clock import Clock

_MOST_PASSES = 10
_CLEARLY_LESS = 1 - 1e-9  # of a volume, which is a sum in floating point


def polish(problem: Problem, choice: Ints, clock: Clock) -> Ints:
    """A valid choice -> one that costs no more and has no higher peak; ties go to the first strategy."""
    peak = evaluate(problem, choice).peak
    for _ in range(_MOST_PASSES):
        if clock.over():
            break
        wanted = _wanted(problem, choice)
        moving = _independent(problem, np.flatnonzero(wanted != choice))
        moved = _move(problem, choice, wanted, moving, peak, clock)
        if (moved == choice).all():
            break
        choice = moved
    return choice


def _move(problem: Problem, choice: Ints, wanted: Ints, nodes: Ints, peak: int, clock: Clock) -> Ints:
    """Move the nodes together, or, where that raises the peak, one half and then the other."""
    if not len(nodes) or clock.over():
        return choice
    moved = choice.copy()
    moved[nodes] = wanted[nodes]
    if evaluate(problem, moved).peak <= peak:
        return moved
    if len(nodes) == 1:
        return choice
    half = len(nodes) // 2
    choice = _move(problem, choice, wanted, nodes[:half], peak, clock)
    return _move(problem, choice, wanted, nodes[half:], peak, clock)


def _wanted(problem: Problem, choice: Ints) -> Ints:
    """[N] where each node would go if it moved alone."""
    cost, allowed = _costs_alone(problem, choice)
    volume = _volumes_alone(problem, choice)
    rows = problem.node_start[:-1]
    node = np.repeat(np.arange(problem.node_count), problem.strategy_counts)
    here = (rows + choice)[node]
    better = np.flatnonzero(allowed & (cost <= cost[here]) & (volume < _CLEARLY_LESS * volume[here]))
    better = better[np.lexsort((better, volume[better], node[better]))]
    nodes, first = np.unique(node[better], return_index=True)
    wanted = choice.copy()
    wanted[nodes] = better[first] - rows[nodes]
    return wanted


def _independent(problem: Problem, nodes: Ints) -> Ints:
    """Nodes of the given ones with no edge between them, the first ones first."""
    among = np.zeros(problem.node_count, dtype=np.bool_)
    among[nodes] = True
    u, v = problem.edge_nodes.T
    pairs = np.sort(problem.edge_nodes[among[u] & among[v]], axis=1)
    for first, second in pairs[np.lexsort(pairs.T[::-1])].tolist():
        if among[first]:
            among[second] = False
    return np.flatnonzero(among)


def _costs_alone(problem: Problem, choice: Ints) -> tuple[Ints, Bools]:
    """[sum K] cost and permission of every strategy, up to what its neighbours cost themselves."""
    cost = problem.node_cost.copy()
    forbidden = np.zeros(len(cost), dtype=np.int64)
    for index, edges in group_by(problem.edge_table):
        table = problem.tables[index]
        if table.allowed is None:
            _add(problem, choice, edges, table.cost, cost)
            continue
        _add(problem, choice, edges, np.where(table.allowed, table.cost, 0), cost)
        _add(problem, choice, edges, (~table.allowed).astype(np.int64), forbidden)
    return cost, problem.node_allowed & (forbidden == 0)


def _volumes_alone(problem: Problem, choice: Ints) -> NDArray[np.float64]:
    """[sum K] volume of every strategy: the items of the node and those of its edges."""
    volume = np.zeros(len(problem.node_cost))
    lengths = np.diff(problem.node_usage_start)
    item = np.repeat(np.arange(len(lengths)), lengths)
    strategy = np.arange(len(problem.node_usage)) - problem.node_usage_start[item]
    span = np.maximum(problem.node_item[:, 2] - problem.node_item[:, 1], 0)
    row = problem.node_start[problem.node_item[item, 0]] + strategy
    np.add.at(volume, row, problem.node_usage.astype(np.float64) * span[item])
    span = np.maximum(problem.edge_item[:, 2] - problem.edge_item[:, 1], 0)
    for index, items in group_by(problem.edge_item[:, 3]):
        edges = problem.edge_item[items, 0]
        _add(problem, choice, edges, problem.usage_tables[index].astype(np.float64), volume, span[items])
    return volume


def _add(
    problem: Problem,
    choice: Ints,
    edges: Ints,
    table: NDArray[np.int64] | NDArray[np.float64],
    into: NDArray[np.int64] | NDArray[np.float64],
    weight: Ints | None = None,
) -> None:
    """Into the strategies of both nodes of each edge: what the table says of the pair with the other node's choice."""
    u, v = problem.edge_nodes[edges].T
    for node, amount in ((u, table[:, choice[v]].T), (v, table[choice[u]])):
        rows = problem.node_start[node][:, None] + np.arange(amount.shape[1])
        np.add.at(into, rows, amount if weight is None else amount * weight[:, None])
