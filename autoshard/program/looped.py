"""Buffers that results of products have because a loop makes them while it gathers an operand.

Elementwise work cannot run as such a product leaves the matrix unit, and writes over no result of a loop: that stays until its last reader
has run. Results that lie in columns are copied behind the loop, where elementwise work does not read them alone, and so is what such work
makes of them that is returned. Seen of products alone, with a tanh, and of gated and plain perceptrons on v5p 2x2x4 and v6e 4x4 (libtpu
0.0.52).
"""

from autoshard.program.records import Kernel, Lifetime, Program
from autoshard.program.repeating import readers_of


class LoopedResults:
    """Of one program; times are half-open."""

    def __init__(self, program: Program) -> None:
        self._program, self._readers = program, readers_of(program.kernels)

    def stored(self, product: Kernel) -> tuple[int, int] | None:
        """From when to when the result is stored beyond the life of a buffer that it has anyway."""
        life, end = self._life(product), self._last(product).time + 1
        if life.within is not None and life.end >= end:
            return None  # it lies in the memory of a result as long as it is read
        if not life.is_own_buffer:
            return life.begin, max(life.end, end)
        return (life.end, end) if life.end < end else None

    def copied(self, product: Kernel) -> frozenset[int]:
        """When copies are made of what lies in columns."""
        last, times = self._last(product), set[int]()
        if self._life(product).is_own_buffer:
            times.add(product.time)
        if not self._program.returned.isdisjoint(last.results):
            times.add(last.time)
        return frozenset(times)

    def _life(self, product: Kernel) -> Lifetime:
        unknown = Lifetime(product.time, product.time + 1, is_own_buffer=False)
        return self._program.lifetimes.get(product.results[0], unknown)

    def _last(self, product: Kernel) -> Kernel:
        """The last that reads the result, or what makes it where none does."""
        readers = self._readers.get(product.results[0], [])
        return max((product, *readers), key=lambda kernel: kernel.time)
