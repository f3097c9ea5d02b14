"""Does anything fit? A choice within the memory limit, whatever it costs, or a proof that there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from autoshard.problem import Problem, Table, evaluate
from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, OutOfTimeError
from autoshard.solve.folding import fold
from autoshard.solve.graph import ContradictionError
from autoshard.solve.load import certain_peak
from autoshard.solve.peak import smallest_peak
from autoshard.solve.portfolio import solve
from autoshard.solve.solution import Status

_FOLD_FROM = 1_000  # nodes
_FOLDED_SHARE, _PEAK_SHARE = 0.25, 0.6  # of the time that is left


@dataclass(slots=True)
class Fit:
    """Whether something fits within the memory limit: a choice that does, or a bound on every peak beyond it; else not known."""

    choice: Ints | None = None
    smallest_peak: int | None = None
    peak_bound: int = 0
    is_impossible: bool = False

    @property
    def fits(self) -> bool | None:
        return True if self.choice is not None else False if self.is_impossible else None


def find_fit(problem: Problem, clock: Clock, *, seed: int, threads: int, hints: Sequence[Ints] = ()) -> Fit:
    """Any choice within the memory limit, whatever it costs, or a proof that there is none."""
    found = Fit(peak_bound=0)
    starts = problem.node_start[:-1]
    if problem.node_count and not np.logical_or.reduceat(problem.node_allowed, starts).all():
        found.is_impossible = True
        return found
    free = _without_costs(problem)

    def offer(choice: Ints) -> bool:
        priced = evaluate(free, choice)
        if priced.cost is not None and (found.smallest_peak is None or priced.peak < found.smallest_peak):
            found.smallest_peak = priced.peak
        if priced.feasible:
            found.choice = choice.copy()
        return priced.feasible

    for hint in hints:
        if offer(hint):
            return found
    try:
        _look(free, clock, seed, threads, hints, offer, found)
    except ContradictionError:
        found.is_impossible = True
    except OutOfTimeError:
        pass
    return found


def _look(
    problem: Problem,
    clock: Clock,
    seed: int,
    threads: int,
    hints: Sequence[Ints],
    offer: Callable[[Ints], bool],
    found: Fit,
) -> None:
    limit = problem.memory_limit
    if limit is not None:
        found.peak_bound = certain_peak(problem)
        if found.peak_bound > limit:
            found.is_impossible = True
            return
        if problem.node_count >= _FOLD_FROM:
            _look_folded(problem, clock.part(_FOLDED_SHARE), seed, offer)
            if found.choice is not None:
                return
        part = clock.part(_PEAK_SHARE)
        bound = smallest_peak(problem, found.peak_bound, part, seed, hints, offer)
        found.peak_bound = max(found.peak_bound, bound)
        found.is_impossible = found.peak_bound > limit
        if found.choice is not None or found.is_impossible:
            return
    answer = solve(problem, time_limit_s=max(clock.left_s(), 0.0), seed=seed, threads=threads)
    found.peak_bound = max(found.peak_bound, answer.peak_lower_bound)
    found.is_impossible = answer.status is Status.INFEASIBLE
    if answer.choice is not None:
        offer(answer.choice)


def _look_folded(problem: Problem, clock: Clock, seed: int, offer: Callable[[Ints], bool]) -> None:
    """Alike nodes alike; that nothing fits so says nothing."""
    folded = fold(problem, rounds=1)
    if folded is None:
        return
    certain = certain_peak(folded.problem)
    with suppress(OutOfTimeError, ContradictionError):
        smallest_peak(folded.problem, certain, clock, seed, (), lambda choice: offer(folded.expand(choice)))


def _without_costs(problem: Problem) -> Problem:
    tables = tuple(Table(np.zeros_like(table.cost), table.allowed) for table in problem.tables)
    return replace(problem, node_cost=np.zeros_like(problem.node_cost), tables=tables)
