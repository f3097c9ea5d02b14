"""Predicted and compiled collectives side by side: by kind and devices of a group, and op by op where they differ.

Entries of the same kind, group, op and bytes belong together; of what is left, those of the same kind, group and bytes: the same
transfer, for which the two name neighbouring ops, or one of several that XLA combined and names after one of them. The rest is compared
op by op. Permutes have pairs, not groups.
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
    """One kind of collective among groups of so many devices, or one op's; counts and operand bytes of one device and step."""

    kind: str
    group_size: int  # 0 of permutes
    predicted: KindTotal
    compiled: KindTotal
    predicted_where: str = ""
    compiled_where: str = ""

    @property
    def difference_bytes(self) -> int:
        """Compiled less predicted."""
        return self.compiled.operand_bytes - self.predicted.operand_bytes


def by_kind(
    predicted: Sequence[PredictedCollective], compiled: Sequence[CompiledCollective]
) -> tuple[Side, ...]:
    expected, found = (
        _totals(((one.kind, _group_size(one)), one.times, one.total_bytes) for one in side)
        for side in (predicted, compiled)
    )
    return tuple(
        Side(*key, expected.get(key, _NONE), found.get(key, _NONE))
        for key in sorted(expected.keys() | found.keys())
    )


def differences(
    predicted: Sequence[PredictedCollective],
    compiled: Sequence[CompiledCollective],
    other_names: Mapping[str, str] | None = None,
) -> tuple[Side, ...]:
    """Ops whose bytes differ, among groups of as many devices, the largest difference first.

    `other_names`: of places in the compiled module, where the prediction has names of its own.
    """
    named = {one.where for one in predicted}
    aliases = {place: other for place, other in (other_names or {}).items() if place not in named}
    expected = [
        _Entry(one.kind, _group_size(one), one.where, one.times, one.total_bytes) for one in predicted
    ]
    found = list(_entries(compiled, aliases))
    for identity in (_of_an_op, _of_a_size):
        expected, found = _without(expected, found, identity), _without(found, expected, identity)
    before, after = _by_op(expected), _by_op(found)
    sides = [
        Side(
            op.kind,
            op.group_size,
            before.get(op, _NONE),
            after.get(op, _NONE),
            op.where if op in before else "",
            op.where if op in after else "",
        )
        for op in before.keys() | after.keys()
    ]
    return tuple(
        sorted(
            (side for side in sides if side.difference_bytes != 0),
            key=lambda side: (
                -abs(side.difference_bytes),
                side.kind,
                side.group_size,
                side.predicted_where,
                side.compiled_where,
            ),
        )
    )


class _Op(NamedTuple):
    kind: str
    group_size: int
    where: str


class _Entry(NamedTuple):
    """What one collective moves for one op; of a combined one the first entry counts the run."""

    kind: str
    group_size: int
    where: str
    times: int
    bytes: int


def _group_size(collective: PredictedCollective | CompiledCollective) -> int:
    return 0 if collective.kind == "collective-permute" else collective.group_size


def _entries(compiled: Iterable[CompiledCollective], aliases: Mapping[str, str]) -> Iterator[_Entry]:
    for one in compiled:
        places = one.where if len(one.where) == len(one.buffers) else (one.where[0],) * len(one.buffers)
        for position, (where, size) in enumerate(zip(places, one.buffers, strict=True)):
            times = one.times if position == 0 else 0
            yield _Entry(one.kind, _group_size(one), aliases.get(where, where), times, size * one.times)


def _of_an_op(entry: _Entry) -> Hashable:
    return entry.kind, entry.group_size, entry.where, entry.bytes


def _of_a_size(entry: _Entry) -> Hashable:
    return entry.kind, entry.group_size, entry.bytes


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


def _by_op(entries: Sequence[_Entry]) -> dict[_Op, KindTotal]:
    return _totals((_Op(one.kind, one.group_size, one.where), one.times, one.bytes) for one in entries)


def _totals(entries: Iterable[tuple[_Key, int, int]]) -> dict[_Key, KindTotal]:
    totals: dict[_Key, KindTotal] = {}
    for key, count, size in entries:
        before = totals.get(key, _NONE)
        totals[key] = KindTotal(before.count + count, before.operand_bytes + size)
    return totals
