"""Predicted and compiled collectives side by side: by kind, and op by op where they differ.

Entries of the same kind, op and bytes belong together; of what is left, those of the same kind and bytes: the same transfer, for which
the two name neighbouring ops, or one of several that XLA combined and names after one of them. The rest is compared op by op.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from autoshard.xla.collectives import CompiledCollective
from autoshard.xla.compiled import KindTotal
from autoshard.xla.prediction import PredictedCollective

_Key = TypeVar("_Key", bound=Hashable)
_NONE = KindTotal(0, 0)


@dataclass(frozen=True, slots=True)
class Side:
    """One kind of collective or one op; counts and operand bytes of one device and step."""

    kind: str
    predicted: KindTotal
    compiled: KindTotal
    predicted_where: str = ""
    compiled_where: str = ""

    @property
    def difference_bytes(self) -> int:
        """Compiled less predicted."""
        return self.compiled.operand_bytes - self.predicted.operand_bytes


def by_kind(predicted: Sequence[PredictedCollective], compiled: Mapping[str, KindTotal]) -> tuple[Side, ...]:
    expected = _totals((one.kind, one.times, one.total_bytes) for one in predicted)
    kinds = sorted(expected.keys() | compiled.keys())
    return tuple(Side(kind, expected.get(kind, _NONE), compiled.get(kind, _NONE)) for kind in kinds)


def differences(
    predicted: Sequence[PredictedCollective],
    compiled: Sequence[CompiledCollective],
    other_names: Mapping[str, str] | None = None,
) -> tuple[Side, ...]:
    """Ops whose bytes differ, the largest difference first.

    `other_names`: of places in the compiled module, where the prediction has names of its own.
    """
    named = {one.where for one in predicted}
    aliases = {place: other for place, other in (other_names or {}).items() if place not in named}
    expected = [_Entry(one.kind, one.where, one.times, one.total_bytes) for one in predicted]
    found = list(_entries(compiled, aliases))
    for identity in (_of_an_op, _of_a_size):
        expected, found = _without(expected, found, identity), _without(found, expected, identity)
    before, after = _by_op(expected), _by_op(found)
    sides = [
        Side(
            kind,
            before.get((kind, where), _NONE),
            after.get((kind, where), _NONE),
            where if (kind, where) in before else "",
            where if (kind, where) in after else "",
        )
        for kind, where in before.keys() | after.keys()
    ]
    return tuple(
        sorted(
            (side for side in sides if side.difference_bytes != 0),
            key=lambda side: (
                -abs(side.difference_bytes),
                side.kind,
                side.predicted_where,
                side.compiled_where,
            ),
        )
    )


class _Entry(NamedTuple):
    """What one collective moves for one op; of a combined one the first entry counts the run."""

    kind: str
    where: str
    times: int
    bytes: int


def _entries(compiled: Iterable[CompiledCollective], aliases: Mapping[str, str]) -> Iterator[_Entry]:
    for one in compiled:
        places = one.where if len(one.where) == len(one.buffers) else (one.where[0],) * len(one.buffers)
        for position, (where, size) in enumerate(zip(places, one.buffers, strict=True)):
            times = one.times if position == 0 else 0
            yield _Entry(one.kind, aliases.get(where, where), times, size * one.times)


def _of_an_op(entry: _Entry) -> Hashable:
    return entry.kind, entry.where, entry.bytes


def _of_a_size(entry: _Entry) -> Hashable:
    return entry.kind, entry.bytes


def _without(
    mine: Sequence[_Entry], others: Sequence[_Entry], identity: Callable[[_Entry], Hashable]
) -> list[_Entry]:
    """Those of mine for which the others have none, each for one."""
    taken = Counter(map(identity, others))
    left: list[_Entry] = []
    for entry in mine:
        taken[identity(entry)] -= 1
        if taken[identity(entry)] < 0:
            left.append(entry)
    return left


def _by_op(entries: Sequence[_Entry]) -> dict[tuple[str, str], KindTotal]:
    return _totals(((one.kind, one.where), one.times, one.bytes) for one in entries)


def _totals(entries: Iterable[tuple[_Key, int, int]]) -> dict[_Key, KindTotal]:
    totals: dict[_Key, KindTotal] = {}
    for key, count, size in entries:
        before = totals.get(key, _NONE)
        totals[key] = KindTotal(before.count + count, before.operand_bytes + size)
    return totals
