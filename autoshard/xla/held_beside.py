"""What is predicted to be in memory at the peak beside what the compiler has there, op by op where they differ.

Buffers of the same op and nearly the same size belong together; of what is left, those of nearly the same size: the same value, for which
the two name neighbouring ops. The rest is compared op by op.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from autoshard.held import HeldMemory
from autoshard.xla.compiled import Compiled

_Entry = TypeVar("_Entry")
_NEARLY = 0.1
_GAPS = "gaps of the heap"
_HANDED_OVER = ("argument", "result")


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
    mine, others = _by_place(_temporary(predicted)), _by_place(_compiled(compiled))
    for where in mine.keys() & others.keys():
        mine[where], others[where] = _unmatched(mine[where], others[where])
    left, right = _places_left(mine, others)
    sides = [
        HeldSide(
            where,
            sum(left.get(where, ())),
            len(left.get(where, ())),
            sum(right.get(where, ())),
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


def _temporary(predicted: HeldMemory) -> Iterable[tuple[str, int]]:
    found = ((one.where, one.bytes) for one in predicted.buffers if one.kind not in _HANDED_OVER)
    beside = (
        ("tables of values in vector memory", predicted.tables_bytes),
        (_GAPS, predicted.gap_bytes),
        ("what is stored besides", predicted.rest_bytes),
    )
    return chain(found, (one for one in beside if one[1]))


def _compiled(compiled: Compiled) -> Iterable[tuple[str, int]]:
    """With the gaps between them."""
    gaps = compiled.memory.temporary_bytes - sum(one.bytes for one in compiled.held)
    return chain(((one.where, one.bytes) for one in compiled.held), ((_GAPS, gaps),) if gaps > 0 else ())


def _by_place(entries: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for where, size in entries:
        found.setdefault(where, []).append(size)
    return found


def _unmatched(mine: Iterable[int], others: Iterable[int]) -> tuple[list[int], list[int]]:
    """What has no counterpart of nearly the same size."""
    left = sorted(mine, reverse=True)
    right = sorted(others, reverse=True)
    pairs = _pairs(left, right)
    return _without(left, {i for i, _ in pairs}), _without(right, {j for _, j in pairs})


def _places_left(
    mine: dict[str, list[int]], others: dict[str, list[int]]
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Without those that have a counterpart under another name."""
    left = sorted(((size, where) for where, sizes in mine.items() for size in sizes), reverse=True)
    right = sorted(((size, where) for where, sizes in others.items() for size in sizes), reverse=True)
    pairs = _pairs([size for size, _ in left], [size for size, _ in right])
    mine_left = _without(left, {i for i, _ in pairs})
    others_left = _without(right, {j for _, j in pairs})
    return (
        _by_place((where, size) for size, where in mine_left),
        _by_place((where, size) for size, where in others_left),
    )


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
