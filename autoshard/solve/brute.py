"""Every choice of a small Problem, one by one: the reference that the other solvers are tested against."""

from __future__ import annotations

from itertools import product

import numpy as np

from autoshard.problem import Problem, evaluate, validate
from autoshard.solve.solution import Best, Solution, Status

MOST_CHOICES = 1_000_000


def brute_force(problem: Problem) -> Solution:
    """The optimum, and the smallest peak, by trying everything; ties go to the lexicographically first choice.

    Raises:
        ValueError: more than a million choices.
    """
    validate(problem)
    choices = 1
    for count in problem.strategy_counts.tolist():
        choices *= count
    if choices > MOST_CHOICES:
        raise ValueError(f"{choices} choices are too many to try one by one")
    best = Best()
    for combination in product(*(range(count) for count in problem.strategy_counts.tolist())):
        choice = np.array(combination, dtype=np.int64)
        best.offer(choice, evaluate(problem, choice))
    found = best.choice is not None
    return Solution(
        status=Status.OPTIMAL if found else Status.INFEASIBLE,
        choice=best.choice,
        cost=best.cost,
        peak=best.peak,
        lower_bound=best.cost if best.cost is not None else 0,
        smallest_peak=best.smallest_peak,
        smallest_peak_choice=best.peak_choice,
        peak_lower_bound=best.smallest_peak or 0,
        statistics={"engine": "brute force", "choices": choices},
    )
