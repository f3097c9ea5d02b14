"""Few images in strips."""

import numpy as np
import pytest

import costmodels

IMAGES = 0, 2, (3,)


@pytest.mark.parametrize(
    ("images", "columns", "channels", "bits", "expected"),
    [
        (4, 256, 128, 16, 256 * 32 * 33 * 128 * 2),
        (4, 256, 64, 32, 256 * 32 * 33 * 128 * 4),
        (2, 20, 64, 32, 20 * 16 * 3 * 128 * 4),
        (7, 14, 128, 32, 14 * 56 * 2 * 128 * 4),
        (8, 256, 128, 16, 0),
        (4, 12, 128, 16, 0),
    ],
)
def test_shapes_that_were_compiled(
    images: int, columns: int, channels: int, bits: int, expected: int
) -> None:
    """What XLA:TPU stores of a network's images under filters of three columns; 0 for eight images and fewer than two columns each."""
    tpu = costmodels.load("tpu-v5e")
    shape = np.asarray([[images, columns, columns, channels]])
    with_gaps = tpu.stored_bytes(np.asarray([[expected]]), 8, is_temporary=True)
    assert tpu.strip_bytes(shape, bits, IMAGES, 3) == pytest.approx(with_gaps, rel=1e-6)


def test_channels_in_several_dimensions() -> None:
    """Groups of channels lie as the channels do."""
    tpu = costmodels.load("tpu-v5e")
    whole, groups = np.asarray([[2, 64, 64, 256]]), np.asarray([[2, 64, 64, 8, 32]])
    assert tpu.strip_bytes(whole, 32, IMAGES, 1) == tpu.strip_bytes(groups, 32, (0, 2, (3, 4)), 1)


@pytest.mark.parametrize(
    ("images", "width", "taps", "step", "columns"),
    [
        (4, 128, 3, 1, 136),
        (4, 128, 2, 1, 136),
        (4, 128, 3, 2, 144),
        (7, 16, 3, 1, 24),
        (8, 128, 3, 1, 128),
        (4, 12, 3, 1, 12),
        (4, 8192, 1, 1, 8192),
    ],
)
def test_columns_that_are_worked_on(images: int, width: int, taps: int, step: int, columns: int) -> None:
    """Eight strips of whole columns; of eight images or more, and of narrow ones, those that there are, and on GPUs always."""
    given = np.asarray([images]), np.asarray([width]), taps, step
    assert costmodels.load("tpu-v5e").worked_columns(*given) == pytest.approx(columns / width)
    assert costmodels.load("h100").worked_columns(*given) == 1
