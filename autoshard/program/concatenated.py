"""Concatenations that XLA makes where they are read, and those whose parts are written into them.

XLA:TPU takes a concatenation of up to four parts for elementwise work: the greatest of the parts, each padded to the whole by minus
infinity, which every reader makes anew. Products and convolutions do so as they read their operands, and so do sums of normalizations
and elementwise work; of what is returned, reshaped, gathered from or updated none does. What gathers and scatters make lies in another
layout, so that it or the whole is laid out anew: taken as the whole. A concatenation of another counts with the parts of that. Of more
parts the whole is stored, where each begins with a tile from when the first is made: what it alone reads is written there. Seen of libtpu
0.0.52 on v5e, v6e and v5p, forward and backward: 80 small modules with products of matrices and sequences, convolutions of images and
densely connected blocks; of two to 40 parts, along features and rows.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.additions import PASSED
from autoshard.program.fusion import BROADCAST, is_elementwise, is_reduction
from autoshard.program.pooled import POOL
from autoshard.program.records import Kernel, Lifetime
from autoshard.program.repeating import Readers, read_times, readers_of

CONCATENATE = "stablehlo.concatenate"
MOST_PARTS = 4
FULL_LANES = 128
"""Images of a device, if they are split over all, from which on these are the lanes of what convolutions make, and not the channels: then
parts of several concatenations are written into each (libtpu 0.0.52, densely connected blocks of 16 to 128 images). Unless one part has
as many channels: these are the lanes then (DenseNet-121, but for its first block)."""
_FUSING = frozenset({CONCATENATE, BROADCAST, "stablehlo.slice", "stablehlo.pad"})
_TILE_ROWS = 16
_OF_IMAGES = frozenset({"stablehlo.convolution", POOL})
_ROWS = frozenset({"stablehlo.gather", "stablehlo.scatter"})
_LOOKED_THROUGH = frozenset({"sdy.sharding_constraint", "sdy.reshard"})


def made_where_read(
    listing: Listing, pinned: frozenset[int], transposed: frozenset[int], free: frozenset[int]
) -> dict[int, tuple[int, ...]]:
    """Concatenations that all of their readers make, and the parts of each, those of parts among them.

    Args:
        pinned: values that keep a buffer of their own.
        transposed: values that products alone read, as they lie before.
        free: constants, and what is made of them.
    """
    stored, read_whole = set(pinned), set[int]()
    for op in reversed(listing.ops):
        is_name = _is_looked_through(op, transposed)
        if is_name and not stored.isdisjoint(op.results):
            stored.update(op.operands)
        is_whole = not (is_name or _is_fusing(op))
        if is_whole or ((is_name or is_elementwise(op)) and not read_whole.isdisjoint(op.results)):
            read_whole.update(op.operands)
    parts: dict[int, tuple[int, ...]] = {}
    in_rows = _in_rows(listing, transposed)
    made_by = {op.results[0]: op for op in listing.ops if op.name == CONCATENATE}
    of_all: dict[int, tuple[int, ...]] = {}
    for value, op in made_by.items():
        inner = (
            of_all[one]
            if one in of_all and joined_along(made_by[one], listing) == joined_along(op, listing)
            else (one,)
            for one in op.operands
        )
        found = of_all[value] = tuple(islice(chain.from_iterable(inner), MOST_PARTS + 1))  # or too many
        is_of_few = len(found) <= MOST_PARTS and len(set(op.operands) - free) > 1
        if is_of_few and value not in stored | read_whole and in_rows.isdisjoint(found):
            parts[value] = found
    return parts


def _in_rows(listing: Listing, transposed: frozenset[int]) -> frozenset[int]:
    """What gathers and scatters make, also with elementwise work done on it and under other names."""
    found: set[int] = set()
    for op in listing.ops:
        is_name = op.name in PASSED or _is_looked_through(op, transposed)
        if op.name in _ROWS or ((is_name or is_elementwise(op)) and not found.isdisjoint(op.operands)):
            found.update(op.results)
    return frozenset(found)


def read_again(
    listing: Listing, parts: Mapping[int, Sequence[int]], transposed: frozenset[int]
) -> frozenset[int]:
    """Parts of what several ops make where they read it: these read what is stored."""
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for index, op in reversed(list(enumerate(listing.ops))):
        is_name = _is_looked_through(op, transposed)
        for value in op.operands:
            readers[value] |= readers[op.results[0]] if is_name and op.results else {index}
    again = (found for value, found in parts.items() if len(readers[value]) > 1)
    return frozenset(part for found in again for part in found)


def written_into_whole(
    kernels: Sequence[Kernel],
    listing: Listing,
    pinned: frozenset[int],
    lives: Mapping[int, Lifetime],
    devices: int,
) -> dict[int, Lifetime]:
    """The lives of values with the parts of stored concatenations of many in these, but for few images that several of them have."""
    readers, found = readers_of(kernels), dict(lives)
    made = {kernel.results[0]: kernel for kernel in kernels if len(kernel.results) == 1}
    written: defaultdict[int, set[int]] = defaultdict(set)  # of each buffer, when it is written into wholes
    joined, buffers = joined_parts(made, listing), _buffers(made, listing)
    of_many = [
        (kernel, parts.values, {buffers.get(part, part) for part in parts.values})
        for kernel in kernels
        if not kernel.is_alias
        and len(kernel.results) == 1
        and (parts := joined.get(kernel.results[0])) is not None
        and parts.number > MOST_PARTS
    ]
    counts = Counter(part for _, _, parts in of_many for part in parts)
    for kernel, values, all_parts in of_many:
        (whole,), op = kernel.results, listing.ops[kernel.time]
        are_many = _rows(op, listing) >= FULL_LANES * devices
        is_written = are_many or all(counts[part] == 1 for part in all_parts)
        parts = all_parts if is_written else set[int]()
        makers = [maker for part in parts if (maker := _maker(part, made, kernel, listing)) is not None]
        if found[whole].is_own_buffer and makers and _are_aligned(op, values, makers, listing):
            begin = min(_fused_with(maker, made).time for maker in makers)
            found[whole] = replace(found[whole], begin=min(begin, found[whole].begin))
            for maker in makers:
                written[maker.results[0]].add(kernel.time)
    found = _kept_for_outer(of_many, written, made, readers, found, pinned)
    for part, times in written.items():
        others = read_times(part, readers) - times
        if found[part].end == max(times) + 1 and part not in pinned:
            end = max(others, default=found[part].begin) + 1
            is_apart = found[part].is_own_buffer and bool(others)
            found[part] = replace(found[part], end=end, is_own_buffer=is_apart, within=None)
    return found


def _kept_for_outer(
    of_many: Sequence[tuple[Kernel, frozenset[int], Collection[int]]],
    written: Mapping[int, Collection[int]],
    made: Mapping[int, Kernel],
    readers: Readers,
    lives: Mapping[int, Lifetime],
    pinned: frozenset[int],
) -> dict[int, Lifetime]:
    """The lives of values with those of parts up to the last concatenation that they are in, and with those of concatenations in others
    up to what else reads them: the outer one reads the parts."""
    found = dict(lives)
    wholes = {kernel.results[0]: parts for kernel, parts, _ in of_many}
    outer: defaultdict[int, set[int]] = defaultdict(set)  # of each whole, when others of its parts are made
    for kernel, parts, buffers in of_many:
        for part in buffers:
            is_read = kernel.time not in written.get(part, ()) and part in made and part in found
            if is_read and made[part].repeat == kernel.repeat and found[part].is_own_buffer:
                found[part] = replace(found[part], end=max(found[part].end, kernel.time + 1))
        for use in kernel.uses:
            if use.value in wholes and wholes[use.value] <= parts:
                outer[use.value].add(kernel.time)
    for whole, times in outer.items():
        others = read_times(whole, readers) - times
        if found[whole].end == max(times) + 1 and whole not in pinned and others:
            found[whole] = replace(found[whole], end=max(others) + 1)
    return found


def _buffers(made: Mapping[int, Kernel], listing: Listing) -> dict[int, int]:
    """Of elementwise work without a buffer, what it is done on."""
    found: dict[int, int] = {}
    for value, kernel in made.items():
        if kernel.is_alias and len(kernel.uses) == 1:
            (use,) = kernel.uses
            before, after = (listing.values[one].type for one in (use.value, value))
            if before is not None and after is not None and before.num_elements == after.num_elements:
                found[value] = found.get(use.value, use.value)
    return found


def _maker(value: int, made: Mapping[int, Kernel], reader: Kernel, listing: Listing) -> Kernel | None:
    """What can write a part of what the reader makes."""
    maker = made.get(value)
    if maker is None or maker.is_alias or maker.repeat != reader.repeat:
        return None
    is_maker = maker.shape.is_matmul or maker.shape.name == POOL or is_elementwise(listing.ops[maker.time])
    return maker if is_maker else None


def _fused_with(kernel: Kernel, made: Mapping[int, Kernel]) -> Kernel:
    """Itself, or the pooling that it is elementwise work on."""
    pools = [
        made[use.value] for use in kernel.uses if use.value in made and made[use.value].shape.name == POOL
    ]
    return pools[0] if len(pools) == 1 else kernel


def _rows(op: Op, listing: Listing) -> int:
    """How long the first dimension is, of images their number."""
    type_ = listing.values[op.results[0]].type
    return type_.shape[0] if type_ is not None and type_.rank else 0


class Joined(NamedTuple):
    """What a concatenation is of: so many parts, some of which may be the same."""

    number: int
    values: frozenset[int]


def joined_parts(made: Mapping[int, Kernel], listing: Listing) -> dict[int, Joined]:
    """The parts of each concatenation, for those that are concatenations along the same dimension the parts of these."""
    found: dict[int, Joined] = {}
    along: dict[int, int] = {}
    for value, kernel in made.items():
        if kernel.shape.name != CONCATENATE:
            continue
        op = listing.ops[kernel.time]
        along[value] = joined_along(op, listing)
        parts = [
            found[one] if along.get(one) == along[value] else Joined(1, frozenset({one}))
            for one in op.operands
        ]
        found[value] = Joined(
            sum(part.number for part in parts), frozenset[int]().union(*(part.values for part in parts))
        )
    return found


def _are_aligned(op: Op, joined: Collection[int], makers: Sequence[Kernel], listing: Listing) -> bool:
    """Whether each part begins with a tile."""
    dim = joined_along(op, listing)
    types = [type_ for value in joined if (type_ := listing.values[value].type) is not None]
    sizes = [type_.shape[dim] for type_ in types]
    if any(maker.shape.name in _OF_IMAGES for maker in makers):
        tile = FULL_LANES if max(sizes) >= FULL_LANES else _TILE_ROWS
    else:
        tile = {types[0].rank - 1: FULL_LANES, types[0].rank - 2: _TILE_ROWS}.get(dim, 1)
    return all(size % tile == 0 for size in sizes)


def _is_looked_through(op: Op, transposed: frozenset[int]) -> bool:
    return op.name in _LOOKED_THROUGH or not transposed.isdisjoint(op.results)


def _is_fusing(op: Op) -> bool:
    is_work = is_elementwise(op) or is_reduction(op) or op.name in _FUSING
    return op.collective is None and (is_work or op.is_matmul)


def joined_along(op: Op, listing: Listing) -> int:
    """The dimension along which the parts of a concatenation lie."""
    part, whole = (listing.values[value].type for value in (op.operands[0], op.results[0]))
    assert part is not None and whole is not None
    sizes = enumerate(zip(part.shape, whole.shape, strict=True))
    return next((dim for dim, (size, all_) in sizes if size != all_), -1)
