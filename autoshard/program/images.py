"""Arguments that convolutions read, which are copied into the order of their windows.

A runtime hands arguments over row by row. XLA:TPU reads images with two of the batch, channels and their like along lanes and sublanes, so
it copies them first, where few channels or few images are padded: of 16 images of 224 x 224 with three channels 51 MB, ten times as
much, and as much of 64. The gradient of the filter reads the copy too, so it stays until then (libtpu 0.0.51 and 0.0.52: so in all 37
training steps of ViTs, convolutional networks and others with images that were looked at, on five chips). A forward pass is done with
it at once.
"""

from collections.abc import Iterator, Mapping, Sequence

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import RESHAPE
from autoshard.program.records import MOVES, ImageCopy, Kernel, MinorDims
from autoshard.program.repeating import Readers, readers_of

_CONVOLUTION, _CONVERT = "stablehlo.convolution", "stablehlo.convert"
_NAMING = MOVES | {RESHAPE, _CONVERT, "stablehlo.transpose"}


def image_copies(
    kernels: Sequence[Kernel], listing: Listing, dims: Mapping[int, MinorDims]
) -> dict[int, ImageCopy]:
    """By the time of the first convolution of an argument, as it is or under another name or type.

    Args:
        dims: minor dimensions of what is read.
    """
    readers = readers_of(kernels)
    found: dict[int, ImageCopy] = {}
    for argument in listing.arguments:
        reads = sorted(_convolutions(argument.value, readers, listing), key=lambda kernel: kernel.time)
        minor = dims.get(reads[0].uses[0].value) if reads else None
        if minor is not None:
            first, last = reads[0], reads[-1]
            found[first.time] = ImageCopy(first.shape.travels[0], minor, last.time + 1)
    return found


def _convolutions(value: int, readers: Readers, listing: Listing) -> Iterator[Kernel]:
    """Those of it, not those by it."""
    left, seen = [value], {value}
    while left:
        read = left.pop()
        for kernel in readers.get(read, ()):
            is_name = kernel.is_alias and all(listing.ops[op].name in _NAMING for op in kernel.ops)
            if kernel.shape.name == _CONVOLUTION and kernel.shape.windows and kernel.uses[0].value == read:
                yield kernel
            elif is_name and kernel.results[0] not in seen:
                seen.add(kernel.results[0])
                left.append(kernel.results[0])
