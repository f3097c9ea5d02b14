"""What one call of `solve` knows so far: the best choice, the bounds, and what was done."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from autoshard.problem import Problem, evaluate
from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core
from autoshard.solve.graph import Graph
from autoshard.solve.load import certain_peak, trivial_bound
from autoshard.solve.solution import Best, Figure, Solution, Status
from autoshard.solve.warm import Warming

Progress = Callable[[str, float | None], None]


class Record:
    """Every choice is priced again by `evaluate` before it counts."""

    def __init__(
        self,
        problem: Problem,
        clock: Clock,
        *,
        seed: int,
        threads: int,
        progress: Progress | None,
        cutoff: int | None = None,
    ) -> None:
        self.problem, self.clock, self.seed, self.threads = problem, clock, seed, threads
        self.cutoff = cutoff  # a bound as high as this is all that is wanted
        self.progress = progress
        self.hints: list[Ints] = []
        self.best = Best()
        self.lower_bound = trivial_bound(problem)
        self.peak_bound = certain_peak(problem)
        self.infeasible = False
        self.warming = Warming()  # one for all parts of a problem
        self.statistics: dict[str, Figure] = {}
        self._began = time.monotonic()
        self._folded: tuple[int, int] | None = None

    def offer(self, choice: Ints) -> bool:
        """Price a choice of the Problem; does it fit?"""
        priced = evaluate(self.problem, choice)
        if self.best.offer(choice, priced):
            self.tell("better choice")
        return priced.feasible

    def offer_polished(self, choice: Ints) -> None:
        """A choice that costs no more and has no higher peak than the best one."""
        priced = evaluate(self.problem, choice)
        assert priced.feasible and priced.cost is not None and self.best.cost is not None
        assert priced.cost <= self.best.cost
        self.best.choice, self.best.cost, self.best.peak = choice, priced.cost, priced.peak

    def hint(self, choice: Ints) -> None:
        """A choice to start from."""
        self.hints.append(choice)
        self.offer(choice)

    def note_core(self, size: str) -> None:
        """What presolve left of the problem, or of what is left of it by now; the first time also when."""
        cores = sum(name.startswith("core ") for name in self.statistics)
        self.statistics[f"core {cores}"] = size
        if not cores:
            self.statistics["presolve_s"] = round(time.monotonic() - self._began, 3)

    def note_folded(self, nodes: int, cost: int) -> None:
        """The best choice that takes alike nodes alike, of a problem folded to so many nodes."""
        self._folded = (nodes, cost)

    def settle(self, graph: Graph, core: Core, choice: Ints | None, lower_bound: int | None) -> Ints | None:
        """Take note of a bound and of a choice of the core; returns the choice for the whole Problem."""
        if lower_bound is not None:
            self.lower_bound = max(self.lower_bound, lower_bound)
        if choice is None:
            return None
        whole = np.zeros(self.problem.node_count, dtype=np.int64)
        whole[core.graph_nodes] = choice
        whole = graph.expand(whole)
        self.offer(whole)
        return whole

    def done(self) -> bool:
        return self.clock.over() or self.proved() or self.is_cut()

    def is_cut(self) -> bool:
        """Whether no choice is cheaper than the cutoff."""
        return self.cutoff is not None and self.lower_bound >= self.cutoff

    def proved(self) -> bool:
        return self.best.cost is not None and self.best.cost <= self.lower_bound

    def tell(self, phase: str) -> None:
        if self.progress is not None:
            cost = self.best.cost
            self.progress(phase, None if cost is None else (cost - self.lower_bound) / max(abs(cost), 1))

    def solution(self) -> Solution:
        best = self.best
        limit = self.problem.memory_limit
        if self._folded is not None:
            nodes, cost = self._folded
            self.statistics["folded nodes"], self.statistics["folded cost"] = nodes, cost
            self.statistics["folded loss"] = (cost - self.lower_bound) / max(abs(cost), 1)
        if self.infeasible or (limit is not None and self.peak_bound > limit):
            assert best.cost is None, "a proof that nothing fits, and a choice that does"
            status = Status.INFEASIBLE
        elif best.cost is None:
            status = Status.NOT_FOUND
        elif self.proved():
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
            peak_lower_bound=self.peak_bound,
            statistics=self.statistics,
        )
