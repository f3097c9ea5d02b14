"""The plan's peak memory by a sweep over program time.

Counted on one device: every value with a buffer of its own, under its settled sharding, over its lifetime, and of one that lies in the
memory of a result what exceeds the result's bytes over the number of devices; a sum that no loop scatters or a not yet resharded result
while its kernel runs, and so one that the program returns in another layout than it is written in; what a renamed value pads more than the
value whose buffer it has; the copy that a reshard makes for a read, while it is read (by a kernel without a buffer: as long as that one's
result is); a shared copy, of equal values one, from its first reader to its last, and through a loop that reads it and did not make it;
both from earlier on where they come behind compute; and all the time results that are constants, arguments or returned twice.
Under XLA for TPUs also what a product makes beside the sum of it over devices, what one that scatters its sum in a loop is handed, what
training steps store of few images, the products that Fourier transforms are made of, and on some the shard of an
argument that grows, which is copied in front of all else until the growing begins.
The copy made for a carried value is that value itself. Bytes are those that the hardware stores, gaps in the heap included where they
come and go.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.check.buffers import Buffer, Lifetimes, settled_of, value_buffers
from autoshard.check.copies import Compiled, copied_alike, find_copies, held_between, loop_buffers
from autoshard.check.overlap import find_pace
from autoshard.check.planned import Planned
from autoshard.check.reads import Reads, summed_parts
from autoshard.check.stored import Stored
from autoshard.check.strips import in_strips
from autoshard.program import SHORT_SHARE, Deferring, Lives, Offloading, Pace, gather_kernels
from costmodels import Hardware


@dataclass(frozen=True, slots=True)
class Peak:
    bytes: int
    time: int  # the first time that has it


def find_peak(
    planned: Planned, reads: Reads, hardware: Hardware, limit: int | None, compiled: Compiled
) -> Peak:
    """With memory to spare, unless that is beyond the limit: then as much as the limit, or what the program needs at least. Results lend
    their memory where that comes close to what the hardware has.

    What a compiler keeps in vector memory counts in what the program needs, and no more where that is within the limit.
    """
    stored = Stored(planned, hardware, narrows=compiled.narrows)
    copies = list(find_copies(planned, reads, stored, compiled, hardware))

    def buffers(lives: Lives) -> list[Buffer]:
        return [
            *value_buffers(planned, reads, stored, lives.of_values, compiled.looped),
            *copies,
            *loop_buffers(planned, reads, stored, lives, compiled.looped),
            *(in_strips(planned, reads, hardware, lives.of_values) if compiled.narrows else ()),
        ]

    program = planned.program
    deferring, pace = Deferring(program), find_pace(planned, hardware)
    offloading = Offloading(program, pace.kernels, hardware.scheduled_product_ns(1.0))
    least = buffers(Lives(program.lifetimes, is_least=True))
    needed = _peak_of(least)
    if limit is not None and needed.bytes > limit:
        return needed
    for alike, one in copied_alike(planned, reads, stored, compiled) if compiled.narrows else ():
        for held in (least, copies):
            for buffer in alike:
                held.remove(buffer)
            held.append(one)
    between = list(held_between(planned, reads, stored, compiled)) if compiled.narrows else []
    least += between
    copies += between
    scattered = {
        value: stored.is_updated_as_made(
            planned.type_of(value), planned.settled[value], is_turned=deferring.is_turned(value)
        )
        for value in compiled.looped
    }
    summed = {
        value
        for read in reads.kernels
        if read.kernel.time in deferring.waiting and summed_parts(planned, read)
        for value in read.kernel.results
    }
    apart = frozenset(_gathered_apart(planned, reads, stored))
    in_main = offloading.in_main_memory(apart)

    def lives(of_values: Lifetimes) -> Lives:
        return deferring.lives(offloading.lives(of_values, apart), scattered, summed)

    ample = buffers(lives(program.ample_lifetimes))
    spared = _main_memory(ample, pace, hardware, in_main)
    if spared > SHORT_SHARE * hardware.usable_hbm_bytes:
        ample = buffers(lives(program.lent_lifetimes))
        spared = _main_memory(ample, pace, hardware, in_main)
    taken = max(_main_memory(least, pace, hardware, in_main), spared)
    return Peak(taken if limit is None else min(taken, limit), _peak_of(ample).time)


def _gathered_apart(planned: Planned, reads: Reads, stored: Stored) -> Iterator[int]:
    """What SparseCores gather."""
    gathers = {kernel.time for kernel in gather_kernels(planned.program)}
    for read in [read for read in reads.kernels if read.kernel.time in gathers]:
        shape, value = read.kernel.shape, read.kernel.results[0]
        made = planned.produced.get(value, settled_of(planned, value, shape.results[0]))
        table = shape.operands[0], read.shardings[0]
        if stored.is_gathered_apart(table, (shape.results[0], made), stored.copied_table(read)):
            yield value


def _main_memory(
    buffers: Sequence[Buffer], pace: Pace, hardware: Hardware, in_main_memory: Collection[int]
) -> int:
    rows = [(buffer.begin, buffer.end, buffer.bytes, buffer.is_handed_over) for buffer in buffers]
    begin, end, bytes_, fixed = np.asarray(rows, dtype=np.int64).reshape(-1, 4).T
    stays = [pace.stay(one.value, one.begin, one.end, is_out=one.value in in_main_memory) for one in buffers]
    found = hardware.occupancy(begin, end, bytes_, fixed > 0, stays=stays)
    return found.peak_bytes


def _peak_of(buffers: Sequence[Buffer]) -> Peak:
    """Vector memory included."""
    changes: dict[int, int] = {}
    for buffer in (buffer for buffer in buffers if buffer.begin < buffer.end):
        changes[buffer.begin] = changes.get(buffer.begin, 0) + buffer.bytes
        changes[buffer.end] = changes.get(buffer.end, 0) - buffer.bytes
    peak, held = Peak(0, 0), 0
    for time in sorted(changes):
        held += changes[time]
        if held > peak.bytes:
            peak = Peak(held, time)
    return peak
