"""The rows that permutes bring for slices along a split dimension, as XLA:TPU compiles them (libtpu 0.0.51, v5e 4x4)."""

import random

import pytest

from autoshard.check.halo import rows_from_others
from autoshard.cost.halo import halo_rows
from autoshard.program import Window

SEEN = {
    (512, 0, 256, 4): [128, 64],
    (512, 256, 512, 4): [64, 64],
    (512, 0, 256, 16): [16, 32],
    (512, 256, 512, 16): [16, 16],
    (768, 0, 256, 4): [128, 64],
    (768, 256, 512, 4): [128, 128],
    (768, 512, 768, 4): [64, 64, 64],
    (768, 0, 256, 16): [16, 32, 32],
    (768, 256, 512, 16): [16, 32, 32],
    (768, 512, 768, 16): [16, 16, 16, 16],
    (1024, 0, 256, 4): [64, 64, 64],
    (512, 1, 512, 4): [1],
    (512, 0, 504, 4): [6],
    (512, 64, 448, 4): [32, 32],
    (512, 64, 448, 16): [8, 16, 32],
}
"""Rows, the slice's first and last, and shards -> the rows of each permute that XLA makes."""


def slice_of(begin: int, end: int, stride: int = 1) -> Window:
    return Window(0, -(-(end - begin) // stride), 1, stride, -begin, 1, 1)


@pytest.mark.parametrize(("case", "rows"), SEEN.items(), ids=str)
def test_a_slice_takes_rows_as_xla_sends_them(case: tuple[int, int, int, int], rows: list[int]) -> None:
    """Halves and thirds of a dimension, and slices that leave out its ends."""
    total, begin, end, shards = case
    assert sorted(halo_rows(slice_of(begin, end), total, shards)) == sorted(rows)


def test_the_checker_finds_the_same_rows() -> None:
    """By another way, for slices of any beginning, end and stride."""
    numbers = random.Random(0)
    for _ in range(500):
        shards = numbers.choice([2, 3, 4, 8, 16])
        rows = numbers.randrange(shards, 300)
        begin = numbers.randrange(rows - 1)
        window = slice_of(begin, numbers.randrange(begin + 1, rows + 1), numbers.choice([1, 1, 2, 3]))
        assert sorted(halo_rows(window, rows, shards)) == sorted(rows_from_others(window, rows, shards))
