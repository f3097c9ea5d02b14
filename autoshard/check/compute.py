"""The time of every kernel under the plan: a roofline on what one device does.

    operations on one device = operations * prod_f ceil(size_f / shards_f) / size_f      over the factors f of the root op's rule

A matrix product is [m, k] by [k, n]: factors of both operands and the result are its batch, those that the result lacks its k, but for the
groups of a ragged one, of which each row meets one (`Hardware.multiplies_all_groups`: all); operations that the factors do not show (taps
of a window) lengthen k, and so do columns that strips of few images have twice; libraries for GPUs take longer for short rows, and for
windows that they go through in turn (`matmul_roofline`). A product whose result the shape says is not written is worked on as it leaves the
matrix unit, unless it is summed over devices or resharded before: then it is written, and read as it settles. What stays near in a loop, in
vector memory, moves nothing.
"""

import math

import numpy as np

from autoshard.check.parts import num_shards
from autoshard.check.planned import Planned
from autoshard.check.reads import KernelRead, Reads, summed_parts
from autoshard.check.sums_left import LeftSums
from autoshard.program import DOTS, strip_cut
from autoshard.sharding import OpShardingRule, TensorSharding, TensorType
from costmodels import Hardware, whole_ns


def compute_ns(planned: Planned, reads: Reads, left: LeftSums, hardware: Hardware) -> int:
    """Sum over all kernels, each as often as it runs."""
    known: dict[object, int] = {}
    total = 0
    for read in reads.kernels:
        written = _written(planned, read, left)
        key = (id(read.kernel.shape), id(read.run.rule), read.run.factors, read.shardings, written)
        if key not in known:
            known[key] = _kernel_ns(read, written, hardware)
        total += known[key] * read.kernel.repeat
    return total


def kernel_ns(planned: Planned, read: KernelRead, hardware: Hardware) -> int:
    """Of one run of one kernel, of a compiler that leaves no sum to a reader: only loops of XLA:TPU are asked for."""
    return _kernel_ns(read, _written(planned, read, LeftSums()), hardware)


def peak_ns(read: KernelRead, hardware: Hardware) -> float:
    """What the operations of one run of a product take at the peak rate."""
    sizes = [
        (factor.size, num_shards(parts))
        for factor, parts in zip(read.run.rule.factors, read.run.factors, strict=True)
    ]
    share = math.prod(-(-size // shards) / size for size, shards in sizes)
    rate = hardware.peak_flop_per_s(read.kernel.shape.dtype)
    return 1e9 * read.kernel.shape.flops * share / rate


def _written(
    planned: Planned, read: KernelRead, left: LeftSums
) -> tuple[tuple[TensorSharding, TensorType], ...]:
    """What the kernel writes; beside it, what its reader reads of a product that cannot go on as it leaves the matrix unit."""
    kernel = read.kernel
    types = dict(zip(kernel.results, kernel.shape.results, strict=True))
    whole = {value: TensorSharding.replicated_closed(type_.rank) for value, type_ in types.items()}
    made = {value: planned.produced.get(value, whole[value]) for value in types}
    settled = {value: planned.settled.get(value, made[value]) for value in types} | {
        value: left.scattered[value] for value in types if value in left.scattered
    }
    written = [(made[value], type_) for value, type_ in types.items()]
    if not kernel.shape.is_fused_product:
        return tuple(written) * kernel.shape.writes
    stays = made == settled and (kernel.shape.sums_later or not summed_parts(planned, read))
    return () if stays else (*written, *((settled[value], type_) for value, type_ in types.items()))


def _kernel_ns(
    read: KernelRead, written: tuple[tuple[TensorSharding, TensorType], ...], hardware: Hardware
) -> int:
    shape, rule = read.kernel.shape, read.run.rule
    sizes = [
        -(-factor.size // num_shards(parts))
        for factor, parts in zip(rule.factors, read.run.factors, strict=True)
    ]
    bytes_ = _bytes_moved(read, written, hardware)
    if not shape.is_matmul:
        whole = math.prod(factor.size for factor in rule.factors)
        local = shape.flops * math.prod(sizes) / max(whole, 1)
        launched = hardware.kernel_ns(flops=local, bytes=bytes_, dtype=shape.dtype)
        is_part_of_readers = not shape.writes and not any(shape.reads)
        return (
            launched - hardware.kernel_ns(flops=0, bytes=0, dtype=shape.dtype)
            if is_part_of_readers
            else launched
        )
    m, k, n, batch = _matmul_sizes(rule, sizes, shape.flops)
    if hardware.multiplies_all_groups:
        k *= math.prod(sizes[factor] for factor in _groups(rule))
    if (cut := strip_cut(shape)) is not None:  # few images are worked on in strips, which overlap
        images, columns = (
            math.prod(sizes[factor] for factor in rule.operands[0][dim])
            if rule.operands[0][dim]
            else shape.operands[0].shape[dim]
            for dim in (cut.batch, cut.columns)
        )
        k *= float(
            hardware.worked_columns(np.asarray([images]), np.asarray([columns]), cut.taps, cut.step)[0]
        )
    line = hardware.matmul_roofline(
        m=m,
        k=k,
        n=n,
        batch=batch,
        dtype=shape.dtype,
        bytes=bytes_,
        rows=_rows(rule, sizes) if shape.name in DOTS else (),
        in_turn=shape.in_turn,
    )
    return int(whole_ns(line.ns))


def _rows(rule: OpShardingRule, sizes: list[int]) -> tuple[int, ...]:
    """Elements of the last dimension of a dot's operands and result on one device."""
    mappings = (*rule.operands, *rule.results)
    return tuple(math.prod(sizes[factor] for factor in mapping[-1]) if mapping else 1 for mapping in mappings)


def _matmul_sizes(rule: OpShardingRule, sizes: list[int], flops: int) -> tuple[int, float, int, int]:
    lhs, rhs, result = (
        {factor for dim in mapping for factor in dim} for mapping in (*rule.operands[:2], rule.results[0])
    )
    of_groups = _groups(rule) | {f for mapping in rule.operands[2:] for dim in mapping for f in dim}
    factors = set(range(len(sizes))) - of_groups
    batch, k = lhs & rhs & result, factors - result
    m = (lhs & result) - batch
    n = factors - batch - k - m
    shown = 2 * math.prod(factor.size for factor in rule.factors)
    hidden = max(flops / shown, 1.0) if shown else 1.0
    m_size, k_size, n_size, batch_size = (math.prod(sizes[f] for f in part) for part in (m, k, n, batch))
    return m_size, k_size * hidden, n_size, batch_size


def _groups(rule: OpShardingRule) -> set[int]:
    """The factors of a ragged product's groups: of its second operand or its result alone. It has a third, their sizes."""
    lhs, rhs, result = (
        {factor for dim in mapping for factor in dim} for mapping in (*rule.operands[:2], rule.results[0])
    )
    return (rhs ^ result) - lhs if any(rule.operands[2:]) else set()


def _bytes_moved(
    read: KernelRead, written: tuple[tuple[TensorSharding, TensorType], ...], hardware: Hardware
) -> int:
    """Bytes between one device and its memory in one run; the shape says how often each operand counts."""
    shape = read.kernel.shape
    sizes = [sharding.local_bytes(type_) for sharding, type_ in written]
    total = sum(size for size in sizes if not (shape.is_near and hardware.keeps_near(size, shape.loop_bytes)))
    for position, (sharding, type_) in enumerate(zip(read.shardings, shape.operands, strict=True)):
        count, spared = shape.reads[position], shape.near_reads[position] if shape.near_reads else 0
        if spared and hardware.keeps_near(sharding.local_bytes(shape.travels[position]), shape.loop_bytes):
            count -= spared
        total += count * sharding.local_bytes(type_)
    return total
