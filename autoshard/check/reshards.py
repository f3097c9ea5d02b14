"""Changes of sharding between what makes a value and what reads it.

Produced -> settled -> shared -> use, by Shardy's own decomposition, or across meshes (`meshes`); what the plan's compiler makes of each
sequence: once for readers that ask for the same, behind compute, in a loop with a product, or in every trip.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.check.emitted import (
    Sent,
    sent_for,
    sent_for_step,
    times_laid_out,
)
from autoshard.check.loops import copies_made
from autoshard.check.merging import Asked, Body, carried_out
from autoshard.check.meshes import has_no_collectives, steps_across
from autoshard.check.moves import Moved, Prices, laid_out_ns, ns_of, ns_of_one, type_sent
from autoshard.check.overlap import MOVED_AHEAD, Hideable, find_hideable, scheduled_limits
from autoshard.check.padding import with_padding
from autoshard.check.parts import parts_of
from autoshard.check.planned import Planned
from autoshard.check.reads import Read, Reads
from autoshard.check.scattering import (
    Loop,
    gathering_loop,
    in_gathering,
    is_long_enough,
)
from autoshard.check.sharing import SharedCopy, moved_reads, shared_copy
from autoshard.check.sums import adds_exactly, is_scattered_sum
from autoshard.mlir.collective import LOCAL, CollectiveStep
from autoshard.mlir.passes import decompose_reshards
from autoshard.program import gathered_as, lone_operands
from autoshard.sharding import Mesh, TensorSharding, TensorType, dtype_bits


@dataclass(frozen=True, slots=True)
class Reshard:
    """A value brought from one sharding to another, `repeat` times."""

    type: TensorType
    travels: TensorType  # as it is paid for
    origin: TensorSharding
    target: TensorSharding
    repeat: int
    op: int
    hideable_ns: int = 0  # of one run
    reader_of: tuple[int, Body] | None = (
        None  # the value, where one of its readers asks for this, and the reader's place
    )
    is_sent: bool = True  # not to who reads the value as it settles, beside a shared copy
    trips: int = 0  # of loops that it is moved out of, up to a gather or a slice
    inside_of: tuple[int, Body] | None = None  # the value in those loops, and the reader's place
    loop: Loop | None = None  # where the product that reads gathers it while it runs
    copied: TensorType | None = None  # of a shared copy: what those who read it take
    again: int = 0  # above 0: anew, though readers before ask for the same


def reshards_of(planned: Planned, reads: Reads, prices: Prices) -> Iterator[Reshard]:
    hideable = hideable_of(planned, reads, prices)
    loops = gathered_in_products(planned, reads, prices)
    made = {v: read for read in reads.kernels for v in read.kernel.results}
    first_of, known_as = planned.listing.first_of, gathered_as(planned.program)
    yield from _sums_inside(planned, reads)
    for value, run in made.items():
        kernel = run.kernel
        if value in planned.produced and not is_scattered_sum(planned, run, value):
            is_addition = prices.lowering == "xla-tpu" and planned.produced[value].unreduced
            type_ = planned.type_of(value)
            yield Reshard(
                type_,
                type_ if is_addition else planned.program.widths.of_value(value),
                planned.produced[value],
                planned.settled[value],
                kernel.repeat,
                kernel.ops[-1],
            )
    for value, mine in reads.of_value.items():
        type_ = planned.type_of(value)
        settled = planned.settled[value]
        found = planned.shared.get(value, settled)
        copy = shared_copy(planned, value, mine)
        if copy is not None:
            yield _copied(planned, value, copy, mine, hideable.of_copy(value))
        asked = set[tuple[TensorSharding, Body, int]]()
        for read in moved_reads(copy, mine, settled):
            place = read.sharding, frozenset(read.where.items()), read.again
            if prices.leaves_loops and place in asked:
                continue  # written once
            asked.add(place)
            hidden = hideable.of_read(value, read.op)
            source = value if read.source < 0 else read.source
            reader = first_of(known_as.get(source, source)), frozenset(read.where.items())
            is_copy = found == settled or read.sharding != settled
            loop = loops.get((value, read.op)) if read.sharding != found else None
            reader = reader if loop is None else None
            yield Reshard(
                type_,
                read.travels,
                found,
                read.sharding,
                read.repeat,
                read.op,
                hidden,
                reader,
                is_copy,
                read.trips,
                (first_of(value), frozenset(read.inside.items())),
                loop,
                again=read.again,
            )


def _copied(
    planned: Planned, value: int, copy: SharedCopy, reads: Sequence[Read], hideable_ns: int
) -> Reshard:
    first_of, settled = planned.listing.first_of, planned.settled[value]
    taken = [read.travels for read in reads if read.sharding != settled]
    bodies = {frozenset(read.where.items()) for read in copy.readers}
    insides = {frozenset(read.inside.items()) for read in copy.readers}
    return Reshard(
        planned.type_of(value),
        copy.travels,
        settled,
        copy.sharding,
        copies_made([read.where for read in copy.readers], planned.loops.carrying.get(value)),
        reads[0].op,
        hideable_ns,
        (first_of(value), bodies.pop()) if len(bodies) == 1 else None,
        bool(taken),
        max(read.trips for read in copy.readers),
        (first_of(value), insides.pop() if len(insides) == 1 else frozenset()),
        copied=max(taken, key=_width) if taken else None,
    )


def _sums_inside(planned: Planned, reads: Reads) -> Iterator[Reshard]:
    """What a kernel sums of what it adds up, before it goes on."""
    maker = {value: number for number, op in enumerate(planned.listing.ops) for value in op.results}
    for read in reads.kernels:
        for value, _ in read.kernel.inner:
            made, left = planned.produced.get(value), planned.settled.get(value)
            if made is not None and left is not None and made != left:
                type_ = planned.type_of(value)
                yield Reshard(type_, type_, made, left, read.kernel.repeat, maker[value])


def _sequences(
    mesh: Mesh, reshards: Sequence[Reshard], lowering: str
) -> dict[tuple[int, TensorSharding, TensorSharding], tuple[CollectiveStep, ...]]:
    """Shardy's steps of each change; XLA sums first, all of it."""
    requests = list(dict.fromkeys((r.type.rank, r.origin, r.target) for r in reshards))
    summed = {
        request: replace(request[1], unreduced=())
        for request in requests
        if lowering == "xla-tpu" and request[1].unreduced and not request[2].unreduced
    }
    asked = dict.fromkeys((request[0], summed.get(request, request[1]), request[2]) for request in requests)
    moving = [request for request in asked if request[1] != request[2]]
    found = dict(zip(moving, decompose_reshards(mesh, moving), strict=True)) if moving else {}
    for request, whole in summed.items():
        axes = request[1].unreduced
        if adds_exactly(whole, request[2], parts_of(axes)):
            found[request] = (CollectiveStep("reduce_scatter", axes, request[2]),)
            continue
        found[request] = (
            CollectiveStep("all_reduce", axes, whole),
            *found.get((request[0], whole, request[2]), ()),
        )
    return found


def sent_by_reshards(planned: Planned, reshards: Sequence[Reshard], prices: Prices) -> Iterator[Moved]:
    mesh = planned.mesh
    limits = scheduled_limits(planned, prices.hardware) if prices.overlap == "async" else {}
    yield from sent_across_meshes(mesh, reshards, prices, limits)
    moving = [
        r for r in reshards if r.origin != r.target and not has_no_collectives(mesh, r.origin, r.target)
    ]
    steps = _sequences(mesh, moving, prices.lowering)
    each = [steps[reshard.type.rank, reshard.origin, reshard.target] for reshard in moving]
    together = carried_out([_asked(r, mine, prices) for r, mine in zip(moving, each, strict=True)])
    for reshard, mine, types in zip(moving, each, together, strict=True):
        if reshard.loop is not None:
            yield from _in_loop(planned, reshard, reshard.loop, list(_sized(reshard, mine, prices)), prices)
            continue
        found = list(_merged(reshard, mine, types, list(_sized(reshard, mine, prices)), prices))
        if not reshard.is_sent:
            found = [replace(one, merged=()) for one in found]
        yield from _kept_in_loops(found, reshard)
        yield from _behind_compute(found, reshard.hideable_ns, limits.get(reshard.repeat, 0), prices)


def _kept_in_loops(steps: Sequence[Moved], reshard: Reshard) -> Iterator[Moved]:
    """What XLA leaves in the loops, in the trips beside the one that all steps run in: gathers, and what follows one or a slice."""
    first = _first_that_stays([step.kind for step in steps])
    for step in steps[first:]:
        if step.kind != "all_slice" and reshard.trips > step.repeat:
            yield replace(step, repeat=reshard.trips - step.repeat)


def _first_that_stays(kinds: Sequence[str]) -> int:
    return next((n for n, kind in enumerate(kinds) if kind in ("all_gather", "all_slice")), len(kinds))


def _in_loop(
    planned: Planned, reshard: Reshard, loop: Loop, steps: Sequence[Moved], prices: Prices
) -> Iterator[Moved]:
    """The one gather, its parts passed on while the product runs."""
    part = loop.held.local_bytes(type_sent(prices, reshard.type, reshard.travels))
    pass_ns = ns_of_one(prices, "collective_permute", part, loop.axes)
    for step in steps:
        inside = in_gathering(planned, loop, prices.hardware, part, pass_ns, ns_of(prices, step))
        passed = (Sent("collective_permute", loop.axes, inside.bytes),)
        all_ns = inside.waits_ns + inside.hidden_ns
        yield replace(step, sent=passed, merged=None, hidden_ns=inside.hidden_ns, passes_ns=all_ns)


def gathered_in_products(planned: Planned, reads: Reads, prices: Prices) -> dict[tuple[int, int], Loop]:
    """(value, root op that reads it) -> the loop that gathers it."""
    if prices.lowering != "xla-tpu" or prices.hardware.gathers_behind_compute:
        return {}
    runs = {read.kernel.ops[-1]: read for read in reads.kernels if read.kernel.shape.is_matmul}
    lone = lone_operands(planned.program)
    found: dict[tuple[int, int], Loop] = {}
    for value, mine in reads.of_value.items():
        type_, held = planned.type_of(value), planned.shared.get(value, planned.settled[value])
        for read in mine:
            run = runs.get(read.op)
            if run is None or (value, read.op) not in lone:
                continue
            loop = gathering_loop(planned, run, value, held, read)
            if loop is None:
                continue
            part = held.local_bytes(type_)
            pass_ns, latency_ns = (
                ns_of_one(prices, "collective_permute", bytes_, loop.axes) for bytes_ in (part, 0)
            )
            if is_long_enough(planned, loop, prices.hardware, part, pass_ns - latency_ns):
                found[value, read.op] = loop
    return found


def _asked(reshard: Reshard, steps: Sequence[CollectiveStep], prices: Prices) -> Asked | None:
    if prices.lowering != "xla-tpu" or reshard.reader_of is None or not reshard.is_sent:
        return None
    shardings = (reshard.origin, *(step.out_sharding for step in steps))
    inside = reshard.inside_of if reshard.trips > reshard.repeat else None
    stays = 1 + _first_that_stays([step.kind for step in steps])
    return Asked(
        *reshard.reader_of, shardings, reshard.copied or reshard.travels, inside, stays, reshard.again
    )


def _merged(
    reshard: Reshard,
    steps: Sequence[CollectiveStep],
    types: Sequence[TensorType | None],
    alone: Sequence[Moved],
    prices: Prices,
) -> Iterator[Moved]:
    """The steps of a change with what is sent for them once all readers are served."""
    for number, one in enumerate(alone):
        if number >= len(types) and reshard.copied is None:
            yield one
            continue
        travels = types[number] if number < len(types) else reshard.copied
        wide = replace(reshard, travels=travels) if travels is not None else None
        yield replace(
            one, merged=list(_sized(wide, steps, prices))[number].merged if wide is not None else ()
        )


def hideable_of(planned: Planned, reads: Reads, prices: Prices) -> Hideable:
    """Nothing where the plan assumes no overlap."""
    if prices.overlap != "async":
        return Hideable()
    return find_hideable(planned, reads, prices.hardware, prices.communication)


def gathered_ahead(planned: Planned, reads: Reads, prices: Prices) -> Hideable:
    """From when on copies take memory: XLA starts gathers early, where it can, whatever the plan assumes of the time that they take."""
    return hideable_of(planned, reads, replace(prices, overlap="async") if starts_early(prices) else prices)


def starts_early(prices: Prices) -> bool:
    return prices.lowering == "xla-tpu" and prices.hardware.gathers_behind_compute


def sent_across_meshes(
    mesh: Mesh, reshards: Sequence[Reshard], prices: Prices, limits: Mapping[int, int]
) -> Iterator[Moved]:
    for reshard in reshards:
        if has_no_collectives(mesh, reshard.origin, reshard.target):
            found = _stepping_across(mesh, reshard, prices)
            yield from _behind_compute(found, reshard.hideable_ns, limits.get(reshard.repeat, 0), prices)


def _stepping_across(mesh: Mesh, reshard: Reshard, prices: Prices) -> Iterator[Moved]:
    travels = type_sent(prices, reshard.type, reshard.travels)
    times = _times_as_wide(reshard.type, travels)
    steps = steps_across(mesh, reshard.type, reshard.origin, reshard.target)
    as_sent = steps_across(mesh, travels, reshard.origin, reshard.target)
    for (kind, axes, bytes_), (_, _, fewer) in zip(steps, as_sent, strict=True):
        sent = sent_for(prices.compiler, kind, axes, fewer, times)
        yield Moved(kind, axes, bytes_, reshard.repeat, reshard.op, sent, fewer)


def _behind_compute(
    found: Iterable[Moved], hideable_ns: int, limit_ns: int, prices: Prices
) -> Iterator[Moved]:
    """The steps of one reshard, those that can run ahead hidden as far as that goes, first to last.

    `limit_ns`: up to which a scheduler hides its share of what is not there ahead of time.
    """
    if not (hideable_ns or limit_ns):
        yield from found
        return
    steps = list(found)
    is_ahead = [s.kind in MOVED_AHEAD and not s.is_waited_for for s in steps]
    ahead = [
        ns_of(prices, s) - laid_out_ns(prices, s) if a else 0 for s, a in zip(steps, is_ahead, strict=True)
    ]
    left = min(hideable_ns, sum(ahead) * 9 // 10)
    left += min((sum(ahead) - left) * prices.hardware.hidden_percent // 100, limit_ns)
    for step, ns in zip(steps, ahead, strict=True):
        hidden_ns = min(left, ns)
        left -= hidden_ns
        yield replace(step, hidden_ns=hidden_ns)


def _sized(reshard: Reshard, steps: Sequence[CollectiveStep], prices: Prices) -> Iterator[Moved]:
    before = reshard.origin
    for step in steps:
        held = step.out_sharding if step.kind in ("all_gather", *LOCAL) else before
        travels = type_sent(prices, reshard.type, reshard.travels)
        sent = sent_for_step(prices.compiler, step, before, travels, _times_as_wide(reshard.type, travels))
        bytes_ = held.local_bytes(reshard.type)
        kept = held.local_bytes(travels)
        compiled = sent
        if step.kind == "reduce_scatter" and sent:
            compiled = with_padding(prices, sent, before, step.out_sharding, travels)
        is_gather = step.kind == "all_gather" and any(one.kind == step.kind for one in sent)
        is_laid_out = is_gather and prices.lowering == "xla-tpu"
        often = times_laid_out(before, step.out_sharding) if is_laid_out else 0
        yield Moved(
            step.kind,
            step.axes,
            bytes_,
            reshard.repeat,
            reshard.op,
            sent,
            kept,
            merged=compiled,
            laid_out=often,
            is_waited_for=often > 0 and starts_early(prices) and travels.num_elements < prices.apart_below,
        )
        before = step.out_sharding


LaidOut = frozenset[tuple[TensorType, TensorType, TensorSharding, TensorSharding]]
"""(type, as it travels, from, to) of what is gathered along several dimensions on the way."""


def find_laid_out(planned: Planned, reads: Reads, prices: Prices) -> LaidOut:
    """Of all changes of sharding, those that XLA:TPU lays out anew behind a gather."""
    reshards = [
        reshard
        for reshard in reshards_of(planned, reads, prices)
        if reshard.origin != reshard.target
        and not has_no_collectives(planned.mesh, reshard.origin, reshard.target)
    ]
    steps = _sequences(planned.mesh, reshards, prices.lowering)
    return frozenset(
        (reshard.type, reshard.travels, reshard.origin, reshard.target)
        for reshard in reshards
        if any(
            one.laid_out
            for one in _sized(reshard, steps[reshard.type.rank, reshard.origin, reshard.target], prices)
        )
    )


def _width(type_: TensorType) -> int:
    return dtype_bits(type_.dtype)


def _times_as_wide(type_: TensorType, travels: TensorType) -> int:
    return dtype_bits(type_.dtype) // max(dtype_bits(travels.dtype), 1)
