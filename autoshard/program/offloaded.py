"""Gathers that a chip's SparseCores make: one behind the other, apart from what its TensorCores do meanwhile.

XLA's latency-hiding scheduler goes from the end of a program. As long as a gather takes it puts work behind the beginning of that
gather, the last first, of what neither the gather waits for nor anything else that has to run before it. What other gathers gave and that
work reads is there until then: many results of gathers are there together where little is done to each. SegFormer's decoder, which resizes
three images, holds twelve on v5p and v6e, on v5e, which has no SparseCores, four.

A gather takes as long as to read and write the rows, a product its least, other work a sixth of its traffic (libtpu 0.0.52 for v6e: of
five towers on rows of 512 float32 four or five products run behind a gather, on rows of 1024 two, on longer ones one, of 2048 to 131072
rows; the scheduler takes products for six times their least, see `covering_ratio`).

SparseCores read and write main memory. They do not convert: see `storing`.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from autoshard.program.lifetime import keep_until
from autoshard.program.pace import KernelTimes
from autoshard.program.records import Kernel, Lifetime, Program

_GATHER = "stablehlo.gather"
_BRANCHING = frozenset({"while", "case", "if"})
_OTHER_WORK = 6  # a part of its memory traffic
_MOST_KERNELS = 2000
"""How far back work is looked for; it is mostly found among a few."""


def gather_kernels(program: Program) -> Iterator[Kernel]:
    """Those that SparseCores may run, of a compiler that has them do so: of tables that are not generated, the first operands."""
    for kernel in program.kernels if program.gathers_apart else ():
        if kernel.shape.name == _GATHER and kernel.uses and (kernel.time, 0) in kernel.uses[0].sites:
            yield kernel


class Offloading:
    """Of one program: the lives of values where gathers run apart.

    Args:
        times: of each kernel.
        ratio: how much longer `times` has products for than their least.
    """

    def __init__(self, program: Program, times: Sequence[KernelTimes], ratio: float) -> None:
        self._program, self._ratio = program, ratio
        self._kernels = program.kernels
        self._times = dict(zip((kernel.time for kernel in self._kernels), times, strict=True))
        self._made = {value: kernel for kernel in self._kernels for value in kernel.results}
        self._handed = {
            source.value: source.time for flow in program.listing.data_flows for source in flow.sources
        }
        self._bounds = sorted(
            {
                time
                for flow in program.listing.data_flows
                if flow.kind in _BRANCHING
                for time in (flow.begin, flow.end, *(source.time for source in flow.sources))
            }
        )
        self._late: dict[frozenset[int], dict[int, int]] = {}

    def lives(self, lives: Mapping[int, Lifetime], apart: Collection[int]) -> Mapping[int, Lifetime]:
        """Those lives, longer for what work reads that is put off, and later for what it makes.

        Args:
            apart: what SparseCores give.
        """
        key = frozenset(apart)
        if key not in self._late:
            self._late[key] = self._put_off(key)
        if not (late := self._late[key]):
            return lives
        found = dict(lives)
        for kernel in (kernel for kernel in self._kernels if kernel.time in late):
            time = late[kernel.time] + 1
            for use in kernel.uses:
                keep_until(use.value, time, self._made, found)
            for value in kernel.results:
                if value in found and found[value].is_own_buffer and value not in self._program.returned:
                    life = found[value]
                    found[value] = replace(life, begin=max(life.begin, time), end=max(life.end, time + 1))
        return found

    def in_main_memory(self, apart: Collection[int]) -> frozenset[int]:
        """What SparseCores give, and what they read that from."""
        found = set(apart)
        for kernel in gather_kernels(self._program):
            if kernel.results[0] in apart:
                table = kernel.uses[0].value
                found.add(table)
                while table in self._made and self._made[table].is_alias:
                    table = self._made[table].uses[0].value
                    found.add(table)
        return frozenset(found)

    def _put_off(self, apart: Collection[int]) -> dict[int, int]:
        """By the time of work, that of the gather which it runs beside instead."""
        late: dict[int, int] = {}
        for number in reversed(range(len(self._kernels))):
            gather = self._kernels[number]
            if gather.results and gather.results[0] in apart:
                left_ns = self._times[gather.time].memory_ns
                for kernel in self._ready(number, apart, late):
                    late[kernel.time] = gather.time
                    left_ns -= self._work_ns(kernel)
                    if left_ns <= 0:
                        break
        return late

    def _ready(self, number: int, apart: Collection[int], late: Mapping[int, int]) -> Iterator[Kernel]:
        """Work in front of a gather that nothing waits for until the gather has begun, the last first."""
        gather = self._kernels[number]
        awaited = {use.value for use in gather.uses}
        bound = bisect_right(self._bounds, gather.time)
        before = self._bounds[bound - 1] if bound else -1
        for earlier in range(number - 1, max(number - 1 - _MOST_KERNELS, -1), -1):
            kernel = self._kernels[earlier]
            if kernel.time < before:
                return
            if kernel.time in late:
                continue
            is_awaited = any(
                value in awaited or value in apart or self._handed.get(value, gather.time + 1) <= gather.time
                for value in kernel.results
            )
            if is_awaited or not kernel.results:
                awaited.update(use.value for use in kernel.uses)
            else:
                yield kernel

    def _work_ns(self, kernel: Kernel) -> float:
        times = self._times[kernel.time]
        if kernel.shape.is_matmul:
            return times.product_ns / self._ratio
        return 0.0 if kernel.is_alias else times.memory_ns / _OTHER_WORK
