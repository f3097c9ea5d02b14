"""The choice whose step is the shortest in the order of the compiler's scheduler, looked for from the cheapest one by prices alone.

Work that the scheduler takes for nothing is not nothing: of choices whose steps are equal the one is taken that does least by the
hardware's own figures, and a thousandth of that counts in the rounds.

The order is a prediction, off by 2 to 7 % of the step: of what it hides a twentieth counts as if it were waited for, lest a plan send half
of its step for a thousandth of it (a U-Net's: 0.43 ms predicted of both, 0.75 and 0.46 by the compiler).

What is waited for depends on the whole order, so no sum of tables has it. Each round prices a reshard at what the schedule of the last
choice that made it had it wait for, and solves again. A choice that comes back is the cheapest at what it waits for itself. If more than
`_ENOUGH` of its step could be gained where nothing is waited for, a random half of what is known of reshards that the best choice does
without is forgotten, down to nothing, so that they are tried in another company. The best of all rounds, and of the plans to compare with,
is taken.

Beyond `HIDING_MEMORY_SHARE` of memory nothing is hidden, and programs take up to `_EXCESS` of what is predicted of them. So the rounds
look for choices that leave that much, where there are any; of others all that is sent counts as waited for (a decode step of Llama-3 70B
on v5p: 2.80 ms with 98.6 GB, 1.63 predicted; 1.63 with 92 GB).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import PricedGraph, Schedule, kernel_work_ns, read_back, schedule_of, with_told_copies
from autoshard.loading import Loaded, overlap_of
from autoshard.pricing import repriced
from autoshard.problem import Problem, evaluate
from autoshard.report.units import time_text, times_text
from autoshard.requests import HIDING_MEMORY_SHARE
from autoshard.solve import Solution, Status

MOST_ROUNDS = 16
_HIDDEN_SHARE = 20
_ENOUGH = 0.01
_EXCESS = 1.04

Ints = NDArray[np.int64]


def is_ordered(loaded: Loaded) -> bool:
    """Whether times are a scheduler's, and what it hides is not assumed away."""
    is_scheduled = loaded.hardware.is_scheduled and loaded.lowering == "xla-tpu"
    return is_scheduled and loaded.overlap == overlap_of(loaded.form, loaded.hardware)


class Ordered(NamedTuple):
    """A solution whose choice has the shortest step in order; `proved` says so where another one is the cheapest by prices."""

    solution: Solution
    proved: str = ""


def shortest_in_order(
    loaded: Loaded,
    priced: PricedGraph,
    cheapest: Solution,
    familiar: Sequence[Ints],
    solved: Callable[[Problem, Sequence[Ints]], Solution | None],
    seed: int = 0,
) -> Ordered:
    """From the cheapest choice by prices alone.

    Args:
        familiar: other choices, taken where they are as short and as cheap.
        solved: solves a problem from those; None where there is no time.
        seed: of what is forgotten.
    """
    if cheapest.choice is None or cheapest.cost is None:
        return Ordered(cheapest)
    search = _Search(loaded, priced, seed)
    for choice in (*familiar, cheapest.choice):
        search.offer(choice)
    last, is_open = search.learn(cheapest.choice), False
    if not search.leaves_room(cheapest.choice):
        found = solved(search.problem_with_room(), [*familiar, cheapest.choice])
        if found is not None and found.choice is not None:
            search.offer(found.choice)
    search.keep_room()
    for _ in range(MOST_ROUNDS):
        found = solved(search.problem(), [*familiar, search.best.choice])
        if found is None or found.choice is None:
            break
        search.offer(found.choice)
        before, last = last, search.learn(found.choice)
        if last != before:
            continue
        if not is_open:
            least = solved(search.problem_without_waiting(), [*familiar, search.best.choice])
            if least is None or least.choice is None:
                break
            search.offer(least.choice)
            search.learn(least.choice)
            if search.best.length + search.best.work <= (1 + _ENOUGH) * least.lower_bound:
                break
            is_open = True
        if not search.forget():
            break
    return search.result(cheapest)


@dataclass(frozen=True, slots=True)
class _Offered:
    """A choice that fits, at its price, in its order."""

    choice: Ints
    cost: int
    peak: int
    schedule: Schedule
    work: int  # a share of the hardware's own
    has_room: bool

    @property
    def length(self) -> int:
        """ns of the step, with the part of what is hidden that counts: all of it without room."""
        hidden_ns = self.schedule.asynchronous_ns - self.schedule.waited_ns
        return self.schedule.step_ns + (hidden_ns // _HIDDEN_SHARE if self.has_room else hidden_ns)


class _Search:
    """What has been offered, and what its edges waited for."""

    def __init__(self, loaded: Loaded, priced: PricedGraph, seed: int) -> None:
        self._loaded, self._priced = loaded, priced
        self._offered: dict[bytes, _Offered] = {}
        self._waited_percent: dict[int, int] = {}
        self._work = kernel_work_ns(priced, loaded.hardware.at_links()) // loaded.hardware.own_share
        self._random = np.random.default_rng(seed)
        self._room = int(loaded.hardware.usable_hbm_bytes * HIDING_MEMORY_SHARE / _EXCESS)
        self._limit = priced.problem.memory_limit

    @property
    def best(self) -> _Offered:
        """The shortest in order, of those the one that works least, of those the cheapest, of those the first."""
        return min(self._offered.values(), key=lambda one: (one.length, one.work, one.cost))

    def offer(self, choice: Ints) -> None:
        found = evaluate(self._priced.problem, choice)
        if found.cost is None or not found.feasible or choice.tobytes() in self._offered:
            return
        told = with_told_copies(self._priced, choice)
        schedule = schedule_of(self._priced, told, read_back(self._priced, told), self._loaded.hardware)
        work = int(self._work[self._priced.problem.node_start[:-1] + choice].sum())
        self._offered[choice.tobytes()] = _Offered(
            choice, found.cost, found.peak, schedule, work, found.peak <= self._room
        )

    def learn(self, choice: Ints) -> bytes:
        """What its reshards wait for; which choice it is."""
        name = choice.tobytes()
        self._waited_percent.update(self._offered[name].schedule.waited_percent)
        return name

    def forget(self) -> bool:
        """A half of what the best choice does not need to know; whether there is any."""
        kept = self.best.schedule.waited_percent
        others = sorted(
            edge for edge, percent in self._waited_percent.items() if percent and edge not in kept
        )
        for edge in others:
            if self._random.integers(2):
                self._waited_percent[edge] = 0
        self._waited_percent.update(kept)
        return bool(others)

    def problem(self) -> Problem:
        return self._at(self._waited_percent)

    def leaves_room(self, choice: Ints) -> bool:
        """Of a choice that was offered."""
        return self._offered[choice.tobytes()].has_room

    def problem_with_room(self) -> Problem:
        return replace(self.problem(), memory_limit=self._room)

    def keep_room(self) -> None:
        """In what is looked for from now on, if anything that was offered leaves room."""
        if any(one.has_room for one in self._offered.values()):
            self._limit = self._room if self._limit is None else min(self._limit, self._room)

    def problem_without_waiting(self) -> Problem:
        return self._at(dict.fromkeys(range(len(self._priced.graph.edges)), 0))

    def _at(self, waited_percent: Mapping[int, int]) -> Problem:
        percent = {edge: one + (100 - one) // _HIDDEN_SHARE for edge, one in waited_percent.items()}
        problem = repriced(self._loaded, self._priced, percent).problem
        return replace(problem, node_cost=problem.node_cost + self._work, memory_limit=self._limit)

    def result(self, cheapest: Solution) -> Ordered:
        """The best choice; where it is not as cheap as that by price, what is known of both."""
        assert cheapest.choice is not None
        best, first = self.best, self._offered[cheapest.choice.tobytes()]
        tried = {**cheapest.statistics, "choices in order": len(self._offered)}
        found = replace(cheapest, choice=best.choice, cost=best.cost, peak=best.peak, statistics=tried)
        if best.cost == first.cost:
            return Ordered(found)
        mine, theirs = times_text(best.schedule.step_ns, first.schedule.step_ns)
        name = "the cheapest by price" if cheapest.status is Status.OPTIMAL else "what was found by price"
        count, first_text = len(self._offered), f"{name}, of {time_text(first.cost)}"
        proved = (
            f"Of {count} choices it has the shortest step in the scheduler's order, {mine}, a twentieth of what is hidden counted; "
            f"{first_text}, takes {theirs} there."
            if mine != theirs
            else f"Of {count} choices it is the one with the shortest step in the scheduler's order, {mine}, that works least by the "
            f"hardware's own figures; {first_text}, works more."
        )
        return Ordered(replace(found, status=Status.FEASIBLE), proved)
