"""The plan's peak memory by a sweep over program time.

Counted on one device: every value with a buffer of its own, under its settled sharding, over its lifetime; an unscattered or not yet
resharded result while its kernel runs; the copy that a reshard makes for a read, while it is read (by a kernel without a buffer: as long
as that one's result is); a shared copy from its first reader to its last, and through a loop that reads it and did not make it. The
copy made for a carried value is that value itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard.check.loops import Loop, kept_through
from autoshard.check.planned import Planned
from autoshard.check.reads import Read, Reads
from autoshard.program import FlowKind
from autoshard.sharding import TensorSharding, TensorType


@dataclass(frozen=True, slots=True)
class Buffer:
    begin: int
    end: int  # half-open
    bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    bytes: int
    time: int  # the first time that has it


def find_peak(planned: Planned, reads: Reads) -> Peak:
    changes: dict[int, int] = {}
    for buffers in (_values(planned, reads), _unsettled(planned, reads), _copies(planned, reads)):
        for buffer in buffers:
            if buffer.begin < buffer.end:
                changes[buffer.begin] = changes.get(buffer.begin, 0) + buffer.bytes
                changes[buffer.end] = changes.get(buffer.end, 0) - buffer.bytes
    peak, held = Peak(0, 0), 0
    for time in sorted(changes):
        held += changes[time]
        if held > peak.bytes:
            peak = Peak(held, time)
    return peak


def _values(planned: Planned, reads: Reads) -> Iterator[Buffer]:
    for value, type_ in _defined(planned, reads):
        lifetime = planned.program.lifetimes.get(value)
        if lifetime is not None and lifetime.is_own_buffer:
            settled = planned.settled.get(value, TensorSharding.replicated_closed(type_.rank))
            yield Buffer(lifetime.begin, lifetime.end, settled.local_bytes(type_))


def _defined(planned: Planned, reads: Reads) -> Iterator[tuple[int, TensorType]]:
    for flow in planned.program.flows:
        if flow.kind is not FlowKind.RESULT:
            yield flow.value, flow.type
    for read in reads.kernels:
        yield from zip(read.kernel.results, read.kernel.shape.results, strict=True)


def _unsettled(planned: Planned, reads: Reads) -> Iterator[Buffer]:
    for read in reads.kernels:
        for value, type_ in zip(read.kernel.results, read.kernel.shape.results, strict=True):
            produced = planned.produced.get(value)
            if produced is not None and produced != planned.settled[value]:
                yield Buffer(read.kernel.time, read.kernel.time + 1, produced.local_bytes(type_))


def _copies(planned: Planned, reads: Reads) -> Iterator[Buffer]:
    for value, mine in reads.of_value.items():
        type_, settled = planned.type_of(value), planned.settled[value]
        found = planned.shared.get(value, settled)
        if found != settled:
            begin, end = _life_of_shared(mine, planned.loops.carrying.get(value))
            yield Buffer(begin, end, found.local_bytes(type_))
        for read in mine:
            if read.needs_copy and read.sharding != found:
                yield Buffer(read.time, read.end, read.sharding.local_bytes(type_))


def _life_of_shared(reads: Sequence[Read], carrier: Loop | None) -> tuple[int, int]:
    """From the first reader to the last, and through all of a loop that reads what is made outside it."""
    loops = list(kept_through([read.where for read in reads], carrier))
    return (
        min([*(read.time for read in reads), *(loop.begin for loop in loops)]),
        max([*(read.end for read in reads), *(loop.end for loop in loops)]),
    )
