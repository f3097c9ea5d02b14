"""Which problem when: without memory first, because an optimum that happens to fit is the optimum; then folded, because a
program repeats its layers; then without memory again as long as the cheapest choice fits, as that is the smaller problem; then the
whole; and if nothing fits, the smallest peak. Each of them is presolved and given to
`reduce`, which picks the engines by what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import get_args

import numpy as np

from autoshard.errors import AutoshardError
from autoshard.problem import Problem, validate
from autoshard.problem.model import Ints
from autoshard.solve.brute import MOST_CHOICES, brute_force
from autoshard.solve.clock import Clock, OutOfTimeError
from autoshard.solve.folding import Folded, fold
from autoshard.solve.graph import ContradictionError, Graph
from autoshard.solve.load import load
from autoshard.solve.peak import smallest_peak
from autoshard.solve.polish import polish
from autoshard.solve.record import Progress, Record
from autoshard.solve.reduce import Reducer, shorten
from autoshard.solve.solution import Solution, Solver

SOLVERS: tuple[Solver, ...] = get_args(Solver)
_RELAXED_SHARE = 0.2  # of the time for the problem without memory
_FAR_OVER = 1.25  # times the memory limit: the optimum without memory will not fit
_LARGE = 10_000_000  # pairs before presolve: the whole is presolved when it is needed
_FOLD_FROM = 1_000  # nodes
_FOLDINGS = (1, 4)  # rounds of refinement: nodes are alike that look alike so many edges around
_FOLDED_TO = 0.2  # of the nodes at most, or folding does not pay
_FOLDED_SHARE = 0.12  # of the time that is left
_STALLED = 8  # rounds of search without progress end the work on a part
_WARM_FROM = 5_000  # nodes: there the search is likely to be needed, and presolve takes a while
_POLISHING_S = 0.5  # beyond the limit at most
_POLISHING_FOR_SURE_S = 60.0  # where the work is limited and the answer must not depend on the machine
_HIGHEST_SEED = 2**31 - 1  # CP-SAT takes no larger one


def solve(
    problem: Problem,
    *,
    time_limit_s: float,
    seed: int = 0,
    hints: Sequence[Ints] = (),
    progress: Progress | None = None,
    work_limit: int | None = None,
    threads: int = 2,
    solver: Solver = "auto",
    cutoff: int | None = None,
    whole: Clock | None = None,
) -> Solution:
    """The best choice within the limits. An interrupt (Ctrl-C) ends the search, not the caller.

    Args:
        hints: choices [N] to start from; the answer is never worse than a valid one of them.
        progress: told a phase and the gap so far.
        work_limit: engine steps; a run that it ends, or none, is deterministic.
        threads: how many engines or jobs at a time; changes nothing but the speed.
        solver: "auto" picks by what presolve leaves; "toulbar2", "cp-sat" and "maxsat" prove with that engine alone,
            "search" is message passing with local search alone, "brute" tries every choice of a small problem.
        cutoff: stop as soon as it is proved that no choice is cheaper than this; the answer then has that bound.
        whole: the clock of the work that this is a part of: the search ends with it, and an interrupt ends both.

    Raises:
        AutoshardError: the problem or another argument is malformed, or the problem too large for brute force.
    """
    validate(problem)
    if solver not in SOLVERS:
        raise AutoshardError(f"no solver is called {solver!r}", fix=f"name one of {', '.join(SOLVERS)}")
    if not time_limit_s >= 0:  # nor a number that is none
        raise AutoshardError(
            f"a time limit of {time_limit_s} s is no limit", fix="give a number of seconds, as in 60"
        )
    if not 0 <= seed <= _HIGHEST_SEED:
        raise AutoshardError(
            f"the seed {seed} is out of range", fix=f"give a number from 0 to {_HIGHEST_SEED}"
        )
    starts = [_checked(problem, hint, number) for number, hint in enumerate(hints)]
    if solver == "brute":
        return _brute(problem)
    clock = Clock(time_limit_s, work_limit, whole)
    record = Record(problem, clock, seed=seed, threads=threads, progress=progress, cutoff=cutoff)
    try:
        if threads > 1 and problem.node_count >= _WARM_FROM:
            record.warming.start()
        for start in starts:
            record.hint(start)
        Portfolio(record, solver).run()
    except KeyboardInterrupt:
        record.clock.interrupt()
    except OutOfTimeError:
        pass
    with suppress(KeyboardInterrupt):
        record.warming.end()
        _polish(record)
    return record.solution()


class Portfolio:
    """The problems to solve for one Record, one after the other until it is proved or out of time."""

    def __init__(self, record: Record, solver: Solver = "auto", *, folding: bool = True) -> None:
        self.record = record
        self._auto, self._folding = solver == "auto", folding and solver == "auto"
        self._patience = None if folding else _STALLED
        self._engines = None if solver == "auto" else () if solver == "search" else (solver,)

    def run(self) -> None:
        """Look for the cheapest choice; where none fits, for the smallest peak, which may turn out to fit.

        Raises:
            OutOfTimeError: the clock is over.
        """
        try:
            self._minimise_cost()
        except ContradictionError:
            self.record.infeasible = True
        if self.record.best.choice is None and not self.record.is_cut():
            self._minimise_peak()

    def _minimise_cost(self) -> None:
        record = self.record
        tight = load(record.problem, record.clock)
        is_large = tight.pair_count() > _LARGE
        if not is_large:
            shorten(tight, record.clock)
        reducer = Reducer(record, record.clock, engines=self._engines, patience=self._patience)
        if len(tight.room) and self._auto and (is_large or not reducer.is_small(tight)):
            free, relaxed = self._minimise_without_memory()
            if record.done():
                return
            self._minimise_folded()
            if not record.done() and relaxed.fits():
                relaxed.go_on(free, record.clock, self._patience)
        if not record.done():
            if is_large:
                shorten(tight, record.clock)
            reducer.solve(tight)

    def _minimise_without_memory(self) -> tuple[Graph, Reducer]:
        """A bound for the whole, and the optimum if it happens to fit, within a part of the clock; what there is to go on with."""
        record = self.record
        limit = record.problem.memory_limit
        free = load(record.problem, record.clock, with_memory=False)
        shorten(free, record.clock)
        far_over = None if limit is None else int(_FAR_OVER * limit)
        part = record.clock.part(_RELAXED_SHARE)
        reducer = Reducer(record, part, patience=_STALLED, far_over=far_over)
        with suppress(OutOfTimeError):
            reducer.solve(free)
        return free, reducer

    def _minimise_folded(self) -> None:
        """Alike nodes alike: coarse classes first, then finer ones, as choices to start from; no bound comes of it."""
        record = self.record
        for rounds in _FOLDINGS:
            folded = self._fold(rounds)
            if folded is None or folded.problem.node_count > _FOLDED_TO * record.problem.node_count:
                return
            part = self._folded_record(folded)
            self._attempt(Portfolio(part, folding=False)._minimise_cost)
            self._unfold(folded, part)
            if part.best.cost is not None:
                record.note_folded(folded.problem.node_count, part.best.cost)
            if record.done():
                return

    def _minimise_peak(self) -> None:
        record = self.record
        record.tell("looking for the smallest peak")
        folded = self._fold(_FOLDINGS[0])
        if folded is not None:
            part = self._folded_record(folded)
            self._attempt(Portfolio(part, folding=False)._minimise_peak)
            if self._unfold(folded, part):
                return
        starts = [start for start in (*record.hints, record.best.peak_choice) if start is not None]
        record.warming.wait(record.clock.left_s())
        try:
            bound = smallest_peak(
                record.problem, record.peak_bound, record.clock, record.seed, starts, record.offer
            )
        except ContradictionError:
            record.infeasible = True
            return
        record.peak_bound = max(record.peak_bound, bound)

    def _fold(self, rounds: int) -> Folded | None:
        if not self._folding or self.record.problem.node_count < _FOLD_FROM:
            return None
        return fold(self.record.problem, rounds=rounds)

    def _folded_record(self, folded: Folded) -> Record:
        """What is known so far, folded; a part of the clock."""
        record = self.record
        part = Record(
            folded.problem,
            record.clock.part(_FOLDED_SHARE),
            seed=record.seed,
            threads=record.threads,
            progress=lambda phase, gap: record.tell(f"alike nodes alike: {phase}"),
        )
        part.warming = record.warming
        for hint in (*record.hints, record.best.choice, record.best.peak_choice):
            if hint is not None:
                part.hint(folded.restrict(hint))
        return part

    def _attempt(self, minimise: Callable[[], None]) -> None:
        """Part of the work: when its time is over, or it proves that nothing fits, that says nothing of the whole."""
        try:
            minimise()
        except (OutOfTimeError, ContradictionError):
            pass
        except KeyboardInterrupt:
            self.record.clock.interrupt()

    def _unfold(self, folded: Folded, part: Record) -> bool:
        """Take over what the folded problem brought; is there a choice that fits?"""
        for choice in (part.best.choice, part.best.peak_choice):
            if choice is not None:
                self.record.offer(folded.expand(choice))
        return part.best.choice is not None


def _checked(problem: Problem, hint: Ints, number: int) -> Ints:
    """A hint that is a choice of the problem; it need not be valid."""
    choice = np.asarray(hint)
    if choice.dtype.kind not in "iu" or choice.shape != (problem.node_count,):
        raise AutoshardError(
            f"{choice.shape} of {choice.dtype}; the problem has {problem.node_count} nodes",
            where=f"hint {number}",
            fix="give one whole number for each node",
        )
    outside = np.flatnonzero((choice < 0) | (choice >= problem.strategy_counts))
    if len(outside):
        node = int(outside[0])
        raise AutoshardError(f"node {node} has no strategy {choice[node]}", where=f"hint {number}")
    return choice.astype(np.int64)


def _brute(problem: Problem) -> Solution:
    try:
        return brute_force(problem)
    except ValueError as error:
        raise AutoshardError(
            str(error),
            where="--solver brute",
            fix=f"name another solver; up to {MOST_CHOICES} choices can be tried",
        ) from None


def _polish(record: Record) -> None:
    """Of choices of the same cost take one that needs less memory."""
    best = record.best
    if best.choice is None or record.clock.interrupted or record.clock.time_limit_s <= 0:
        return
    seconds = _POLISHING_S if record.clock.work_limit is None else _POLISHING_FOR_SURE_S
    record.offer_polished(polish(record.problem, best.choice, Clock(seconds)))
