"""A plan made level by level: the demands of the most urgent priority alone, then with the next, each level within what was decided.

The memory limit binds the last level only: the earlier ones lack the axes that later demands bring. Where what they decided leaves nothing
that fits, the last level is solved without them, and says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import PricedGraph, level_masks, masked
from autoshard.plans import PlannedLevel
from autoshard.problem import Problem, evaluate
from autoshard.program import Demand
from autoshard.solve import Solution, Status

Solve = Callable[[Problem, float, Sequence[NDArray[np.int64]]], Solution]
"""Solves a problem within a share of the time, starting from choices."""

_UNFROZEN = "what the levels before decided leaves nothing that fits: planned without it"


@dataclass(frozen=True, slots=True)
class Leveled:
    """The answer to the last level, and a row for each."""

    solution: Solution
    levels: tuple[PlannedLevel, ...]


def solve_by_levels(
    priced: PricedGraph,
    demands: Sequence[Demand],
    levels: Sequence[int],
    hints: Sequence[NDArray[np.int64]],
    solve: Solve,
) -> Leveled:
    """Solve for the levels in turn; the last has half the time."""
    limit = priced.problem.memory_limit
    rows: list[PlannedLevel] = []
    decided: NDArray[np.int64] | None = None
    for level in levels[:-1]:
        problem = masked(priced.problem, level_masks(priced, demands, level, decided), None)
        solution = solve(problem, 0.5 / (len(levels) - 1), _starts(hints, decided))
        rows.append(_row(priced, demands, level, solution, ""))
        decided = solution.choice if solution.choice is not None else decided
    last, note = levels[-1], ""
    problem = masked(priced.problem, level_masks(priced, demands, last, decided), limit)
    solution = solve(problem, 0.5, _starts(hints, decided))
    if solution.choice is None and decided is not None:
        free = masked(priced.problem, level_masks(priced, demands, last, None), limit)
        solution, note = solve(free, 0.5, hints), _UNFROZEN
    if solution.choice is not None and not all(row.is_proved for row in rows):
        solution = replace(solution, status=Status.FEASIBLE)
    return Leveled(solution, (*rows, _row(priced, demands, last, solution, note)))


def _starts(hints: Sequence[NDArray[np.int64]], decided: NDArray[np.int64] | None) -> list[NDArray[np.int64]]:
    return [*hints] if decided is None else [*hints, decided]


def _row(
    priced: PricedGraph, demands: Sequence[Demand], level: int, solution: Solution, note: str
) -> PlannedLevel:
    count = sum(
        any((dim.priority or 0) == level and (dim.axes or dim.is_closed) for dim in d.sharding.dims)
        for d in demands
    )
    if solution.choice is None:
        return PlannedLevel(level, count, 0, 0, False, note or solution.status.value)
    found = evaluate(priced.problem, solution.choice)
    assert found.cost is not None, "the choice is allowed"
    is_proved = solution.status is Status.OPTIMAL
    return PlannedLevel(level, count, found.cost, found.peak, is_proved, note)
