"""Predicted and compiled collectives side by side: by kind, and op by op where they differ.

Collectives of one kind for one op are one entry on each side, and entries for the same op belong together. Of what is left, a predicted
and a compiled entry of the same kind and bytes do too: the same transfer, for which the two name neighbouring ops.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

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
    """Entries whose bytes differ, the largest difference first.

    `other_names`: of places in the compiled module, where the prediction has names of its own.
    """
    expected = _totals(((one.kind, one.where), one.times, one.total_bytes) for one in predicted)
    named = {one.where for one in predicted}
    aliases = {place: other for place, other in (other_names or {}).items() if place not in named}
    found = _totals(_entries(compiled, aliases))
    sides = [
        Side(kind, expected[kind, where], found[kind, where], where, where)
        for kind, where in expected.keys() & found.keys()
    ]
    alone = {key: total for key, total in expected.items() if key not in found}
    others = defaultdict[tuple[str, int], list[tuple[str, KindTotal]]](list)
    for (kind, where), total in found.items():
        if (kind, where) not in expected:
            others[kind, total.operand_bytes].append((where, total))
    for (kind, where), total in alone.items():
        same = others.get((kind, total.operand_bytes))
        compiled_where, met = same.pop(0) if same else ("", _NONE)
        sides.append(Side(kind, total, met, where, compiled_where))
    sides += [
        Side(kind, _NONE, total, "", where) for (kind, _), rest in others.items() for where, total in rest
    ]
    differing = [side for side in sides if side.difference_bytes != 0]
    return tuple(
        sorted(
            differing,
            key=lambda side: (
                -abs(side.difference_bytes),
                side.kind,
                side.predicted_where,
                side.compiled_where,
            ),
        )
    )


def _entries(
    compiled: Iterable[CompiledCollective], aliases: Mapping[str, str]
) -> Iterable[tuple[tuple[str, str], int, int]]:
    """Of a combined collective an entry for each buffer; the first of them counts the run."""
    for one in compiled:
        places = one.where if len(one.where) == len(one.buffers) else (one.where[0],) * len(one.buffers)
        for position, (where, size) in enumerate(zip(places, one.buffers, strict=True)):
            yield (one.kind, aliases.get(where, where)), one.times if position == 0 else 0, size * one.times


def _totals(entries: Iterable[tuple[_Key, int, int]]) -> dict[_Key, KindTotal]:
    totals: dict[_Key, KindTotal] = {}
    for key, count, size in entries:
        before = totals.get(key, _NONE)
        totals[key] = KindTotal(before.count + count, before.operand_bytes + size)
    return totals
