"""Which engine when: without memory first, because an optimum that happens to fit is the optimum; then with it.

Each of the two goes through presolve; what is left is solved by dynamic programming if it is narrow, by CP-SAT if it
is small, and by message passing with search, which shrinks it, if it is large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from autoshard.problem import Problem, evaluate, validate
from autoshard.problem.model import Bools, Ints
from autoshard.solve.clock import Clock, OutOfTimeError
from autoshard.solve.core import Core, flatten
from autoshard.solve.exact.cpsat import CpSat
from autoshard.solve.exact.dynamic import eliminate_all, elimination_order
from autoshard.solve.exact.lazy import solve_lazily
from autoshard.solve.graph import ContradictionError, Graph, positions
from autoshard.solve.load import certain_peak, load, trivial_bound
from autoshard.solve.peak import smallest_peak
from autoshard.solve.polish import polish
from autoshard.solve.presolve import presolve
from autoshard.solve.solution import Best, Figure, Solution, Status

if TYPE_CHECKING:
    from autoshard.solve.anytime import Anytime

Progress = Callable[[str, float | None], None]
_PRESOLVE_SHARE = 0.5  # of the time that is left
_RELAXED_SHARE = 0.2  # of the time for the problem without memory
_CPSAT_FIRST = 2_000  # pairs of a core that goes to CP-SAT at once
_CPSAT_LATER = 60_000  # the same once the search has stalled
_CPSAT_SHARE = 0.5  # of the time that is left then
_GIVE_UP_AFTER = 0.6  # of the time, to look for the smallest peak if nothing fits so far
_POLISHING_S = 0.5  # beyond the limit at most
_WORTH_SHRINKING = 0.1  # of the strategies


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
    try:
        for hint in hints:
            run.hints.append(np.asarray(hint, dtype=np.int64))
            run.offer(run.hints[-1])
        run.go()
    except KeyboardInterrupt:
        run.clock.interrupt()
    except OutOfTimeError:
        pass
    with suppress(KeyboardInterrupt):
        run.polish()
    return run.solution()


def shrink(graph: Graph, core: Core, removable: Bools) -> None:
    """Take strategies of the core out of the graph."""
    for index in np.unique(np.searchsorted(core.start, np.flatnonzero(removable), side="right") - 1).tolist():
        stays = ~removable[core.start[index] : core.start[index + 1]]
        graph.keep_strategies(int(core.graph_nodes[index]), np.flatnonzero(stays), positions(stays))


def shorten(graph: Graph, clock: Clock) -> None:
    """Presolve as far as a share of the clock allows.

    Raises:
        ContradictionError: no choice is valid.
        OutOfTimeError: the whole clock is over.
    """
    with suppress(OutOfTimeError):
        presolve(graph, clock.part(_PRESOLVE_SHARE))
    clock.check()


class Run:
    """One call of `solve`: the best choice, the bound, and what was done."""

    def __init__(self, problem: Problem, clock: Clock, seed: int, progress: Progress | None) -> None:
        self.problem, self.clock, self.seed, self.progress = problem, clock, seed, progress
        self.hints: list[Ints] = []
        self.best = Best()
        self.lower_bound = trivial_bound(problem)
        self.peak_bound = certain_peak(problem)
        self.infeasible = False
        self.statistics: dict[str, Figure] = {}
        self._tried: set[int] = set()

    def offer(self, choice: Ints) -> bool:
        """Price a choice of the Problem; does it fit?"""
        priced = evaluate(self.problem, choice)
        if self.best.offer(choice, priced):
            self.tell("better choice")
        return priced.feasible

    def go(self) -> None:
        """Look for the cheapest choice; where none fits, for the smallest peak, which may turn out to fit.

        Raises:
            OutOfTimeError: the clock is over.
        """
        try:
            self.minimise_cost()
        except ContradictionError:
            self.infeasible = True
        if self.best.choice is None:
            self.minimise_peak()

    def polish(self) -> None:
        """Of choices of the same cost take one that needs less memory."""
        if self.best.choice is None or self.clock.interrupted or self.clock.time_limit_s <= 0:
            return
        choice = polish(self.problem, self.best.choice, Clock(_POLISHING_S))
        priced = evaluate(self.problem, choice)
        assert priced.feasible and priced.cost is not None and self.best.cost is not None
        assert priced.cost <= self.best.cost
        self.best.choice, self.best.cost, self.best.peak = choice, priced.cost, priced.peak

    def minimise_peak(self) -> None:
        self.tell("looking for the smallest peak")
        starts = [start for start in (*self.hints, self.best.peak_choice) if start is not None]
        try:
            bound = smallest_peak(self.problem, self.peak_bound, self.clock, self.seed, starts, self.offer)
        except ContradictionError:
            self.infeasible = True
            return
        self.peak_bound = max(self.peak_bound, bound)

    def minimise_cost(self) -> None:
        """Without memory first, unless it cannot bind; the relaxed optimum, if it fits, ends it."""
        tight = load(self.problem, self.clock)
        shorten(tight, self.clock)
        if len(tight.room):
            self.minimise_without_memory(self.clock.part(_RELAXED_SHARE))
            if self.done():
                return
        self.reduce(tight, self.clock)

    def minimise_without_memory(self, clock: Clock) -> None:
        """A bound for the whole, and the optimum if it happens to fit, within a part of the clock."""
        with suppress(OutOfTimeError):
            free = load(self.problem, clock, with_memory=False)
            shorten(free, clock)
            self.reduce(free, clock)

    def done(self) -> bool:
        return self.clock.over() or (self.best.cost is not None and self.best.cost <= self.lower_bound)

    def reduce(self, graph: Graph, clock: Clock) -> None:
        """Solve a presolved graph, shrinking it by what the bound rules out, until proved or out of time."""
        incumbent: Ints | None = None
        pairs = _CPSAT_FIRST
        while True:
            core = flatten(graph, clock)
            self.note(graph, core)
            if clock.over() or self.exactly(graph, core, incumbent, clock, pairs):
                return
            incumbent, removable = self.search(graph, core, incumbent, clock)
            if incumbent is None or self.done():
                return
            only_relaxed = clock is not self.clock
            if only_relaxed and pairs == _CPSAT_LATER and removable.mean() <= _WORTH_SHRINKING:
                return
            pairs = _CPSAT_LATER
            shrink(graph, core, removable)
            shorten(graph, clock)

    def exactly(self, graph: Graph, core: Core, incumbent: Ints | None, clock: Clock, pairs: int) -> bool:
        """Dynamic programming or CP-SAT, where the core is narrow or small enough; is it solved?"""
        if not core.node_count:
            self.settle(graph, core, core.cost, core.constant)
            return True
        order = None if len(core.room) else elimination_order(core, clock)
        if order is not None:
            self.statistics["engine"] = "dynamic programming"
            choice = eliminate_all(core, order, clock)
            self.settle(graph, core, choice, core.cost_of(choice))
            return True
        if core.pair_count() > pairs:
            return False
        self.statistics["engine"] = "CP-SAT"
        hint = None if incumbent is None else graph.project(incumbent)[core.graph_nodes]
        share = clock if pairs == _CPSAT_FIRST else clock.part(_CPSAT_SHARE)
        answer = solve_lazily(CpSat(core, self.seed), core, share, hint=hint).answer
        if answer.infeasible:
            raise ContradictionError("CP-SAT proves that nothing fits")
        self.settle(graph, core, answer.choice, answer.lower_bound)
        return answer.optimal

    def search(
        self, graph: Graph, core: Core, incumbent: Ints | None, clock: Clock
    ) -> tuple[Ints | None, Bools]:
        """Rounds of message passing and moves, until proved, stalled or out of time."""
        from autoshard.solve.anytime import Anytime

        self.statistics["engine"] = "message passing"
        engine = Anytime(core, self.seed, clock)
        starts = [incumbent] if incumbent is not None else [*self.hints, self.best.choice]
        for start in starts:
            if start is not None:
                engine.consider(graph.project(start)[core.graph_nodes])
        while not (clock.over() or self.done()):
            cost = engine.best_cost
            engine.round(clock)
            if engine.best_cost != cost:
                incumbent = self.settle(graph, core, engine.best, None)
            self.settle(graph, core, None, engine.lower_bound)
            self.tell("message passing")
            if incumbent is None and self.clock.used() > _GIVE_UP_AFTER:
                break
            only_relaxed = clock is not self.clock
            if engine.proved() or (engine.stalled() and (only_relaxed or self.worth_leaving(engine, core))):
                break
        if engine.best is not None:
            incumbent = self.settle(graph, core, engine.best, None)
        return incumbent, engine.removable

    def worth_leaving(self, engine: Anytime, core: Core) -> bool:
        """Would a smaller core, or CP-SAT on this one, bring anything new?"""
        if engine.removable.mean() > _WORTH_SHRINKING:
            return True
        untried = core.pair_count() <= _CPSAT_LATER and id(core) not in self._tried
        self._tried.add(id(core))
        return untried

    def note(self, graph: Graph, core: Core) -> None:
        """What presolve left, for the report."""
        kind = "with memory" if len(core.room) else "without memory"
        self.statistics[f"core {len(self.statistics)}"] = f"{graph.size()}, {len(core.room)} rows, {kind}"
        self.tell(f"presolved to {graph.size()}")

    def tell(self, phase: str) -> None:
        if self.progress is not None:
            cost = self.best.cost
            self.progress(phase, None if cost is None else (cost - self.lower_bound) / max(abs(cost), 1))

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

    def solution(self) -> Solution:
        best = self.best
        limit = self.problem.memory_limit
        if self.infeasible or (limit is not None and self.peak_bound > limit):
            assert best.cost is None, "a proof that nothing fits, and a choice that does"
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
            peak_lower_bound=self.peak_bound,
            statistics=self.statistics,
        )
