"""How long a solver may still run: wall time, a number of steps, or until the user interrupts."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
_ITEMS_AT_ONCE = 64  # between two looks at the clock


class OutOfTimeError(Exception):
    """The clock is over; raised between steps, so whoever catches it finds everything in order."""


@dataclass(slots=True)
class Clock:
    """Steps are the unit of a `work_limit`: one turn of an engine. A part of a clock ends with it at the latest."""

    time_limit_s: float
    work_limit: int | None = None
    whole: Clock | None = None
    steps: int = 0
    interrupted: bool = False
    _began: float = field(default_factory=time.monotonic)

    def part(self, share: float) -> Clock:
        """A clock for that share of what is left."""
        work = None if self.work_limit is None else int(share * (self.work_limit - self.steps))
        return Clock(share * max(self.left_s(), 0.0), work, self)

    def left_s(self) -> float:
        if self.interrupted:
            return 0.0
        left = self.time_limit_s - (time.monotonic() - self._began)
        return left if self.whole is None else min(left, self.whole.left_s())

    def used(self) -> float:
        """The part that is over, 0 to 1, of the time or of the steps."""
        of_time = 1.0 - self.left_s() / self.time_limit_s if self.time_limit_s > 0 else 1.0
        of_work = 0.0 if not self.work_limit else self.steps / self.work_limit
        return max(of_time, of_work)

    def step(self, count: int = 1) -> None:
        self.steps += count
        if self.whole is not None:
            self.whole.step(count)

    def interrupt(self) -> None:
        self.interrupted = True
        if self.whole is not None:
            self.whole.interrupt()

    @contextmanager
    def ended_by_interrupt(self) -> Generator[None]:
        """An interrupt (Ctrl-C) in here ends the clock; the caller goes on behind it with what there is."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupt()

    def over(self) -> bool:
        spent = self.work_limit is not None and self.steps >= self.work_limit
        return spent or self.left_s() <= 0 or (self.whole is not None and self.whole.over())

    def check(self) -> None:
        """Raises OutOfTimeError where the clock is over."""
        if self.over():
            raise OutOfTimeError


def check(clock: Clock | None) -> None:
    """The same for a clock that may be missing."""
    if clock is not None:
        clock.check()


def watched(clock: Clock | None, items: Iterable[T]) -> Iterator[T]:
    """The items, with a look at the clock now and then; raises OutOfTimeError where it is over."""
    for index, item in enumerate(items):
        if index % _ITEMS_AT_ONCE == 0:
            check(clock)
        yield item
