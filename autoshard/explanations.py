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
    is_by_order: bool = False  # steps are those in the scheduler's order, of which nothing is proved


@dataclass(frozen=True, slots=True)
class Replacement:
    """What is cheaper than a plan where a hardware figure has another value."""

    factor: float  # of the figure
    value: float
    plan_ns: int  # the plan's step there
    step_ns: int
    peak_bytes: int
    moved: tuple[Moved, ...]  # arguments and results whose shardings differ


@dataclass(frozen=True, slots=True)
class End:
    """One end of a range: the last factor looked at that nothing cheaper was found at, and what is cheaper beyond."""

    factor: float
    value: float
    beyond: Replacement | None = None  # None: nothing was found as far as was looked
    is_cut_short: bool = False  # the time was over first, or the search interrupted


@dataclass(frozen=True, slots=True)
class FigureRange:
    """The range of one figure over which a plan stays the best.

    `gap`: what a cheaper choice could save at most at the factors looked at, as a part of the plan's step there; 0 where it is proved
    that there is none. `is_linear`: the price of every choice is a straight line in the figure or its inverse, so that what holds at
    the ends holds in between; else it holds at the factors in `looked_at` only. Without ends where a cheaper choice was found already at
    the profile's own figures.
    """

    figure: str
    unit: str
    value: float
    low: End | None
    high: End | None
    gap: float
    is_linear: bool
    looked_at: tuple[float, ...]

    @property
    def is_proved(self) -> bool:
        """Whether the plan is proved the cheapest at all factors looked at within the range."""
        return self.low is not None and self.gap == 0


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How far hardware figures may be off before another plan is better. `tolerance`: the part of its step by which that one is."""

    hardware: str
    step_ns: int
    planned_ns: int
    """What the plan's file says its step takes; another figure where another version priced it."""
    span: float  # factors from 1/span to span were looked at
    tolerance: float
    precision: float
    figures: tuple[FigureRange, ...]
    better: Replacement | None = None  # at the profile's own figures
    is_by_order: bool = False  # chosen for its step in the scheduler's order, which prices do not have
    is_interrupted: bool = False  # by Ctrl-C: what was known by then
