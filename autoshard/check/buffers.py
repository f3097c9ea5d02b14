"""The buffers of values over program time, and what is beside them while they are made: what `memory` sweeps over."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoshard.check.boundaries import result_sharding
from autoshard.check.planned import Planned
from autoshard.check.reads import KernelRead, Reads, summed_parts
from autoshard.check.stored import Stored
from autoshard.program import FlowKind, Lifetime, lies_as_read
from autoshard.sharding import TensorSharding, TensorType

Lifetimes = Mapping[int, Lifetime]


@dataclass(frozen=True, slots=True)
class Buffer:
    begin: int
    end: int  # half-open
    bytes: int
    is_handed_over: bool = False  # an argument or a result
    value: int = -1  # what is in it, where that is known


def value_buffers(
    planned: Planned, reads: Reads, stored: Stored, lives: Lifetimes, looped: frozenset[int]
) -> Iterator[Buffer]:
    for buffers in (
        _values(planned, reads, stored, lives),
        _renamed(planned, reads, stored, lives),
        _unsettled(planned, reads, stored, looped),
        _copied_results(planned, stored),
        _wholes(planned, stored, lives),
        _scattered(planned, reads, stored, lives),
        _laid_out(planned, reads, stored),
        _gathered(planned, reads, stored),
        _images(planned, reads, stored),
        _transformed(planned, stored, lives),
        _generated(planned, stored),
    ):
        yield from buffers


def _values(planned: Planned, reads: Reads, stored: Stored, lives: Lifetimes) -> Iterator[Buffer]:
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
            settled = settled_of(planned, value, type_)
            if _is_merged(planned, value, settled):
                continue
            wide = stored.as_written(value, stored.held(value, type_), settled)
            written = stored.where_replaced(value, type_, settled, wide)
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
    planned: Planned, stored: Stored, value: int, whole: TensorSharding, settled: TensorSharding
) -> int:
    """What is there beside the sum over devices of what a scatter makes, or beside that, where a part of the sum alone is kept."""
    one = planned.program.scattered_sums[value]
    made = stored.as_written(value, stored.held(value, planned.type_of(value)), whole)
    summed = stored.as_written(value, one.type, whole)
    if whole.dims != settled.dims:
        return made if one.is_turned else summed
    return 2 * made - summed if one.is_turned else made


def _renamed(planned: Planned, reads: Reads, stored: Stored, lives: Lifetimes) -> Iterator[Buffer]:
    """Layouts other than that of the buffer: of results of the program while they are made, and of values without a buffer of their own."""
    for read in reads.kernels:
        time = read.kernel.time
        for value, type_ in zip(read.kernel.results, read.kernel.shape.results, strict=True):
            lifetime = lives.get(value)
            if lifetime is None:
                continue
            settled = settled_of(planned, value, type_)
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


def settled_of(planned: Planned, value: int, type_: TensorType) -> TensorSharding:
    return planned.settled.get(value, TensorSharding.replicated_closed(type_.rank))


def _defined(planned: Planned, reads: Reads) -> Iterator[tuple[int, TensorType]]:
    for flow in planned.program.flows:
        if flow.kind is not FlowKind.RESULT:
            yield flow.value, flow.type
    for read in reads.kernels:
        yield from zip(read.kernel.results, read.kernel.shape.results, strict=True)


def _unsettled(planned: Planned, reads: Reads, stored: Stored, looped: frozenset[int]) -> Iterator[Buffer]:
    for read in reads.kernels:
        for value, type_ in zip(read.kernel.results, read.kernel.shape.results, strict=True):
            produced = planned.produced.get(value)
            if value in looped or produced is None:
                continue
            if produced.dims != planned.settled[value].dims:
                yield Buffer(
                    read.kernel.time, read.kernel.time + 1, stored.as_written(value, type_, produced)
                )


def _copied_results(planned: Planned, stored: Stored) -> Iterator[Buffer]:
    """The program hands these over beside the values that they return."""
    for number in sorted(planned.program.copied_results):
        value = planned.listing.results[number].value
        sharding = result_sharding(planned, number)
        if sharding is not None and planned.is_ranked(value):
            bytes_ = stored.handed_over(planned.type_of(value), sharding)
            yield Buffer(0, planned.program.num_times, bytes_, is_handed_over=True)


def _wholes(planned: Planned, stored: Stored, lives: Lifetimes) -> Iterator[Buffer]:
    """What is made whole for gathers, and broadcasts that a reshape merges."""
    for value, wholes in planned.program.wholes.items():
        for whole in wholes:
            if not (whole.is_value and lives[value].is_own_buffer):
                sharding = settled_of(planned, value, whole.type)
                yield Buffer(whole.begin, whole.end, stored.whole(whole, sharding))


def _scattered(planned: Planned, reads: Reads, stored: Stored, lives: Lifetimes) -> Iterator[Buffer]:
    """What a scatter makes in rows of whole slices, what that is added to in the same layout, and tables that are copied into it."""
    for read in reads.kernels:
        time = read.kernel.time
        for value, type_ in zip(read.kernel.results, read.kernel.shape.results, strict=True):
            settled = settled_of(planned, value, type_)
            if value in planned.program.scattered_rows.keys() & lives.keys() and not _is_merged(
                planned, value, settled
            ):
                one = planned.program.scattered_rows[value]
                slices = one.slices
                if one.operand >= 0:
                    added = read.kernel.shape.operands[one.operand]
                    part = read.shardings[one.operand].local_shape(added.shape)
                    slices = math.prod(part[dim] for dim in one.along)
                yield Buffer(time, one.end, stored.copied(type_, settled, one.dims, slices=slices))
    for read in [read for read in reads.kernels if read.kernel.time in planned.program.scattered_updates]:
        yield Buffer(read.kernel.time, read.kernel.time + 1, _scattered_from(planned, read, stored))
    for value, copy in planned.program.row_copies.items():
        type_ = planned.type_of(value)
        sharding = settled_of(planned, value, type_)
        part = sharding.local_shape(type_.shape)
        if not (copy.is_of_whole and any(part[dim] < type_.shape[dim] for dim in copy.dims[1])):
            yield Buffer(copy.begin, copy.end, stored.copied(type_, sharding, copy.dims, slices=copy.slices))


def _laid_out(planned: Planned, reads: Reads, stored: Stored) -> Iterator[Buffer]:
    """Copies of arguments that lie as the gradients do that they are updated with."""
    for read in reads.kernels:
        for operand, sharding in enumerate(read.shardings):
            for copy in planned.program.laid_out.get((read.kernel.time, operand), ()):
                yield Buffer(0, copy.end, stored.in_layout(copy.type, sharding, copy.dims))


def _scattered_from(planned: Planned, read: KernelRead, stored: Stored) -> int:
    """The copy in rows of what a scatter adds, as an exchange, a product or who else makes it lays it out."""
    program, kernel = planned.program, read.kernel
    updates = program.scattered_updates[kernel.time]
    value, sharding = kernel.uses[updates.operand].value, read.shardings[updates.operand]
    table, type_ = kernel.results[0], stored.held(value, kernel.shape.operands[updates.operand])
    result, rows = stored.held(table, kernel.shape.results[0]), program.scattered_rows[table].dims
    is_moved = sharding != planned.shared.get(value, planned.settled[value])
    bytes_ = stored.at_least(type_, sharding) if is_moved else stored.as_written(value, type_, sharding)
    made = planned.produced.get(table, settled_of(planned, table, kernel.shape.results[0]))
    return stored.updates(
        (type_, sharding, updates.dims),
        (result, made, rows),
        bytes_,
        is_last=updates.is_last,
        is_alone=updates.is_alone and not is_moved,
        has_gaps=updates.has_gaps,
    )


def _gathered(planned: Planned, reads: Reads, stored: Stored) -> Iterator[Buffer]:
    """Copies in rows of tables, as gathers read them, and rows that are copied behind them."""
    gathered = planned.program.gathered
    for read in [read for read in reads.kernels if read.kernel.time in gathered]:
        kernel, (sharding, *_), one = read.kernel, read.shardings, gathered[read.kernel.time]
        wide, (value, *_), time = kernel.shape.operands[0], kernel.results, kernel.time
        made = stored.held(value, kernel.shape.results[0])
        narrow = TensorType(wide.shape, made.dtype)
        if one.is_copied:
            yield Buffer(one.begin, time + 1, stored.copied_table(read), value=kernel.uses[0].value)
        if one.rows is not None and stored.reads_rows(narrow, sharding, one.table):
            produced = planned.produced.get(value, settled_of(planned, value, made))
            rows, own = stored.in_layout(made, produced, one.rows), stored.as_written(value, made, produced)
            yield Buffer(time, one.end, rows - own if rows > own else rows, value=value)
            yield Buffer(one.worked, one.end, rows)


def _images(planned: Planned, reads: Reads, stored: Stored) -> Iterator[Buffer]:
    """Copies of arguments as convolutions read them."""
    copies = planned.program.image_copies
    for read in [read for read in reads.kernels if read.kernel.time in copies]:
        copy = copies[read.kernel.time]
        yield Buffer(read.kernel.time, copy.end, stored.in_layout(copy.type, read.shardings[0], copy.dims))


def _transformed(planned: Planned, stored: Stored, lives: Lifetimes) -> Iterator[Buffer]:
    """The products that Fourier transforms are made of."""
    for kernel in planned.program.kernels:
        for value, type_ in zip(kernel.results, kernel.shape.results, strict=True):
            transform = planned.program.transforms.get(value)
            if transform is not None and value in lives:
                made = planned.produced.get(value, settled_of(planned, value, type_))
                whole, life = stored.at_least(transform.whole, made), lives[value]
                yield Buffer(kernel.time, kernel.time + 1, whole * transform.halves // 2)
                yield Buffer(life.begin, life.end, whole * transform.kept // 2)


def _generated(planned: Planned, stored: Stored) -> Iterator[Buffer]:
    """What is made of constants alone and sliced, on every device; a plan of nothing else has nothing that could hold it."""
    program = planned.program
    for whole in program.generated if program.flows or program.kernels else ():
        bytes_ = stored.at_least(whole.type, TensorSharding.replicated_closed(whole.type.rank))
        yield Buffer(whole.begin, whole.end, bytes_)
