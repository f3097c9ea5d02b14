"""`solve` against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.problem import evaluate
from autoshard.solve import Status, brute_force, solve
from tests.problem.strategies import random_problem


@pytest.mark.parametrize("seed", range(400))
def test_solve_equals_brute_force(seed: int) -> None:
    """Cost, status and bound agree with trying everything, and the choice is worth what is said."""
    problem = random_problem(np.random.default_rng(seed))
    reference = brute_force(problem)
    answer = solve(problem, time_limit_s=60)
    assert answer.status is reference.status
    assert answer.cost == reference.cost
    if answer.choice is not None:
        priced = evaluate(problem, answer.choice)
        assert priced.feasible
        assert (priced.cost, priced.peak) == (answer.cost, answer.peak)
        assert answer.lower_bound == answer.cost
    if answer.status is Status.INFEASIBLE and reference.smallest_peak is not None:
        assert answer.peak_lower_bound == reference.smallest_peak == answer.smallest_peak
