"""The loops of a listing, and how often and for how long the copy of a value that several readers share exists.

Such a copy is made once, in the innermost loop body around all its readers. What a loop carries is a different value in the loop's
condition, in its body and after it, so each of those makes a copy of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from autoshard.mlir.listing import DataFlow, Listing

Part = Literal["condition", "body"]


@dataclass(frozen=True, slots=True)
class Loop:
    begin: int
    body: int  # where the body begins; before it is the condition
    end: int
    repeat: int  # how often the body runs in all

    def part_at(self, time: int) -> Part:
        return "condition" if time < self.body else "body"

    def holds(self, other: "Loop") -> bool:
        return self.begin <= other.begin and other.end <= self.end


Where = Mapping[Loop, Part]
"""The loops around a place in the program, and in which of their parts it is."""


class Loops:
    """The loops of one listing."""

    def __init__(self, listing: Listing) -> None:
        self._regions = [op.region for op in listing.ops]
        found: dict[tuple[int, int], Loop] = {}
        for flow in listing.data_flows:
            if flow.kind == "while" and (flow.begin, flow.end) not in found:
                repeat = max(source.repeat for source in flow.sources)
                found[flow.begin, flow.end] = Loop(flow.begin, flow.body, flow.end, repeat)
        self._by_times = found
        self._all = tuple(found.values())
        self._by_region: dict[int, Where] = {}
        self._unchanged = {
            flow.target: flow.sources[0].value
            for flow in listing.data_flows
            if flow.kind == "while" and {source.value for source in flow.sources[1:]} <= {flow.target}
        }
        self.carrying = {f.target: found[f.begin, f.end] for f in listing.data_flows if f.kind == "while"}

    def around_op(self, time: int) -> Where:
        region = self._regions[time]
        if region not in self._by_region:
            around = (loop for loop in self._all if loop.begin <= time < loop.end)
            self._by_region[region] = {loop: loop.part_at(time) for loop in around}
        return self._by_region[region]

    def around_source(self, flow: DataFlow, position: int) -> Where:
        """Around what hands source `position` on to a data flow: before a loop, at the end of its body, or another op."""
        source = flow.sources[position]
        own = self._by_times.get((flow.begin, flow.end)) if flow.kind == "while" else None
        if own is not None:
            around = [loop for loop in self._all if loop.holds(own) and (loop is not own or position > 0)]
        else:
            around = [
                loop
                for loop in self._all
                if loop.begin <= source.time <= loop.end and loop.repeat <= source.repeat
            ]
        return {loop: "body" if loop is own else loop.part_at(source.time) for loop in around}

    def before(self, value: int, where: Where) -> tuple[int, Where, Loop | None]:
        """The value that was handed to the loops which carry one unchanged, where a read of it can be, and before which loop."""
        loop = None
        while value in self._unchanged and self.carrying[value] in where:
            loop = self.carrying[value]
            where = {other: part for other, part in where.items() if other is not loop}
            value = self._unchanged[value]
        return value, where, loop


def copies_made(readers: Sequence[Where], carrier: Loop | None) -> int:
    """How often the shared copy for these readers is made; `carrier` is the loop that carries the value, if one does."""
    if carrier is None:
        return _common_repeat(readers)
    families: dict[Part | None, list[Where]] = {}
    for where in readers:
        families.setdefault(where.get(carrier), []).append(where)
    return sum(map(_common_repeat, families.values()))


def _common_repeat(readers: Sequence[Where]) -> int:
    common = (loop for loop, part in readers[0].items() if all(other.get(loop) == part for other in readers))
    return max((loop.repeat for loop in common), default=1)


def kept_through(readers: Sequence[Where], carrier: Loop | None) -> Iterable[Loop]:
    """Loops that read a shared copy made outside them: it exists in every trip from beginning to end."""
    for loop in {loop for where in readers for loop in where}:
        if loop is not carrier and not all(loop in other for other in readers):
            yield loop
