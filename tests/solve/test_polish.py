"""The last step of `solve`: less memory for the same cost."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.problem import ProblemBuilder, Table, evaluate
from autoshard.solve import brute_force, solve
from autoshard.solve.clock import Clock
from autoshard.solve.polish import polish
from tests.problem.strategies import all_choices, random_problem


@pytest.mark.parametrize("seed", range(60))
def test_polishing_keeps_cost_peak_and_validity(seed: int) -> None:
    """From the optimum and from any other valid choice."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, kind="zero" if seed % 2 else None)
    valid = [choice for choice in all_choices(problem) if evaluate(problem, choice).feasible]
    for choice in [valid[int(index)] for index in rng.integers(0, len(valid), 5)] if valid else []:
        before, after = evaluate(problem, choice), evaluate(problem, polish(problem, choice, Clock(60)))
        assert after.feasible and before.cost is not None and after.cost is not None
        assert after.cost <= before.cost
        assert after.peak <= before.peak


def test_of_equal_strategies_the_one_with_less_memory_is_taken() -> None:
    """Whole or split costs the same here: split, on both sides of the edge, and the copy between them is gone."""
    builder = ProblemBuilder()
    for node in range(3):
        builder.add_node([5, 5])
        builder.add_node_usage(node, node, node + 2, [8, 2])
    table = Table(np.zeros((2, 2), dtype=np.int64))
    for node in range(2):
        edge = builder.add_edge(node, node + 1, table)
        builder.add_edge_usage(edge, node, node + 2, np.array([[0, 4], [4, 0]]))
    problem = builder.build(memory_limit=40)
    answer = solve(problem, time_limit_s=10)
    assert answer.choice is not None
    assert answer.choice.tolist() == [1, 1, 1]
    assert answer.cost == brute_force(problem).cost
