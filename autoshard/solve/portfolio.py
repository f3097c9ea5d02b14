"""Which engine when: presolve, then the cheapest engine that can prove what is left, then search for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.problem import Problem, evaluate, validate
from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock
from autoshard.solve.core import flatten
from autoshard.solve.cpsat import solve_cpsat
from autoshard.solve.graph import ContradictionError
from autoshard.solve.load import certain_peak, load
from autoshard.solve.solution import Best, Figure, Solution, Status

Progress = Callable[[str, float | None], None]


def solve(
    problem: Problem,
    *,
    time_limit_s: float,
    seed: int = 0,
    hints: Sequence[Ints] = (),
    progress: Progress | None = None,
    work_limit: int | None = None,
) -> Solution:
    """The best choice within the limits. An interrupt (Ctrl-C) ends the search, not the caller.

    `hints` are choices [N] to start from; the answer is never worse than a valid one of them. `progress` is told a
    phase and the gap so far. `work_limit` counts engine steps: a run that it ends, or none, is deterministic.

    Raises:
        AutoshardError: the problem is malformed.
    """
    validate(problem)
    clock = Clock(time_limit_s, work_limit)
    best = Best()
    for hint in hints:
        chosen = np.asarray(hint, dtype=np.int64)
        best.offer(chosen, evaluate(problem, chosen))
    statistics: dict[str, Figure] = {}
    lower_bound, proved, infeasible = -(2**62), False, False
    try:
        graph = load(problem)
        core = flatten(graph)
        answer = solve_cpsat(core, clock, seed=seed)
        lower_bound = answer.lower_bound if answer.lower_bound is not None else lower_bound
        infeasible, proved = answer.infeasible, answer.optimal
        if answer.choice is not None:
            choice = np.zeros(problem.node_count, dtype=np.int64)
            choice[core.graph_nodes] = answer.choice
            choice = graph.expand(choice)
            best.offer(choice, evaluate(problem, choice))
    except ContradictionError:
        infeasible = True
    return Solution(
        status=Status.INFEASIBLE
        if infeasible
        else Status.NOT_FOUND
        if best.choice is None
        else Status.OPTIMAL
        if proved
        else Status.FEASIBLE,
        choice=best.choice,
        cost=best.cost,
        peak=best.peak,
        lower_bound=lower_bound,
        smallest_peak=best.smallest_peak,
        smallest_peak_choice=best.peak_choice,
        peak_lower_bound=certain_peak(problem),
        statistics=statistics,
    )
