"""Weighted partial MaxSAT, core-guided: PySAT's RC2 [1] with a clock, an upper bound and early stops.

RC2 keeps the problem as `cost` plus soft clauses of positive weight, and every model of the hard clauses costs
`cost` plus the weights of the soft clauses that it violates, inactive ones included. So `cost` is a lower bound at
any time, also under stratification, and a soft clause whose weight reaches the distance from `cost` to the cheapest
model found may be made hard: whatever violates it is not cheaper. RC2's own hardening, which takes the weights of the
levels to come for the upper bound, is off. Cores are made smaller by deletion, with a few conflicts for each trial,
except those that unit propagation finds and large ones, where the trials cost more than they save: measured on a
transformer's core (12 s with them, 1 s without) and on random ones (a better bound in the same time).

PySAT is imported here, so this module is only loaded by who solves.

[1] A. Ignatiev, A. Morgado, J. Marques-Silva, RC2: an efficient MaxSAT solver, JSAT 11, 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pysat.examples.rc2 import RC2Stratified
from pysat.formula import WCNF

from autoshard.solve.clock import Clock, OutOfTimeError

_ORACLE = "glucose3"
_PROPAGATIONS_AT_ONCE = 200_000  # between two looks at the clock
_MINIMISE_UP_TO = 60  # literals of a core
_TRIAL_CONFLICTS = 100
_HARDEN_AGAIN = 0.98  # of the distance between the bounds


class _ReachedError(Exception):
    """The lower bound has reached the limit."""


class Search(RC2Stratified):
    """Models cheaper than `limit` (None: all). `found` is told every model and answers what it costs."""

    def __init__(
        self,
        formula: WCNF,
        *,
        clock: Clock,
        budget: int | None,
        limit: int | None,
        found: Callable[[list[int]], int],
    ) -> None:
        self.oracle: Any
        super().__init__(formula, solver=_ORACLE, nohard=True)
        self._clock, self._budget, self._limit, self._found = clock, budget, limit, found
        self._calls = 0
        self._conflicts_before = 0  # the last question of the main loop
        self._hardened: set[int] = set()
        self._distance: int | None = None

    def prefer(self, literals: list[int]) -> None:
        """Values to try first."""
        self.oracle.set_phases(literals)

    def run(self) -> bool:
        """Whether the search is complete: the cheapest model below the limit has been found, if there is one."""
        try:
            if self._call_oracle():
                self.compute()
        except _ReachedError:
            return True
        except OutOfTimeError:
            return False
        return True

    def compute_(self) -> bool:
        """One level of the stratification: extract cores until its soft clauses can all be satisfied."""
        self._harden()
        while not self._call_oracle(self.active_assumps()):
            self.get_core()
            if not self.core:
                return False
            self.process_core()
            self._harden()
        return True

    def next_level(self) -> None:
        """RC2's rule for where a level ends, with running sums: there may be ten thousand weights.

        It ends where one weight exceeds all smaller ones together, or where many soft clauses share each weight below it.
        """
        if self.levl is None or self.levl >= len(self.blop):
            self.levl = None
            return
        smaller = self.blop[self.levl + 1 :]
        count = sum(len(self.wstr[weight]) for weight in smaller)
        total = sum(weight * len(self.wstr[weight]) for weight in smaller)
        while self.levl < len(self.blop) - 1:
            if self.blop[self.levl] > total or count > self.sdiv * (len(self.blop) - self.levl - 1):
                return
            self.levl += 1
            count -= len(self.wstr[self.blop[self.levl]])
            total -= self.blop[self.levl] * len(self.wstr[self.blop[self.levl]])

    def minimize_core(self) -> None:
        """Leave out literals of the core, the lightest first, as long as it stays one."""
        found_by_search = self._conflicts() > self._conflicts_before
        if not found_by_search or len(self.core) > _MINIMISE_UP_TO:
            return
        weight: dict[int, int] = self.wght
        core = sorted(self.core, key=weight.__getitem__)
        needed = 0
        while needed < len(core) and len(core) > 1:
            rest = core[:needed] + core[needed + 1 :]
            if self._ask(rest, _TRIAL_CONFLICTS) is False:
                smaller = set(self.oracle.get_core() or [])
                needed = sum(literal in smaller for literal in core[:needed])
                core = [literal for literal in rest if literal in smaller]
            else:
                needed += 1
        self.core = core

    def _harden(self) -> None:
        if self._limit is None:
            return
        distance = self._limit - self.cost
        if self._distance is not None and distance > _HARDEN_AGAIN * self._distance:
            return
        self._distance = distance
        certain = [literal for literal, weight in self.wght.items() if weight >= distance]
        for literal in certain:
            if literal not in self._hardened:
                self._hardened.add(literal)
                self.oracle.add_clause([literal])

    def _call_oracle(self, assumptions: list[int] | None = None, expect_interrupt: bool = False) -> bool:
        answer: bool | None = None
        self._conflicts_before = self._conflicts()
        while answer is None:
            answer = self._ask(assumptions or [])
        return answer

    def _ask(self, assumptions: list[int], conflicts: int | None = None) -> bool | None:
        """Is there a model? None: not known after so much work.

        Raises:
            OutOfTimeError: the clock or the budget is over.
        """
        if self._limit is not None and self.cost >= self._limit:
            raise _ReachedError
        self._clock.check()
        allowed = self._conflicts_left(conflicts)
        self._calls += 1
        self.oracle.conf_budget(
            -1 if allowed is None else allowed
        )  # -1 lifts both budgets, so this one first
        self.oracle.prop_budget(_PROPAGATIONS_AT_ONCE)
        # expect_interrupt leaves Python's own handler for SIGINT in place
        answer: bool | None = self.oracle.solve_limited(assumptions, expect_interrupt=True)
        if answer:
            cost = self._found(self.oracle.get_model() or [])
            self._limit = cost if self._limit is None else min(self._limit, cost)
        return answer

    def _conflicts_left(self, conflicts: int | None) -> int | None:
        if self._budget is None:
            return conflicts
        left = self._budget - self._calls - self._conflicts()
        if left <= 0:
            raise OutOfTimeError
        return left if conflicts is None else min(left, conflicts)

    def _conflicts(self) -> int:
        return self.oracle.accum_stats()["conflicts"]
