"""The shapes of few images: XLA:TPU cuts them along their last spatial dimension into strips that it takes for more images.

Its pass space-to-batch-converter (public in openxla/xla; constants as in what libtpu 0.0.51 compiles for v5e, v5p and v6e of small
convolutional networks with 1 to 16 images of 16 to 256 columns).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

STRIPS = 8
MOST_IMAGES = 7


Images = tuple[int, int, tuple[int, ...]]
"""Dimensions of a tensor of images: of the batch, of the columns, of the channels; the others are more spatial ones."""


MINOR = (3,), (1,), False
"""Of the shapes in strips: channels and images."""


def worked_columns(images: NDArray[Any], width: NDArray[Any], taps: int, step: int) -> NDArray[np.float64]:
    """How many columns are worked out for each of so many images as wide, of which strips take whole numbers of `step`: one, or more where
    strips overlap.
    """
    columns, is_cut = _columns_of(images, width, taps)
    whole = -(-columns // step) * step
    return np.where(is_cut, np.maximum(whole * STRIPS / np.maximum(width, 1), 1.0), 1.0)


def in_strips(shapes: NDArray[Any], images: Images, taps: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """[count, (other rows, images, columns, channels)] of the strips, and which tensors are cut into them.

    `taps`: how many columns a convolution reads at once, which strips overlap by.
    """
    batch, width = shapes[:, images[0]], shapes[:, images[1]]
    channels = np.prod(shapes[:, list(images[2])], axis=1, dtype=np.int64)
    columns, is_cut = _columns_of(batch, width, taps)
    others = np.prod(shapes, axis=1, dtype=np.int64) // np.maximum(batch * width * channels, 1)
    return np.column_stack([others, batch * STRIPS, columns, channels]), is_cut


def _columns_of(
    images: NDArray[Any], width: NDArray[Any], taps: int
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Of a strip of so many images as wide, with what strips overlap by, and whether they are cut."""
    columns = -(-(width + taps - 1) // STRIPS)
    return columns, (images <= MOST_IMAGES) & (width + taps - 1 >= 2 * STRIPS) & (taps - 1 <= columns)
