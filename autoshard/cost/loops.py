"""How often the copy of a value that several readers share is made, and how long it lives.

The copy is made in the innermost loop body around all its readers, and lives through every loop inside that one that reads it. What a
loop carries is a different value in the loop's condition, in its body and after it, so each of those makes a copy of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoshard.mlir.listing import DataFlow, Listing


@dataclass(frozen=True, slots=True)
class Loop:
    begin: int
    end: int
    repeat: int  # runs of the body in all

    def holds(self, time: int) -> bool:
        return self.begin <= time < self.end


@dataclass(frozen=True, slots=True)
class SharedCopy:
    repeat: int
    begin: int
    end: int


def _is_loop_of(carrier: DataFlow | None, loop: Loop) -> bool:
    return carrier is not None and (carrier.begin, carrier.end) == (loop.begin, loop.end)


class Loops:
    """The loops of one listing, and which of them carries a value."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._carrier: dict[int, DataFlow] = {f.target: f for f in listing.data_flows if f.kind == "while"}
        found = {
            (f.begin, f.end): Loop(f.begin, f.end, max(s.repeat for s in f.sources))
            for f in self._carrier.values()
        }
        self._loops = tuple(found.values())

    def shared_copy(self, value: int, reads: Sequence[tuple[int, int]]) -> SharedCopy:
        """The copy for reads at given (time, end of need)."""
        begin, end = min(time for time, _ in reads), max(stop for _, stop in reads)
        if not self._loops:
            return SharedCopy(1, begin, end)
        times = [time for time, _ in reads]
        carrier = self._carrier.get(value)
        for loop in self._loops:
            inside = [loop.holds(time) for time in times]
            if any(inside) and not all(inside) and not _is_loop_of(carrier, loop):
                begin, end = min(begin, loop.begin), max(end, loop.end)
        families: dict[str, list[int]] = {}
        for time in times:
            families.setdefault(self._part(carrier, time), []).append(time)
        return SharedCopy(sum(map(self._common_repeat, families.values())), begin, end)

    def _common_repeat(self, times: Iterable[int]) -> int:
        known = list(times)
        return max((loop.repeat for loop in self._loops if all(map(loop.holds, known))), default=1)

    def _part(self, carrier: DataFlow | None, time: int) -> str:
        if carrier is None:
            return "anywhere"
        if not carrier.begin <= time < carrier.end:
            return "after"
        ops = self._listing.ops
        return "condition" if ops[time].region == ops[carrier.begin].region else "body"
