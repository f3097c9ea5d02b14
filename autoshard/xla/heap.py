"""What is in XLA:TPU's heap of main memory when it holds the most, from the dumps of its buffer assignment and live ranges."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

_ALLOCATION = re.compile(r"allocation \d+: size (\d+)(, color (?!0\b)\d+)?.*preallocated-temp")
_VALUE = re.compile(r" value: <\d+ (.+?) @\d+> \(size=(\d+),offset=(\d+)\): (.*)")
_RANGE = re.compile(r"\s*(\S+):(\d+)-(\d+)$")


@dataclass(frozen=True, slots=True)
class CompiledBuffer:
    """One buffer of the heap; `name` of the instruction that makes it, `type` as XLA writes it, with its layout.

    where: the op of the module that it is made for, as XLA names it.
    """

    name: str
    type: str
    bytes: int
    where: str = ""


class HeapValue(NamedTuple):
    """Where a value lies in the heap."""

    begin: int  # byte, of all heaps one behind the other
    bytes: int
    type: str

    @property
    def end(self) -> int:
        return self.begin + self.bytes


def held_in_heap(assignment: str, live_ranges: str) -> tuple[CompiledBuffer, ...]:
    """Buffers at the time when they cover most of the heap, the largest first; of values that share one the largest.

    The texts are those of `--xla_dump_to`.
    """
    values = dict(heap_values(assignment))
    lives = [(name, begin, end) for name, begin, end in live_ranges_of(live_ranges) if name in values]
    time = _fullest(values, lives)
    alive = [name for name, begin, end in lives if begin <= time <= end]
    return tuple(
        CompiledBuffer(name.removesuffix("{}"), values[name].type, values[name].bytes)
        for name in _apart(alive, values)
    )


def _fullest(values: Mapping[str, HeapValue], lives: Sequence[tuple[str, int, int]]) -> int:
    """The first time at which most bytes are taken, by one value or several."""
    edges = np.unique([edge for value in values.values() for edge in (value.begin, value.end)])
    widths, taken = np.diff(edges, append=edges[-1:]), np.zeros(len(edges), dtype=np.int64)
    events = [(begin, name, 1) for name, begin, _ in lives] + [(end + 1, name, -1) for name, _, end in lives]
    most = fullest = 0
    for time, together in groupby(sorted(events), lambda event: event[0]):
        for _, name, change in together:
            first, last = np.searchsorted(edges, (values[name].begin, values[name].end))
            taken[first:last] += change
        if (held := int(widths[taken > 0].sum())) > most:
            most, fullest = held, time
    return fullest


def _apart(names: Iterable[str], values: dict[str, HeapValue]) -> Iterator[str]:
    """The largest first, without those that lie in what is there already."""
    taken: list[HeapValue] = []
    for name in sorted(names, key=lambda one: (-values[one].bytes, one)):
        value = values[name]
        if value.bytes and all(value.end <= other.begin or other.end <= value.begin for other in taken):
            taken.append(value)
            yield name


def heap_values(assignment: str) -> Iterator[tuple[str, HeapValue]]:
    """Of the heaps in main memory (colour 0), by name and place in a tuple as live ranges have them."""
    first, size, is_inside = 0, 0, False
    for line in assignment.splitlines():
        if line.startswith("allocation"):
            found = _ALLOCATION.match(line)
            is_inside = found is not None and found[2] is None
            first += size
            size = int(found[1]) if found is not None and is_inside else 0
        elif is_inside and (value := _VALUE.match(line)) is not None:
            name = value[1] if "{" in value[1] else f"{value[1]}{{}}"
            yield name, HeapValue(first + int(value[3]), int(value[2]), value[4])


def live_ranges_of(live_ranges: str) -> Iterator[tuple[str, int, int]]:
    """The first and the last instruction of every buffer."""
    begun = live_ranges.partition("BufferLiveRange:")[2].partition("Live ranges at")[0]
    for line in begun.splitlines():
        if (found := _RANGE.match(line)) is not None:
            yield found[1], int(found[2]), int(found[3])
