"""Arguments that convolutions read, which are copied into the layout of these.

A runtime hands arguments over row by row. XLA:TPU reads images with the batch and channels along lanes and sublanes, so it copies them
first, and few channels or few images are padded: of 16 images of 224 x 224 with three channels the copy takes 51 MB, ten times as much, and
no more of 64. The gradient of the filter reads it too, so that it stays until then; a forward pass is done with it at once. So it is in all
37 training steps with images that were looked at (libtpu 0.0.51 and 0.0.52, five chips).
"""

from collections.abc import Sequence

from autoshard.mlir.listing import Listing
from autoshard.program.records import ImageCopy, Kernel, MinorDims
from autoshard.program.repeating import readers_of

_CONVOLUTION = "stablehlo.convolution"


def image_copies(kernels: Sequence[Kernel], listing: Listing) -> dict[int, ImageCopy]:
    """By the time of the first convolution of an argument as it is; under another name or type it has a layout of its own (`minor`)."""
    readers = readers_of(kernels)
    found: dict[int, ImageCopy] = {}
    for argument in listing.arguments:
        reads = [kernel for kernel in readers.get(argument.value, ()) if _is_of(argument.value, kernel)]
        minor = _minor(reads[0]) if reads else None
        if minor is not None:
            first, last = reads[0], reads[-1]
            found[first.time] = ImageCopy(first.shape.travels[0], minor, last.time + 1)
    return found


def _is_of(value: int, kernel: Kernel) -> bool:
    """A convolution of a value, not one by it."""
    return kernel.shape.name == _CONVOLUTION and kernel.uses[0].value == value


def _minor(convolution: Kernel) -> MinorDims | None:
    """Of what a convolution reads, the batch and the channels."""
    slid = {window.dim for window in convolution.shape.windows if window.operand == 0}
    match [dim for dim in range(convolution.shape.operands[0].rank) if dim not in slid]:
        case [batch, channels] if slid:
            return (batch,), (channels,), False
        case _:
            return None
