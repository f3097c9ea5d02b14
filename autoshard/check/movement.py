"""The collectives that a plan needs, worked out from its shardings, sized and priced.

    partial sums      an all-reduce of each result over the axes of the split reduction factors, or a reduce-scatter where the
                      result settles split over exactly those axes in addition and the plan's compiler has that collective
    the user's own    a collective in a manual computation, of the part that the free axes leave
    windows           rows of an operand that a split window needs from other devices, a permute for each distance, which Shardy leaves
                      to the partitioner: a halo exchange
    reshards          produced -> settled -> shared -> use, by Shardy's own decomposition, or across meshes (`crossing`)

Bytes are those of `costmodels`: the result on one device for an all-gather (and a slice), the operand for all others. A slice reads
and writes the part that it keeps.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from autoshard.check.emitted import (
    HALO,
    LOCAL,
    Compiler,
    Sent,
    is_summed_vector,
    sent_for,
    sent_for_step,
    sent_for_sum,
    summed_as_it_is,
)
from autoshard.check.halo import in_blocks, rows_from_others
from autoshard.check.loops import copies_made
from autoshard.check.merging import Asked, Body, carried_out
from autoshard.check.meshes import has_no_collectives, steps_across
from autoshard.check.overlap import MOVED_AHEAD, Hideable, find_hideable
from autoshard.check.parts import Part, Parts, axis_refs, continued, num_shards, parts_of
from autoshard.check.planned import Planned, Site
from autoshard.check.reads import KernelRead, Reads, summed_parts
from autoshard.check.scattering import (
    InProduct,
    Loop,
    gathering_loop,
    in_gathering,
    in_product,
    is_long_enough,
    part_bytes,
)
from autoshard.mlir.collective import CollectiveStep
from autoshard.mlir.passes import decompose_reshards
from autoshard.plans import EmittedCollective, PlannedCollective
from autoshard.program import Kernel, lone_operands
from autoshard.sharding import AxisRef, FactorKind, Mesh, TensorSharding, TensorType, dtype_bits
from costmodels import Communication, Hardware


@dataclass(frozen=True, slots=True)
class Reshard:
    """A value brought from one sharding to another, `repeat` times."""

    type: TensorType
    travels: TensorType
    origin: TensorSharding
    target: TensorSharding
    repeat: int
    op: int
    hideable_ns: int = 0  # of one run
    reader_of: tuple[int, Body] | None = (
        None  # the value, where one of its readers asks for this, and the reader's place
    )
    is_sent: bool = True  # not to who reads the value as it settles, beside a shared copy
    trips: int = 0  # of loops that it is moved out of, but for gathers
    first_inside: int = 1  # the step from which on those stay
    loop: Loop | None = None  # where the product that reads gathers it while it runs


@dataclass(frozen=True, slots=True)
class _Moved:
    """A collective before it is priced."""

    kind: str
    axes: tuple[AxisRef, ...]
    bytes: int
    repeat: int
    op: int
    sent: tuple[Sent, ...]  # what the compiler makes of it
    kept_bytes: int = 0  # of what sends nothing, as wide as it would travel
    hidden_ns: int = 0
    merged: tuple[Sent, ...] | None = None  # emitted in place of `sent`, which is what is paid for
    passes_ns: int = 0  # of a sum that is scattered in a product, all passes together


@dataclass(frozen=True, slots=True)
class Prices:
    hardware: Hardware
    communication: Communication
    lowering: str
    overlap: str

    @property
    def compiler(self) -> Compiler:
        placement = self.communication.placement
        extents = dict(zip(placement.names, placement.shape, strict=True))
        is_cubic = all(extents.get(dimension, 1) > 1 for dimension in "012")
        return Compiler(self.lowering, math.prod(placement.shape), is_cubic)


def find_collectives(planned: Planned, reads: Reads, prices: Prices) -> tuple[PlannedCollective, ...]:
    moved = [
        collective for kernel in reads.kernels for collective in _of_kernel(planned, kernel, reads, prices)
    ]
    moved += [_of_user(planned, kernel, prices) for kernel in reads.kernels if kernel.kernel.shape.collective]
    moved += _of_reshards(planned, list(_reshards(planned, reads, prices)), prices)
    return tuple(_priced(planned, collective, prices) for collective in moved)


def find_left_as_reshards(planned: Planned, reads: Reads, prices: Prices) -> tuple[PlannedCollective, ...]:
    """Those of `find_collectives` that stand for reshards which Shardy leaves as they are."""
    moved = _across_meshes(planned.mesh, list(_reshards(planned, reads, prices)), prices)
    return tuple(_priced(planned, collective, prices) for collective in moved)


def _priced(planned: Planned, moved: _Moved, prices: Prices) -> PlannedCollective:
    return PlannedCollective(
        moved.kind,
        axis_names(moved.axes),
        moved.bytes,
        _ns_of(prices, moved) - moved.hidden_ns,
        moved.repeat,
        planned.where(moved.op) if moved.op >= 0 else "arguments and results",
        moved.hidden_ns,
        tuple(
            EmittedCollective(sent.kind, sent.devices, sent.bytes)
            for sent in (moved.sent if moved.merged is None else moved.merged)
        ),
    )


def _ns_of(prices: Prices, moved: _Moved) -> int:
    """What it takes to send what is sent; a copy of the part that a device keeps for what is kept."""
    if moved.passes_ns:
        return moved.passes_ns
    if prices.lowering != "xla-tpu" and moved.kind not in LOCAL:
        return _ns(prices, moved.kind, moved.bytes, moved.axes)
    copied = _ns(prices, moved.kind, moved.kept_bytes, moved.axes) if moved.kind in LOCAL else 0
    return copied + sum(
        _ns(prices, one.kind, one.bytes * (one.devices if one.kind == "all_gather" else 1), one.axes)
        for one in moved.sent
    )


def axis_names(axes: Sequence[AxisRef]) -> tuple[str, ...]:
    """Axes as a plan names them: `x`, `x:(1)2`."""
    return tuple(str(axis).replace('"', "") for axis in axes)


def _ns(prices: Prices, kind: str, bytes_: int, axes: Sequence[AxisRef]) -> int:
    """The collective as the plan's compiler carries it out."""
    if kind in LOCAL:
        stored = math.prod(axis.size for axis in axes) if prices.lowering == "xla-tpu" else 1
        return math.ceil(2 * bytes_ * stored * (1e9 / prices.hardware.hbm_bytes_per_s))
    if prices.lowering == "xla-tpu":
        devices = math.prod(axis.size for axis in axes)
        is_gathered_by_sum = kind == "all_gather" and devices > 32 and bytes_ <= devices * 9 << 14
        if kind in ("all_reduce", "reduce_scatter") or is_gathered_by_sum:
            latency = prices.communication.all_reduce_ns(0, _group(axes))
            return prices.communication.all_reduce_ns(bytes_, _group(axes)) - latency + latency // 4
    communication, group = prices.communication, _group(axes)
    match kind:
        case "all_gather":
            return communication.all_gather_ns(bytes_, group)
        case "all_reduce":
            return communication.all_reduce_ns(bytes_, group)
        case "reduce_scatter":
            return communication.reduce_scatter_ns(bytes_, group)
        case "all_to_all" if prices.lowering == "xla-tpu":
            return communication.relayed_all_to_all_ns(bytes_, group)
        case "all_to_all":
            return communication.all_to_all_ns(bytes_, group)
        case "collective_permute" | "halo_exchange":
            return communication.collective_permute_ns(bytes_, group)
        case _:
            raise AssertionError(f"Shardy emits no {kind} for a reshard")


def _group(axes: Sequence[AxisRef]) -> list[str | tuple[str, int, int]]:
    return [(axis.name, axis.pre_size, axis.size) if axis.is_sub_axis else axis.name for axis in axes]


def _of_kernel(planned: Planned, read: KernelRead, reads: Reads, prices: Prices) -> Iterator[_Moved]:
    kernel = read.kernel
    root = kernel.ops[-1]
    yield from _windows(planned, read, prices)
    reduced = summed_parts(planned, read)
    if not reduced:
        return
    axes = axis_refs(reduced, planned.mesh)
    for value, type_ in zip(kernel.results, kernel.shape.results, strict=True):
        produced = planned.produced.get(value, TensorSharding.replicated_closed(type_.rank))
        kind = "reduce_scatter" if _is_scattered(planned, read, value) else "all_reduce"
        bytes_ = produced.local_bytes(type_)
        sent = sent_for_sum(prices.compiler, kind, axes, bytes_, len(kernel.results))
        is_after = prices.lowering == "xla-tpu" and _is_summed_after_loop(planned, reads, kernel, value)
        runs = planned.program.sums_after_loops[value] if is_after else kernel.repeat
        moved = _Moved(kind, axes, bytes_, runs, root, sent)
        is_scattered = kind == "reduce_scatter" and prices.lowering == "xla-tpu"
        inside = _in_product(planned, read, value, axes, prices) if is_scattered else None
        if inside is not None:
            passed = (Sent("collective_permute", axes, inside.bytes),)
            all_ns = inside.waits_ns + inside.hidden_ns
            moved = replace(moved, sent=passed, hidden_ns=inside.hidden_ns, passes_ns=all_ns)
        yield moved


def _is_summed_after_loop(planned: Planned, reads: Reads, kernel: Kernel, value: int) -> bool:
    """Whether each trip of a loop adds up what the devices have, as it is."""
    if value not in planned.program.sums_after_loops or len(kernel.results) != 1:
        return False
    held = {planned.produced.get(value), planned.settled.get(value)}
    return len(held | {read.sharding for read in reads.of_value.get(value, ())}) == 1


def _in_product(
    planned: Planned, read: KernelRead, value: int, axes: tuple[AxisRef, ...], prices: Prices
) -> InProduct | None:
    part = part_bytes(planned, read, value)
    if not part:
        return None
    pass_ns, latency_ns = (_ns(prices, "collective_permute", bytes_, axes) for bytes_ in (part, 0))
    return in_product(planned, read, prices.hardware, part, pass_ns, latency_ns)


def _of_user(planned: Planned, read: KernelRead, prices: Prices) -> _Moved:
    """The collective that the kernel is, over the costliest of the axes that it may go over."""
    kernel = read.kernel
    collective = planned.listing.ops[kernel.ops[-1]].collective
    assert collective is not None, "the shape has the root's collective"
    held = sum(
        planned.produced.get(value, TensorSharding.replicated_closed(type_.rank)).local_bytes(type_)
        for value, type_ in zip(kernel.results, kernel.shape.results, strict=True)
    )
    if collective.kind == "reduce_scatter":
        held *= collective.bytes_per_result_byte
    axes = max(collective.groups, key=lambda group: _ns(prices, collective.kind, held, group))
    sent = sent_for(prices.compiler, collective.kind, axes, held)
    return _Moved(collective.kind, axes, held, kernel.repeat, kernel.ops[-1], sent)


def _is_scattered(planned: Planned, read: KernelRead, value: int) -> bool:
    """Whether the kernel's partial sums settle split over exactly the axes that they are summed over."""
    reduced = summed_parts(planned, read)
    if not reduced or len(read.kernel.results) != 1 or value not in planned.produced:
        return False
    return _adds_exactly(planned.produced[value], planned.settled[value], reduced)


def looped_sums(planned: Planned, reads: Reads, prices: Prices) -> dict[int, int]:
    """Root op -> the dimension that its sum is cut along, of products that may be loops to scatter it."""
    if prices.lowering != "xla-tpu":
        return {}
    return {
        read.kernel.ops[-1]: next(dim for dim, axes in enumerate(planned.settled[value].axes) if axes)
        for read in reads.kernels
        for value in read.kernel.results
        if _is_scattered(planned, read, value) and part_bytes(planned, read, value)
    }


def _adds_exactly(produced: TensorSharding, settled: TensorSharding, reduced: Parts) -> bool:
    """Whether `settled` is `produced` with the reduced axes, and no others, appended to dimensions."""
    if produced.unreduced != settled.unreduced or settled.is_foreign:
        return False
    added: list[Part] = []
    for before, after in zip(produced.axes, settled.axes, strict=True):
        rest = continued(parts_of(before), parts_of(after))
        if rest is None:
            return False
        added += rest
    return bool(added) and sorted(added) == sorted(reduced)


def _windows(planned: Planned, read: KernelRead, prices: Prices) -> Iterator[_Moved]:
    kernel, (rule, factors) = read.kernel, (read.run.rule, read.run.factors)
    root = planned.listing.ops[kernel.ops[-1]]
    for window in root.windows:
        value = root.operands[window.operand]
        if value in planned.program.cloneable:
            continue
        sharding = planned.read(kernel.ops[-1], window.operand)
        type_ = planned.type_of(value)
        assert sharding is not None, "the root has been projected"
        local_rows = sharding.local_shape(type_.shape)[window.dim]
        row_bytes = -(-sharding.local_bytes(type_) // max(local_rows, 1))
        travels = planned.program.widths.of_use(value, _sites(kernel, value, window.operand))
        sent_bytes = -(-sharding.local_bytes(_sent(prices, type_, travels)) // max(local_rows, 1))
        for factor in rule.operands[window.operand][window.dim]:
            if factors[factor] and rule.factors[factor].kind is FactorKind.PERMUTATION:
                axes = axis_refs(factors[factor], planned.mesh)
                whole = type_.shape[window.dim]
                for rows in rows_from_others(window, whole, num_shards(factors[factor])):
                    exchanged = in_blocks(window, whole, rows) if prices.lowering == "xla-tpu" else rows
                    sent = sent_for(prices.compiler, HALO, axes, exchanged * sent_bytes)
                    yield _Moved(HALO, axes, rows * row_bytes, kernel.repeat, kernel.ops[-1], sent)


def _sites(kernel: Kernel, value: int, operand: int) -> tuple[Site, ...]:
    """Where the kernel reads what its root has as this operand."""
    site = (kernel.ops[-1], operand)
    return next(use.sites for use in kernel.uses if use.value == value and site in use.sites)


def _sent(prices: Prices, type_: TensorType, travels: TensorType) -> TensorType:
    is_narrowed = prices.lowering == "xla-tpu" and not is_summed_vector(type_)
    return travels if is_narrowed else type_


def _reshards(planned: Planned, reads: Reads, prices: Prices) -> Iterator[Reshard]:
    hideable = hideable_of(planned, reads, prices)
    loops = gathered_in_products(planned, reads, prices)
    made = {v: read for read in reads.kernels for v in read.kernel.results}
    yield from _sums_inside(planned, reads)
    for value, run in made.items():
        kernel = run.kernel
        if value in planned.produced and not _is_scattered(planned, run, value):
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
        moved = [read for read in mine if not read.is_handed_back]
        if found != settled:
            made_times = copies_made([read.where for read in mine], planned.loops.carrying.get(value))
            together = planned.program.widths.of_value(value)
            hidden = hideable.of_copy(value)
            is_read = any(read.sharding != settled for read in mine)
            trips = max((read.trips for read in moved), default=0)
            yield Reshard(
                type_, together, settled, found, made_times, mine[0].op, hidden, None, is_read, trips
            )
        for read in mine:
            hidden = hideable.of_read(value, read.op)
            reader = value if read.source < 0 else read.source, frozenset(read.where.items())
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
                int(len(moved) < 2),
                loop,
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
        if _adds_exactly(whole, request[2], parts_of(axes)):
            found[request] = (CollectiveStep("reduce_scatter", axes, request[2]),)
            continue
        found[request] = (
            CollectiveStep("all_reduce", axes, whole),
            *found.get((request[0], whole, request[2]), ()),
        )
    return found


def _of_reshards(planned: Planned, reshards: Sequence[Reshard], prices: Prices) -> Iterator[_Moved]:
    mesh = planned.mesh
    yield from _across_meshes(mesh, reshards, prices)
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
        yield from _behind_compute(found, reshard.hideable_ns, prices)


def _kept_in_loops(steps: Sequence[_Moved], reshard: Reshard) -> Iterator[_Moved]:
    """Gathers that XLA leaves in the loops, in the trips beside the one that all steps run in."""
    for number, step in enumerate(steps):
        if reshard.trips > step.repeat and step.kind == "all_gather" and number >= reshard.first_inside:
            yield replace(step, repeat=reshard.trips - step.repeat)


def _in_loop(
    planned: Planned, reshard: Reshard, loop: Loop, steps: Sequence[_Moved], prices: Prices
) -> Iterator[_Moved]:
    """The one gather, its parts passed on while the product runs."""
    part = loop.held.local_bytes(_sent(prices, reshard.type, reshard.travels))
    pass_ns = _ns(prices, "collective_permute", part, loop.axes)
    for step in steps:
        inside = in_gathering(planned, loop, prices.hardware, part, pass_ns, _ns_of(prices, step))
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
            pass_ns, latency_ns = (
                _ns(prices, "collective_permute", bytes_, loop.axes)
                for bytes_ in (held.local_bytes(type_), 0)
            )
            if is_long_enough(planned, loop, prices.hardware, pass_ns, latency_ns):
                found[value, read.op] = loop
    return found


def _asked(reshard: Reshard, steps: Sequence[CollectiveStep], prices: Prices) -> Asked | None:
    if prices.lowering != "xla-tpu" or reshard.reader_of is None or not reshard.is_sent:
        return None
    shardings = (reshard.origin, *(step.out_sharding for step in steps))
    return Asked(*reshard.reader_of, shardings, reshard.travels)


def _merged(
    reshard: Reshard,
    steps: Sequence[CollectiveStep],
    types: Sequence[TensorType | None],
    alone: Sequence[_Moved],
    prices: Prices,
) -> Iterator[_Moved]:
    """The steps of a change with what is sent for them once all readers are served."""
    for number, one in enumerate(alone):
        if number >= len(types):
            yield one
            continue
        travels = types[number]
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


def _across_meshes(mesh: Mesh, reshards: Sequence[Reshard], prices: Prices) -> Iterator[_Moved]:
    for reshard in reshards:
        if has_no_collectives(mesh, reshard.origin, reshard.target):
            found = _stepping_across(mesh, reshard, prices)
            yield from _behind_compute(found, reshard.hideable_ns, prices)


def _stepping_across(mesh: Mesh, reshard: Reshard, prices: Prices) -> Iterator[_Moved]:
    travels = _sent(prices, reshard.type, reshard.travels)
    steps = steps_across(mesh, reshard.type, reshard.origin, reshard.target)
    as_sent = steps_across(mesh, travels, reshard.origin, reshard.target)
    for (kind, axes, bytes_), (_, _, fewer) in zip(steps, as_sent, strict=True):
        sent = sent_for(prices.compiler, kind, axes, fewer)
        yield _Moved(kind, axes, bytes_, reshard.repeat, reshard.op, sent, fewer)


def _behind_compute(found: Iterable[_Moved], hideable_ns: int, prices: Prices) -> Iterator[_Moved]:
    """The steps of one reshard, those that can run ahead hidden as far as that goes, first to last."""
    if not hideable_ns:
        yield from found
        return
    steps = list(found)
    ahead = [_ns_of(prices, s) if s.kind in MOVED_AHEAD else 0 for s in steps]
    left = min(hideable_ns, sum(ahead) * 9 // 10)
    for step, ns in zip(steps, ahead, strict=True):
        hidden_ns = min(left, ns)
        left -= hidden_ns
        yield replace(step, hidden_ns=hidden_ns)


def _sized(reshard: Reshard, steps: Sequence[CollectiveStep], prices: Prices) -> Iterator[_Moved]:
    before = reshard.origin
    for step in steps:
        held = step.out_sharding if step.kind in ("all_gather", *LOCAL) else before
        travels = _sent(prices, reshard.type, reshard.travels)
        sent = sent_for_step(prices.compiler, step, before, travels)
        bytes_ = held.local_bytes(reshard.type)
        kept = held.local_bytes(travels)
        times = dtype_bits(reshard.type.dtype) // max(dtype_bits(travels.dtype), 1)
        compiled = summed_as_it_is(step.kind, sent, times)
        yield _Moved(step.kind, step.axes, bytes_, reshard.repeat, reshard.op, sent, kept, merged=compiled)
        before = step.out_sharding


Totals = dict[tuple[str, tuple[str, ...]], tuple[int, int]]


def totals(collectives: Sequence[PlannedCollective]) -> Totals:
    """(count, bytes) of every kind and axes."""
    found: Totals = {}
    for c in collectives:
        count, bytes_ = found.get((c.kind, c.axes), (0, 0))
        found[c.kind, c.axes] = (count + c.repeat, bytes_ + c.bytes * c.repeat)
    return found


def differences(expected: Totals, found: Totals) -> list[str]:
    """The groups that are not the same in both."""
    lines: list[str] = []
    for key in sorted(set(expected) | set(found)):
        mine, theirs = expected.get(key, (0, 0)), found.get(key, (0, 0))
        if mine != theirs:
            lines.append(
                f"{key[0]} over {','.join(key[1])}: expected {mine[0]} of {mine[1]} bytes in all, "
                f"the plan has {theirs[0]} of {theirs[1]}"
            )
    return lines
