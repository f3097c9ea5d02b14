"""Several engines side by side on one core, in rounds, until one of them proves the optimum.

In a round every engine starts from the same choice, cutoff and rows, and works up to a budget that does not depend
on the machine and grows fourfold from round to round. At its end the answers are merged in the order of the engines,
up to the first that is a proof. So the result is the same whatever the number of threads and the speed of the
machine, unless the clock strikes. An engine that crashes, does not suit the core or is not installed drops out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, OutOfTimeError
from autoshard.solve.core import Core
from autoshard.solve.exact.engine import Answer
from autoshard.solve.exact.lazy import Progress
from autoshard.solve.exact.question import FIRST_BUDGET, Question
from autoshard.solve.exact.team import Team

Tell = Callable[[Ints | None, int | None], None]

_GROWTH = 4
_MOST_GROWTH = 2**30
_NONE = Answer(None, None, False, True)


def race(
    core: Core,
    clock: Clock,
    *,
    seed: int,
    threads: int,
    engines: Sequence[str] = ("toulbar2", "cp-sat"),
    hint: Ints | None = None,
    tell: Tell | None = None,
    rounds: int | None = None,
    growth: int = 1,
) -> Answer:
    """Minimise over the core with all its rows, `threads` engines at a time; give up after `rounds` of them, the
    first with `growth` times the least budget.

    `hint` [n] is a choice to start from; the answer is never worse, if it fits. `tell` is called with the best choice
    and bound as soon as one of them is better than before. Ctrl-C interrupts the clock and ends the race, not the
    caller.
    """
    if not core.node_count:
        fits = bool((core.room >= 0).all())
        return Answer(np.zeros(0, dtype=np.int64), core.constant, True, False) if fits else _NONE
    state = _State(core, hint, tell, growth)
    team = Team(core, clock, seed, engines, max(1, threads), state.found)
    try:
        for number in count():
            if not team.engines or state.proved() or number == rounds:
                break
            clock.check()
            work = state.growth
            state.merge(team.round(state.question))
            clock.step(work)
    except OutOfTimeError:
        state.merge(team.last_words())
    except KeyboardInterrupt:
        clock.interrupt()
        state.merge(team.last_words())
    finally:
        team.end()
    return state.answer()


class _State:
    """What all engines know when a round begins, and beside it the best that was heard since."""

    def __init__(self, core: Core, hint: Ints | None, tell: Tell | None, growth: int) -> None:
        self._core, self._hint, self._tell = core, hint, tell
        self._choice: Ints | None = None  # fits all rows
        self._cost: int | None = None
        self._bound: int | None = None
        self._rows: Ints | None = None  # None: an engine's own first rows
        self._infeasible = False
        self.growth = growth
        self._heard: Ints | None = None
        self._heard_cost: int | None = None
        if hint is not None and core.fits(hint):
            self._take(hint)

    def question(self, engine: str, time_limit_s: float) -> Question:
        hint = self._hint if self._choice is None else self._choice
        budget = FIRST_BUDGET[engine] * self.growth
        return Question(self._rows, budget, hint, self._cost, time_limit_s)

    def found(self, choice: Ints) -> None:
        """A choice that fits, in the middle of a round."""
        cost = self._core.cost_of(choice)
        assert cost is not None
        if _lower(cost, self._heard_cost):
            self._heard, self._heard_cost = choice, cost
            self._report()

    def merge(self, answers: list[Progress]) -> None:
        """The end of a round; ties go to the first."""
        cutoff, bound = self._cost, self._bound
        for progress in answers:
            answer = progress.answer
            self._infeasible |= answer.infeasible and cutoff is None
            self._raise_bound(cutoff if answer.infeasible else answer.lower_bound, cutoff)
            self._rows = progress.rows if self._rows is None else np.union1d(self._rows, progress.rows)
            if answer.choice is not None:
                self._take(answer.choice)
        if self._heard is not None and _lower(self._heard_cost, self._cost):
            self._take(self._heard)  # of an engine that is gone
        self.growth = min(self.growth * _GROWTH, _MOST_GROWTH)
        if self._bound != bound:
            self._report()

    def _raise_bound(self, bound: int | None, cutoff: int | None) -> None:
        """Engines speak of choices cheaper than the cutoff only."""
        if bound is not None:
            bound = bound if cutoff is None else min(bound, cutoff)
            self._bound = bound if self._bound is None else max(self._bound, bound)

    def _take(self, choice: Ints) -> None:
        cost = self._core.cost_of(choice)
        if cost is not None and _lower(cost, self._cost):
            self._choice, self._cost = choice, cost
            if _lower(cost, self._heard_cost):
                self._heard, self._heard_cost = choice, cost
                self._report()

    def _report(self) -> None:
        if self._tell is not None:
            self._tell(self._heard, self._bound)

    def proved(self) -> bool:
        return self._infeasible or (
            self._cost is not None and self._bound is not None and self._bound >= self._cost
        )

    def answer(self) -> Answer:
        return _NONE if self._infeasible else Answer(self._choice, self._bound, self.proved(), False)


def _lower(cost: int | None, than: int | None) -> bool:
    return cost is not None and (than is None or cost < than)
