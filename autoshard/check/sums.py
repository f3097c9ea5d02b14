"""What kernels need from other devices, by their shardings.

partial sums      an all-reduce of each result over the axes of the split reduction factors, or a reduce-scatter where the
                  result settles split over exactly those axes in addition and the plan's compiler has that collective;
                  a change of sharding from addends where it settles otherwise and Shardy's passes make the collectives
the user's own    a collective in a manual computation, of the part that the free axes leave
windows           rows of an operand that a split window needs from other devices, a permute for each distance, which Shardy leaves
                  to the partitioner: a halo exchange
"""

from collections.abc import Iterator
from dataclasses import replace

from autoshard.check.emitted import (
    HALO,
    Sent,
    sent_for,
    sent_for_sum,
)
from autoshard.check.halo import rows_from_others
from autoshard.check.moves import Moved, Prices, ns_of, ns_of_one, type_sent
from autoshard.check.padding import with_padding
from autoshard.check.parts import Part, Parts, axis_refs, continued, num_shards, parts_of
from autoshard.check.planned import Planned, Site
from autoshard.check.reads import KernelRead, Reads, summed_parts
from autoshard.check.running import runs_over, sent_for_running
from autoshard.check.scattering import (
    InProduct,
    in_product,
    part_bytes,
)
from autoshard.check.sums_left import LeftSums
from autoshard.program import MOVES, AddedUp, Kernel, minor_of_scattered, stays_scatter
from autoshard.sharding import AxisRef, FactorKind, TensorSharding, TensorType, dtype_bits


def sent_by_kernel(
    planned: Planned, read: KernelRead, reads: Reads, left: LeftSums, prices: Prices
) -> Iterator[Moved]:
    kernel = read.kernel
    root = kernel.ops[-1]
    yield from _windows(planned, read, prices)
    reduced = summed_parts(planned, read)
    if not reduced or not left.scattered.keys().isdisjoint(kernel.results):
        return
    axes = axis_refs(reduced, planned.mesh)
    for number, (value, whole) in enumerate(zip(kernel.results, kernel.shape.results, strict=True)):
        if is_summed_on_the_way(planned, read, value, prices):
            continue
        type_ = kernel.shape.sent(number) if prices.lowering == "xla-tpu" else whole
        produced = planned.produced.get(value, TensorSharding.replicated_closed(type_.rank))
        kind = "reduce_scatter" if is_scattered_sum(planned, read, value) else "all_reduce"
        bytes_, sent_bytes = (produced.local_bytes(one) for one in (whole, type_))
        total = _total_after_loop(planned, reads, kernel, value) if prices.sums_after_loops else None
        runs = kernel.repeat if total is None else total.runs
        if total is not None:
            bytes_ = sent_bytes = -(-bytes_ * total.bytes // whole.num_bytes)
        sent = sent_for_sum(prices.compiler, kind, axes, sent_bytes, kernel.shape)
        moved = Moved(kind, axes, bytes_, runs, root, sent)
        is_scattered = kind == "reduce_scatter" and prices.lowering == "xla-tpu"
        inside = _in_product(planned, read, value, axes, prices) if is_scattered else None
        if inside is not None:
            passed = (Sent("collective_permute", axes, inside.bytes),)
            all_ns = inside.waits_ns + inside.hidden_ns
            moved = replace(moved, sent=passed, hidden_ns=inside.hidden_ns, passes_ns=all_ns)
        elif is_scattered and sent and not type_.is_complex:
            minor = minor_of_scattered(kernel.shape)
            padded = with_padding(prices, sent, produced, planned.settled[value], type_, minor)
            moved = replace(moved, merged=padded)
        if prices.lowering == "xla-tpu" and total is None and len(kernel.results) == 1:
            part = _only_part(planned, reads, value) if kind == "all_reduce" else None
            if _is_made_before(planned, read, reads, value):
                moved = replace(moved, merged=())
            elif (
                part is not None
                and not type_.is_complex
                and adds_exactly(produced, part, reduced)
                and not _has_slices(reads, value)
            ):
                minor = minor_of_scattered(kernel.shape)
                moved = replace(moved, merged=with_padding(prices, sent, produced, part, type_, minor))
        yield moved


def _is_made_before(planned: Planned, read: KernelRead, reads: Reads, value: int) -> bool:
    """Whether an equal op of equal operands runs in the same way, which XLA keeps of the two."""
    first = planned.listing.first_of(value)
    if first == value or planned.settled.get(first) != planned.settled.get(value):
        return False
    other = next((one for one in reads.kernels if first in one.kernel.results), None)
    return other is not None and other.shardings == read.shardings and other.run.factors == read.run.factors


def _only_part(planned: Planned, reads: Reads, value: int) -> TensorSharding | None:
    """What everything that reads a value takes of it, if that is one thing and not what there is."""
    settled, shared = planned.settled.get(value), planned.shared.get(value)
    asked = {read.sharding for read in reads.of_value.get(value, ())}
    if settled is None or planned.produced.get(value) != settled or settled in asked:
        return None
    return shared if shared is not None else asked.pop() if len(asked) == 1 else None


def _readers(reads: Reads, value: int) -> list[Kernel]:
    return [read.kernel for read in reads.kernels if any(use.value == value for use in read.kernel.uses)]


def _has_slices(reads: Reads, value: int) -> bool:
    """Whether a slice reads it, as it is or constrained: XLA joins that with the slice by which it would scatter the sum."""
    return any(
        reader.shape.name == "stablehlo.slice"
        or (reader.shape.name in MOVES and _has_slices(reads, reader.results[0]))
        for reader in _readers(reads, value)
    )


def _total_after_loop(planned: Planned, reads: Reads, kernel: Kernel, value: int) -> AddedUp | None:
    """What is summed after the loop in the place of a value in each trip."""
    is_after = _is_summed_after_loop(planned, reads, kernel, value)
    return planned.program.sums_after_loops[value] if is_after else None


def _is_summed_after_loop(planned: Planned, reads: Reads, kernel: Kernel, value: int) -> bool:
    """Whether each trip of a loop adds up what the devices have, as it is; slices on the way cut what each has all of."""
    after = planned.program.sums_after_loops
    if value not in after or len(kernel.results) != 1:
        return False
    held = {planned.produced.get(value), planned.settled.get(value)}
    if len(held | {read.sharding for read in reads.of_value.get(value, ())}) > 1:
        return False
    readers = _readers(reads, value)
    held_axes = planned.settled[value].axes if value in planned.settled else ()
    if any(held_axes[window.dim] for reader in readers for window in reader.shape.windows if held_axes):
        return False
    return all(
        _is_summed_after_loop(planned, reads, reader, reader.results[0])
        for reader in readers
        if len(reader.uses) == 1 and after.keys() >= set(reader.results)
    )


def _in_product(
    planned: Planned, read: KernelRead, value: int, axes: tuple[AxisRef, ...], prices: Prices
) -> InProduct | None:
    part = part_bytes(planned, read, value)
    if not part:
        return None
    pass_ns, latency_ns = (ns_of_one(prices, "collective_permute", bytes_, axes) for bytes_ in (part, 0))
    return in_product(planned, read, prices.hardware, part, pass_ns, latency_ns)


def sent_by_user(planned: Planned, read: KernelRead, reads: Reads, prices: Prices) -> Moved:
    """The collective that the kernel is, over the costliest of the axes that it may go over; a sum that a loop adds up, after it."""
    kernel = read.kernel
    collective = planned.listing.ops[kernel.ops[-1]].collective
    assert collective is not None, "the shape has the root's collective"
    held = narrow = 0
    for value, type_ in zip(kernel.results, kernel.shape.results, strict=True):
        sharding = planned.produced.get(value, TensorSharding.replicated_closed(type_.rank))
        held += sharding.local_bytes(type_)
        narrow += sharding.local_bytes(type_sent(prices, type_, planned.program.widths.of_value(value)))
    kind = collective.kind
    if kind == "reduce_scatter":
        held *= collective.bytes_per_result_byte
    runs = kernel.repeat
    if collective.is_sum and prices.sums_after_loops:
        total = _total_after_loop(planned, reads, kernel, kernel.results[0])
        if total is not None:
            runs, held = total.runs, -(-held * total.bytes // kernel.shape.results[0].num_bytes)
    travels = narrow if collective.is_move else held
    times = max(held // max(travels, 1), 1)
    each = [
        Moved(kind, axes, held, runs, kernel.ops[-1], sent_for(prices.compiler, kind, axes, travels, times))
        for axes in collective.groups
    ]
    if kind == "reduce_scatter" and prices.lowering == "xla-tpu":
        each = [_as_users_scatter(planned, kernel, moved, prices) for moved in each]
    return max(each, key=lambda moved: ns_of(prices, moved))


def _as_users_scatter(planned: Planned, kernel: Kernel, moved: Moved, prices: Prices) -> Moved:
    collective, type_ = planned.listing.ops[kernel.ops[-1]].collective, kernel.shape.results[0]
    assert collective is not None, "a reduce-scatter is one"
    sharding = planned.produced.get(kernel.results[0], TensorSharding.replicated_closed(type_.rank))
    part = TensorType(sharding.local_shape(type_.shape), type_.dtype)
    left = Sent("reduce_scatter", moved.axes, moved.bytes)
    stays = stays_scatter(part, collective.scatter_dim, left.devices, prices.compiler.devices)
    return replace(moved, sent=(left,)) if stays else moved


def is_scattered_sum(planned: Planned, read: KernelRead, value: int) -> bool:
    """Whether the kernel's partial sums settle split over exactly the axes that they are summed over."""
    reduced = summed_parts(planned, read)
    if not reduced or len(read.kernel.results) != 1 or value not in planned.produced:
        return False
    return adds_exactly(planned.produced[value], planned.settled[value], reduced)


def is_summed_on_the_way(planned: Planned, read: KernelRead, value: int, prices: Prices) -> bool:
    """Whether what the kernel adds up is brought from addends to what settles in one change of sharding."""
    if value not in planned.produced or not prices.merges_slices or not summed_parts(planned, read):
        return False
    made, settled = planned.produced[value], planned.settled[value]
    is_moved = made != settled and made.unreduced == settled.unreduced and not settled.is_foreign
    return is_moved and not is_scattered_sum(planned, read, value)


def looped_sums(planned: Planned, reads: Reads, prices: Prices) -> frozenset[int]:
    """Values whose sum a loop scatters with the product."""
    if prices.lowering != "xla-tpu":
        return frozenset()
    return frozenset(
        value
        for read in reads.kernels
        for value in read.kernel.results
        if is_scattered_sum(planned, read, value)
        and _in_product(planned, read, value, axis_refs(summed_parts(planned, read), planned.mesh), prices)
    )


def adds_exactly(produced: TensorSharding, settled: TensorSharding, reduced: Parts) -> bool:
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


def _windows(planned: Planned, read: KernelRead, prices: Prices) -> Iterator[Moved]:
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
        sent_bytes = -(-sharding.local_bytes(type_sent(prices, type_, travels)) // max(local_rows, 1))
        for factor in rule.operands[window.operand][window.dim]:
            if factors[factor] and rule.factors[factor].kind is FactorKind.PERMUTATION:
                axes = axis_refs(factors[factor], planned.mesh)
                whole = type_.shape[window.dim]
                halos = sorted(rows_from_others(window, whole, num_shards(factors[factor])), reverse=True)
                each = [sent_for(prices.compiler, HALO, axes, rows * sent_bytes) for rows in halos]
                if prices.lowering == "xla-tpu" and runs_over(window, whole):
                    sent = type_sent(prices, type_, travels)
                    dtype = sent.dtype if 8 * sent_bytes == dtype_bits(sent.dtype) else ""
                    each = [
                        sent_for_running(
                            prices.compiler, kernel.shape.name, window, whole, axes, sent_bytes, dtype
                        ),
                        *([()] * (len(halos) - 1)),
                    ]
                for rows, one in zip(halos, each, strict=True):
                    yield Moved(HALO, axes, rows * row_bytes, kernel.repeat, kernel.ops[-1], one)


def _sites(kernel: Kernel, value: int, operand: int) -> tuple[Site, ...]:
    """Where the kernel reads what its root has as this operand."""
    site = (kernel.ops[-1], operand)
    return next(use.sites for use in kernel.uses if use.value == value and site in use.sites)
