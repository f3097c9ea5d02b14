"""How long program time takes at the least: kernels one after the other, the work of each split over all devices."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from autoshard.program.records import Program


class Pace:
    def __init__(self, program: Program, kernel_ns: Sequence[float]) -> None:
        """`kernel_ns`: of one run of each kernel."""
        self._ops = program.listing.ops
        self._times = [kernel.time for kernel in program.kernels]
        runs = zip(kernel_ns, program.kernels, strict=True)
        self._before = [0.0, *accumulate(ns * kernel.repeat for ns, kernel in runs)]

    def waiting_ns(self, begin: int, end: int) -> float:
        """What comes after the first and before the last time of a half-open life; within a loop, of one trip."""
        first, last = bisect_right(self._times, begin), bisect_left(self._times, end - 1)
        trips = min(self._repeat(begin), self._repeat(end - 1))
        return max(self._before[last] - self._before[first], 0.0) / max(trips, 1)

    def _repeat(self, time: int) -> int:
        return self._ops[time].repeat if 0 <= time < len(self._ops) else 1
