"""Memory rows that are added as they turn out to matter, the same loop for every engine.

Leaving rows out makes a relaxation: a bound without them is a bound, an optimum without them that fits is an optimum,
and a choice that fits all of them is one whatever the engine knew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core
from autoshard.solve.exact.engine import Answer, Engine, Found
from autoshard.solve.exact.usage import owner_size

_ROWS_A_ROUND = 10  # more of them slow every backtrack down, fewer cost more rounds


@dataclass(frozen=True, slots=True, eq=False)
class Progress:
    """`answer` holds for all rows of the core; `rows` are those that turned out to matter so far, rising."""

    answer: Answer
    rows: Ints


def solve_lazily(
    engine: Engine,
    core: Core,
    clock: Clock,
    *,
    rows: Ints | None = None,
    budget: int | None = None,
    hint: Ints | None = None,
    cutoff: int | None = None,
    found: Found | None = None,
) -> Progress:
    """Ask the engine until its optimum violates no row, or it reaches the budget of one question.

    `hint` counts as an answer where it fits and is cheaper than the cutoff. `found` is told choices that fit all
    rows, each cheaper than those before.

    Raises:
        UnsuitableError: the engine cannot take this core.
    """
    best = _Incumbent(core, cutoff, found)
    if hint is not None:
        best.offer(hint)
    rows = first_rows(core) if rows is None else rows
    bound: int | None = None
    while not clock.over():
        answer = engine.solve(
            rows,
            clock=clock,
            budget=budget,
            hint=hint if best.choice is None else best.choice,
            cutoff=best.cutoff,
            found=best.offer,
        )
        bound = _highest(bound, answer.lower_bound)
        if answer.infeasible:
            proved = best.choice is not None
            return Progress(Answer(best.choice, best.cutoff, proved, not proved), rows)
        if answer.choice is None:
            break
        new_rows = violated_rows(core, answer.choice, rows)
        if not len(new_rows):
            best.offer(answer.choice)
            return Progress(Answer(best.choice, bound, answer.optimal, False), rows)
        rows = np.union1d(rows, new_rows)
        if not answer.optimal:
            break
    return Progress(Answer(best.choice, bound, False, False), rows)


class _Incumbent:
    """The cheapest choice so far that fits all rows and is cheaper than the cutoff, which sinks with it."""

    def __init__(self, core: Core, cutoff: int | None, found: Found | None) -> None:
        self._core, self._found = core, found
        self.cutoff = cutoff
        self.choice: Ints | None = None

    def offer(self, choice: Ints) -> None:
        cost = self._core.cost_of(choice)
        if cost is None or (self.cutoff is not None and cost >= self.cutoff) or not self._core.fits(choice):
            return
        self.choice, self.cutoff = choice, cost
        if self._found is not None:
            self._found(choice)


def _highest(first: int | None, second: int | None) -> int | None:
    return max((bound for bound in (first, second) if bound is not None), default=None)


def first_rows(core: Core) -> Ints:
    """Rows where the most can go wrong, spread over the time."""
    if not len(core.room):
        return np.zeros(0, dtype=np.int64)
    largest = [
        int(core.usage_pool[where : where + owner_size(core, owner)].max())
        for owner, where in zip(core.item_owner.tolist(), core.item_usage.tolist(), strict=True)
    ]
    delta = np.zeros(len(core.room) + 1)
    np.add.at(delta, core.item_begin, largest)
    np.subtract.at(delta, core.item_end, largest)
    pressure = np.cumsum(delta[:-1]) / np.maximum(core.room, 1)
    blocks = np.array_split(np.arange(len(pressure)), min(_ROWS_A_ROUND, len(pressure)))
    return np.array([block[pressure[block].argmax()] for block in blocks], dtype=np.int64)


def violated_rows(core: Core, choice: Ints, known: Ints) -> Ints:
    """The worst row of each run of violated ones, the worst first."""
    excess = core.profile_of(choice) - core.room
    excess[known] = 0
    violated = np.flatnonzero(excess > 0)
    runs = np.split(violated, np.flatnonzero(np.diff(violated) > 1) + 1) if len(violated) else []
    worst = sorted((run[excess[run].argmax()] for run in runs), key=lambda row: -excess[row])
    return np.array(worst[:_ROWS_A_ROUND], dtype=np.int64)
