"""Why there is no plan, as plain data: demands that clash, each as the user wrote it, and what dropping one would bring."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Clashing:
    """One of the demands that clash, and the cheapest plan found without it, all others met."""

    kind: Literal["sharding", "group", "memory"]
    text: str  # with its place
    step_ns: int | None = None  # without it; None: no plan was found
    peak_bytes: int | None = None
    is_proved: bool = False  # that plan is the cheapest
    note: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """`plan`: nothing clashes. `clash`: these demands do. `unknown`: not decided within the time."""

    status: Literal["plan", "clash", "unknown"]
    clashing: tuple[Clashing, ...] = ()
    is_minimal: bool = False  # leaving any one out was seen to be enough for the others
    context: tuple[str, ...] = ()  # carried state that ties the values of these demands
    memory_bytes: int | None = None
    smallest_peak_bytes: int | None = None  # found without any demand, where memory alone is too little
    peak_bound_bytes: int | None = None  # no plan without any demand peaks below

    @property
    def to_drop(self) -> Clashing | None:
        """The one without which the others have the cheapest plan found."""
        planned = [one for one in self.clashing if one.step_ns is not None]
        return min(planned, key=lambda one: one.step_ns or 0, default=None)


@dataclass(frozen=True, slots=True)
class Moved:
    """A value that another sharding of the one asked about would move."""

    value: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Changed:
    """Collectives of one kind over the same axes, all runs together, before and after."""

    kind: str
    axes: tuple[str, ...]
    count: tuple[int, int]
    ns: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Alternative:
    """The best plan found with another sharding of a value; without figures where there is none, for the reason in `note`."""

    sharding: str
    step_ns: int | None = None
    peak_bytes: int | None = None
    is_proved: bool = False
    moved: tuple[Moved, ...] = ()
    changed: tuple[Changed, ...] = ()
    note: str = ""
    clash: Explanation | None = None


@dataclass(frozen=True, slots=True)
class Why:
    """What binds a value's sharding in a plan, and what others would cost."""

    value: str
    sharding: str
    step_ns: int
    peak_bytes: int
    bound_by: tuple[str, ...]  # demands, groups, carried state, data flow
    alternatives: tuple[Alternative, ...]
    left_out: int = 0  # shardings that were not tried
