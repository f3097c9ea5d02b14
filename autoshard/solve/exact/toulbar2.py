"""A core -> toulbar2, branch and bound on cost function networks with hybrid best-first search [1].

Encoding: a variable per node, its costs and the matrices as functions in extension, all shifted so that the smallest
entry of each is zero; whatever costs as much as the upper bound is forbidden. A memory row is a multiple-choice
knapsack [2]: every owner saves `largest - used` bytes, and together they must save what the largest bytes exceed the
room by, divided by the greatest common divisor. An edge that uses memory gets a variable whose values are its
allowed pairs, tied to both ends, and carries the costs of the edge there.

Costs go through doubles, so totals of 2**53 and more are refused. The solver's own arithmetic is in integers except
for the knapsacks' linear relaxation: long doubles, rounded up with a tolerance of 1e-9.

[1] D. Allouche et al., Anytime hybrid best-first search with tree decomposition for weighted CSP, CP 2015.
[2] P. Montalbano, S. de Givry, G. Katsirelos, Multiple-choice knapsack constraint in graphical models, CPAIOR 2022.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from functools import cache
from importlib import import_module
from math import ceil, gcd
from threading import current_thread, main_thread
from typing import Any

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, OutOfTimeError, watched
from autoshard.solve.core import Core
from autoshard.solve.exact.engine import Answer, Found, UnsuitableError
from autoshard.solve.exact.shift import Shifted, shifted
from autoshard.solve.exact.silence import silenced
from autoshard.solve.exact.usage import usage_in_row

_EXACT_BELOW = 2**53  # whole numbers that a double holds
_LARGEST_DOMAIN = 2**15 - 1  # tuples are of 16 bits
_NO_LIMIT = 2**62
_FIRST_SHARE = 50  # backtracks of the first search
_GROWTH = 4


class Toulbar2:
    """`budget` counts backtracks, spent in searches from the root of fourfold length: each has the cost of the best
    choice so far as its upper bound, and starts next to it. `found` is called between them."""

    def __init__(self, core: Core, seed: int) -> None:
        import_module("pytoulbar2")  # where it is missing, that shows here
        self._core, self._seed = core, seed
        self._costs = shifted(core)

    def solve(
        self,
        rows: Ints,
        *,
        clock: Clock,
        budget: int | None = None,
        hint: Ints | None = None,
        cutoff: int | None = None,
        found: Found | None = None,
    ) -> Answer:
        """As `Engine.solve` says.

        Raises:
            UnsuitableError: the costs are too large for doubles, or an edge with memory has too many pairs.
        """
        best, limit, bound = None, cutoff, None
        hint_cost = self._cost_within(rows, hint)
        if hint_cost is not None and (cutoff is None or hint_cost < cutoff):
            best, limit = hint, hint_cost
        budget, spent, share = _NO_LIMIT if budget is None else budget, 0, _FIRST_SHARE
        while True:
            share = min(share, budget - spent)
            answer = self._search(rows, clock, share, hint if best is None else best, limit)
            bound = max((each for each in (bound, answer.lower_bound) if each is not None), default=None)
            if answer.choice is not None:
                best, limit = answer.choice, self._core.cost_of(answer.choice)
                if found is not None:
                    found(best)
            if answer.optimal or answer.infeasible:
                return Answer(best, limit, best is not None, best is None)
            spent += share
            if spent >= budget or clock.over():
                return Answer(best, bound, False, False)
            share *= _GROWTH

    def _cost_within(self, rows: Ints, choice: Ints | None) -> int | None:
        """Cost of an allowed choice that fits those rows."""
        if choice is None or (self._core.profile_of(choice)[rows] > self._core.room[rows]).any():
            return None
        return self._core.cost_of(choice)

    def _search(self, rows: Ints, clock: Clock, budget: int, hint: Ints | None, cutoff: int | None) -> Answer:
        """One search from the root."""
        limit = self._costs.above_all if cutoff is None else min(cutoff, self._costs.above_all)
        if limit <= self._costs.least:
            return Answer(None, cutoff, False, True)
        if limit - self._costs.least >= _EXACT_BELOW:
            raise UnsuitableError("the costs are too large for doubles")
        if not self._core.node_count:
            return Answer(np.zeros(0, dtype=np.int64), self._costs.least, True, False)
        with silenced():
            try:
                network = _Network(self._costs, self._seed, limit - self._costs.least, clock)
                network.add_functions(rows)
                for row in rows.tolist():
                    network.add_row(row)
            except _InfeasibleError:
                return Answer(None, cutoff, False, True)
            except OutOfTimeError:
                return Answer(None, None, False, False)
            if hint is not None:
                network.prefer(hint)
            outcome = network.run(budget)
            if network.interrupted(budget):
                clock.interrupt()
            clock.step()
        return self._answer(outcome, rows, cutoff)

    def _answer(self, outcome: _Outcome, rows: Ints, cutoff: int | None) -> Answer:
        choice, cost, bound, complete = outcome
        if choice is None:
            return Answer(None, cutoff if complete else self._costs.least + bound, False, complete)
        if self._cost_within(rows, choice) != self._costs.least + cost:
            raise UnsuitableError("toulbar2 misjudged its own answer")
        return Answer(choice, self._costs.least + (cost if complete else min(bound, cost)), complete, False)


_Outcome = tuple[Ints | None, int, int, bool]  # choice, its shifted cost, shifted bound, search complete


class _InfeasibleError(Exception):
    """Some row, pair or node leaves nothing, seen while encoding."""


class _Network:
    """One network of the library, which holds its settings in globals: one at a time in a process."""

    def __init__(self, costs: Shifted, seed: int, top: int, clock: Clock) -> None:
        import pytoulbar2

        _restore_settings()
        self._core, self._costs, self._top, self._clock = costs.core, costs, top, clock
        self._network: Any = pytoulbar2.CFN(float(top), seed=seed, verbose=-1)
        self._pairs: dict[int, Ints] = {}  # edge with a variable of its own -> [p] its pairs, row-major
        self._pair_variable: dict[int, int] = {}
        for node, count in enumerate(costs.core.counts.tolist()):
            self._network.AddVariable(f"n{node}", range(count))

    def add_functions(self, rows: Ints) -> None:
        """All costs; edges that use memory in those rows get their variables."""
        core = self._core
        for node in range(core.node_count):
            self._add([node], self._costs.node_cost(node))
        with_variable = self._edges_alive(rows)
        for edge in watched(self._clock, range(len(core.ends))):
            cost = np.minimum(self._costs.matrix(edge), self._top)
            if edge in with_variable:
                self._add_pair_variable(edge, cost)
            else:
                self._add(core.ends[edge].tolist(), cost)

    def _edges_alive(self, rows: Ints) -> set[int]:
        core = self._core
        alive = np.searchsorted(rows, core.item_begin) < np.searchsorted(rows, core.item_end)
        return set((core.item_owner[alive & (core.item_owner >= core.node_count)] - core.node_count).tolist())

    def _add_pair_variable(self, edge: int, cost: Ints) -> None:
        pairs = np.flatnonzero(cost.ravel() < self._top)
        if not len(pairs):
            raise _InfeasibleError
        if len(pairs) > _LARGEST_DOMAIN:
            raise UnsuitableError("an edge that uses memory has too many pairs")
        variable = self._network.AddVariable(f"e{edge}", range(len(pairs)))
        self._pairs[edge], self._pair_variable[edge] = pairs, variable
        self._add([variable], cost.ravel()[pairs])
        for end, strategy in zip(self._core.ends[edge].tolist(), divmod(pairs, cost.shape[1]), strict=True):
            tied = strategy[None, :] == np.arange(int(self._core.counts[end]))[:, None]
            self._add([end, variable], np.where(tied, 0, self._top))

    def _add(self, scope: list[int], cost: Ints) -> None:
        clipped = np.minimum(cost, self._top).ravel()
        if (clipped >= self._top).all():
            raise _InfeasibleError
        if clipped.any():
            self._network.AddFunction(scope, clipped.astype(np.float64).tolist())

    def add_row(self, row: int) -> None:
        """Savings of all owners together, at least what the largest bytes exceed the room by."""
        self._clock.check()
        savings: list[tuple[int, Ints]] = []
        excess = -int(self._core.room[row])
        for owner, usage in usage_in_row(self._core, row).items():
            variable, used = self._values(owner, usage)
            largest = int(used.max())
            excess += largest
            savings.append((variable, largest - used))
        divisor = gcd(*(int(np.gcd.reduce(saved)) for _, saved in savings)) or 1
        needed = _ceil_div(excess, divisor)
        if needed <= 0:
            return
        if sum(int(saved.max()) for _, saved in savings) < excess:
            raise _InfeasibleError
        scope: list[int] = []
        words = [needed]
        for variable, saved in savings:
            values = np.flatnonzero(saved)
            if len(values):
                scope.append(variable)
                words.append(len(values))
                words.extend(np.stack([values, saved[values] // divisor], axis=1).ravel().tolist())
        self._network.CFN.wcsp.postKnapsackConstraint(scope, " ".join(map(str, words)), kp=True)

    def _values(self, owner: int, usage: Ints) -> tuple[int, Ints]:
        """The variable of an owner and its bytes by value."""
        if owner < self._core.node_count:
            return owner, usage
        edge = owner - self._core.node_count
        return self._pair_variable[edge], usage[self._pairs[edge]]

    def prefer(self, choice: Ints) -> None:
        """Try the strategies of this choice first."""
        for node, strategy in enumerate(choice.tolist()):
            self._network.CFN.wcsp.setBestValue(node, strategy)

    def run(self, budget: int) -> _Outcome:
        network, options = self._network, self._network.Option
        options.backtrackLimit, options.limited = budget, False
        try:
            solved = network.Solve(timeLimit=max(1, ceil(self._clock.left_s())))
        except network.Contradiction:
            return None, 0, 0, True
        finally:
            _restore_interrupt()
        complete = not options.limited  # set by every limit that ends a search early
        if solved is None:
            return None, 0, int(network.GetDDualBound()), complete
        values, cost, _ = solved
        choice = np.array(values[: self._core.node_count], dtype=np.int64)
        return choice, int(cost), int(network.GetDDualBound()), complete

    def interrupted(self, budget: int) -> bool:
        """Did the clock, SIGINT or SIGVTALRM end the search, and not its budget?"""
        return bool(self._network.Option.limited) and self._network.GetNbBacktracks() <= budget


def _restore_interrupt() -> None:
    """The library's timer takes SIGINT over, for good; Python can set handlers in the main thread only."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not None and current_thread() is main_thread():
        signal.signal(signal.SIGINT, handler)


def _restore_settings() -> None:
    """The library's settings are global, and a search leaves its own behind, such as the length of its dives."""
    options = import_module("pytoulbar2.pytb2").option
    for name, value in _settings().items():
        if getattr(options, name) != value:
            setattr(options, name, value)


@cache
def _settings() -> dict[str, int | float | str]:
    """Numbers and texts as they are when this is first called, which is before the first search."""
    options = import_module("pytoulbar2.pytb2").option
    settings: dict[str, int | float | str] = {}
    for name in dir(options):
        with suppress(TypeError):  # of values that the binding cannot translate
            value = getattr(options, name)
            if isinstance(value, (int, float, str)) and not name.startswith("_"):
                settings[name] = value
    return settings


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
