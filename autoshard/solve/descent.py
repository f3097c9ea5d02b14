"""The search for a small peak on a large core, whose costs are all zero: see `peak` for the formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.ascent import Ascent
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core
from autoshard.solve.graph import FINITE_BELOW, ContradictionError
from autoshard.solve.layout import lay_out
from autoshard.solve.local import LocalSearch
from autoshard.solve.relaxation import Relaxation

_TURNS = 10
_SUM = 1 - 2.0**-36  # of the multipliers: at most one, also after rounding in each of some 100,000 rows
_STEP = 0.03  # how far the target sinks below the best peak, as a part of what is left to the bound
_NOTHING = 2**62
_ROUNDS_TO_FIT = 6


def fitting_choice(core: Core, seed: int, clock: Clock) -> Ints | None:
    """A choice of the core that fits, whatever it costs, if a few rounds find one.

    Raises:
        ContradictionError: no choice fits.
        OutOfTimeError: the clock is over before the search began.
    """
    only_mask = np.where(core.pool >= FINITE_BELOW, core.pool, 0)
    free = replace(core, constant=0, cost=np.zeros_like(core.cost), pool=only_mask)
    descent = PeakDescent(free, seed, clock)
    for _ in range(_ROUNDS_TO_FIT):
        if clock.over() or descent.excess <= 0:
            break
        descent.round(clock)
        if descent.lower_bound > 0:
            raise ContradictionError("the smallest peak is above the memory limit")
    return descent.best if descent.excess <= 0 else None


class PeakDescent:
    """The smallest excess over the room so far, and the bound on it."""

    def __init__(self, core: Core, seed: int, clock: Clock | None = None) -> None:
        """Raises OutOfTimeError where the clock is over before all is laid out."""
        self.core, self.layout = core, lay_out(core)
        largest = float(core.usage_pool.max(initial=1)) * (core.node_count + len(core.ends))
        self.relaxation = Relaxation(core, self.layout, total=int(largest) + 1, clock=clock)
        self.relaxation.price_rows(np.full(len(core.room), _SUM / max(1, len(core.room))))
        self.ascent = Ascent(self.relaxation, _SUM, self.consider)
        self.best: Ints | None = None
        self.excess = _NOTHING
        self.lower_bound = 0
        self._local = LocalSearch(core, self.layout, seed)

    def consider(self, choice: Ints) -> None:
        """A choice of the core, perhaps of a smaller peak."""
        if self.core.cost_of(choice) is None:
            return
        excess = max(0, int((self.core.profile_of(choice) - self.core.room).max(initial=0)))
        if excess < self.excess:
            self.best, self.excess = choice.copy(), excess

    def round(self, clock: Clock) -> None:
        """Better bound, then lower peaks."""
        choice = self.ascent.block(_TURNS, clock)
        if clock.left_s() > 0:
            self.lower_bound = max(self.lower_bound, self.relaxation.bound()[0])
        if not clock.over():
            self._push(self.best if self.best is not None else choice, clock)

    def _push(self, choice: Ints, clock: Clock) -> None:
        """Tree moves towards a target below the best peak."""
        target = self.excess if self.excess < _NOTHING else 0
        target -= max(1, int(_STEP * (target - self.lower_bound)))
        memory = self.relaxation.memory()._replace(room=self.core.room + max(target, 0))
        moves = max(300, self.core.node_count // 10)
        choice = self._local.moved(choice, self.relaxation.weights(), memory, moves, clock)
        self.consider(choice)
        self.ascent.note(choice)
