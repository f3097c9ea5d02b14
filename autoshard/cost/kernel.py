"""What a kernel costs under each of its strategies: a roofline on local shapes, plus the collectives that belong to the op itself.

Those are: the all-reduce of partial sums over the reduced axes (a reduce-scatter where the result settles split over exactly
those, which may go on while the product runs: `cost.scattering`; Shardy's steps from addends where it settles otherwise), the halo
exchange of windows, slices, pads and reverses along split dimensions, and the collective itself where the user wrote one. Work that is
replicated costs its full price on every device.

    flops_local = flops * prod_f ceil(size_f / shards_f) / size_f        over the factors f of the rule

A product that a compiler works on as it leaves the matrix unit is neither written nor read, unless it is summed over devices or resharded
in between: then it is written as it is made and read as it settles, or as a reader that its sum is left to (`cost.sums_left`) scatters it.
What a loop keeps near (`program.nearby`) is neither written nor read either where vector memory keeps what a device has of it, as narrow as
its readers take it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.halo import halo_rows
from autoshard.cost.layouts import Ints, LayoutsByRank
from autoshard.cost.lowering import CollectivePrices, Emitted
from autoshard.cost.padding import scattered
from autoshard.cost.reshard import Collective, ReshardPrices
from autoshard.cost.running import emitted_spanning, spans_all
from autoshard.cost.scattering import scattered_in_product
from autoshard.program import DOTS, KernelShape, minor_of_scattered, stays_scatter, strip_cut
from autoshard.sharding import (
    AxisRef,
    FactorKind,
    Mesh,
    TensorSharding,
    TensorType,
    dtype_bits,
    tensor_sharding,
    total_size,
)
from autoshard.space import Strategy
from costmodels import Hardware, Roofline, whole_ns

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KernelPrices:
    """Per strategy: compute, communication of the op itself (both ns for one run), and what that consists of."""

    compute_ns: Ints
    collective_ns: Ints
    collectives: tuple[tuple[Collective, ...], ...]
    whole_sum_ns: Ints  # of an all-reduce that the result settles after, which may go on after a loop; in `collective_ns`

    @property
    def total_ns(self) -> Ints:
        return self.compute_ns + self.collective_ns


def price_kernel(
    shape: KernelShape,
    strategies: Sequence[Strategy],
    hardware: Hardware,
    prices: CollectivePrices,
    reshards: ReshardPrices,
    layouts: LayoutsByRank,
    mesh: Mesh,
) -> KernelPrices:
    """Prices of all strategies of a kernel shape; `reshards` must know the pairs (produced, settled)."""
    work = local_work(shape, strategies, hardware)
    kernel_ns = _work_ns(shape, work, hardware)
    collectives = tuple(
        tuple(_own_collectives(shape, strategy, int(ns), float(flops), prices, reshards, layouts, mesh))
        for strategy, ns, flops in zip(strategies, kernel_ns, work.flops, strict=True)
    )
    return KernelPrices(
        kernel_ns,
        np.asarray([sum(c.ns for c in mine) for mine in collectives], dtype=np.int64),
        collectives,
        np.asarray(list(map(_whole_sum_ns, strategies, collectives)), dtype=np.int64),
    )


def _whole_sum_ns(strategy: Strategy, collectives: Sequence[Collective]) -> int:
    if len(strategy.settled) != 1 or strategy.settled != strategy.produced:
        return 0
    return sum(one.ns for one in collectives if one.kind == "all_reduce")


@dataclass(frozen=True, slots=True)
class LocalWork:
    """[K] what one device does in one run under each strategy; `matmul` is m, k, n and batch of a contraction, `rows` a dot's.

    `in_turn`: positions of a window that are gone through in turn, and places for it, which count towards k.
    """

    flops: Floats
    bytes: Floats
    dtype: str
    matmul: tuple[Floats, Floats, Floats, Floats] | None
    rows: tuple[Floats, ...]
    in_turn: tuple[int, int]

    def roofline(self, hardware: Hardware) -> Roofline:
        """What bounds it; arrays [K]."""
        if self.matmul is None:
            return hardware.kernel_roofline(self.flops, self.bytes, self.dtype)
        m, k, n, batch = self.matmul
        return hardware.matmul_roofline(
            m=m,
            k=k,
            n=n,
            batch=batch,
            dtype=self.dtype,
            bytes=self.bytes,
            rows=self.rows,
            in_turn=self.in_turn,
        )


def local_work(shape: KernelShape, strategies: Sequence[Strategy], hardware: Hardware) -> LocalWork:
    """The work of a kernel on local shapes, by the formula above."""
    sizes = np.asarray(
        [
            [
                -(-factor.size // total_size(axes))
                for factor, axes in zip(shape.rule.factors, s.factor_axes, strict=True)
            ]
            for s in strategies
        ],
        dtype=np.float64,
    ).reshape(len(strategies), len(shape.rule.factors))
    whole = math.prod(factor.size for factor in shape.rule.factors)
    strips = _strip_share(shape, sizes, hardware)
    flops = shape.flops * np.prod(sizes, axis=1) / max(whole, 1) * strips
    bytes_ = np.asarray([_bytes_moved(shape, s, hardware) for s in strategies], dtype=np.float64)
    dims = _matmul_dims(shape, sizes, strips, hardware) if shape.is_matmul else None
    return LocalWork(flops, bytes_, shape.dtype, dims, tuple(_rows(shape, sizes)), shape.in_turn)


def _rows(shape: KernelShape, sizes: Floats) -> Iterator[Floats]:
    """[K] elements of the last dimension of a dot's operands and result; of convolutions a library chooses which is last."""
    if shape.name in DOTS:
        for mapping in (*shape.rule.operands, *shape.rule.results):
            yield np.prod(sizes[:, list(mapping[-1])], axis=1) if mapping else np.ones(len(sizes))


def compute_ns(shape: KernelShape, strategies: Sequence[Strategy], hardware: Hardware) -> Ints:
    """[K] ns of the kernel on one device; one that moves no bytes is repeated in its readers and has no launch of its own."""
    return _work_ns(shape, local_work(shape, strategies, hardware), hardware)


def _work_ns(shape: KernelShape, work: LocalWork, hardware: Hardware) -> Ints:
    line = work.roofline(hardware)
    ns = np.asarray(whole_ns(np.asarray(line.ns)), dtype=np.int64)
    return ns - int(whole_ns(line.overhead_ns)) if is_part_of_readers(shape) else ns


def is_part_of_readers(shape: KernelShape) -> bool:
    """Whether the kernel moves no bytes and so has no launch of its own."""
    return not shape.is_matmul and not shape.writes and not any(shape.reads)


def _matmul_dims(
    shape: KernelShape, sizes: Floats, strips: Floats, hardware: Hardware
) -> tuple[Floats, Floats, Floats, Floats]:
    """[K] local m, k, n and batch of a contraction; operations that the factors do not show (windows, `strips`) count towards k, and so do
    the groups of a ragged one where all rows are multiplied by all of them.
    """
    m, k, n, batch, groups = (
        np.prod(sizes[:, [i for i, role in enumerate(shape.matmul_roles) if role == name]], axis=1)
        for name in "mknbg"
    )
    if hardware.multiplies_all_groups:
        k = k * groups
    shown = 2 * math.prod(factor.size for factor in shape.rule.factors)
    return m, k * strips * (max(shape.flops / shown, 1.0) if shown else 1.0), n, batch


def _strip_share(shape: KernelShape, sizes: Floats, hardware: Hardware) -> Floats:
    """[K] how much more a convolution works out where few images are cut into strips, which overlap."""
    cut = strip_cut(shape)
    if cut is None:
        return np.ones(len(sizes))
    images, width = (_rows_of(shape, sizes, dim) for dim in (cut.batch, cut.columns))
    return hardware.worked_columns(images, width, cut.taps, cut.step)


def _rows_of(shape: KernelShape, sizes: Floats, dim: int) -> Floats:
    """[K] local rows of a dimension of the first operand."""
    factors = shape.rule.operands[0][dim]
    rows = np.full(len(sizes), shape.operands[0].shape[dim], dtype=np.float64)
    return np.prod(sizes[:, list(factors)], axis=1) if factors else rows


def _bytes_moved(shape: KernelShape, strategy: Strategy, hardware: Hardware) -> int:
    read = sum(
        count * sharding.local_bytes(type_)
        for count, sharding, type_ in zip(shape.reads, strategy.operands, shape.operands, strict=True)
    )
    written = sum(_far(shape, strategy.produced, hardware))
    settled = sum(
        _far(shape, strategy.settled, hardware, total_size(strategy.reduced) if strategy.leaves_sum else 1)
    )
    read -= _read_near(shape, strategy, hardware)
    is_moved = strategy.produced != strategy.settled
    if shape.is_fused_product and (is_moved or (strategy.reduced and not shape.sums_later)):
        return read + written + settled
    return read + shape.writes * written


def _read_near(shape: KernelShape, strategy: Strategy, hardware: Hardware) -> int:
    operands = zip(shape.near_reads, strategy.operands, shape.operands, shape.travels, strict=False)
    return sum(
        count * sharding.local_bytes(type_)
        for count, sharding, type_, narrow in operands
        if count and hardware.keeps_near(sharding.local_bytes(narrow), shape.loop_bytes)
    )


def _far(
    shape: KernelShape, shardings: Sequence[TensorSharding], hardware: Hardware, parts: int = 1
) -> Iterator[int]:
    """Bytes of the results, or of one of so many parts of each, that go to memory."""
    for sharding, type_ in zip(shardings, shape.results, strict=True):
        bytes_ = sharding.local_bytes(type_) // parts
        if not (shape.is_near and hardware.keeps_near(bytes_, shape.loop_bytes)):
            yield bytes_


def _own_collectives(
    shape: KernelShape,
    strategy: Strategy,
    kernel_ns: int,
    local_flops: float,
    prices: CollectivePrices,
    reshards: ReshardPrices,
    layouts: LayoutsByRank,
    mesh: Mesh,
) -> list[Collective]:
    found = [*_of_additions(shape, strategy, prices, mesh), *_halo(shape, strategy, prices)]
    found += _user_collective(shape, strategy, prices)
    for number, type_ in enumerate(shape.results):
        produced, settled = strategy.produced[number], strategy.settled[number]
        ids, leaves = layouts[type_.rank], shape.leaves[number]
        is_merged = merges_sum(strategy, number, prices)
        made = strategy.addends(number, mesh) if is_merged else produced
        ends = ids.id_of(made), ids.id_of(settled)
        is_summed = bool(produced.unreduced and strategy.added)
        steps = reshards.collectives(type_, *ends, type_ if is_summed else leaves) if type_.rank else []
        if strategy.reduced and not strategy.leaves_sum and not is_merged:
            kind = "reduce_scatter" if strategy.is_scattered else "all_reduce"
            sent = shape.sent(number) if prices.narrows_maxima else type_
            bytes_ = produced.local_bytes(sent)
            inside = scattered_in_product(shape, strategy, kernel_ns, local_flops, prices, mesh)
            sum_ = replace(
                _sum(kind, strategy.reduced, bytes_, prices, shape), bytes=produced.local_bytes(type_)
            )
            if strategy.is_scattered and not type_.is_complex:
                minor = minor_of_scattered(shape)
                padded = scattered(prices, strategy.reduced, produced, settled, sent, minor)
                sum_ = replace(sum_, emitted=padded)
            found.append(sum_ if inside is None else inside)
        found.extend([] if strategy.is_scattered else steps)  # a scattered sum has its part already
    return found


def merges_sum(strategy: Strategy, result: int, prices: CollectivePrices) -> bool:
    """Whether a result is brought from addends to what it settles as in one change of sharding."""
    produced, settled = strategy.produced[result], strategy.settled[result]
    is_moved = produced != settled and produced.unreduced == settled.unreduced and not settled.is_foreign
    return prices.merges_slices and bool(strategy.reduced) and is_moved and not strategy.is_scattered


def inner_sums(shape: KernelShape, strategy: Strategy) -> tuple[int, ...]:
    """Which additions inside the kernel are summed there; one that is its result is summed as that settles, or by its reader."""
    return tuple(number for number in strategy.added if not shape.additions[number].is_result)


def _of_additions(
    shape: KernelShape, strategy: Strategy, prices: CollectivePrices, mesh: Mesh
) -> Iterator[Collective]:
    """The all-reduces of what the kernel adds up of addends, each as wide as it is."""
    for number in inner_sums(shape, strategy):
        addition = shape.additions[number]
        sharding = tensor_sharding(shape.rule, addition.mapping, strategy.factor_axes, mesh)
        assert sharding is not None, "operands that are split like the sum have been found"
        axes = strategy.operands[addition.operands[0]].unreduced
        yield _one("all_reduce", axes, sharding.local_bytes(addition.type), prices)


def _sum(
    kind: str, axes: tuple[AxisRef, ...], bytes_: int, prices: CollectivePrices, shape: KernelShape
) -> Collective:
    """What adds up a result, of which XLA has no all-reduce where several are reduced together: it gathers them.

    So are the halves of complex numbers, which it has apart; a product of such is three real ones.
    """
    one = _one(kind, axes, bytes_, prices)
    is_complex = any(type_.is_complex for type_ in shape.results)
    if prices.lowering != "xla-tpu" or not (is_complex or len(shape.results) > 1):
        return one
    half = bytes_ // 2 if is_complex else bytes_
    kind, count = ("all_reduce", 3) if shape.is_matmul else ("all_gather", 2 if is_complex else 1)
    emitted = (prices.carried_out(Emitted(kind, axes, half)),) * count
    return replace(one, ns=sum(map(prices.ns_of_emitted, emitted)), emitted=emitted)


def _one(
    kind: str, axes: tuple[AxisRef, ...], bytes_: int, prices: CollectivePrices, widening: int = 1
) -> Collective:
    priced_as = "collective_permute" if kind == "halo_exchange" else kind
    ns = prices.ns_of_one(priced_as, bytes_, axes, widening)
    emitted = prices.emitted(kind, bytes_, axes, widening)
    return Collective(kind, axes, bytes_, ns, emitted=emitted)


def _user_collective(
    shape: KernelShape, strategy: Strategy, prices: CollectivePrices
) -> Iterator[Collective]:
    """The costliest of what the user's collective may be, of the part that the axes left to the plan leave on a device.

    What it only moves travels as narrow as its readers take it, as a reshard does; what it sums or compares as it is.
    """
    user = shape.collective
    if user is None:
        return
    held = sent = 0
    for sharding, type_, leaves in zip(strategy.produced, shape.results, shape.leaves, strict=True):
        held += sharding.local_bytes(type_)
        sent += sharding.local_bytes(prices.sent(type_, leaves) if user.is_move else type_)
    held, sent = held * user.bytes_per_result_byte, sent * user.bytes_per_result_byte
    widening = max(held // max(sent, 1), 1)
    found: list[Collective] = []
    for axes in user.groups:
        one = replace(_one(user.kind, axes, sent, prices, widening), bytes=held)
        if user.kind == "reduce_scatter" and prices.lowering == "xla-tpu":
            type_ = shape.results[0]
            part = TensorType(strategy.produced[0].local_shape(type_.shape), type_.dtype)
            if stays_scatter(part, user.scatter_dim, total_size(axes), prices.devices):
                left = Emitted("reduce_scatter", axes, sent)
                one = replace(one, ns=prices.ns_of_emitted(left), emitted=(left,))
        found.append(one)
    yield max(found, key=lambda one: one.ns)


def _halo(shape: KernelShape, strategy: Strategy, prices: CollectivePrices) -> list[Collective]:
    """The rows of split windows that lie with other devices, a permute for each neighbour that has some."""
    found: list[Collective] = []
    for window in shape.windows:
        type_, sharding = shape.operands[window.operand], strategy.operands[window.operand]
        for factor in shape.rule.operands[window.operand][window.dim]:
            axes = strategy.factor_axes[factor]
            if not axes or shape.rule.factors[factor].kind is not FactorKind.PERMUTATION:
                continue
            rows = type_.shape[window.dim]
            local_rows = sharding.local_shape(type_.shape)[window.dim]
            sent = prices.sent(type_, shape.travels[window.operand])
            row_bytes, sent_bytes = (-(-sharding.local_bytes(t) // max(local_rows, 1)) for t in (type_, sent))
            halos = [
                replace(_one("halo_exchange", axes, count * sent_bytes, prices), bytes=count * row_bytes)
                for count in sorted(halo_rows(window, rows, total_size(axes)), reverse=True)
            ]
            if prices.lowering == "xla-tpu" and spans_all(window, rows):
                row = TensorType((sent_bytes * 8 // dtype_bits(sent.dtype),), sent.dtype)
                emitted = emitted_spanning(shape.name, window, rows, axes, row, prices)
                halos = [replace(one, ns=0, emitted=()) for one in halos]
                ns = sum(prices.ns_of_emitted(one) for one in emitted)
                halos[:1] = [replace(one, ns=ns, emitted=emitted) for one in halos[:1]]
            found += halos
    return found
