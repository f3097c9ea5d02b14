"""Reduce-scatters of users on TPUs: the all-reduces among them, each as libtpu compiled it."""

import pytest

from autoshard.program import stays_scatter
from autoshard.sharding import TensorType


@pytest.mark.parametrize(
    ("whole", "dtype", "dimension", "devices", "stays"),
    [
        ((4096, 4096), "f32", 1, 4, True),
        ((4096, 4096), "f32", 1, 16, False),  # everyone
        ((4096, 4096), "f32", 0, 4, False),  # by rows, large
        ((4096, 4096), "f32", 0, 8, True),
        ((8192, 1024), "bf16", 0, 2, False),
        ((512, 2048), "f32", 0, 2, True),
        ((16, 1024, 1024), "bf16", 0, 4, True),
        ((512, 512), "f32", 1, 4, True),
        ((512, 512), "bf16", 1, 4, False),  # 128 lanes of 16 bits
        ((64, 1024), "bf16", 1, 4, True),
        ((16, 1024, 1024), "bf16", 2, 8, False),
        ((16, 1024, 1024), "bf16", 2, 4, True),
        ((65536,), "f32", 0, 4, False),
        ((1024, 2048), "f16", 0, 4, False),
        ((64, 128, 512), "i32", 0, 4, False),
        ((1, 65536), "f32", 1, 4, False),  # a vector
        ((65536, 1), "f32", 0, 4, False),
        ((1, 4096, 2048), "f32", 1, 4, False),  # by rows, large
        ((2, 4096, 2048), "f32", 1, 4, True),
        ((4096, 1, 2048), "f32", 0, 4, False),
        ((512, 2048, 1), "f32", 1, 4, False),
        ((4, 2048, 2048), "f32", 0, 4, True),
        ((4, 16384), "bf16", 1, 4, False),  # four rows
        ((7, 16384), "f32", 1, 4, True),
        ((64, 4, 512), "f32", 0, 4, False),
        ((64, 8, 4096), "f32", 1, 4, True),  # eight rows, two of them kept
        ((48, 4096), "f32", 0, 4, False),  # twelve rows
        ((32, 4096), "f32", 0, 4, True),
        ((32, 128), "f32", 0, 4, False),  # one tile
        ((32, 128), "bf16", 0, 4, False),
        ((64, 128), "bf16", 0, 4, True),
        ((4, 8, 128), "f32", 0, 4, False),
        ((8, 8, 128), "f32", 0, 4, True),
        ((8, 512), "f32", 1, 4, True),
        ((65536, 32), "f32", 0, 4, True),  # rows along the lanes
        ((256, 32), "f32", 0, 4, False),
        ((16384, 4), "f32", 0, 4, False),
        ((256, 64), "f32", 0, 4, True),
    ],
)
def test_what_stays_a_reduce_scatter(
    whole: tuple[int, ...], dtype: str, dimension: int, devices: int, stays: bool
) -> None:
    part = tuple(size // devices if dim == dimension else size for dim, size in enumerate(whole))
    assert stays_scatter(TensorType(part, dtype), dimension, devices, 16) == stays
