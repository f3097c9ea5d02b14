"""What training steps of convolutional networks store besides, where a compiler cuts few images a device into strips.

XLA:TPU takes strips of fewer than eight images for more images (`costmodels.strips`), and all work on them is in that shape. It then makes
the gradients of all filters last, behind what goes back through the network: each takes a copy of the images for every column of the
filter, made where the backward pass begins, and what went back to it. What normalizations make and sum again in the backward pass is in
two shapes then and is stored, not repeated. Where it is as wide as what the convolution stored, the first of it takes that one's place.
Seen in what libtpu 0.0.51 compiles for v5e of plain networks, residual ones with batch normalization, blocks with group normalization,
a U-Net and three-dimensional convolutions, in float32 and bfloat16: 1.9 to 6 times what is stored of eight images or more.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import is_elementwise, is_reduction
from autoshard.program.records import FilterGradient, Images, Kernel, KernelShape, Strips
from autoshard.program.repeating import readers_of
from autoshard.sharding import TensorMapping

_CONVOLUTION = "stablehlo.convolution"
_OPERANDS = 2  # without constants


def find_strips(kernels: Sequence[Kernel], listing: Listing) -> Strips:
    """Of all convolutions; whether images are few is seen once they are sharded."""
    found = [(kernel, images) for kernel in kernels if (images := _filter_images(kernel.shape)) is not None]
    arguments = {argument.value for argument in listing.arguments}
    origins = _origins(kernels, listing)
    late = {kernel.time for kernel, _ in found if kernel.uses[0].value in origins.keys() | arguments}
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for kernel, _ in found:
        region = listing.ops[kernel.time].region
        if kernel.time in late:
            starts[region] = min(starts.get(region, kernel.time), kernel.time)
            ends[region] = max(ends.get(region, 0), kernel.time + 1)
    filters: dict[int, FilterGradient] = {}
    for kernel, images in found:
        region, taps = listing.ops[kernel.time].region, kernel.shape.windows[-1].count
        lives = (starts[region], ends[region]) if kernel.time in late else (kernel.time, kernel.time + 1)
        filters[kernel.time] = FilterGradient(images, taps, *lives)
    return Strips(filters, dict(_kept(kernels, listing, starts, origins)) if late else {})


def _filter_images(shape: KernelShape) -> tuple[Images, Images] | None:
    """Of the operands of a filter's gradient: windows as large as an image, one for every element of the filter."""
    if shape.name != _CONVOLUTION or not shape.windows or len(shape.rule.operands) < _OPERANDS:
        return None
    if any(window.size <= window.count or window.stride != 1 for window in shape.windows):
        return None
    first, second = shape.rule.operands[:2]
    slid = [window.dim for window in shape.windows]
    batch = [d for d in range(len(first)) if d not in slid and _has_role(shape, first[d], "k")]
    channels = tuple(d for d in range(len(first)) if d not in (*slid, *batch))
    if len(batch) != 1 or len(channels) != 1 or first[batch[0]] not in second:
        return None
    other = second.index(first[batch[0]])
    made = tuple(d for d, factors in enumerate(second) if _has_role(shape, factors, "nb"))
    rows = [d for d in range(len(second)) if d not in (other, *made)]
    if len(made) != 1 or len(rows) != len(slid):
        return None
    return Images(batch[0], slid[-1], channels), Images(other, rows[-1], made)


def _made_images(shape: KernelShape) -> Images | None:
    """Of what a convolution of images makes that all channels are in."""
    if not shape.rule.operands:
        return None
    first, result = shape.rule.operands[0], shape.rule.results[0]
    slid = {window.dim for window in shape.windows}
    batch = [d for d in range(len(first)) if d not in slid and _has_role(shape, first[d], "m")]
    if not slid or len(batch) != 1 or first[batch[0]] not in result:
        return None
    images = result.index(first[batch[0]])
    channels = tuple(d for d, factors in enumerate(result) if _has_role(shape, factors, "n"))
    rows = [d for d in range(len(result)) if d not in (images, *channels)]
    return Images(images, rows[-1], channels) if channels and len(rows) == len(slid) else None


def _has_role(shape: KernelShape, factors: Sequence[int], roles: str) -> bool:
    return bool(factors) and all(shape.matmul_roles[factor] in roles for factor in factors)


class _Origin(NamedTuple):
    images: Images
    buffer: int  # the value that is stored


def _kept(
    kernels: Sequence[Kernel], listing: Listing, starts: Mapping[int, int], origins: Mapping[int, _Origin]
) -> Iterator[tuple[int, Images]]:
    """Work without a buffer on what a convolution made that a sum of the backward pass reads again; `starts`: when that pass begins."""
    readers = readers_of(kernels)
    replaced: set[int] = set()
    for kernel in kernels:
        if not kernel.is_alias or not kernel.results or (origin := origins.get(kernel.results[0])) is None:
            continue
        (value,) = kernel.results
        start = starts.get(listing.ops[kernel.time].region)
        sums = [one for one in readers.get(value, ()) if is_reduction(listing.ops[one.time])]
        if start is None or kernel.time > start or all(one.time < start for one in sums):
            continue
        is_first = origin.buffer not in replaced
        replaced.add(origin.buffer)
        if not is_first or listing.values[value].type != listing.values[origin.buffer].type:
            yield value, origin.images


def _origins(kernels: Sequence[Kernel], listing: Listing) -> dict[int, _Origin]:
    """Of what convolutions make and of elementwise work on that, under other shapes too."""
    found: dict[int, _Origin] = {}
    for kernel in kernels:
        if not kernel.results:
            continue
        value, shape = kernel.results[0], kernel.shape
        if shape.name == _CONVOLUTION:
            images = _made_images(shape)
            if images is not None:
                found[value] = _Origin(images, value)
        elif kernel.is_alias or is_elementwise(listing.ops[kernel.time]):
            known = (
                (found.get(use.value), dims)
                for use, dims in zip(kernel.uses, shape.rule.operands, strict=True)
            )
            before = next(((origin, dims) for origin, dims in known if origin is not None), None)
            images = (
                _carried(before[0].images, before[1], shape.rule.results[0]) if before is not None else None
            )
            if before is not None and images is not None:
                found[value] = _Origin(images, before[0].buffer if kernel.is_alias else value)
    return found


def _carried(images: Images, before: TensorMapping, after: TensorMapping) -> Images | None:
    """Where those dimensions are in a result of the same elements, channels perhaps in several."""
    batch, width = before[images.batch], before[images.width]
    factors = {factor for dim in images.channels for factor in before[dim]}
    channels = tuple(d for d, dim in enumerate(after) if dim and factors.issuperset(dim))
    if not channels or batch not in after or width not in after:
        return None
    return Images(after.index(batch), after.index(width), channels)
