"""The waist: builder, oracle and validation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from autoshard.errors import AutoshardError
from autoshard.problem import Problem, ProblemBuilder, Table, evaluate, validate
from tests.problem.strategies import problems, random_choice


def small() -> ProblemBuilder:
    """Two nodes, one edge with a forbidden pair, memory on a node and on the edge."""
    builder = ProblemBuilder()
    builder.add_node([1, 2])
    builder.add_node([10, 20, 30], [True, True, False])
    table = Table(np.array([[0, 100, 0], [7, 0, 0]]), np.array([[True, True, True], [True, False, True]]))
    edge = builder.add_edge(0, 1, table)
    builder.add_node_usage(0, 5, 9, [3, 4])
    builder.add_edge_usage(edge, 8, 10, np.array([[1, 2, 0], [5, 0, 0]]))
    return builder


def test_cost_and_peak_are_sums() -> None:
    """Costs of nodes and edges add up, and so do bytes where intervals overlap."""
    priced = evaluate(small().build(9), [1, 0])
    assert (priced.cost, priced.peak, priced.peak_time) == (2 + 10 + 7, 9, 8)
    assert priced.feasible


def test_each_violation_is_named() -> None:
    """A forbidden strategy, a forbidden pair and too many bytes are named with their node, edge and time."""
    assert evaluate(small().build(), [0, 2]).violations == ("node 1: strategy 2 is forbidden",)
    assert evaluate(small().build(), [1, 1]).violations == (
        "edge 0: pair (1, 1) of nodes 0 and 1 is forbidden",
    )
    over = evaluate(small().build(8), [1, 0])
    assert over.violations == ("time 8: 9 bytes used, 8 allowed",)
    assert over.cost == 19


def test_a_half_open_interval_is_half_open() -> None:
    """An item that ends where another starts does not meet it; an empty one uses nothing."""
    builder = ProblemBuilder()
    builder.add_node([0])
    for start, end in ((0, 4), (4, 8), (4, 4)):
        builder.add_node_usage(0, start, end, [5])
    assert evaluate(builder.build(), [0]).peak == 5


def test_tables_are_interned_by_identity() -> None:
    """Edges that are given the same object share one table."""
    builder = ProblemBuilder()
    for _ in range(3):
        builder.add_node([0, 0])
    table = Table(np.zeros((2, 2), dtype=np.int64))
    builder.add_edge(0, 1, table)
    builder.add_edge(1, 2, table)
    problem = builder.build()
    assert len(problem.tables) == 1
    assert problem.edge_table.tolist() == [0, 0]


def test_the_empty_problem_costs_nothing() -> None:
    """No nodes is a problem too."""
    problem = ProblemBuilder().build(0)
    validate(problem)
    assert evaluate(problem, []).cost == 0


@settings(deadline=None, max_examples=100)
@given(problems())
def test_random_problems_are_valid_and_priced_like_a_loop(problem: Problem) -> None:
    """The vectorised oracle agrees with plain loops over nodes, edges, items and time points."""
    validate(problem)
    choice = random_choice(np.random.default_rng(0), problem)
    cost = sum(int(problem.node_costs(i)[choice[i]]) for i in range(problem.node_count))
    allowed = all(problem.node_mask(i)[choice[i]] for i in range(problem.node_count))
    used = np.zeros(40, dtype=np.int64)
    for (u, v), index in zip(problem.edge_nodes, problem.edge_table, strict=True):
        table = problem.tables[index]
        cost += int(table.cost[choice[u], choice[v]])
        allowed = allowed and (table.allowed is None or bool(table.allowed[choice[u], choice[v]]))
    for item, (node, start, end) in enumerate(problem.node_item):
        used[start:end] += problem.item_usage(item)[choice[node]]
    for edge, start, end, index in problem.edge_item:
        u, v = problem.edge_nodes[edge]
        used[start:end] += problem.usage_tables[index][choice[u], choice[v]]
    priced = evaluate(problem, choice)
    assert priced.cost == (cost if allowed else None)
    assert priced.peak == used.max()


BROKEN: dict[str, dict[str, Any]] = {
    "node 1: has no allowed strategy": {"node_allowed": np.array([1, 1, 0, 0, 0], dtype=np.bool_)},
    "edge 0: joins a node with itself": {"edge_nodes": np.array([[1, 1]], dtype=np.int32)},
    "edge 0: ends at a node that does not exist": {"edge_nodes": np.array([[0, 2]], dtype=np.int32)},
    "edge 0: has a table whose shape": {"edge_nodes": np.array([[1, 0]], dtype=np.int32)},
    "node 0: has a negative usage": {"node_usage": np.array([3, -4])},
    "node 0: uses memory over an interval that ends": {"node_item": np.array([[0, 9, 5]])},
    "edge 0: uses memory over an interval that ends": {"edge_item": np.array([[0, 9, 5, 0]])},
    "problem: the largest costs sum": {"node_cost": np.full(5, 2**59)},
    "problem: the memory limit -1 is negative": {"memory_limit": -1},
}


@pytest.mark.parametrize("message", BROKEN)
def test_malformed_problems_are_refused(message: str) -> None:
    """The error names the node or edge."""
    broken = replace(small().build(), **BROKEN[message])
    with pytest.raises(AutoshardError) as caught:
        validate(broken)
    assert message in str(caught.value)
