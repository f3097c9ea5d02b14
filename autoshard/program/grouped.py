"""What convolutions in groups of channels read and write lies group by group, beside what other kernels have of it.

XLA:TPU makes the groups a dimension of their own, so that channels of one group, or images, are along the lanes, padded to these: what the
convolution makes lies in tiles of images by channels of a group, what it reads in tiles of channels by groups. To and from the
dimension of all channels is a reshape that copies. So elementwise work is done once and stored as the convolutions read it, from the
first of them to the last (the filter's gradient), however cheap it is; sums of a result alone, as statistics of a normalization and their
gradients, read it as it is made, all else reads the copy that a transposed one is made for on the way.
Without a gradient of the filter what is read lies as what is made does. It is copied for that where all channels fill the lanes better
than images do, and none is transposed (libtpu 0.0.52, RegNetY forward on v5e).

Seen in what libtpu 0.0.51 compiles for v5e of training steps with blocks of 512 and 192 channels in groups of 4 to 256, bfloat16 and
float32, normalized in two ways or not, and of RegNetY. Depthwise convolutions have no such groups.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from autoshard.mlir.listing import Listing
from autoshard.program.beside import Beside
from autoshard.program.fusion import is_reduction
from autoshard.program.records import Kernel, MinorDims, Whole
from autoshard.program.repeating import readers_of
from autoshard.program.widths import Widths
from autoshard.sharding import TensorMapping

_CONVOLUTION = "stablehlo.convolution"


def stored_in_groups(
    kernels: Sequence[Kernel], listing: Listing, stored: Widths
) -> Iterator[tuple[int, Whole]]:
    """With the values that they hold.

    Args:
        stored: the types that values are stored in.
    """
    readers, seen = readers_of(kernels), set[int]()
    made = {value: kernel for kernel in kernels for value in kernel.results}
    sums = _sums_of_one(kernels, listing, made)
    for kernel in kernels:
        groups = _groups(kernel)
        if groups is None:
            continue
        (value,), mapping = kernel.results, kernel.shape.rule.results[0]
        as_made, moved = _layouts(kernel, mapping, groups.made[0])
        end = max(sums.get(value, 0), kernel.time) + 1
        yield value, Whole(kernel.time, end, stored.of_value(value), as_made, cut=groups.made)
        (read, *_), mapping = (use.value for use in kernel.uses), kernel.shape.rule.operands[0]
        times = [reader.time for reader in readers[read] if reader.shape.is_matmul]
        if len(times) > 1:
            yield value, Whole(kernel.time, kernel.time + 1, stored.of_value(value), moved, cut=groups.made)
        if read in made and read not in seen:
            seen.add(read)
            type_, end = kernel.shape.travels[0], max(times) + 1
            alone, again = _layouts(kernel, mapping, groups.read[0])
            if len(times) > 1:
                yield read, Whole(min(times), end, type_, again, cut=groups.read)
            else:
                are_lanes = Beside(groups.read[0], alone[1][0], is_padded_least=False)
                yield read, Whole(min(times), end, type_, alone, cut=groups.read, beside=are_lanes)


class _Groups(NamedTuple):
    """The dimension of several groups of several channels, and how many channels these have."""

    read: tuple[int, int]
    made: tuple[int, int]


def _groups(kernel: Kernel) -> _Groups | None:
    if kernel.shape.name != _CONVOLUTION or not kernel.shape.is_matmul:
        return None
    rule = kernel.shape.rule
    if not rule.operands:  # of constants
        return None
    read, made = (_grouped_dim(kernel, mapping) for mapping in (rule.operands[0], rule.results[0]))
    return None if read is None or made is None else _Groups(read, made)


def _grouped_dim(kernel: Kernel, mapping: TensorMapping) -> tuple[int, int] | None:
    sizes, roles = [factor.size for factor in kernel.shape.rule.factors], kernel.shape.matmul_roles
    for dim, factors in enumerate(mapping):
        size = math.prod(sizes[factor] for factor in factors if roles[factor] != "b")
        if 1 < size < math.prod(sizes[factor] for factor in factors):
            return dim, size
    return None


def _layouts(kernel: Kernel, mapping: TensorMapping, dim: int) -> tuple[MinorDims, MinorDims]:
    """Minor dimensions of what the matrix unit writes, and of what it reads; the groups come last."""
    slid = kernel.shape.slid_factors
    others = tuple(
        other
        for other, factors in enumerate(mapping)
        if other != dim and factors and slid.isdisjoint(factors)
    )
    return ((dim,), others, False), ((dim, *others), (len(mapping),), True)


def _sums_of_one(kernels: Sequence[Kernel], listing: Listing, made: Mapping[int, Kernel]) -> dict[int, int]:
    """When the last sum is made of a value alone, perhaps through elementwise work, and of what is smaller."""
    found: dict[int, int] = {}
    for kernel in kernels:
        if not is_reduction(listing.ops[kernel.time]):
            continue
        elements = max((type_.num_elements for type_ in kernel.shape.operands), default=0)
        buffers, left = set[int](), [use.value for use in kernel.uses]
        while left:
            value = left.pop()
            type_, maker = listing.values[value].type, made.get(value)
            if type_ is None or type_.num_elements < elements:
                continue
            if maker is not None and maker.is_alias:
                left.extend(use.value for use in maker.uses)
            else:
                buffers.add(value)
        if len(buffers) == 1:
            found[buffers.pop()] = kernel.time
    return found
