"""What elementwise work is done on that a loop is handed evaluated, and what becomes of it.

XLA:TPU stores that work in one fusion, in front of the loop. What it was done on is gone then if nothing else reads it later, so that a
transposed copy of the result takes no more than that did (Llama 3 8B with flash attention on v5p: of logits, what goes back to them and its
copy there are two at a time). Logits that would stay for labels to be picked in the end are read by that fusion too, which makes the
logarithms besides: these stay instead (training steps with bfloat16 logits on v5e 4x4; libtpu 0.0.51). Neither is so where what the loop is
handed is padded, as other products then repeat the work (50257 words over 16 devices).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoshard.program.records import Lifetime, Program
from autoshard.program.repeating import read_times, readers_of
from autoshard.sharding import TensorType


@dataclass(frozen=True, slots=True)
class Source:
    """A stored value of the shape of what is worked out from it, and of no fewer bytes.

    `read`: when it is read last but for that work; `end`: of its life, with that; `picked`: wider logarithms of it that are made in the
    end, for which it stays until then (`repeating.picked_at_the_end`).
    """

    value: int
    type: TensorType
    read: int
    end: int
    picked: TensorType | None

    def is_gone(self, lives: Mapping[int, Lifetime], time: int) -> bool:
        """Whether nothing needs it once a loop that runs at `time` has what is worked out from it."""
        return self.read < time and (lives[self.value].end <= self.end or self.picked is not None)

    def stays_as(self, lives: Mapping[int, Lifetime]) -> TensorType | None:
        """What there is in its place until the end; None where it does not stay so long."""
        return self.picked if lives[self.value].end > self.end else None


class Sources:
    """Of elementwise results; each is looked for once."""

    def __init__(self, program: Program) -> None:
        self._program, self._readers = program, readers_of(program.kernels)
        self._made = {value: kernel for kernel in program.kernels for value in kernel.results}
        self._found: dict[int, Source | None] = {}
        self._picked = {
            source: self._type(value) for value in self._made_last() for source in self._behind(value)
        }

    def of(self, value: int) -> Source | None:
        """The one that others read least long."""
        if value not in self._found:
            least = self._type(value).num_bytes
            behind = [source for source in self._behind(value) if self._type(source).num_bytes >= least]
            sources = (self._source(source, value) for source in behind)
            self._found[value] = min(sources, key=lambda one: (one.read, one.value), default=None)
        return self._found[value]

    def _source(self, source: int, value: int) -> Source:
        read = max(read_times(source, self._readers, value), default=-1)
        end = max(read_times(source, self._readers), default=-1) + 1
        return Source(source, self._type(source), read, end, self._picked.get(source))

    def _behind(self, value: int) -> Iterator[int]:
        """Stored values of its shape, made by the program, that it is worked out from."""
        seen, left = {value}, [value]
        while left:
            for use in self._made[left.pop()].uses:
                kernel = self._made.get(use.value)
                if (
                    kernel is None
                    or use.value in seen
                    or self._type(use.value).shape != self._type(value).shape
                ):
                    continue
                seen.add(use.value)
                if kernel.is_alias:
                    left.append(use.value)
                else:
                    yield use.value

    def _made_last(self) -> Iterator[int]:
        """Values that are made when all else is done, though they could be before."""
        last = len(self._program.listing.ops) - 1
        for value, kernel in self._made.items():
            whole = any(one.is_value and one.begin == last for one in self._program.wholes.get(value, ()))
            life = self._program.ample_lifetimes.get(value)
            if kernel.time < last and (whole or (life is not None and life.begin == last)):
                yield value

    def _type(self, value: int) -> TensorType:
        type_ = self._program.listing.values[value].type
        assert type_ is not None
        return type_
