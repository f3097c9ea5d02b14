"""Which bytes a kernel moves between memory and the chip, as counts of its operands and results.

Elementwise kernels and reductions between two matrix products are fused side by side (XLA's multi-output fusion), so that each buffer
is read once for all of them, and what one of them writes is not read again by the next of the same shape. The result of a product that
one elementwise kernel alone reads is not stored at all: that kernel is worked out as the product leaves the matrix unit (XLA's output
fusion; seen with libtpu 0.0.51 for v5e in ResNet-50, whose 41.5 ms of forward pass were predicted at 57.7 with those stores and loads).
Nor is a product of which a slice alone is read: XLA slices the operands (logits of all positions but the last).

A compiler whose products are apart (XLA for GPUs, where they are a library's) does less. Products store what they make, and each kernel
reads what it needs, but for two cases: reductions of rows are one kernel with the elementwise work that reads these next (softmax, layer
normalization), and new state is worked out side by side. A scatter into what has no buffer writes that first. Seen in the kernels of 26
programs on an H200 (experiments/calibration).

Any compiler copies an argument that is not donated before it is updated in place (half of the time of GPT-2's decode step on an H100; one
that a loop carries is not charged for), and a product reads what is cast on the way as wide as that is stored, where it is wider.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import is_elementwise
from autoshard.program.records import Kernel, KernelShape

MOVES_NOTHING = frozenset(
    {"stablehlo.reshape", "stablehlo.bitcast_convert", "stablehlo.get_dimension_size"}
    | {"sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier"}
    | {
        "stablehlo.all_gather",
        "stablehlo.all_reduce",
        "stablehlo.all_to_all",
        "stablehlo.collective_broadcast",
    }
    | {"stablehlo.collective_permute", "stablehlo.reduce_scatter"}  # their price is that of the collective
)
READS_WHAT_IT_WRITES = frozenset({"stablehlo.gather", "stablehlo.slice", "stablehlo.dynamic_slice"})
UPDATES_IN_PLACE = frozenset({"stablehlo.dynamic_update_slice", "stablehlo.scatter"})

_SLICE, _REDUCE = "stablehlo.slice", "stablehlo.reduce"

Traffic = tuple[tuple[int, ...], int]  # how often the bytes of each operand move, and of the results


class Apart(NamedTuple):
    """Of a program whose compiler's products are apart: new state, and what products read and scatters make, which is stored."""

    state: frozenset[int]
    stored: frozenset[int]


@dataclass(slots=True)
class Segment:
    """What kernels since the last matrix product have on the chip, by region: what is behind values; where products are apart, single
    buffers that sums of rows have read or made, and, whatever comes between, those that the update of state has.

    Of the whole program so far: `kept` says which argument that it may not write over is behind a value, `names` are of what has a buffer,
    `casts` says how many bytes are read for one of a value without a buffer.
    """

    kept: dict[int, int] = field(default_factory=dict[int, int])
    names: set[int] = field(default_factory=set[int])
    casts: dict[int, int] = field(default_factory=dict[int, int])
    on_chip: set[tuple[int, frozenset[int]]] = field(default_factory=set[tuple[int, frozenset[int]]])
    rows: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    updating: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    def make_where_read(
        self, root: Op, read: Sequence[int], listing: Listing, buffers: Mapping[int, frozenset[int]]
    ) -> None:
        """Takes note of what the root, which has no buffer, is made of, where that is one value: how wide it is, and whether one may write
        over it."""
        if len(read) != 1 or not root.results:
            return
        if read[0] in self.kept:
            self.kept.update(dict.fromkeys(root.results, self.kept[read[0]]))
        if root.name in MOVES_NOTHING and (read[0] not in buffers or read[0] in self.names):
            self.names.update(root.results)
        made, stored = (listing.values[value].type for value in (root.results[0], read[0]))
        if made is not None and stored is not None and made.num_elements == stored.num_elements > 0:
            wide = stored.num_bytes * self.casts.get(read[0], 1) // made.num_bytes
            self.casts[root.results[0]] = max(wide, 1)


def traffic(
    root: Op,
    uses: Sequence[tuple[int, Sequence[int]]],
    buffers: Mapping[int, frozenset[int]],
    segment: Segment,
    apart: Apart | None,
    *,
    is_fused: bool,
) -> Traffic:
    """Counts for one kernel; `segment` is brought up to date.

    Args:
        uses: value and positions among the root's operands (none where an inner op reads it) of each operand of the kernel.
        buffers: those behind each value that is recomputed.
        apart: None where products are not.
        is_fused: elementwise, or a reduction.
    """
    if root.name in MOVES_NOTHING:
        return (0,) * len(uses), 0
    if root.name in READS_WHAT_IT_WRITES:
        return (0,) * len(uses), 2
    if root.name in UPDATES_IN_PLACE:
        return _updated(root, uses, buffers, segment, is_apart=apart is not None)
    if root.is_matmul:
        segment.on_chip.clear()
        segment.rows.clear()
        return tuple(segment.casts.get(value, 1) for value, _ in uses), 1
    if not is_fused:
        return (1,) * len(uses), 1
    if apart is not None:
        return _apart(root, uses, buffers, segment, apart)
    counts: list[int] = []
    for value, _ in uses:
        key = (root.region, buffers.get(value, frozenset({value})))
        counts.append(0 if key in segment.on_chip else 1)
        segment.on_chip.add(key)
    if root.name != _REDUCE:
        segment.on_chip.update((root.region, frozenset({value})) for value in root.results)
    return tuple(counts), 1


def _updated(
    root: Op,
    uses: Sequence[tuple[int, Sequence[int]]],
    buffers: Mapping[int, frozenset[int]],
    segment: Segment,
    *,
    is_apart: bool,
) -> Traffic:
    """Of an update in place; what is kept is copied for it, and where products are apart, what has no buffer is made."""
    is_whole = [any(p < len(root.results) for p in positions) for _, positions in uses]
    updated = {value for is_it, (value, _) in zip(is_whole, uses, strict=True) if is_it}
    is_kept = bool(updated) and updated <= segment.kept.keys()
    is_made = int(is_kept or (is_apart and updated <= buffers.keys() - segment.names))
    return tuple(is_made if is_it else 2 for is_it in is_whole), is_made


def _apart(
    root: Op,
    uses: Sequence[tuple[int, Sequence[int]]],
    buffers: Mapping[int, frozenset[int]],
    segment: Segment,
    apart: Apart,
) -> Traffic:
    """Of elementwise work or a reduction where products are apart."""
    is_update = not apart.state.isdisjoint(root.results)
    is_reduction = root.name == _REDUCE and _is_of_rows(root)
    counts: list[int] = []
    for value, _ in uses:
        behind = {segment.kept[value]} if value in segment.kept else buffers.get(value, {value})
        read = {(root.region, buffer) for buffer in behind}
        counts.append(0 if read <= segment.rows or (is_update and read <= segment.updating) else 1)
        if is_update:
            segment.updating |= read
        elif is_reduction:
            segment.rows |= read
        else:
            segment.rows -= read
    made = {(root.region, value) for value in root.results}
    if is_update:
        segment.updating |= made
    elif is_reduction:
        segment.rows |= made
    return tuple(counts), 1


def _is_of_rows(reduction: Op) -> bool:
    """Whether it adds up the last dimensions, so that a row is read once for it and for what comes of it."""
    if reduction.rule is None:
        return False
    kept = {factor for dim in reduction.rule.results[0] for factor in dim}
    goes = [kept.isdisjoint(dim) for dim in reduction.rule.operands[0]]
    return any(goes) and goes == sorted(goes)


def fuse_into_products(
    kernels: Sequence[Kernel],
    listing: Listing,
    buffers: Mapping[int, frozenset[int]],
    pinned: frozenset[int],
    interned: dict[KernelShape, KernelShape],
) -> tuple[Kernel, ...]:
    """The kernels with the counts of products and of what is worked out on their results.

    Args:
        buffers: those behind each value that is recomputed.
        pinned: values that are stored in any case.
    """
    readers: dict[int, list[tuple[int, int]]] = {}
    for index, kernel in enumerate(kernels):
        for position, use in enumerate(kernel.uses):
            for buffer in () if kernel.is_alias else buffers.get(use.value, (use.value,)):
                readers.setdefault(buffer, []).append((index, position))
    found = list(kernels)
    for index, kernel in enumerate(kernels):
        if not kernel.shape.is_matmul or len(kernel.results) != 1 or kernel.results[0] in pinned:
            continue
        match readers.get(kernel.results[0], []):
            case [(reader, position)] if _continues(kernel, kernels[reader], listing):
                found[index] = _with_counts(kernel, kernel.shape.reads, 0, interned)
                reads = list(found[reader].shape.reads)
                reads[position] = 0
                found[reader] = replace(
                    _with_counts(found[reader], tuple(reads), 1, interned), is_in_place=True
                )
            case _:
                pass
    return tuple(found)


def _continues(product: Kernel, reader: Kernel, listing: Listing) -> bool:
    root = listing.ops[reader.time]
    return (
        ((is_elementwise(root) and reader.shape.writes == 1) or (root.name == _SLICE and not reader.is_alias))
        and root.region == listing.ops[product.time].region
        and reader.repeat == product.repeat
    )


def _with_counts(
    kernel: Kernel, reads: tuple[int, ...], writes: int, interned: dict[KernelShape, KernelShape]
) -> Kernel:
    shape = replace(kernel.shape, reads=reads, writes=writes)
    return replace(kernel, shape=interned.setdefault(shape, shape))
