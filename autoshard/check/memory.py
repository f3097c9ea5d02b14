"""The plan's peak memory by a sweep over program time.

Counted on one device: every value with a buffer of its own, under its settled sharding, over its lifetime, and of one that lies in the
memory of a result what exceeds the result's bytes over the number of devices; a sum that no loop scatters or a not yet resharded result
while its kernel runs, and so one that the program returns in another layout than it is written in; what a renamed value pads more than the
value whose buffer it has; the copy that a reshard makes for a read, while it is read (by a kernel without a buffer: as long as that one's
result is); a shared copy from its first reader to its last, and through a loop that reads it and did not make it; both from earlier on
where they come behind compute; and all the time results that are constants, arguments or returned twice.
Under XLA for TPUs also what a product makes beside the sum of it over devices, what one that scatters its sum in a loop is handed, what
training steps store of few images, the products that Fourier transforms are made of, and on some the shard of an
argument that grows, which is copied in front of all else until the growing begins.
The copy made for a carried value is that value itself. Bytes are those that the hardware stores, gaps in the heap included where they
come and go.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap

import numpy as np
from numpy.typing import NDArray

from autoshard.check.boundaries import result_sharding
from autoshard.check.emitted import times_laid_out
from autoshard.check.moves import Prices
from autoshard.check.overlap import Hideable, find_pace
from autoshard.check.planned import Planned
from autoshard.check.reads import KernelRead, Read, Reads, summed_parts
from autoshard.check.reshards import LaidOut
from autoshard.check.scattering import Loop as GatheringLoop
from autoshard.check.sharing import moved_reads, shared_copy
from autoshard.check.strips import in_strips
from autoshard.check.sums import is_scattered_sum
from autoshard.program import (
    SHORT_SHARE,
    Deferring,
    FlowKind,
    Lifetime,
    Lives,
    LoopedResults,
    MinorDims,
    Offloading,
    Pace,
    SharedReads,
    Sources,
    Whole,
    gather_kernels,
    gathered_as,
    lies_as_read,
    repeated_values,
    stored_beside,
)
from autoshard.sharding import TensorSharding, TensorType, dtype_bits
from costmodels import Hardware
from costmodels.tiles import in_groups


@dataclass(frozen=True, slots=True)
class Buffer:
    begin: int
    end: int  # half-open
    bytes: int
    is_handed_over: bool = False  # an argument or a result
    value: int = -1  # what is in it, where that is known


@dataclass(frozen=True, slots=True)
class Peak:
    bytes: int
    time: int  # the first time that has it


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler makes of a plan, as far as memory depends on it."""

    prices: Prices
    ahead: Hideable
    looped: frozenset[int]  # values whose sum a loop scatters
    gathered: Mapping[tuple[int, int], GatheringLoop]  # (value, root op) of operands that a loop gathers
    laid_out: LaidOut

    @property
    def narrows(self) -> bool:
        """What all readers take narrower."""
        return self.prices.lowering == "xla-tpu"


Lifetimes = Mapping[int, Lifetime]
_Typed = tuple[TensorType, TensorSharding]
_PARTS = 6  # that a loop which scatters a sum works on
_PARTS_PASSED = 4  # of an operand that a loop gathers, half of them each way round


class _Stored:
    """Bytes in memory on one device."""

    def __init__(self, planned: Planned, hardware: Hardware, *, narrows: bool) -> None:
        self._planned, self._hardware, self._narrows = planned, hardware, narrows
        self.made_at = {value: kernel.time for kernel in planned.program.kernels for value in kernel.results}

    def handed_over(self, type_: TensorType, sharding: TensorSharding) -> int:
        """Of an argument or result, which is not in the heap."""
        return self._bytes(type_, sharding, None, is_temporary=False)

    def held(self, value: int, type_: TensorType) -> TensorType:
        """The type that a value is stored in while it comes and goes."""
        return self.narrowed(type_, self._planned.program.stored.of_value(value))

    def narrowed(self, type_: TensorType, taken: TensorType) -> TensorType:
        """The type of a copy that readers take as `taken`."""
        return taken if self._narrows else type_

    def at_least(self, type_: TensorType, sharding: TensorSharding) -> int:
        return self._bytes(type_, sharding, None, is_temporary=True)

    def as_written(self, value: int, type_: TensorType, sharding: TensorSharding) -> int:
        """In the layout of the kernel that makes the value; arguments and other carried values have the smallest."""
        program = self._planned.program
        dims = (program.minor_dims if value in self.made_at else program.indexed).get(value)
        return self._bytes(type_, sharding, dims, is_temporary=True)

    def where_packed(self, value: int, type_: TensorType, sharding: TensorSharding, bytes_: int) -> int:
        """Of a value that takes `bytes_`, less where its comparisons are packed."""
        packed = self._planned.program.packed
        if value not in packed:
            return bytes_
        comparisons = self._comparison_bytes(value, type_, sharding)
        narrow = packed[value]
        kept = 0 if narrow is None else self.as_written(value, narrow, sharding)
        return comparisons + kept if comparisons else bytes_

    def is_narrowed(self, value: int, type_: TensorType, sharding: TensorSharding) -> bool:
        """Whether a value is stored narrower than it is compared, since the comparisons are packed."""
        is_kept = self._planned.program.packed.get(value) is not None
        return is_kept and self._comparison_bytes(value, type_, sharding) > 0

    def _comparison_bytes(self, value: int, type_: TensorType, sharding: TensorSharding) -> int:
        minor = self._planned.program.minor_dims.get(value)
        return int(self._hardware.comparison_bytes(_shape(type_, sharding), minor)[0])

    @property
    def sums_in_place(self) -> bool:
        """Whether an all-reduce writes over what a product makes for it."""
        return self._hardware.sums_in_place

    def is_updated_as_made(self, type_: TensorType, sharding: TensorSharding, *, is_turned: bool) -> bool:
        """Whether what is updated with a part that a loop makes lies as that does."""
        parts = _shape(type_, sharding)
        return bool(self._hardware.are_updated_as_made(parts, type_.shape, is_turned=is_turned)[0])

    def lies_across(self, type_: TensorType, sharding: TensorSharding) -> bool:
        """Whether it is a matrix that is stored column by column."""
        return bool(self._hardware.lie_across(_shape(type_, sharding), dtype_bits(type_.dtype))[0])

    def whole(self, whole: Whole, sharding: TensorSharding) -> int:
        """Of what is there beside the value that it holds."""
        if whole.beside is not None and not whole.beside.holds(_shape(whole.type, sharding))[0]:
            return 0
        return self._bytes(whole.type, sharding, whole.dims, is_temporary=True, cut=whole.cut)

    def in_layout(self, type_: TensorType, sharding: TensorSharding, dims: MinorDims) -> int:
        """Of what comes and goes with these minor dimensions."""
        return self._bytes(type_, sharding, dims, is_temporary=True)

    def copied(
        self, type_: TensorType, sharding: TensorSharding, dims: MinorDims, *, is_read: bool = False
    ) -> int:
        """Of a copy in that layout, where one is made; `is_read`: for rows to be gathered from it."""
        shape, bits = _shape(type_, sharding), dtype_bits(type_.dtype)
        return int(self._hardware.copied_bytes(shape, bits, dims, is_read=is_read)[0])

    def is_gathered_apart(self, tables: _Typed, made: _Typed) -> bool:
        """Whether SparseCores gather that from a table, both with their shardings."""
        elements, gathered = (np.prod(_shape(*one), axis=1, dtype=np.int64) for one in (tables, made))
        table_bytes = np.asarray([self.at_least(*tables)], dtype=np.int64)
        return bool(self._hardware.gathers_apart(table_bytes, elements, gathered)[0])

    def updates(
        self,
        added: tuple[TensorType, TensorSharding, MinorDims],
        table: tuple[TensorType, TensorSharding, MinorDims],
        bytes_: int,
        *,
        is_last: bool,
        is_alone: bool,
    ) -> int:
        """Of a copy in rows of what a scatter adds to a table, stored in so many bytes."""
        first, second = (
            (_shape(type_, sharding), dtype_bits(type_.dtype), dims)
            for type_, sharding, dims in (added, table)
        )
        alone = np.asarray([is_alone])
        found = self._hardware.updates_bytes(
            first, second, np.asarray([bytes_]), is_last=is_last, is_alone=alone
        )
        return int(found[0])

    def unpadded(self, type_: TensorType, sharding: TensorSharding) -> int:
        return int(self._hardware.unpadded_bytes(_shape(type_, sharding), dtype_bits(type_.dtype))[0])

    def _bytes(
        self,
        type_: TensorType,
        sharding: TensorSharding,
        dims: MinorDims | None,
        *,
        is_temporary: bool,
        cut: tuple[int, int] | None = None,
    ) -> int:
        shape = _shape(type_, sharding)
        if cut is not None:
            shape = in_groups(shape, *cut)
        bits = dtype_bits(type_.dtype)
        return int(self._hardware.stored_bytes(shape, bits, dims, is_temporary=is_temporary)[0])


def _shape(type_: TensorType, sharding: TensorSharding) -> NDArray[np.int64]:
    """[1, rank] of what a device has."""
    return np.asarray([sharding.local_shape(type_.shape)], dtype=np.int64).reshape(1, type_.rank)


def find_peak(
    planned: Planned, reads: Reads, hardware: Hardware, limit: int | None, compiled: Compiled
) -> Peak:
    """With memory to spare, unless that is beyond the limit: then as much as the limit, or what the program needs at least. Results lend
    their memory where that comes close to what the hardware has.

    What a compiler keeps in vector memory counts in what the program needs, and no more where that is within the limit.
    """
    stored = _Stored(planned, hardware, narrows=compiled.narrows)
    copies = [*_copies(planned, reads, stored, compiled), *_gathered(planned, stored, compiled, hardware)]
    copies += _hoisted(planned, reads, stored)
    if compiled.narrows:
        copies += [*_pieces(planned, reads, stored), *_summed(planned, reads, stored, compiled.looped)]
    if compiled.prices.starts_early:
        copies += _copied_shards(planned, reads, stored, compiled)

    def buffers(lives: Lives) -> list[Buffer]:
        return [
            *_buffers(planned, reads, stored, lives.of_values, compiled.looped),
            *copies,
            *_for_loops(planned, reads, stored, lives, compiled.looped),
            *(
                starmap(Buffer, in_strips(planned, reads, hardware, lives.of_values))
                if compiled.narrows
                else ()
            ),
        ]

    program = planned.program
    deferring, pace = Deferring(program), find_pace(planned, hardware)
    offloading = Offloading(program, pace.kernels, hardware.scheduled_product_ns(1.0))
    least = buffers(Lives(program.lifetimes))
    needed = _peak_of(least)
    if limit is not None and needed.bytes > limit:
        return needed
    between = list(_held_between(planned, reads, stored, compiled)) if compiled.narrows else []
    least += between
    copies += between
    scattered = {
        value: stored.is_updated_as_made(
            planned.type_of(value), planned.settled[value], is_turned=deferring.is_turned(value)
        )
        for value in compiled.looped
    }
    apart = frozenset(_gathered_apart(planned, reads, stored))
    in_main = offloading.in_main_memory(apart)

    def lives(of_values: Lifetimes) -> Lives:
        return deferring.lives(offloading.lives(of_values, apart), scattered)

    ample = buffers(lives(program.ample_lifetimes))
    spared = _main_memory(ample, pace, hardware, in_main)
    if spared > SHORT_SHARE * hardware.usable_hbm_bytes:
        ample = buffers(lives(program.lent_lifetimes))
        spared = _main_memory(ample, pace, hardware, in_main)
    taken = max(_main_memory(least, pace, hardware, in_main), spared)
    return Peak(taken if limit is None else min(taken, limit), _peak_of(ample).time)


def _gathered_apart(planned: Planned, reads: Reads, stored: _Stored) -> Iterator[int]:
    """What SparseCores gather."""
    gathers = {kernel.time for kernel in gather_kernels(planned.program)}
    for read in [read for read in reads.kernels if read.kernel.time in gathers]:
        shape, value = read.kernel.shape, read.kernel.results[0]
        made = planned.produced.get(value, _settled(planned, value, shape.results[0]))
        if stored.is_gathered_apart((shape.operands[0], read.shardings[0]), (shape.results[0], made)):
            yield value


def _buffers(
    planned: Planned, reads: Reads, stored: _Stored, lives: Lifetimes, looped: frozenset[int]
) -> Iterator[Buffer]:
    for buffers in (
        _values(planned, reads, stored, lives),
        _renamed(planned, reads, stored, lives),
        _unsettled(planned, reads, stored, looped),
        _copied_results(planned, stored),
        _wholes(planned, stored, lives),
        _scattered(planned, reads, stored, lives),
        _gathered_from(planned, reads, stored),
        _images(planned, reads, stored),
        _transformed(planned, stored, lives),
        _generated(planned, stored),
    ):
        yield from buffers


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


def _values(planned: Planned, reads: Reads, stored: _Stored, lives: Lifetimes) -> Iterator[Buffer]:
    handed_over = {argument.value for argument in planned.listing.arguments} | planned.program.returned
    summed = {
        value
        for read in reads.kernels
        for value in planned.program.scattered_sums.keys() & set(read.kernel.results)
        if summed_parts(planned, read)
    }
    for value, type_ in _defined(planned, reads):
        lifetime = lives.get(value)
        if lifetime is not None and (lifetime.is_own_buffer or lifetime.within is not None):
            settled = _settled(planned, value, type_)
            if _is_merged(planned, value, settled):
                continue
            wide = stored.as_written(value, stored.held(value, type_), settled)
            written = stored.where_packed(value, type_, settled, wide)
            if value in summed:
                time, whole = stored.made_at[value], planned.produced.get(value, settled)
                yield Buffer(time, time + 1, _beside_sum(planned, stored, value, whole, settled))
                written = stored.as_written(value, planned.program.scattered_sums[value].type, settled)
            if stored.is_narrowed(value, type_, settled):
                made = stored.made_at[value]
                yield Buffer(made, made + 1, wide)
            bytes_ = stored.handed_over(type_, settled) if value in handed_over else written
            if lifetime.within is not None:
                bytes_ = max(
                    written - planned.type_of(lifetime.within).num_bytes // planned.mesh.num_devices, 0
                )
            is_given = value in handed_over and lifetime.within is None
            yield Buffer(
                lifetime.begin, lifetime.end, bytes_, is_given, -1 if lifetime.within is not None else value
            )


def _beside_sum(
    planned: Planned, stored: _Stored, value: int, whole: TensorSharding, settled: TensorSharding
) -> int:
    """What is there beside the sum over devices of what a scatter makes, or beside that, where a part of the sum alone is kept."""
    one = planned.program.scattered_sums[value]
    made = stored.as_written(value, stored.held(value, planned.type_of(value)), whole)
    summed = stored.as_written(value, one.type, whole)
    if whole.dims != settled.dims:
        return made if one.is_turned else summed
    return 2 * made - summed if one.is_turned else made


def _renamed(planned: Planned, reads: Reads, stored: _Stored, lives: Lifetimes) -> Iterator[Buffer]:
    """Layouts other than that of the buffer: of results of the program while they are made, and of values without a buffer of their own."""
    for read in reads.kernels:
        time = read.kernel.time
        for value, type_ in zip(read.kernel.results, read.kernel.shape.results, strict=True):
            lifetime = lives.get(value)
            if lifetime is None:
                continue
            settled = _settled(planned, value, type_)
            held = stored.held(value, type_)
            written, least = stored.as_written(value, held, settled), stored.at_least(held, settled)
            if value in planned.program.padding_names:
                least = stored.unpadded(held, settled)
            if written == least or (value in planned.program.as_made and not lifetime.is_own_buffer):
                continue
            if lifetime.is_own_buffer and value in planned.program.returned:
                yield Buffer(time, time + 1, written)
            elif lifetime.is_own_buffer or lifetime.within is not None or not read.kernel.is_alias:
                continue
            elif not lies_as_read(value, planned.program, lives):
                yield Buffer(lifetime.begin, lifetime.end, written - least)


def _is_merged(planned: Planned, value: int, settled: TensorSharding) -> bool:
    """Whether a later scatter makes it with its own: nothing is between them."""
    return value in planned.program.merged_scatters and not settled.unreduced


def _settled(planned: Planned, value: int, type_: TensorType) -> TensorSharding:
    return planned.settled.get(value, TensorSharding.replicated_closed(type_.rank))


def _defined(planned: Planned, reads: Reads) -> Iterator[tuple[int, TensorType]]:
    for flow in planned.program.flows:
        if flow.kind is not FlowKind.RESULT:
            yield flow.value, flow.type
    for read in reads.kernels:
        yield from zip(read.kernel.results, read.kernel.shape.results, strict=True)


def _unsettled(planned: Planned, reads: Reads, stored: _Stored, looped: frozenset[int]) -> Iterator[Buffer]:
    for read in reads.kernels:
        for value, type_ in zip(read.kernel.results, read.kernel.shape.results, strict=True):
            produced = planned.produced.get(value)
            if value in looped or produced is None:
                continue
            if produced.dims != planned.settled[value].dims:
                yield Buffer(
                    read.kernel.time, read.kernel.time + 1, stored.as_written(value, type_, produced)
                )


def _copies(planned: Planned, reads: Reads, stored: _Stored, compiled: Compiled) -> Iterator[Buffer]:
    hideable = compiled.ahead
    for value, mine in reads.of_value.items():
        type_, settled = planned.type_of(value), planned.settled[value]
        found, copy = planned.shared.get(value, settled), shared_copy(planned, value, mine)
        if copy is not None:
            begin, end = copy.life(planned.loops.carrying.get(value))
            shared = stored.narrowed(type_, copy.travels)
            bytes_ = stored.at_least(shared, found)
            yield Buffer(hideable.begin_of_copy(value, begin), end, bytes_)
            if (type_, copy.travels, settled, found) in compiled.laid_out:
                yield Buffer(begin, begin + 1, bytes_)
        for read in moved_reads(copy, mine, settled):
            is_whole = (value, read.op) not in compiled.gathered
            if read.needs_copy and read.sharding != found and is_whole:
                begin = hideable.begin_of_read(value, read.op, read.time)
                taken = stored.at_least(stored.narrowed(type_, read.travels), read.sharding)
                yield Buffer(begin, read.end, taken)
                if (type_, read.travels, found, read.sharding) in compiled.laid_out:
                    yield Buffer(read.time, read.time + 1, taken)


def _held_between(planned: Planned, reads: Reads, stored: _Stored, compiled: Compiled) -> Iterator[Buffer]:
    """Of what several readers gather by themselves, without a shared copy: it is gathered once, and stays from one to the next."""
    first_of, known_as = planned.listing.first_of, gathered_as(planned.program)
    asking: dict[tuple[int, TensorSharding, TensorSharding, int], list[tuple[int, Read]]] = {}
    for value, mine in reads.of_value.items():
        held = planned.settled[value]
        for read in mine if planned.shared.get(value, held) == held and len(mine) > 1 else ():
            is_outside = not read.where and read.trips <= read.repeat
            is_alone = (value, read.op) in compiled.gathered
            is_gather = read.op >= 0 and read.needs_copy and _is_gather(held, read.sharding)
            if is_gather and is_outside and not is_alone:
                source = value if read.source < 0 else read.source
                key = first_of(known_as.get(source, source)), held, read.sharding, read.again
                asking.setdefault(key, []).append((value, read))
    for (_, _, sharding, _), readers in asking.items():
        types = [stored.narrowed(planned.type_of(value), read.travels) for value, read in readers]
        bytes_ = max(stored.at_least(type_, sharding) for type_ in types)
        end = 0
        for value, read in sorted(readers, key=lambda one: one[1].time):
            begin = compiled.ahead.begin_of_read(value, read.op, read.time)
            if 0 < end < begin:
                yield Buffer(end, begin, bytes_)
            end = max(end, read.end)


def _is_gather(held: TensorSharding, wanted: TensorSharding) -> bool:
    return held.unreduced == wanted.unreduced and held.mesh == wanted.mesh and _is_part(held, wanted)


def _hoisted(planned: Planned, reads: Reads, stored: _Stored) -> Iterator[Buffer]:
    """Casts of stacks that loops step through, of those that are not gathered for them."""
    for value, wholes in planned.program.hoisted_casts.items():
        settled, mine = planned.settled[value], reads.of_value.get(value, [])
        found = planned.shared.get(value, settled) if len(mine) != 1 else mine[0].sharding
        if mine and found == settled:
            yield from (Buffer(one.begin, one.end, stored.at_least(one.type, settled)) for one in wholes)


def _pieces(planned: Planned, reads: Reads, stored: _Stored) -> Iterator[Buffer]:
    """Of values that are made in pieces where a read, or the copy that others share, takes a part of each shard."""
    for value in planned.program.pieces.keys() & reads.of_value.keys():
        mine, settled = reads.of_value[value], planned.settled[value]
        found, copy = planned.shared.get(value, settled), shared_copy(planned, value, mine)
        moves = [] if copy is None else [(settled, found, *copy.life(planned.loops.carrying.get(value)))]
        moves += [(found, read.sharding, read.time, read.end) for read in moved_reads(copy, mine, settled)]
        for held, wanted, begin, end in moves:
            words = stored.at_least(TensorType(planned.type_of(value).shape, "f32"), held)
            if _is_part(wanted, held):
                yield Buffer(begin, end, words * planned.program.pieces[value] // 4)


def _is_part(wanted: TensorSharding, held: TensorSharding) -> bool:
    """Whether each dimension is split over what it was and, one at least, more."""
    dims = list(zip(wanted.axes, held.axes, strict=True))
    return wanted.axes != held.axes and all(new[: len(old)] == old for new, old in dims)


def _gathered(planned: Planned, stored: _Stored, compiled: Compiled, hardware: Hardware) -> Iterator[Buffer]:
    """What a loop takes that gathers an operand of a product: parts, a second result or parts of it, the other operand once evaluated."""
    repeated, results = repeated_values(planned.program), LoopedResults(planned.program)
    for loop in compiled.gathered.values():
        kernel, read = loop.run.kernel, loop.run
        time = kernel.time
        made = stored.at_least(kernel.shape.results[0], planned.produced[kernel.results[0]])
        working = _PARTS_PASSED * stored.at_least(kernel.shape.travels[loop.number], loop.held)
        working += made if loop.is_summed else 2 * made // planned.mesh.num_devices
        for number, (use, sharding) in enumerate(zip(kernel.uses, read.shardings, strict=True)):
            if number != loop.number and (evaluated := repeated.get(use.value)) is not None:
                other = stored.at_least(kernel.shape.travels[number], sharding)
                yield Buffer(evaluated.stored_from(planned.program.lifetimes, time), time + 1, other)
        yield Buffer(time, time + 1, working)
        if (when := results.stored(kernel)) is not None:
            yield Buffer(*when, made)
        if hardware.lays_looped_columns and loop.is_in_columns:
            yield from (Buffer(behind, behind + 1, made) for behind in results.copied(kernel))


def _copied_shards(planned: Planned, reads: Reads, stored: _Stored, compiled: Compiled) -> Iterator[Buffer]:
    """Of arguments, and of what is made of one alone, that come in larger shards: from the start of the program until these are on their
    way. What is gathered along several dimensions, but the largest, is there from the start instead.
    """
    ahead = compiled.ahead
    for value in planned.program.made_at_start.keys() & reads.of_value.keys():
        mine, type_, settled = reads.of_value[value], planned.type_of(value), planned.settled[value]
        found, copy = planned.shared.get(value, settled), shared_copy(planned, value, mine)
        is_small, life = (
            type_.num_elements < compiled.prices.apart_below,
            planned.program.lifetimes.get(value),
        )
        made = life.begin if life is not None and life.is_own_buffer and life.begin else math.inf
        moves: list[tuple[int, TensorSharding, TensorSharding, TensorType]] = []
        if copy is not None:
            begin, _ = copy.life(planned.loops.carrying.get(value))
            moves.append((ahead.begin_of_copy(value, begin), settled, found, copy.travels))
        for read in moved_reads(copy, mine, settled):
            begin = ahead.begin_of_read(value, read.op, read.time)
            moves.append((begin, found, read.sharding, read.travels))
        for begin, held, wanted, travels in moves:
            part, whole = (
                stored.at_least(stored.narrowed(type_, travels), sharding) for sharding in (held, wanted)
            )
            if is_small and (type_, travels, held, wanted) in compiled.laid_out:
                yield Buffer(0, begin, whole)
            elif part < whole:
                yield Buffer(0, int(min(begin, made)), part)
        if (produced := planned.produced.get(value)) is not None:
            part, whole = (stored.at_least(type_, sharding) for sharding in (produced, settled))
            is_apart = is_small and times_laid_out(produced, settled) > 0
            if part < whole:
                yield Buffer(0, stored.made_at[value], whole if is_apart else part)


def _for_loops(
    planned: Planned, reads: Reads, stored: _Stored, lives: Lives, looped: frozenset[int]
) -> Iterator[Buffer]:
    """Parts of sums that loops scatter, beside the kept one, and operands: the first transposed, and what readers evaluate."""
    repeated, shared = repeated_values(planned.program), SharedReads(planned.program)
    sources, beside_handed = Sources(planned.program), stored_beside(planned.program)
    for read in [read for read in reads.kernels if not looped.isdisjoint(read.kernel.results)]:
        kernel, value, time = read.kernel, read.kernel.results[0], read.kernel.time
        part = stored.at_least(kernel.shape.results[0], planned.settled[value])
        yield Buffer(time, time + 1, (_PARTS - 1) * part)
        is_across = stored.lies_across(kernel.shape.results[0], planned.settled[value])
        kept = {factor for dim in read.run.rule.results[0] for factor in dim}
        for number, (use, sharding) in enumerate(zip(kernel.uses, read.shardings, strict=True)):
            bytes_ = stored.at_least(kernel.shape.travels[number], sharding)
            evaluated = repeated.get(use.value)
            if evaluated is not None and lives.of_values[evaluated.origin].is_own_buffer:
                evaluated = None
            source = None if evaluated is None else sources.of(evaluated.origin)
            type_ = kernel.shape.operands[number]
            is_in_place = (
                sharding.divides(type_.shape) and source is not None and source.is_gone(lives.of_values, time)
            )
            is_turned = is_across == (number == 1) and not kept & {*read.run.rule.operands[number][0]}
            if is_turned and not is_in_place:
                yield Buffer(time, time + 1, bytes_)
            if (
                evaluated is None
                or (source is not None and stored.is_narrowed(source.value, type_, sharding))
                or _is_there(planned, stored, evaluated.origin, sharding)
            ):
                continue
            begin = evaluated.stored_from(lives.of_values, time)
            beside = planned.program.picked.get((value, number))
            if beside and beside.is_beside(sharding, planned.produced[value], planned.settled[value]):
                begin = min(begin, beside.time)
            yield Buffer(begin, lives.end_of_handed(time), bytes_)
            bits = dtype_bits(kernel.shape.travels[number].dtype)
            for other, life in beside_handed.get((time, number), ()):
                if not lives.of_values[other].is_own_buffer:
                    made = dtype_bits(planned.program.widths.of_value(other).dtype)
                    yield Buffer(life.begin, life.end, bytes_ * made // bits)
            serves_all = evaluated.is_made_with_product or (is_across and number == 0)
            is_alone = serves_all or type_ == kernel.shape.travels[number]
            if not is_alone and sharding.divides(type_.shape):
                handed = begin, lives.end_of_handed(time)
                yield from (Buffer(*spell, bytes_) for spell in shared.spells(kernel, number, handed))


def _summed(planned: Planned, reads: Reads, stored: _Stored, looped: frozenset[int]) -> Iterator[Buffer]:
    """What products make of sums over devices, beside the sums; those over some, cut along one dimension, are cut as they are summed."""
    if stored.sums_in_place:
        return
    for read in [read for read in reads.kernels if read.kernel.shape.is_matmul]:
        kernel, value = read.kernel, read.kernel.results[0]
        type_, made = kernel.shape.results[0], planned.produced.get(value)
        if made is None or value in looped or not summed_parts(planned, read):
            continue
        settled = planned.settled[value]
        ends = zip(made.axes, settled.axes, strict=True)
        is_cut_at_once = is_scattered_sum(planned, read, value) and sum(one != two for one, two in ends) == 1
        is_cut_over_all = made.num_shards == 1 and settled.num_shards == planned.mesh.num_devices
        if not is_cut_at_once or is_cut_over_all:
            yield Buffer(kernel.time, kernel.time + 1, stored.as_written(value, type_, made))


def _copied_results(planned: Planned, stored: _Stored) -> Iterator[Buffer]:
    """The program hands these over beside the values that they return."""
    for number in sorted(planned.program.copied_results):
        value = planned.listing.results[number].value
        sharding = result_sharding(planned, number)
        if sharding is not None and planned.is_ranked(value):
            bytes_ = stored.handed_over(planned.type_of(value), sharding)
            yield Buffer(0, planned.program.num_times, bytes_, is_handed_over=True)


def _is_there(planned: Planned, stored: _Stored, value: int, sharding: TensorSharding) -> bool:
    """Whether it is stored where what goes back to it lies otherwise."""
    wholes = planned.program.wholes.get(value, ())
    return any(whole.beside is not None and stored.whole(whole, sharding) > 0 for whole in wholes)


def _wholes(planned: Planned, stored: _Stored, lives: Lifetimes) -> Iterator[Buffer]:
    """What is made whole for gathers, and broadcasts that a reshape merges."""
    for value, wholes in planned.program.wholes.items():
        for whole in wholes:
            if not (whole.is_value and lives[value].is_own_buffer):
                sharding = _settled(planned, value, whole.type)
                yield Buffer(whole.begin, whole.end, stored.whole(whole, sharding))


def _scattered(planned: Planned, reads: Reads, stored: _Stored, lives: Lifetimes) -> Iterator[Buffer]:
    """What a scatter makes in rows of whole slices, what that is added to in the same layout, and tables that are copied into it."""
    for read in reads.kernels:
        time = read.kernel.time
        for value, type_ in zip(read.kernel.results, read.kernel.shape.results, strict=True):
            settled = _settled(planned, value, type_)
            if value in planned.program.scattered_rows.keys() & lives.keys() and not _is_merged(
                planned, value, settled
            ):
                dims, count = planned.program.scattered_rows[value]
                rows = stored.copied(type_, settled, dims)
                yield from [Buffer(time, time + 1, rows)] * count
    for read in [read for read in reads.kernels if read.kernel.time in planned.program.scattered_updates]:
        yield Buffer(read.kernel.time, read.kernel.time + 1, _scattered_from(planned, read, stored))
    for value, copy in planned.program.row_copies.items():
        type_ = planned.type_of(value)
        sharding = _settled(planned, value, type_)
        part = sharding.local_shape(type_.shape)
        if not (copy.is_of_whole and any(part[dim] < type_.shape[dim] for dim in copy.dims[1])):
            yield Buffer(0, copy.end, stored.copied(type_, sharding, copy.dims))


def _scattered_from(planned: Planned, read: KernelRead, stored: _Stored) -> int:
    """The copy in rows of what a scatter adds, as an exchange, a product or who else makes it lays it out."""
    program, kernel = planned.program, read.kernel
    updates = program.scattered_updates[kernel.time]
    value, sharding = kernel.uses[updates.operand].value, read.shardings[updates.operand]
    table, type_ = kernel.results[0], stored.held(value, kernel.shape.operands[updates.operand])
    result, (rows, _) = stored.held(table, kernel.shape.results[0]), program.scattered_rows[table]
    is_moved = sharding != planned.shared.get(value, planned.settled[value])
    bytes_ = stored.at_least(type_, sharding) if is_moved else stored.as_written(value, type_, sharding)
    made = planned.produced.get(table, _settled(planned, table, kernel.shape.results[0]))
    return stored.updates(
        (type_, sharding, updates.dims),
        (result, made, rows),
        bytes_,
        is_last=updates.is_last,
        is_alone=updates.is_alone and not is_moved,
    )


def _gathered_from(planned: Planned, reads: Reads, stored: _Stored) -> Iterator[Buffer]:
    """Copies in rows of arguments, as gathers read them; split rows are added up as wide as the table is."""
    tables = planned.program.gathered_tables
    for read in [read for read in reads.kernels if read.kernel.time in tables]:
        kernel = read.kernel
        type_, dims, (sharding, *_) = kernel.shape.operands[0], tables[kernel.time], read.shardings
        if not any(sharding.axes[dim] for dim in dims[1]):
            type_ = TensorType(type_.shape, stored.held(kernel.results[0], kernel.shape.results[0]).dtype)
        yield Buffer(kernel.time, kernel.time + 1, stored.copied(type_, sharding, dims, is_read=True))


def _images(planned: Planned, reads: Reads, stored: _Stored) -> Iterator[Buffer]:
    """Copies of arguments as convolutions read them."""
    copies = planned.program.image_copies
    for read in [read for read in reads.kernels if read.kernel.time in copies]:
        copy = copies[read.kernel.time]
        yield Buffer(read.kernel.time, copy.end, stored.in_layout(copy.type, read.shardings[0], copy.dims))


def _transformed(planned: Planned, stored: _Stored, lives: Lifetimes) -> Iterator[Buffer]:
    """The products that Fourier transforms are made of."""
    for kernel in planned.program.kernels:
        for value, type_ in zip(kernel.results, kernel.shape.results, strict=True):
            transform = planned.program.transforms.get(value)
            if transform is not None and value in lives:
                made = planned.produced.get(value, _settled(planned, value, type_))
                whole, life = stored.at_least(transform.whole, made), lives[value]
                yield Buffer(kernel.time, kernel.time + 1, whole * transform.halves // 2)
                yield Buffer(life.begin, life.end, whole * transform.kept // 2)


def _generated(planned: Planned, stored: _Stored) -> Iterator[Buffer]:
    """What is made of constants alone and sliced, on every device; a plan of nothing else has nothing that could hold it."""
    program = planned.program
    for whole in program.generated if program.flows or program.kernels else ():
        bytes_ = stored.at_least(whole.type, TensorSharding.replicated_closed(whole.type.rank))
        yield Buffer(whole.begin, whole.end, bytes_)
