"""What elementwise work is done on that a loop is handed evaluated.

XLA:TPU stores that work in one fusion, in front of the loop. What it was done on is gone then if nothing else reads it later, so that a
transposed copy of the result takes no more than that did (Llama 3 8B with flash attention on v5p: of logits, what goes back to them and its
copy there are two at a time; libtpu 0.0.51). Not where what the loop is handed is padded, as other products then repeat the work (50257
words over 16 devices).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from autoshard.program.records import Lifetime, Program
from autoshard.program.repeating import read_times, readers_of
from autoshard.sharding import TensorType


@dataclass(frozen=True, slots=True)
class Source:
    """A stored value of as many elements as what is worked out from it, and of no fewer bytes.

    `read`: when it is read last but for that work; `end`: of its life, with that.
    """

    value: int
    read: int
    end: int

    def is_gone(self, lives: Mapping[int, Lifetime], time: int) -> bool:
        """Whether nothing needs it once a loop that runs at `time` has what is worked out from it."""
        return self.read < time and lives[self.value].end <= self.end


class Sources:
    """Of elementwise results; each is looked for once."""

    def __init__(self, program: Program) -> None:
        self._program, self._readers = program, readers_of(program.kernels)
        self._made = {value: kernel for kernel in program.kernels for value in kernel.results}
        self._found: dict[int, Source | None] = {}

    def of(self, value: int) -> Source | None:
        """The one that others read least long."""
        if value not in self._found:
            least = self._type(value).num_bytes
            behind = [source for source in self._behind(value) if self._type(source).num_bytes >= least]
            sources = (self._source(source, value) for source in behind)
            self._found[value] = min(sources, key=lambda one: (one.read, one.value), default=None)
        return self._found[value]

    def _source(self, source: int, value: int) -> Source:
        read = max(self._runs(read_times(source, self._readers, value)), default=-1)
        end = max(self._runs(read_times(source, self._readers)), default=-1) + 1
        return Source(source, read, end)

    def _runs(self, times: Iterable[int]) -> Iterator[int]:
        return (self._program.early.get(time, time) for time in times)

    def _behind(self, value: int) -> Iterator[int]:
        """Stored values of as many elements, made by the program, that it is worked out from."""
        seen, left = {value}, [value]
        while left:
            for use in self._made[left.pop()].uses:
                kernel, size = self._made.get(use.value), self._type(use.value).num_elements
                if kernel is None or use.value in seen or size != self._type(value).num_elements:
                    continue
                seen.add(use.value)
                if kernel.is_alias:
                    left.append(use.value)
                else:
                    yield use.value

    def _type(self, value: int) -> TensorType:
        type_ = self._program.listing.values[value].type
        assert type_ is not None
        return type_
