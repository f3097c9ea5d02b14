"""What a solver answers: a choice, what was proved about it, and how it was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from autoshard.problem import Evaluation
from autoshard.problem.model import Ints

Figure = int | float | str
Solver = Literal["auto", "toulbar2", "cp-sat", "maxsat", "search", "brute"]


class Status(Enum):
    """What is known at the end; the value is the sentence for the user."""

    OPTIMAL = "The choice is proved to be the cheapest one."
    FEASIBLE = "The choice is valid; a cheaper one may exist, but none below the lower bound."
    INFEASIBLE = "It is proved that no choice satisfies every demand within the memory limit."
    NOT_FOUND = "No valid choice was found within the time limit; it is not proved that there is none."


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """An answer. `lower_bound` holds for every valid choice, `peak_lower_bound` for every one without regard to
    the memory limit; both are exact integer statements, never rounded the wrong way."""

    status: Status
    choice: Ints | None  # [N]
    cost: int | None
    peak: int | None  # bytes
    lower_bound: int
    smallest_peak: int | None  # the smallest peak of any allowed choice seen, within the memory limit or not
    smallest_peak_choice: Ints | None
    peak_lower_bound: int
    statistics: dict[str, Figure] = field(default_factory=dict[str, Figure])

    @property
    def gap(self) -> float | None:
        """(cost - lower bound) / cost; None without a choice."""
        if self.cost is None:
            return None
        return (self.cost - self.lower_bound) / max(abs(self.cost), 1)


@dataclass(slots=True)
class Best:
    """The best choice so far, and the one with the smallest peak."""

    choice: Ints | None = None
    cost: int | None = None
    peak: int | None = None
    peak_choice: Ints | None = None
    smallest_peak: int | None = None

    def offer(self, choice: Ints, priced: Evaluation) -> bool:
        """Take note of a priced choice; is it the best valid one so far?"""
        if priced.cost is None:
            return False
        if self.smallest_peak is None or priced.peak < self.smallest_peak:
            self.smallest_peak, self.peak_choice = priced.peak, choice.copy()
        if not priced.feasible or (self.cost is not None and priced.cost >= self.cost):
            return False
        self.choice, self.cost, self.peak = choice.copy(), priced.cost, priced.peak
        return True
