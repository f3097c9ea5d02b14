"""How long values wait, and for what: kernels one after the other, the work of each split over all devices."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from autoshard.program.records import MOVES, Kernel, Program
from autoshard.program.repeating import read_times, readers_of


class KernelTimes(NamedTuple):
    """Of one run of a kernel, at the least."""

    product_ns: float  # on the matrix unit
    memory_ns: float  # for what it moves to and from memory


class Stay(NamedTuple):
    """What a value is there for."""

    waiting_ns: float  # the longest of what runs between two kernels that make or read it
    streaming: int  # how many of these kernels wait for memory
    spare_ns: float  # of the others, how much longer the product takes than memory, at the least
    end: int  # half-open: what is written over is there as long as the kernel runs that does so
    is_streamed: bool  # made by no product, nor as one leaves the matrix unit, nor by a collective: by elementwise work, a reduction


class Pace:
    def __init__(self, program: Program, kernels: Sequence[KernelTimes]) -> None:
        self.kernels = kernels
        self._ops = program.listing.ops
        self._times = [kernel.time for kernel in program.kernels]
        self._kernels = dict(zip(self._times, kernels, strict=True))
        runs = zip(kernels, program.kernels, strict=True)
        self._before = [0.0, *accumulate(max(one) * kernel.repeat for one, kernel in runs)]
        self._readers = readers_of(program.kernels)
        self._read_times: dict[int, list[int]] = {}
        self._stays: dict[tuple[int, int, int, bool], Stay] = {}
        self._streamed = frozenset(self._made_apart(program.kernels))

    def stay(self, value: int, begin: int, end: int, *, is_out: bool = False) -> Stay:
        """Of a buffer over a half-open life; `value` is what is in it, -1 where its readers are not known. `is_out`: it waits for ever."""
        key = value, begin, end, is_out
        if key not in self._stays:  # choices differ in few of them
            self._stays[key] = self._stay(*key)
        return self._stays[key]

    def _stay(self, value: int, begin: int, end: int, is_out: bool) -> Stay:
        reads = self._reads(value)
        last = end if end in reads else end - 1
        times = [begin, *(time for time in reads if begin < time < last), max(last, begin)]
        waiting = math.inf if is_out else max(self._between(*pair) for pair in pairwise(times))
        at_work = [self._kernels[time] for time in times if time in self._kernels]
        spare = [one.product_ns - one.memory_ns for one in at_work]
        return Stay(
            waiting,
            sum(one < 0 for one in spare),
            max(min(spare, default=0.0), 0.0),
            last + 1,
            value in self._streamed,
        )

    def _made_apart(self, kernels: Sequence[Kernel]) -> Iterator[int]:
        products = set[int]()  # and names of them
        for kernel in kernels:
            ends_product = any(use.value in products for use in kernel.uses)
            if kernel.shape.is_matmul or (kernel.is_alias and ends_product):
                products.update(kernel.results)
            elif not ends_product and not _is_sent(kernel):
                yield from kernel.results

    def _reads(self, value: int) -> list[int]:
        if value not in self._read_times:
            self._read_times[value] = sorted(read_times(value, self._readers))
        return self._read_times[value]

    def _between(self, begin: int, end: int) -> float:
        """What runs after the one time and before the other; within a loop, of one trip."""
        first, last = bisect_right(self._times, begin), bisect_left(self._times, end)
        trips = min(self._repeat(begin), self._repeat(end))
        return max(self._before[last] - self._before[first], 0.0) / max(trips, 1)

    def _repeat(self, time: int) -> int:
        return self._ops[time].repeat if 0 <= time < len(self._ops) else 1


def _is_sent(kernel: Kernel) -> bool:
    """Whether a collective makes it, which the user wrote or demanded by a move."""
    return kernel.shape.name in MOVES or kernel.shape.collective is not None
