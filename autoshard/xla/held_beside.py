"""What is predicted to be in memory at the peak beside what the compiler has there, op by op where they differ.

Buffers of the same op and nearly the same size belong together; of what is left, those of nearly the same size: the same value, for which
the two name neighbouring ops. The rest is compared op by op.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from autoshard.held import GAPS, HeldMemory
from autoshard.xla.compiled import Compiled

_NEARLY = 0.1


@dataclass(frozen=True, slots=True)
class HeldSide:
    """Buffers of one op that come and go, in bytes of one device; those that are alike on both sides are left out of both."""

    where: str
    predicted_bytes: int
    predicted_count: int
    compiled_bytes: int
    compiled_count: int

    @property
    def difference_bytes(self) -> int:
        """Compiled less predicted."""
        return self.compiled_bytes - self.predicted_bytes


def held_differences(predicted: HeldMemory, compiled: Compiled) -> tuple[HeldSide, ...]:
    """The largest first."""
    mine, others = list(_temporary(predicted)), list(_compiled(compiled))
    by_place = _by_place(mine), _by_place(others)
    for where in by_place[0].keys() & by_place[1].keys():
        by_place[0][where], by_place[1][where] = _unmatched(by_place[0][where], by_place[1][where])
    left, right = (_by_place(found) for found in _unmatched(*(chain(*one.values()) for one in by_place)))
    sides = [
        HeldSide(
            where,
            sum(one.bytes for one in left.get(where, ())),
            len(left.get(where, ())),
            sum(one.bytes for one in right.get(where, ())),
            len(right.get(where, ())),
        )
        for where in left.keys() | right.keys()
    ]
    return tuple(
        sorted(
            (side for side in sides if side.difference_bytes),
            key=lambda side: (-abs(side.difference_bytes), side.where),
        )
    )


def temporary_bytes(predicted: HeldMemory) -> int:
    """All that is neither an argument nor a result."""
    return predicted.peak_bytes - predicted.handed_over_bytes


class _Entry(NamedTuple):
    bytes: int
    where: str


def _temporary(predicted: HeldMemory) -> Iterator[_Entry]:
    yield from (_Entry(one.bytes, one.where) for one in predicted.buffers if not one.is_handed_over)
    yield from (_Entry(size, name) for name, size in predicted.beside)


def _compiled(compiled: Compiled) -> Iterator[_Entry]:
    """With the gaps between them."""
    yield from (_Entry(one.bytes, one.where) for one in compiled.held)
    gaps = compiled.memory.temporary_bytes - sum(one.bytes for one in compiled.held)
    if gaps > 0:
        yield _Entry(gaps, GAPS)


def _by_place(entries: Iterable[_Entry]) -> dict[str, list[_Entry]]:
    found: dict[str, list[_Entry]] = {}
    for entry in entries:
        found.setdefault(entry.where, []).append(entry)
    return found


def _unmatched(mine: Iterable[_Entry], others: Iterable[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """What has no counterpart of nearly the same size."""
    left, right = sorted(mine, reverse=True), sorted(others, reverse=True)
    pairs = _pairs([one.bytes for one in left], [one.bytes for one in right])
    return _without(left, {i for i, _ in pairs}), _without(right, {j for _, j in pairs})


def _pairs(left: Sequence[int], right: Sequence[int]) -> list[tuple[int, int]]:
    """Places of sizes that are nearly the same, each in one pair; both lists fall."""
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        if abs(left[i] - right[j]) <= _NEARLY * max(left[i], right[j]):
            found.append((i, j))
            i, j = i + 1, j + 1
        elif left[i] > right[j]:
            i += 1
        else:
            j += 1
    return found


def _without(entries: Sequence[_Entry], places: set[int]) -> list[_Entry]:
    return [entry for place, entry in enumerate(entries) if place not in places]
