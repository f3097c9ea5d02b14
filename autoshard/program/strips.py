"""What training steps of convolutional networks store besides, where a compiler cuts few images a device into strips.

XLA:TPU takes strips of fewer than eight images for more images (`costmodels.strips`), and all work on them is in that shape. A filter's
gradient takes a copy of the images for every column of the filter, made where the backward pass begins, and what went back to it. For v5e
the gradients of all filters are made last, behind what goes back through the network. For v4, v5p and v6e each is when its turn comes, of
three columns one is copied then, and all where the images of a convolution with strides are padded (`Tiles.filters_last`; plain networks of
one and two dimensions, filters of 2, 3, 5 and 7 columns). What normalizations make and sum again in the backward pass is in
two shapes then and is stored, not repeated. Where it is as wide as what the convolution stored, the first of it takes that one's place.
What goes back to what a convolution with strides read is in no strips, though that was: work on both reads each value of the forward pass
that it needs as images again, and so each of them is stored, whatever it could be made of (wav2vec's features and networks of a few layers,
of 2 and 4 images on v5e and v6e, stride 2 and SiLU, GELU or a rectifier).
Statistics of group normalizations that merge groups with images, as torch writes them, are spread over their groups in memory and kept for
the backward pass (an autoencoder's step on 2 images a device takes 4.6 times what it would otherwise). Seen in what libtpu 0.0.51 and
0.0.52 compile for v5e of plain networks, residual ones with batch normalization, blocks with group normalization, a U-Net and
three-dimensional convolutions, in float32 and bfloat16: 1.9 to 6 times what is stored of eight images or more.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, RESHAPE, is_elementwise, is_reduction
from autoshard.program.records import FilterGradient, Images, Kernel, KernelShape, Spread, Strips
from autoshard.program.repeating import read_times, readers_of
from autoshard.sharding import TensorMapping, dtype_bits

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
        filters[kernel.time] = FilterGradient(images, taps, *lives, _pads_strides(kernel.shape))
    again = dict(_summed_again(kernels, listing, starts, origins)) if late else {}
    kept = {value: images for value, images in again.items() if images is not None}
    crossing = _crossing(kernels, listing, starts, origins, again)
    return Strips(filters, kept, _spread(kernels, listing, origins), crossing)


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


def _pads_strides(shape: KernelShape) -> bool:
    """Whether the convolution whose filter's gradient this is goes in strides over images that it pads."""
    rows = shape.operands[0].shape
    return any(
        window.dilation > 1
        and (
            window.low > 0
            or window.count + (window.size - 1) * window.dilation > window.low + rows[window.dim]
        )
        for window in shape.windows
    )


class StripCut(NamedTuple):
    """Dimensions of a convolution's first operand, images that a compiler may cut into strips."""

    batch: int
    columns: int
    taps: int  # columns that are read at once
    step: int  # columns that strips have whole numbers of


def strip_cut(shape: KernelShape) -> StripCut | None:
    """None where a compiler leaves them whole: those of other ops, of each channel alone, and what goes back to what strides read."""
    if (found := _filter_images(shape)) is not None:
        images, window = found[0], shape.windows[-1]
        return StripCut(images.batch, window.dim, window.count, window.dilation)
    made = _made_images(shape) if shape.name == _CONVOLUTION and shape.windows else None
    if made is None or any(window.base_dilation > 1 for window in shape.windows):
        return None
    window, batch = shape.windows[-1], shape.rule.operands[0].index(shape.rule.results[0][made.batch])
    return StripCut(batch, window.dim, window.size, window.stride)


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
    stored: Images  # where they are in it
    taps: int  # of the convolution
    merged: tuple[int, ...] = ()  # the images' shape, where groups of their channels are merged with them


def _summed_again(
    kernels: Sequence[Kernel], listing: Listing, starts: Mapping[int, int], origins: Mapping[int, _Origin]
) -> Iterator[tuple[int, Images | None]]:
    """Work without a buffer on what a convolution made that a sum of the backward pass reads again, None for what takes the place of that;
    `starts`: when that pass begins.
    """
    readers = readers_of(kernels)
    replaced: set[int] = set()
    for kernel in kernels:
        if not kernel.is_alias or not kernel.results or (origin := origins.get(kernel.results[0])) is None:
            continue
        (value,) = kernel.results
        start = starts.get(listing.ops[kernel.time].region)
        sums = [one for one in readers.get(value, ()) if is_reduction(listing.ops[one.time])]
        if origin.merged or start is None or kernel.time > start or all(one.time < start for one in sums):
            continue
        is_first = origin.buffer not in replaced
        replaced.add(origin.buffer)
        takes_its_place = is_first and listing.values[value].type == listing.values[origin.buffer].type
        yield value, None if takes_its_place else origin.images


def _crossing(
    kernels: Sequence[Kernel],
    listing: Listing,
    starts: Mapping[int, int],
    origins: Mapping[int, _Origin],
    again: Mapping[int, Images | None],
) -> dict[int, tuple[Spread, ...]]:
    """What work on images that are in no strips reads of the forward pass, which were, but what is summed `again`; by the value with a
    buffer that it is made of.
    """
    taken = {origins[value].buffer for value, images in again.items() if images is None}
    found: dict[int, dict[int, Spread]] = {}
    times = {result: kernel.time for kernel in kernels for result in kernel.results}
    for kernel in _on_whole_images(kernels, listing, starts):
        start = starts[listing.ops[kernel.time].region]
        made = {
            use.value: (origins[use.value], times[use.value])
            for use in kernel.uses
            if use.value in origins and times[use.value] < start
        }
        for value, origin, begin in _read_behind(start, kernel, made, listing):
            type_ = listing.values[value].type
            if type_ is not None and not origin.merged and value not in again:
                one = Spread(value, origin.stored, 1, type_.dtype, begin, kernel.time + 1)
                found.setdefault(origin.buffer, {})[value] = one
    return {buffer: tuple(_besides(buffer, mine, listing, taken)) for buffer, mine in found.items()}


def _read_behind(
    start: int, kernel: Kernel, given: Mapping[int, tuple[_Origin, int]], listing: Listing
) -> Iterator[tuple[int, _Origin, int]]:
    """What ops of the kernel from `start` on read of what is `given`, and of elementwise work of it on that; with when each is made."""
    made = dict(given)
    for index in kernel.ops:
        op = listing.ops[index]
        read = [value for value in op.operands if value in made]
        if index >= start:
            yield from ((value, *made[value]) for value in read)
        elif read and is_elementwise(op):
            origin, _ = made[read[0]]
            made[op.results[0]] = origin, index


def _besides(
    buffer: int, crossing: Mapping[int, Spread], listing: Listing, taken: Collection[int]
) -> Iterator[Spread]:
    """All but the buffer and, unless its place is `taken` or it is read itself, the first value that is no wider, which has it then."""
    type_ = listing.values[buffer].type
    assert type_ is not None
    is_free = buffer not in crossing and buffer not in taken
    for value, one in sorted(crossing.items()):
        if value == buffer:
            continue
        if is_free and dtype_bits(one.dtype) <= dtype_bits(type_.dtype):
            is_free = False
        else:
            yield one


def _on_whole_images(
    kernels: Sequence[Kernel], listing: Listing, starts: Mapping[int, int]
) -> Iterator[Kernel]:
    """Elementwise work on what goes back to what a convolution with strides read."""
    whole: set[int] = set()
    for kernel in kernels:
        if kernel.time < starts.get(listing.ops[kernel.time].region, kernel.time + 1):
            continue
        if kernel.shape.name == _CONVOLUTION:
            is_whole = any(window.base_dilation > 1 for window in kernel.shape.windows)
        else:
            is_whole = is_elementwise(listing.ops[kernel.time]) and any(
                use.value in whole for use in kernel.uses
            )
            if is_whole:
                yield kernel
        if is_whole:
            whole.update(kernel.results)


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
                found[value] = _Origin(images, value, images, shape.windows[-1].size)
        elif kernel.is_alias or is_elementwise(listing.ops[kernel.time]):
            known = (
                (found.get(use.value), dims)
                for use, dims in zip(kernel.uses, shape.rule.operands, strict=True)
            )
            before = next(((origin, dims) for origin, dims in known if origin is not None), None)
            if before is not None:
                origin = _behind(*before, kernel)
                if origin is not None:
                    is_name = kernel.is_alias or origin.merged
                    found[value] = origin if is_name else origin._replace(buffer=value, stored=origin.images)
    return found


def _behind(origin: _Origin, before: TensorMapping, kernel: Kernel) -> _Origin | None:
    """Of what a kernel makes of a value of that origin and mapping; a reshape may merge groups of channels with images, and part them."""
    made = kernel.shape.results[0].shape
    if origin.merged:
        if made == origin.merged:
            return origin._replace(merged=())
        return origin if math.prod(made) == math.prod(origin.merged) else None
    after = kernel.shape.rule.results[0]
    images = _carried(origin.images, before, after)
    if images is not None:
        return origin._replace(images=images)
    if kernel.shape.name != RESHAPE or not _merges_groups(origin.images, before, after):
        return None
    return origin._replace(merged=kernel.shape.operands[0].shape)


def _merges_groups(images: Images, before: TensorMapping, after: TensorMapping) -> bool:
    """Whether groups of channels, and nothing else, share a dimension with all images."""
    batch, channels = set(before[images.batch]), {factor for dim in images.channels for factor in before[dim]}
    shared = [set(dim) - batch for dim in after if batch and batch <= set(dim)]
    return len(shared) == 1 and bool(shared[0]) and shared[0] <= channels


def _spread(
    kernels: Sequence[Kernel], listing: Listing, origins: Mapping[int, _Origin]
) -> dict[int, tuple[Spread, ...]]:
    """Statistics of groups that are merged with images, spread over all of a group; by the value with a buffer that they are of.

    What makes strips of images cannot look through that reshape: they are written, of each statistic and type once, and kept from pass to
    pass.
    """
    readers = readers_of(kernels)
    found: dict[int, dict[tuple[int, str], Spread]] = {}
    for kernel in kernels:
        read = (origins.get(use.value) for use in kernel.uses)
        origin = next((one for one in read if one is not None and one.merged), None)
        if origin is None or not kernel.results:
            continue
        end = kernel.time
        if kernel.is_alias:
            end = max(read_times(kernel.results[0], readers), default=kernel.time)
        for index in kernel.ops:
            op = listing.ops[index]
            if op.name != BROADCAST or not _spreads(op, listing, origin):
                continue
            type_ = listing.values[op.results[0]].type
            assert type_ is not None
            mine, key = found.setdefault(origin.buffer, {}), (op.operands[0], type_.dtype)
            known = mine.get(key)
            if known is None or known.end <= end:
                begin = kernel.time if known is None else known.begin
                value = kernel.results[0]
                mine[key] = Spread(value, origin.stored, origin.taps, type_.dtype, begin, end + 1)
    return {value: tuple(mine.values()) for value, mine in found.items()}


def _spreads(broadcast: Op, listing: Listing, origin: _Origin) -> bool:
    given, made = (listing.values[values[0]].type for values in (broadcast.operands, broadcast.results))
    if given is None or made is None or made.num_elements != math.prod(origin.merged):
        return False
    return 1 < given.num_elements < made.num_elements


def _carried(images: Images, before: TensorMapping, after: TensorMapping) -> Images | None:
    """Where those dimensions are in a result of the same elements, channels perhaps in several."""
    batch, width = before[images.batch], before[images.width]
    factors = {factor for dim in images.channels for factor in before[dim]}
    channels = tuple(d for d, dim in enumerate(after) if dim and factors.issuperset(dim))
    if not channels or batch not in after or width not in after:
        return None
    return Images(after.index(batch), after.index(width), channels)
