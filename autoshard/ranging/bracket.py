"""How far from 1 a figure's factor can go, in one direction, before another choice is cheaper than the plan.

Where the price of every choice is a straight line in the figure (or in its inverse), the cheapest price is the lower envelope of
lines, and the plan is the cheapest on an interval: if it is at both ends, it is in between. So the far end is looked at first. If
another choice is cheaper there, the point where the two cost the same follows from two prices of each, and that point is looked at
next: either nothing is cheaper there, and it is the end of the range, or what is crosses the plan still nearer (the cutting planes of
Kelley 1960, in one dimension). A look that does not halve what is left is followed by one in the middle.
Where prices are no lines, points a factor of 2 apart are looked at on the way out.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Choice = TypeVar("Choice")


@dataclass(frozen=True, slots=True)
class Look(Generic[Choice]):
    """What was found at one factor: `better` is a choice that is cheaper than the plan, None where none was found."""

    factor: float
    plan_ns: int
    bound_ns: int  # nothing is cheaper
    better: Choice | None

    @property
    def gap(self) -> float:
        """What a cheaper choice could save at most, as a part of the plan's price."""
        return max(self.plan_ns - self.bound_ns, 0) / max(self.plan_ns, 1)


@dataclass(slots=True)
class Side(Generic[Choice]):
    """`kept`: looks at which nothing was cheaper, the last one the farthest; `beaten`: the nearest at which something was."""

    kept: list[Look[Choice]] = field(default_factory=list[Look[Choice]])
    beaten: Look[Choice] | None = None
    is_cut_short: bool = True  # until the range is known as precisely as asked: the time was over before


@dataclass(frozen=True, slots=True)
class Oracle(Generic[Choice]):
    """What `search_side` asks of the problem at a factor; `look` is None when the time is over."""

    look: Callable[[float], Look[Choice] | None]
    difference: Callable[[float, Choice], int]
    """By how many ns the choice is cheaper than it has to be to be better."""


def search_side(
    oracle: Oracle[Choice],
    side: Side[Choice],
    end: float,
    *,
    is_rate: bool,
    is_linear: bool,
    precision: float,
) -> None:
    """From the one look of a side, at which the plan is the cheapest, towards the factor `end`.

    Args:
        side: what is found is written there look by look, so that it is known where the search is interrupted.
        precision: how far apart, as a part of the factor, the last look that the plan survives and the first that it does not may be.
    """
    for factor in (end,) if is_linear else _outwards(end):
        found = oracle.look(factor)
        if found is None:
            return
        if found.better is not None:
            side.beaten = found
            break
        side.kept.append(found)
    is_slow = False
    while side.beaten is not None and (apart := _apart(side)) > precision:
        middle = math.sqrt(side.kept[-1].factor * side.beaten.factor)
        found = oracle.look(middle if is_slow else _next(oracle, side, is_rate, precision))
        if found is None:
            return
        if found.better is not None:
            side.beaten = found
        else:
            side.kept.append(found)
        is_slow = _apart(side) > apart / 2
    side.is_cut_short = False


def _outwards(end: float) -> Iterator[float]:
    count = max(math.ceil(abs(math.log2(end))), 1)
    yield from (end ** (step / count) for step in range(1, count + 1))


def _apart(side: Side[Choice]) -> float:
    assert side.beaten is not None
    return abs(math.log(side.beaten.factor / side.kept[-1].factor))


def _next(oracle: Oracle[Choice], side: Side[Choice], is_rate: bool, precision: float) -> float:
    """The factor to look at: less than half the precision before, or after, the point where plan and rival cost the same."""
    beaten, kept = side.beaten, side.kept[-1].factor
    assert beaten is not None and beaten.better is not None
    crossing = _crossing(oracle, beaten.better, kept, beaten.factor, is_rate, precision)
    outwards = 1 if beaten.factor > kept else -1
    step = math.exp(outwards * 0.4 * precision)
    before, after = crossing / step, crossing * step
    if (before - kept) * outwards > 0:
        return before
    if (beaten.factor - after) * outwards > 0:
        return after
    return math.sqrt(kept * beaten.factor)


def _crossing(
    oracle: Oracle[Choice], rival: Choice, kept: float, beaten: float, is_rate: bool, precision: float
) -> float:
    """Where the plan and a rival cost the same: regula falsi (Illinois) on what prices are linear in."""

    def as_linear(factor: float) -> float:
        return 1 / factor if is_rate else factor

    low, high = as_linear(kept), as_linear(beaten)
    at_low, at_high = float(oracle.difference(kept, rival)), float(oracle.difference(beaten, rival))
    if at_low >= 0 or at_high <= 0:
        return kept
    middle = high
    for _ in range(12):
        middle = low - at_low * (high - low) / (at_high - at_low)
        if abs(math.log(high / low)) < 0.2 * precision:
            break
        found = float(oracle.difference(as_linear(middle), rival))
        if abs(found) <= 1:
            break
        if found > 0:
            high, at_high, at_low = middle, found, at_low / 2
        else:
            low, at_low, at_high = middle, found, at_high / 2
    return as_linear(middle)
