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

FIRST_BUDGET = {"toulbar2": 1000, "cp-sat": 2, "maxsat": 1000}
"""Work of the first round, each in the engine's own unit: a second or two on a core of a few hundred nodes."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One round; the fields are those of `solve_lazily`."""

    rows: Ints | None
    budget: int
    hint: Ints | None
    cutoff: int | None
    time_limit_s: float
