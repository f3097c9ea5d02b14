"""What an exact engine is, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core

Found = Callable[[Ints], None]


class UnsuitableError(Exception):
    """The engine cannot take this core; another may."""


@dataclass(frozen=True, slots=True)
class Answer:
    """All of it holds for the memory rows that were asked for, and for choices cheaper than the cutoff."""

    choice: Ints | None  # [n] satisfies the masks and those rows
    lower_bound: int | None  # ns, constant of the core included; proved
    optimal: bool  # `choice` is proved to be the cheapest
    infeasible: bool  # it is proved that there is none


class Engine(Protocol):
    """One way to prove an optimum. Made once for a core, asked again with more rows or a lower cutoff.

    Engines are deterministic for a given seed and budget as long as the clock does not strike.
    """

    def __init__(self, core: Core, seed: int) -> None: ...

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
        """Minimise subject to the memory rows `rows` (indices into core.room) only.

        `budget` bounds the work in a unit that does not depend on the machine; None: no bound. `hint` [n] is a choice
        to start from, `cutoff` a cost (constant included) below which the answer must lie. `found` is told better
        choices while the engine runs, where it can tell.
        """
        ...
