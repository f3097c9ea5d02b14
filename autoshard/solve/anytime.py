"""Large cores: message passing for the bound, decoding and exact tree moves for the choice, side by side.

A round has two jobs that share nothing while they run: one raises the bound, one searches from the choices and prices
of the round before. So two threads give the same result as one, in half the time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from autoshard.problem.model import Bools, Ints
from autoshard.solve.ascent import Ascent
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core
from autoshard.solve.layout import lay_out
from autoshard.solve.local import LocalSearch
from autoshard.solve.messages import Floats
from autoshard.solve.moves import Weights
from autoshard.solve.recombine import recombined
from autoshard.solve.relaxation import Relaxation

_TURNS = 10  # updates of the multipliers in a round
_BLOCKS_FIRST = 3  # of them before the first search: both rules have had a try
_FAR = 0.1  # of its cost, from the bound: then a choice is only one to have
_PROGRESS = 0.02  # of the gap, in a round, counts as progress
_HEAVIEST = (2.0, 0.5, 8.0, 32.0)  # weights on priced bytes, one a round
_COOLEST, _SPREAD = 1e-8, 1e4  # temperatures as a fraction of the cost


class Anytime:
    """Keeps messages, multipliers and the best choice of one core between its rounds."""

    def __init__(self, core: Core, seed: int, clock: Clock | None = None, threads: int = 1) -> None:
        """Raises OutOfTimeError where the clock is over before all is laid out."""
        self.core, self.layout = core, lay_out(core)
        self.relaxation = Relaxation(core, self.layout, clock=clock)
        self.ascent = Ascent(self.relaxation)
        self.lower_bound = -(2**62)
        self.best: Ints | None = None
        self.best_cost: int | None = None
        self.rounds = 0
        self._decoded: Ints | None = None
        self._found: list[Ints] = []
        self._tightest = np.full(len(core.cost), -(2**62), dtype=np.int64)
        self._local = LocalSearch(core, self.layout, seed)
        self._draw = np.random.default_rng(seed)
        self.quiet_rounds = 0  # one after the other without much progress
        self._nearest: Ints | None = None
        self._bound_before: int | None = None  # what both jobs of a round know
        self._threads = threads

    def start_from(self, multipliers: Floats, messages: Floats) -> None:
        """Prices of rows and messages of edges that are likely to be good."""
        self.relaxation.price_rows(multipliers)
        np.copyto(self.relaxation.messages, messages)
        self.ascent.warm()

    @property
    def removable(self) -> Bools:
        """[sum K] strategies that no choice cheaper than the best one has."""
        if self.best is None or self.best_cost is None:
            return np.zeros(len(self.core.cost), dtype=np.bool_)
        removable = self.relaxation.reaches(self._tightest, self.best_cost)
        removable[self.core.start[:-1] + self.best] = False
        return removable

    def consider(self, choice: Ints) -> bool:
        """A choice of the core, perhaps a better one."""
        cost = self.core.cost_of(choice)
        if (
            cost is None
            or (self.best_cost is not None and cost >= self.best_cost)
            or not self.core.fits(choice)
        ):
            return False
        self.best, self.best_cost = choice.copy(), cost
        self._found.append(self.best)
        return True

    def proved(self) -> bool:
        return self.best_cost is not None and self.lower_bound >= self.best_cost

    def round(self, clock: Clock) -> None:
        """Better bound, then better choices from the messages and from the best one."""
        self.rounds += 1
        bound, cost = self.lower_bound, self.best_cost
        self._bound_before = bound
        decoded, weights = self._decoded, self.relaxation.weights()
        if decoded is None:
            self._raise_bound(_BLOCKS_FIRST, clock)
        else:
            self._side_by_side(
                lambda: self._raise_bound(1, clock), lambda: self._improve(decoded, weights, clock), clock
            )
        for choice in self._found:
            self.ascent.note(choice)
        self._found.clear()
        self._note_progress(bound, cost)

    def _side_by_side(self, first: Callable[[], None], second: Callable[[], None], clock: Clock) -> None:
        """Both jobs, at the same time if there are threads for it. An interrupt ends the clock, not the round."""
        if self._threads == 1:
            second()
            return first()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(second)
            try:
                first()
                running.result()
            except KeyboardInterrupt:
                clock.interrupt()
        return running.result()

    def _raise_bound(self, blocks: int, clock: Clock) -> None:
        """Message passing, and the strategies that the new bound rules out."""
        for _ in range(blocks):
            self._decoded = self.ascent.block(_TURNS, clock)
            if clock.over():
                break
        if clock.left_s() <= 0:
            return
        bound, conditional = self.relaxation.bound()
        self.lower_bound = max(self.lower_bound, bound)
        np.maximum(self._tightest, conditional, out=self._tightest)

    def _improve(self, choice: Ints, weights: Weights, clock: Clock) -> None:
        """Moves from the decoded choice, then from the best one, at first with some noise.

        Only the time ends it: the other job counts the steps meanwhile, and how far it is must not matter."""
        moves = max(300, self.core.node_count // 4)
        heaviest = _HEAVIEST[self.rounds % len(_HEAVIEST)]
        self._repair(self._search(choice, weights, moves, 0.0, heaviest, clock), weights, moves, clock)
        if self.best is not None and self.best_cost is not None and clock.left_s() > 0:
            heat = abs(self.best_cost) * _COOLEST * _SPREAD ** float(self._draw.random())
            warm = self._search(self.best, weights, moves, heat, heaviest, clock)
            self._search(warm, weights, moves, 0.0, heaviest, clock)

    def _search(
        self, choice: Ints, weights: Weights, moves: int, temperature: float, heaviest: float, clock: Clock
    ) -> Ints:
        """Exact tree moves from a choice, which stays as it is; returns where they end."""
        choice = self._local.moved(
            choice,
            weights,
            self.relaxation.memory(),
            moves,
            clock,
            temperature=temperature,
            heaviest=heaviest,
        )
        if not self.consider(choice) and self.best is not None:
            self.consider(recombined(self.core, self.best, choice))
        return choice

    def _repair(self, choice: Ints, weights: Weights, moves: int, clock: Clock) -> None:
        """While nothing good fits: price the rows that are over until the choice, or one closer by, fits."""
        if not len(self.core.room) or self._has_good():
            return
        if self._nearest is None or self._excess(choice) < self._excess(self._nearest):
            self._nearest = choice
        for weight in _HEAVIEST:
            if clock.left_s() <= 0:
                return
            if self._excess(self._nearest) <= 0:
                self._nearest = None
                return
            self._nearest = self._search(self._nearest, weights, moves, 0.0, 4 * weight, clock)

    def _has_good(self) -> bool:
        """Is the best choice one to start from, rather than one to have at all?"""
        cost, bound = self.best_cost, self._bound_before
        return cost is not None and bound is not None and cost - bound <= _FAR * abs(cost)

    def _excess(self, choice: Ints) -> float:
        return float(np.maximum(self.core.profile_of(choice) - self.core.room, 0).sum(dtype=np.float64))

    def _note_progress(self, bound: int, cost: int | None) -> None:
        if cost is None or self.best_cost is None:
            self.quiet_rounds = 0 if self.best_cost is not None else self.quiet_rounds
            return
        gained = (self.lower_bound - bound) + (cost - self.best_cost)
        if gained > _PROGRESS * (cost - bound):
            self.quiet_rounds = 0
        else:
            self.quiet_rounds += 1
