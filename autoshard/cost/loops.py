"""How often the copy of a value that several readers share is made, and how long it lives.

The copy is made in the innermost loop body around all its readers, and lives through every loop inside that one that reads it. What a
loop carries is a different value in the loop's condition, in its body and after it, so each of those makes a copy of its own.

Where the compiler moves what does not change out of loops, it moves permutes and all-to-alls, but no gathers, which make the carried value
larger, no slices, which ask for the device's number, and nothing that comes after one of these. Slices are taken where the value is read.
What is carried as it is read is brought there before the loop (`mlir.carried`). Seen in what libtpu 0.0.51 compiles for
v5e 4x4: random plans of an LSTM, a GRU and an LSTM language model, up to 540 MB of all-to-alls or permutes and 1.1 GB of gathers in loops
of 64 and 128 trips where 8 MB were counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.mlir.listing import DataFlow, Listing

KEPT_INSIDE = frozenset({"all_gather", "all_slice"})
"""Kinds of steps that are not moved out of loops, nor is what comes after them."""


def made_inside(kinds: Sequence[str]) -> list[bool]:
    """Which steps of a change of sharding are made in every trip of a loop that does not change the value; slices cost nothing there."""
    first = next((number for number, kind in enumerate(kinds) if kind in KEPT_INSIDE), len(kinds))
    return [number >= first and kind != "all_slice" for number, kind in enumerate(kinds)]


@dataclass(frozen=True, slots=True)
class Loop:
    begin: int
    end: int
    repeat: int  # runs of the body in all
    body: int = -1  # when the body begins; before it is the condition


@dataclass(frozen=True, slots=True)
class Place:
    """A point of the program and the loops around it; at a point where a loop ends, it may be in that loop or behind it."""

    time: int
    loops: tuple[Loop, ...]
    conditions: tuple[Loop, ...] = ()  # those of the loops in whose condition it is


@dataclass(frozen=True, slots=True)
class SharedCopy:
    repeat: int
    begin: int
    end: int


def _never_changes(flow: DataFlow) -> bool:
    """Whether every trip of the loop hands on what it was handed."""
    return all(source.value == flow.target for source in flow.sources[1:])


class Loops:
    """The loops of one listing, and which of them carries a value."""

    def __init__(self, listing: Listing) -> None:
        flows = [flow for flow in listing.data_flows if flow.kind == "while"]
        self._by_times = {
            (f.begin, f.end): Loop(f.begin, f.end, max(s.repeat for s in f.sources), f.body) for f in flows
        }
        self._carrier = {flow.target: self._by_times[flow.begin, flow.end] for flow in flows}
        self._around: dict[int, list[Loop]] = {}  # a time, also that at which a loop ends
        for loop in self._by_times.values():
            for time in range(loop.begin, loop.end + 1):
                self._around.setdefault(time, []).append(loop)
        self._handed_in = {flow.target: flow.sources[0].value for flow in flows if _never_changes(flow)}

    def around_op(self, time: int) -> Place:
        return _place(time, [loop for loop in self._around.get(time, ()) if time < loop.end])

    def around_source(self, flow: DataFlow, position: int) -> Place:
        """Where source `position` is handed on: to a loop before it, to its next trip at the end of its body, or between two ops."""
        source = flow.sources[position]
        own = self._by_times.get((flow.begin, flow.end)) if flow.kind == "while" else None
        if own is None:
            around = [loop for loop in self._around.get(source.time, ()) if loop.repeat <= source.repeat]
        else:
            around = [loop for loop in self._around[own.begin] if own.end <= loop.end]
            around = [loop for loop in around if loop is not own or position > 0]
        conditions = (loop for loop in around if loop is not own and source.time < loop.body)
        return Place(max(source.time - 1, 0), tuple(around), tuple(conditions))

    def at_end(self, time: int) -> Place:
        """Where the function returns, at `time`."""
        return Place(max(time - 1, 0), ())

    def outside(self, value: int, place: Place) -> tuple[int, Place, Loop] | None:
        """Where a compiler does what does not change in the loops around `place`: the value that these were handed, the place before them,
        and the outermost of them; None where none carries the value unchanged.
        """
        left = None
        while value in self._handed_in and (loop := self._carrier[value]) in place.loops:
            value, left = self._handed_in[value], loop
            place = _place(loop.begin, [other for other in place.loops if other is not loop])
        return None if left is None else (value, place, left)

    def shared_copy(self, value: int, reads: Sequence[tuple[Place, int]]) -> SharedCopy:
        """The copy for reads at given (place, end of need)."""
        begin, end = min(place.time for place, _ in reads), max(stop for _, stop in reads)
        if not self._around:
            return SharedCopy(1, begin, end)
        carrier = self._carrier.get(value)
        for loop in {loop for place, _ in reads for loop in place.loops}:
            if loop is not carrier and not all(loop in place.loops for place, _ in reads):
                begin, end = min(begin, loop.begin), max(end, loop.end)
        families: dict[str, list[Place]] = {}
        for place, _ in reads:
            families.setdefault(_part(carrier, place), []).append(place)
        return SharedCopy(sum(map(self._common_repeat, families.values())), begin, end)

    def _common_repeat(self, places: Sequence[Place]) -> int:
        common = (loop for loop in places[0].loops if all(loop in place.loops for place in places))
        return max((loop.repeat for loop in common), default=1)


def _place(time: int, loops: Sequence[Loop]) -> Place:
    return Place(time, tuple(loops), tuple(loop for loop in loops if time < loop.body))


def _part(carrier: Loop | None, place: Place) -> str:
    if carrier is None:
        return "anywhere"
    if carrier not in place.loops:
        return "outside"
    return "condition" if carrier in place.conditions else "body"
