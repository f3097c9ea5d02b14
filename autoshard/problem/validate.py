"""Is a Problem well formed? The first thing that is not becomes an error that names the node or edge."""

from __future__ import annotations

import numpy as np

from autoshard.errors import AutoshardError
from autoshard.problem.model import Bools, Ints, Problem, Table

_TOTAL_BELOW = (
    2**60
)  # totals, differences of totals and the solver's mark for a forbidden entry then fit int64


def validate(problem: Problem) -> None:
    """Check everything that the solvers rely on.

    Raises:
        AutoshardError: a malformed node, edge, table or memory item, or totals that could overflow.
    """
    _check_nodes(problem)
    _check_edges(problem)
    _check_node_items(problem)
    _check_edge_items(problem)
    _check_totals(problem)
    if problem.memory_limit is not None and problem.memory_limit < 0:
        raise AutoshardError(f"the memory limit {problem.memory_limit} is negative", where="problem")


def _check_nodes(problem: Problem) -> None:
    counts = problem.strategy_counts
    _refuse(counts <= 0, "node", "has no strategies")
    if not len(problem.node_cost) == len(problem.node_allowed) == problem.node_start[-1]:
        raise AutoshardError("node costs, masks and offsets have different lengths", where="problem")
    allowed = (
        np.add.reduceat(problem.node_allowed.astype(np.int64), problem.node_start[:-1])
        if len(counts)
        else counts
    )
    _refuse(allowed == 0, "node", "has no allowed strategy")


def _check_edges(problem: Problem) -> None:
    nodes, tables = problem.edge_nodes, problem.edge_table
    if len(nodes) != len(tables):
        raise AutoshardError(f"{len(nodes)} edges but {len(tables)} edge tables", where="problem")
    outside = (nodes < 0) | (nodes >= problem.node_count)
    _refuse(_any_column(outside), "edge", "ends at a node that does not exist")
    _refuse(nodes[:, 0] == nodes[:, 1], "edge", "joins a node with itself")
    _refuse((tables < 0) | (tables >= len(problem.tables)), "edge", "has a table that does not exist")
    shapes = np.array([table.cost.shape for table in problem.tables], dtype=np.int64).reshape(-1, 2)
    wrong = _any_column(problem.strategy_counts[nodes] != shapes[tables])
    _refuse(wrong, "edge", "has a table whose shape is not that of its nodes' strategies")
    for index, table in enumerate(problem.tables):
        if table.allowed is not None and table.allowed.shape != table.cost.shape:
            raise AutoshardError("cost and mask have different shapes", where=f"table {index}")


def _check_node_items(problem: Problem) -> None:
    item, start = problem.node_item, problem.node_usage_start
    if len(start) != len(item) + 1 or start[-1] != len(problem.node_usage):
        raise AutoshardError("node items and their usage have different lengths", where="problem")
    node = item[:, 0]
    _refuse((node < 0) | (node >= problem.node_count), "node item", "belongs to a node that does not exist")
    wrong = np.diff(start) != problem.strategy_counts[node]
    _refuse(wrong, "node", "has a usage row of another length than its strategies", node)
    _refuse(item[:, 1] > item[:, 2], "node", "uses memory over an interval that ends before it starts", node)
    negative = np.zeros(len(item), dtype=np.bool_)
    negative[np.searchsorted(start, np.flatnonzero(problem.node_usage < 0), side="right") - 1] = True
    _refuse(negative, "node", "has a negative usage", node)


def _check_edge_items(problem: Problem) -> None:
    edge, _, _, table = problem.edge_item.T
    _refuse((edge < 0) | (edge >= problem.edge_count), "edge item", "belongs to an edge that does not exist")
    _refuse(
        (table < 0) | (table >= len(problem.usage_tables)),
        "edge",
        "has a usage table that does not exist",
        edge,
    )
    shapes = np.array([usage.shape for usage in problem.usage_tables], dtype=np.int64).reshape(-1, 2)
    wrong = _any_column(shapes[table] != problem.strategy_counts[problem.edge_nodes[edge]])
    _refuse(wrong, "edge", "has a usage table whose shape is not that of its nodes' strategies", edge)
    backwards = problem.edge_item[:, 1] > problem.edge_item[:, 2]
    _refuse(backwards, "edge", "uses memory over an interval that ends before it starts", edge)
    for index, usage in enumerate(problem.usage_tables):
        if (usage < 0).any():
            raise AutoshardError("negative usage", where=f"usage table {index}")


def _check_totals(problem: Problem) -> None:
    """Totals are summed as Python integers, which do not overflow."""
    by_node = _sum_of_maxima(np.where(problem.node_allowed, problem.node_cost, 0), problem.node_start)
    of_table = [_largest(table) for table in problem.tables]
    edges_of_table = np.bincount(problem.edge_table, minlength=len(of_table))
    by_edge = sum(int(n) * m for n, m in zip(edges_of_table, of_table, strict=True))
    if by_node + by_edge >= _TOTAL_BELOW:
        raise AutoshardError(
            "the largest costs sum to 2**60 or more", where="problem", fix="Scale the costs down."
        )
    of_usage = [int(usage.max(initial=0)) for usage in problem.usage_tables]
    items_of_usage = np.bincount(problem.edge_item[:, 3], minlength=len(of_usage))
    bytes_used = _sum_of_maxima(problem.node_usage, problem.node_usage_start)
    bytes_used += sum(int(n) * m for n, m in zip(items_of_usage, of_usage, strict=True))
    if bytes_used >= _TOTAL_BELOW:
        raise AutoshardError(
            "the largest usages sum to 2**60 or more", where="problem", fix="Scale the usages down."
        )


def _sum_of_maxima(values: Ints, start: Ints) -> int:
    if not len(values):
        return 0
    highest = np.maximum.reduceat(values, start[:-1]).tolist()
    lowest = np.minimum.reduceat(values, start[:-1]).tolist()
    return sum(max(high, 0) - min(low, 0) for high, low in zip(highest, lowest, strict=True))


def _largest(table: Table) -> int:
    cost = table.cost if table.allowed is None else table.cost[table.allowed]
    return int(cost.max(initial=0)) - int(cost.min(initial=0))


def _any_column(pairs: Bools) -> Bools:
    return pairs[:, 0] | pairs[:, 1]


def _refuse(bad: Bools, what: str, reason: str, index: Ints | None = None) -> None:
    positions = np.flatnonzero(bad)
    if len(positions):
        first = positions[0] if index is None else index[positions[0]]
        raise AutoshardError(reason, where=f"{what} {first}")
