"""The copies that reads take over program time, and what loops that gather or scatter work on: what `memory` sweeps over."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.check.buffers import Buffer
from autoshard.check.emitted import times_laid_out
from autoshard.check.moves import Prices
from autoshard.check.overlap import Hideable
from autoshard.check.planned import Planned
from autoshard.check.reads import Read, Reads, summed_parts
from autoshard.check.reshards import LaidOut
from autoshard.check.scattering import Loop as GatheringLoop
from autoshard.check.sharing import SharedCopy, moved_reads, shared_copy
from autoshard.check.stored import Stored
from autoshard.check.sums import is_scattered_sum
from autoshard.program import (
    Lives,
    LoopedResults,
    SharedReads,
    Sources,
    gathered_as,
    repeated_values,
    stored_beside,
)
from autoshard.sharding import TensorSharding, TensorType, cuts_rows, dtype_bits
from costmodels import Hardware

_PARTS = 6  # that a loop which scatters a sum works on
_PARTS_PASSED = 4  # of an operand that a loop gathers, half of them each way round


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


def find_copies(
    planned: Planned, reads: Reads, stored: Stored, compiled: Compiled, hardware: Hardware
) -> Iterator[Buffer]:
    """Those that are there however long values live: of reads, of what loops gather, of casts, and under XLA for TPUs of what it splits."""
    yield from _copies(planned, reads, stored, compiled)
    yield from _gathered(planned, stored, compiled, hardware)
    yield from _hoisted(planned, reads, stored)
    if compiled.narrows:
        yield from _pieces(planned, reads, stored)
        yield from _selected(planned, reads, stored)
        yield from _sliced(planned, reads, stored)
        yield from _summed(planned, reads, stored, compiled.looped)
    if compiled.prices.starts_early:
        yield from _copied_shards(planned, reads, stored, compiled)


def _copies(planned: Planned, reads: Reads, stored: Stored, compiled: Compiled) -> Iterator[Buffer]:
    hideable = compiled.ahead
    for value, mine in reads.of_value.items():
        type_, settled = planned.type_of(value), planned.settled[value]
        found, copy = planned.shared.get(value, settled), shared_copy(planned, value, mine)
        if copy is not None:
            whole = _shared(planned, value, copy, stored, compiled)
            yield whole
            if (type_, copy.travels, settled, found) in compiled.laid_out:
                begin, _ = copy.life(planned.loops.carrying.get(value))
                yield Buffer(begin, begin + 1, whole.bytes)
        for read in moved_reads(copy, mine, settled):
            is_whole = (value, read.op) not in compiled.gathered
            if read.needs_copy and read.sharding != found and is_whole:
                begin = hideable.begin_of_read(value, read.op, read.time)
                taken = stored.resharded(value, stored.narrowed(type_, read.travels), read.sharding)
                yield Buffer(begin, read.end, taken)
                if (type_, read.travels, found, read.sharding) in compiled.laid_out:
                    yield Buffer(read.time, read.time + 1, taken)


def held_between(planned: Planned, reads: Reads, stored: Stored, compiled: Compiled) -> Iterator[Buffer]:
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
        bytes_ = max(
            stored.resharded(value, stored.narrowed(planned.type_of(value), read.travels), sharding)
            for value, read in readers
        )
        end = 0
        for value, read in sorted(readers, key=lambda one: one[1].time):
            begin = compiled.ahead.begin_of_read(value, read.op, read.time)
            if 0 < end < begin:
                yield Buffer(end, begin, bytes_)
            end = max(end, read.end)


def copied_alike(
    planned: Planned, reads: Reads, stored: Stored, compiled: Compiled
) -> Iterator[tuple[list[Buffer], Buffer]]:
    """Copies that the readers of equal values share, two or more, and the one that there is of them, from the first to the last reader."""
    found: dict[tuple[int, TensorType, TensorSharding, TensorSharding], list[Buffer]] = {}
    for value, mine in reads.of_value.items():
        copy = shared_copy(planned, value, mine)
        if copy is None or len(copy.readers) < len(mine) or any(read.where for read in mine):
            continue
        key = planned.listing.first_of(value), copy.travels, planned.settled[value], planned.shared[value]
        found.setdefault(key, []).append(_shared(planned, value, copy, stored, compiled))
    for buffers in found.values():
        if len(buffers) > 1:
            begin, end = min(one.begin for one in buffers), max(one.end for one in buffers)
            yield buffers, Buffer(begin, end, max(one.bytes for one in buffers))


def _shared(planned: Planned, value: int, copy: SharedCopy, stored: Stored, compiled: Compiled) -> Buffer:
    begin, end = copy.life(planned.loops.carrying.get(value))
    type_ = stored.narrowed(planned.type_of(value), copy.travels)
    bytes_ = stored.resharded(value, type_, planned.shared[value])
    return Buffer(compiled.ahead.begin_of_copy(value, begin), end, bytes_)


def _is_gather(held: TensorSharding, wanted: TensorSharding) -> bool:
    return held.unreduced == wanted.unreduced and held.mesh == wanted.mesh and _is_part(held, wanted)


def _hoisted(planned: Planned, reads: Reads, stored: Stored) -> Iterator[Buffer]:
    """Casts of stacks that loops step through, of those that are not gathered for them."""
    for value, wholes in planned.program.hoisted_casts.items():
        settled, mine = planned.settled[value], reads.of_value.get(value, [])
        found = planned.shared.get(value, settled) if len(mine) != 1 else mine[0].sharding
        if mine and found == settled:
            yield from (Buffer(one.begin, one.end, stored.at_least(one.type, settled)) for one in wholes)


def _selected(planned: Planned, reads: Reads, stored: Stored) -> Iterator[Buffer]:
    """Selections that are cut for their readers: they are scattered first, as they are."""
    for value in planned.program.selected & reads.of_value.keys():
        type_ = planned.type_of(value)
        for held, wanted, begin, _ in _moves(planned, value, reads.of_value[value]):
            if held.axes != wanted.axes:
                yield Buffer(begin, begin + 1, stored.at_least(type_, held))


def _sliced(planned: Planned, reads: Reads, stored: Stored) -> Iterator[Buffer]:
    """What is worked out whole, of which a reader takes a part."""
    for value in planned.program.sliced.keys() & reads.of_value.keys():
        sliced, mine, settled = planned.program.sliced[value], reads.of_value[value], planned.settled[value]
        found, copy = planned.shared.get(value, settled), shared_copy(planned, value, mine)
        if copy is not None and sliced.is_long and _is_part(found, settled):
            begin, _ = copy.life(planned.loops.carrying.get(value))
            yield Buffer(begin, begin + 1, stored.at_least(sliced.type, settled))
        for read in moved_reads(copy, mine, settled):
            if _is_part(read.sharding, found) and (len(mine) > 1 or sliced.is_long):
                before = (one.time for one in mine if one.time < read.time)
                type_ = planned.type_of(value) if len(mine) > 1 else sliced.type
                yield Buffer(
                    max(before, default=read.time - 1) + 1, read.time + 1, stored.at_least(type_, found)
                )


def _pieces(planned: Planned, reads: Reads, stored: Stored) -> Iterator[Buffer]:
    """Of values that are made in pieces where a read, or the copy that others share, takes a part of each shard."""
    for value in planned.program.pieces.keys() & reads.of_value.keys():
        for held, wanted, begin, end in _moves(planned, value, reads.of_value[value]):
            words = stored.at_least(TensorType(planned.type_of(value).shape, "f32"), held)
            if _is_part(wanted, held):
                yield Buffer(begin, end, words * planned.program.pieces[value] // 4)


def _moves(
    planned: Planned, value: int, mine: Sequence[Read]
) -> Iterator[tuple[TensorSharding, TensorSharding, int, int]]:
    """(from, to, begin, end) of each change of a value's sharding, for its readers together or for one."""
    settled = planned.settled[value]
    found, copy = planned.shared.get(value, settled), shared_copy(planned, value, mine)
    if copy is not None:
        yield settled, found, *copy.life(planned.loops.carrying.get(value))
    for read in moved_reads(copy, mine, settled):
        yield found, read.sharding, read.time, read.end


def _is_part(wanted: TensorSharding, held: TensorSharding) -> bool:
    """Whether each dimension is split over what it was and, one at least, more."""
    return wanted.axes != held.axes and wanted.refines(held)


def _gathered(planned: Planned, stored: Stored, compiled: Compiled, hardware: Hardware) -> Iterator[Buffer]:
    """What a loop takes that gathers an operand of a product: parts, a second result or parts of it, the other operand once evaluated."""
    repeated, results = repeated_values(planned.program), LoopedResults(planned.program)
    for loop in compiled.gathered.values():
        kernel, read = loop.run.kernel, loop.run
        time = kernel.time
        made = stored.at_least(kernel.shape.results[0], planned.produced[kernel.results[0]])
        working = _PARTS_PASSED * stored.at_least(kernel.shape.travels[loop.number], loop.held)
        working += made if loop.is_summed else 2 * made // planned.mesh.num_devices
        for number, (use, sharding) in enumerate(zip(kernel.uses, read.shardings, strict=True)):
            if number == loop.number:
                continue
            other = stored.at_least(kernel.shape.travels[number], sharding)
            if (evaluated := repeated.get(use.value)) is not None:
                yield Buffer(evaluated.stored_from(planned.program.lifetimes, time), time + 1, other)
            if loop.is_summed and _is_cut_in_rows(planned, loop, number):
                yield Buffer(time, time + 1, other)
        yield Buffer(time, time + 1, working)
        if (when := results.stored(kernel)) is not None:
            yield Buffer(*when, made)
        if hardware.lays_looped_columns and loop.is_in_columns:
            yield from (Buffer(behind, behind + 1, made) for behind in results.copied(kernel))


def _is_cut_in_rows(planned: Planned, loop: GatheringLoop, other: int) -> bool:
    """Whether the loop takes parts of the other operand's last dimension that are no whole rows of lanes."""
    is_last = loop.run.run.rule.operands[other][-1:] == (loop.factors,)
    return is_last and cuts_rows(loop.run.kernel.shape.operands[other].shape[-1], planned.mesh.num_devices)


def _copied_shards(planned: Planned, reads: Reads, stored: Stored, compiled: Compiled) -> Iterator[Buffer]:
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
            taken = stored.narrowed(type_, travels)
            part = stored.at_least(taken, held)
            if is_small and (type_, travels, held, wanted) in compiled.laid_out:
                yield Buffer(0, begin, stored.resharded(value, taken, wanted))
            elif part < stored.at_least(taken, wanted):
                yield Buffer(0, int(min(begin, made)), part)
        if (produced := planned.produced.get(value)) is not None:
            part, whole = (stored.at_least(type_, sharding) for sharding in (produced, settled))
            is_apart = is_small and times_laid_out(produced, settled) > 0
            if part < whole:
                yield Buffer(0, stored.made_at[value], whole if is_apart else part)


def loop_buffers(
    planned: Planned, reads: Reads, stored: Stored, lives: Lives, looped: frozenset[int]
) -> Iterator[Buffer]:
    """Parts of sums that loops scatter, beside the kept one, and operands: the first transposed, and what readers evaluate."""
    repeated, shared = repeated_values(planned.program), SharedReads(planned.program)
    sources, beside_handed = Sources(planned.program), stored_beside(planned.program)
    handed_alike: dict[tuple[int, TensorType, TensorSharding], list[Buffer]] = {}
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
            alike = handed_alike.setdefault((evaluated.origin, kernel.shape.travels[number], sharding), [])
            alike.append(Buffer(begin, lives.end_of_handed(time), bytes_))
            bits = dtype_bits(kernel.shape.travels[number].dtype)
            for other, life in beside_handed.get((time, number), ()):
                if not lives.of_values[other].is_own_buffer:
                    made = dtype_bits(planned.program.widths.of_value(other).dtype)
                    yield Buffer(life.begin, life.end, bytes_ * made // bits)
            serves_all = (
                evaluated.is_made_with_product or evaluated.is_of_little or (is_across and number == 0)
            )
            is_alone = serves_all or (lives.is_least and type_ == kernel.shape.travels[number])
            if not is_alone and sharding.divides(type_.shape):
                handed = begin, lives.end_of_handed(time)
                alike.extend(
                    Buffer(*spell, bytes_) for spell in shared.spells(kernel, number, handed, lives.waiting)
                )
    for alike in handed_alike.values():
        yield from _there_once(alike)


def _there_once(alike: list[Buffer]) -> Iterator[Buffer]:
    """Of equal buffers what none that began earlier covers."""
    covered = 0
    for one in sorted(alike, key=lambda one: (one.begin, -one.end)):
        if one.end > covered:
            yield replace(one, begin=max(one.begin, covered))
            covered = one.end


def _summed(planned: Planned, reads: Reads, stored: Stored, looped: frozenset[int]) -> Iterator[Buffer]:
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


def _is_there(planned: Planned, stored: Stored, value: int, sharding: TensorSharding) -> bool:
    """Whether it is stored where what goes back to it lies otherwise."""
    wholes = planned.program.wholes.get(value, ())
    return any(whole.beside is not None and stored.whole(whole, sharding) > 0 for whole in wholes)
