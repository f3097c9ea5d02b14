"""What a search over placements and mesh shapes compared, as plain data."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["best", "proved", "pruned", "open", "no plan", "not examined"]
"""`proved`: its own optimum, dearer than the best or equal. `pruned`: none of its plans is cheaper than the best. `open`: one may be."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A mesh on a placement; `step_ns` is of the best plan found there, None where none was looked for or found."""

    mesh: tuple[tuple[str, int], ...]
    placement: str
    step_ns: int | None
    lower_bound_ns: int
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is known of every mesh and placement that was compared."""

    rows: tuple[Examined, ...]

    @property
    def lower_bound_ns(self) -> int:
        """Of every plan on every mesh and placement that was to be compared."""
        return min((row.lower_bound_ns for row in self.rows if row.verdict != "no plan"), default=0)

    @property
    def is_proved(self) -> bool:
        """Whether no other mesh or placement has a cheaper plan."""
        return all(row.verdict in ("best", "proved", "pruned", "no plan") for row in self.rows)

    @property
    def proved(self) -> str:
        """The sentence to read."""
        left = [row for row in self.rows if row.verdict == "not examined"]
        if self.is_proved:
            return "It is proved that none of the others has a cheaper plan."
        if left:
            return f"The time limit struck before {len(left)} of {len(self.rows)} were examined; the best of the others."
        return "Some of the others may have a cheaper plan, but none below its lower bound."
