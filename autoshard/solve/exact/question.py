"""What `race` asks a worker process, which engine it runs, and where to import that from."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.problem.model import Ints

ENGINES = {
    "toulbar2": ("autoshard.solve.exact.toulbar2", "Toulbar2"),
    "cp-sat": ("autoshard.solve.exact.cpsat", "CpSat"),
    "maxsat": ("autoshard.solve.exact.maxsat", "MaxSat"),
}
"""Name -> module and class of an Engine; a worker imports only its own."""

FIRST_BUDGET = {"toulbar2": 4000, "cp-sat": 8, "maxsat": 20_000}
"""Work of the first round, each in the engine's own unit: some ten seconds on a core of a few hundred nodes."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One round; the fields are those of `solve_lazily`."""

    rows: Ints | None
    budget: int
    hint: Ints | None
    cutoff: int | None
    time_limit_s: float
