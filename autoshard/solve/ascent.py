"""Message passing and multipliers in turns, so that the bound of a Relaxation rises.

Two rules for the next multipliers, because no one is good everywhere. The first raises the price of the rows that the
decoded choice overloads, l_t *= exp(rate * clip(bytes_t / room - 1, -1/4, 1)): robust while messages are far from
converged and the scale of the multipliers is unknown. Where they have a given sum, as in the search for the smallest
peak, it becomes the multiplicative weights update. The bundle uses all choices seen: exact in a few dozen turns
once the decoded choices are near-optimal for their multipliers. They take turns in blocks; the one that gained more
the last time goes on, the other has a try now and then.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.bundle import Bundle
from autoshard.solve.clock import Clock
from autoshard.solve.relaxation import Relaxation

_SWEEPS = 4  # of messages for each update of the multipliers
_RETRY = 6  # blocks until the rule that gained less has another try
_NOTHING = 1e-7  # of the bound, gained in a block
_SLOWER = 0.7  # rate, after a block without gain
_LOWEST_RATE = 0.02
_WARM_RATE = 0.1


class Ascent:
    """The best multipliers and messages so far, and the two rules."""

    def __init__(
        self, relaxation: Relaxation, total: float | None = None, seen: Callable[[Ints], None] | None = None
    ) -> None:
        """The multipliers sum to `total` if it is given; `seen` is told every decoded choice."""
        self.relaxation = relaxation
        self.best = -np.inf
        self._total, self._seen = total, seen
        self._bundle = Bundle(len(relaxation.core.room), total)
        self._multipliers = relaxation.multipliers
        self._messages = relaxation.messages.copy()
        self._rate = 0.5
        self._gains = [np.inf, np.inf]  # of the last block of each rule
        self._blocks = 0

    def warm(self) -> None:
        """The relaxation has been given multipliers and messages that are good: no large steps at first."""
        self._rate = _WARM_RATE
        self._blocks = 3
        if len(self.relaxation.core.room):
            self.note(self.relaxation.decoded())
        self._remember(self.relaxation.value())

    def block(self, turns: int, clock: Clock) -> Ints:
        """`turns` updates with one rule, ended at the best state so far; returns the last decoded choice."""
        rule = self._next_rule()
        before = self.best
        choice = self.relaxation.decoded()
        for _ in range(turns):
            promised = self._propose(rule, choice)
            self.relaxation.improve(_SWEEPS, clock)
            clock.step()
            if clock.over():
                break
            reached = self.relaxation.value()
            if rule and len(self._multipliers):
                self._bundle.learn(reached - self.best, promised - self.best)
            if reached > self.best:
                self._remember(reached)
            choice = self.relaxation.decoded()
            self.note(choice)
            if self._seen is not None:
                self._seen(choice)
        gained = self.best - before if np.isfinite(before) else np.inf
        self._gains[rule] = gained if gained > _NOTHING * abs(self.best) else 0.0
        if not rule and not self._gains[rule]:
            self._rate = max(_LOWEST_RATE, _SLOWER * self._rate)
        self._return()
        return choice

    def note(self, choice: Ints) -> None:
        """A choice of the core: what it costs bounds what multipliers can reach."""
        core = self.relaxation.core
        cost = core.cost_of(choice) if len(core.room) else None
        if cost is not None:
            slope = (core.profile_of(choice) - core.room).astype(np.float64)
            self._bundle.add(float(cost - core.constant), slope, self._multipliers)

    def _next_rule(self) -> int:
        """0 follows, 1 asks the bundle; two blocks of the first, then one of the other, then the better one."""
        self._blocks += 1
        if self._blocks <= 2 or not len(self._bundle):
            return 0
        if self._blocks == 3:
            return 1
        better = int(self._gains[1] >= self._gains[0])
        return 1 - better if self._blocks % _RETRY == 0 else better

    def _propose(self, rule: int, choice: Ints) -> float:
        """Set the next multipliers; what the bundle promises."""
        relaxation = self.relaxation
        room = relaxation.core.room
        if not len(room):
            return np.inf
        if rule:
            multipliers, promised = self._bundle.proposal(self._multipliers, self.best)
        else:
            over = relaxation.core.profile_of(choice) - room
            scale = float(room.max()) if self._total is None else float(np.abs(over).max())
            change = self._rate * np.clip(over / max(scale, 1.0), -0.25, 1.0)
            multipliers = relaxation.multipliers * np.exp(change)
            if self._total is not None:
                multipliers *= self._total / multipliers.sum()
            promised = np.inf
        relaxation.price_rows(multipliers)
        return promised

    def _remember(self, value: float) -> None:
        self.best = value
        self._multipliers = self.relaxation.multipliers
        np.copyto(self._messages, self.relaxation.messages)

    def _return(self) -> None:
        """Go back to the best state."""
        if np.isfinite(self.best):
            np.copyto(self.relaxation.messages, self._messages)
            self.relaxation.price_rows(self._multipliers)
