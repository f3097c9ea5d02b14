"""Which engine when: without memory first, because an optimum that happens to fit is the optimum; then with it.

Each of the two goes through presolve; what is left is solved by dynamic programming if it is narrow, by CP-SAT if it
is small, and by message passing with search, which shrinks it, if it is large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.problem import Problem, evaluate, validate
from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock
from autoshard.solve.core import flatten
from autoshard.solve.cpsat import solve_cpsat
from autoshard.solve.dynamic import elimination_order, eliminate_all
from autoshard.solve.graph import ContradictionError, Graph
from autoshard.solve.load import certain_peak, load
from autoshard.solve.presolve import presolve
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
    run = Run(problem, Clock(time_limit_s, work_limit), seed, progress)
    for hint in hints:
        run.offer(np.asarray(hint, dtype=np.int64))
    try:
        run.go()
    except ContradictionError:
        run.infeasible = True
    except KeyboardInterrupt:
        run.clock.interrupted = True
    return run.solution()


class Run:
    """One call of `solve`: the best choice, the bound, and what was done."""

    def __init__(self, problem: Problem, clock: Clock, seed: int, progress: Progress | None) -> None:
        self.problem, self.clock, self.seed, self.progress = problem, clock, seed, progress
        self.best = Best()
        self.lower_bound = -(2**62)
        self.infeasible = False
        self.statistics: dict[str, Figure] = {}

    def offer(self, choice: Ints) -> bool:
        """Price a choice of the Problem; does it fit?"""
        priced = evaluate(self.problem, choice)
        self.best.offer(choice, priced)
        return priced.feasible

    def go(self) -> None:
        for with_memory in (False, True):
            graph = load(self.problem, with_memory=with_memory)
            presolve(graph)
            core = flatten(graph)
            order = None if len(core.room) else elimination_order(core)
            choice = np.zeros(self.problem.node_count, dtype=np.int64)
            if order is not None:
                choice[core.graph_nodes] = eliminate_all(core, order)
                optimal = True
                self.lower_bound = max(self.lower_bound, core.cost_of(choice[core.graph_nodes]))
            else:
                answer = solve_cpsat(core, self.clock, seed=self.seed)
                if answer.infeasible:
                    raise ContradictionError("CP-SAT")
                optimal = answer.optimal
                if answer.lower_bound is not None:
                    self.lower_bound = max(self.lower_bound, answer.lower_bound)
                if answer.choice is None:
                    return
                choice[core.graph_nodes] = answer.choice
            if self.offer(graph.expand(choice)) and optimal:
                return

    def solution(self) -> Solution:
        best = self.best
        if self.infeasible:
            status = Status.INFEASIBLE
        elif best.cost is None:
            status = Status.NOT_FOUND
        elif best.cost <= self.lower_bound:
            status = Status.OPTIMAL
        else:
            status = Status.FEASIBLE
        return Solution(
            status=status,
            choice=best.choice,
            cost=best.cost,
            peak=best.peak,
            lower_bound=self.lower_bound,
            smallest_peak=best.smallest_peak,
            smallest_peak_choice=best.peak_choice,
            peak_lower_bound=certain_peak(self.problem),
            statistics=self.statistics,
        )
