"""Changes of sharding between what makes a value and what reads it: produced -> settled -> shared -> use, with Shardy's steps of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.check.loops import copies_made
from autoshard.check.merging import Body
from autoshard.check.meshes import has_no_collectives
from autoshard.check.moves import Prices, ns_of_one
from autoshard.check.overlap import Hideable, find_hideable
from autoshard.check.parts import parts_of
from autoshard.check.planned import Planned
from autoshard.check.reads import Read, Reads, addends_of
from autoshard.check.scattering import Loop, gathering_loop, is_long_enough
from autoshard.check.sharing import SharedCopy, moved_reads, shared_copy
from autoshard.check.sums import adds_exactly, is_scattered_sum, is_summed_on_the_way
from autoshard.check.sums_left import LeftSums, find_left_sums
from autoshard.mlir.collective import CollectiveStep
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
    reader_of: tuple[int, Body] | None = None
    """The value, where one of its readers asks for this, and the reader's place."""
    is_sent: bool = True  # not to who reads the value as it settles, beside a shared copy
    trips: int = 0  # of loops that it is moved out of, up to a gather or a slice
    inside_of: tuple[int, Body] | None = None  # the value in those loops, and the reader's place
    loop: Loop | None = None  # where the product that reads gathers it while it runs
    copied: TensorType | None = None  # of a shared copy: what those who read it take
    again: int = 0  # above 0: anew, though readers before ask for the same


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of sharding under a plan.

    Attributes:
        moving: with Shardy's steps.
        across: between meshes, for which Shardy has none.
        ahead: what may run behind compute, also where the plan does not count on that but XLA starts gathers early: copies then take
            memory sooner.
        left: sums that are made with a slice behind them.
        in_products: (value, root op that reads it) -> the loop that gathers it.
    """

    moving: tuple[tuple[Reshard, tuple[CollectiveStep, ...]], ...]
    across: tuple[Reshard, ...]
    ahead: Hideable
    left: LeftSums
    in_products: Mapping[tuple[int, int], Loop]


def find_changes(planned: Planned, reads: Reads, prices: Prices) -> Changes:
    """Of what the compiler of these prices runs: its steps, what it hides, what its products gather."""
    ahead = Hideable()
    if prices.overlap == "async" or prices.starts_early:
        ahead = find_hideable(planned, reads, prices.hardware, prices.communication)
    loops = dict(_gathered_in_products(planned, reads, prices))
    hideable = ahead if prices.overlap == "async" else Hideable()
    left = find_left_sums(planned, reads, prices)
    moving: list[Reshard] = []
    across: list[Reshard] = []
    for reshard in _reshards(planned, reads, prices, hideable, loops, left):
        if has_no_collectives(planned.mesh, reshard.origin, reshard.target):
            across.append(reshard)
        elif reshard.origin != reshard.target:
            moving.append(reshard)
    steps = _sequences(planned.mesh, moving, "shardy" if prices.leaves_loops else prices.lowering)
    sequences = (steps[one.type.rank, one.origin, one.target] for one in moving)
    return Changes(tuple(zip(moving, sequences, strict=True)), tuple(across), ahead, left, loops)


def _reshards(
    planned: Planned,
    reads: Reads,
    prices: Prices,
    hideable: Hideable,
    loops: Mapping[tuple[int, int], Loop],
    left: LeftSums,
) -> Iterator[Reshard]:
    made = {v: read for read in reads.kernels for v in read.kernel.results}
    first_of, known_as = planned.listing.first_of, gathered_as(planned.program)
    yield from _sums_inside(planned, reads)
    for value, run in made.items():
        kernel = run.kernel
        if value in planned.produced and not is_scattered_sum(planned, run, value):
            is_addition = prices.lowering == "xla-tpu" and planned.produced[value].unreduced
            is_summed = is_summed_on_the_way(planned, run, value, prices)
            type_ = planned.type_of(value)
            yield Reshard(
                type_,
                type_ if is_addition else planned.program.widths.of_value(value),
                addends_of(planned, run, value) if is_summed else planned.produced[value],
                planned.settled[value],
                kernel.repeat,
                kernel.ops[-1],
            )
    for value, mine in reads.of_value.items():
        type_ = planned.type_of(value)
        settled = planned.settled[value]
        found = planned.shared.get(value, left.addends.get(value, settled))
        copy = shared_copy(planned, value, mine)
        if copy is not None:
            copied = _copied(planned, value, copy, mine, hideable.of_copy(value))
            yield replace(copied, origin=left.addends.get(value, settled))
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


def _gathered_in_products(
    planned: Planned, reads: Reads, prices: Prices
) -> Iterator[tuple[tuple[int, int], Loop]]:
    if prices.lowering != "xla-tpu" or prices.hardware.gathers_behind_compute:
        return
    runs = {read.kernel.ops[-1]: read for read in reads.kernels if read.kernel.shape.is_matmul}
    lone = lone_operands(planned.program)
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
                yield (value, read.op), loop


def _width(type_: TensorType) -> int:
    return dtype_bits(type_.dtype)
