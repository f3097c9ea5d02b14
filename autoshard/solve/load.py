"""A Problem -> the Graph that presolve works on: masks become missing strategies, time points become rows."""

from __future__ import annotations

import numpy as np

from autoshard.problem import Problem, Table
from autoshard.problem.evaluate import group_by
from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, check, watched
from autoshard.solve.graph import FORBIDDEN, ContradictionError, Graph, positions
from autoshard.solve.rows import binding_rows, onto_rows


def load(problem: Problem, clock: Clock | None = None, *, with_memory: bool = True) -> Graph:
    """Everything that can matter for the choice.

    Raises:
        ContradictionError: a node without strategies, or too little memory whatever is chosen.
        OutOfTimeError: the clock is over.
    """
    check(clock)
    costs = np.split(problem.node_cost, problem.node_start[1:-1]) if problem.node_count else []
    graph = Graph(
        cost=costs,
        adjacent=[{} for _ in costs],
        node_items=[[] for _ in costs],
        edge_items={},
        room=np.zeros(0, dtype=np.int64),
        rows=np.zeros(0, dtype=np.int64),
        origin=[np.arange(len(cost)) for cost in costs],
    )
    matrices = [
        graph.memo.intern(
            table.cost if table.allowed is None else np.where(table.allowed, table.cost, FORBIDDEN)
        )
        for table in watched(clock, problem.tables)
    ]
    edges = zip(problem.edge_nodes.tolist(), problem.edge_table.tolist(), strict=True)
    for (u, v), index in watched(clock, edges):
        graph.add_matrix(u, v, matrices[index])
    if with_memory and problem.memory_limit is not None:
        _add_memory(graph, problem, problem.memory_limit, clock)
    forbidden = np.flatnonzero(~problem.node_allowed)
    for node in np.unique(np.searchsorted(problem.node_start, forbidden, side="right") - 1).tolist():
        mask = problem.node_mask(node)
        graph.keep_strategies(node, np.flatnonzero(mask), positions(mask))
    return graph


def _add_memory(graph: Graph, problem: Problem, limit: int, clock: Clock | None) -> None:
    low, high = item_ranges(problem)
    begin = np.concatenate([problem.node_item[:, 1], problem.edge_item[:, 1]])
    end = np.concatenate([problem.node_item[:, 2], problem.edge_item[:, 2]])
    times = np.unique(np.concatenate([begin, end]))
    begin, end = np.searchsorted(times, begin), np.searchsorted(times, end)
    rows, graph.room = binding_rows(begin, end, low, high, np.full(len(times), limit, dtype=np.int64))
    graph.rows = rows
    if (graph.room < 0).any():
        raise ContradictionError("what is certain to be used exceeds the memory limit")
    begin, end = onto_rows(rows, begin, end)
    matters = (begin < end) & (high > low)
    nodes = len(problem.node_item)
    for item in watched(clock, np.flatnonzero(matters[:nodes]).tolist()):
        usage = np.maximum(problem.item_usage(item) - low[item], 0)
        graph.node_items[problem.node_item[item, 0]].append((int(begin[item]), int(end[item]), usage))
    lowered: dict[tuple[int, int], Ints] = {}
    of_edges = np.flatnonzero(matters[nodes:])
    ends, tables = problem.edge_nodes[problem.edge_item[of_edges, 0]], problem.edge_item[of_edges, 3]
    columns = (*ends.T, tables, begin[nodes + of_edges], end[nodes + of_edges], low[nodes + of_edges])
    for u, v, table, first, last, least in watched(clock, zip(*(c.tolist() for c in columns), strict=True)):
        if (table, least) not in lowered:
            lowered[table, least] = np.maximum(problem.usage_tables[table] - least, 0)
        graph.add_items_between(u, v, [(first, last, lowered[table, least])])


def item_ranges(problem: Problem) -> tuple[Ints, Ints]:
    """Least and most bytes of every node item, then of every edge item, over what is allowed."""
    starts = problem.node_usage_start[:-1]
    rows = np.repeat(problem.node_start[problem.node_item[:, 0]] - starts, np.diff(problem.node_usage_start))
    allowed = problem.node_allowed[rows + np.arange(len(problem.node_usage))]
    largest = np.iinfo(np.int64).max
    node_low, node_high = (
        reduction.reduceat(np.where(allowed, problem.node_usage, other), starts) if len(starts) else starts
        for reduction, other in ((np.minimum, largest), (np.maximum, 0))
    )
    edge_low = np.zeros(len(problem.edge_item), dtype=np.int64)
    edge_high = np.zeros(len(problem.edge_item), dtype=np.int64)
    edge_table = problem.edge_table[problem.edge_item[:, 0]]
    for key, members in group_by(problem.edge_item[:, 3] * (len(problem.tables) + 1) + edge_table):
        usage = problem.usage_tables[key // (len(problem.tables) + 1)]
        allowed_pairs = problem.tables[key % (len(problem.tables) + 1)].allowed
        possible = usage if allowed_pairs is None else usage[allowed_pairs]
        edge_low[members] = possible.min() if possible.size else 0
        edge_high[members] = possible.max() if possible.size else 0
    return np.concatenate([node_low, edge_low]), np.concatenate([node_high, edge_high])


def certain_peak(problem: Problem) -> int:
    """A peak that every allowed choice has at least: everything at its least, at the worst time point."""
    low, _ = item_ranges(problem)
    begin = np.concatenate([problem.node_item[:, 1], problem.edge_item[:, 1]])
    end = np.concatenate([problem.node_item[:, 2], problem.edge_item[:, 2]])
    times, index = np.unique(np.concatenate([begin, end]), return_inverse=True)
    delta = np.zeros(len(times), dtype=np.int64)
    np.add.at(delta, index[: len(low)], low)
    np.subtract.at(delta, index[len(low) :], low)
    return int(np.cumsum(delta).max(initial=0))


def trivial_bound(problem: Problem) -> int:
    """A bound on the cost of every choice: everything at its cheapest."""
    largest = np.iinfo(np.int64).max
    nodes = np.where(problem.node_allowed, problem.node_cost, largest)
    cheapest = np.minimum.reduceat(nodes, problem.node_start[:-1]).tolist() if problem.node_count else []
    of_table = [_least(table) for table in problem.tables]
    return sum(cheapest) + sum(of_table[index] for index in problem.edge_table.tolist())


def _least(table: Table) -> int:
    cost = table.cost if table.allowed is None else table.cost[table.allowed]
    return int(cost.min()) if cost.size else 0
