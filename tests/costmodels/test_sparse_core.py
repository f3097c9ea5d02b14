"""Which gathers run on SparseCores."""

import numpy as np
import pytest

import costmodels

ROW = 512


def are_apart(name: str, *gathers: tuple[int, int]) -> list[bool]:
    """Of (rows of the table, rows that are gathered), of 512 float32 each."""
    table, rows = np.asarray(gathers, dtype=np.int64).T
    return costmodels.load(name).gathers_apart(table * ROW * 4, table * ROW, rows * ROW).tolist()


def test_small_tables_that_are_read_often_are_not() -> None:
    """What libtpu 0.0.52 does for v6e, either side of both limits."""
    assert are_apart("tpu-v6e", (10_000, 19_000), (10_000, 24_000), (10_000, 0)) == [True, False, True]
    assert are_apart("tpu-v6e", (15_500, 131_072), (17_000, 131_072)) == [False, True]


def test_copies_that_fit_are_for_the_tensor_core() -> None:
    """Of tables whose narrow rows are copied along the lanes first: 100,000 of 32 columns, 250,000 of 8 (libtpu 0.0.52, v6e)."""
    rows, columns = np.asarray([100_000, 250_000]), np.asarray([32, 8])
    copies, gathered = rows * 128 * 2, 16_384 * columns
    v6e = costmodels.load("tpu-v6e")
    assert v6e.gathers_apart(rows * columns * 2, rows * columns, gathered, copies).tolist() == [False, True]
    assert v6e.gathers_apart(rows * columns * 2, rows * columns, gathered).tolist() == [True, True]


@pytest.mark.parametrize(("name", "apart"), [("tpu-v5p", True), ("tpu-v5e", False), ("h100", False)])
def test_other_chips(name: str, *, apart: bool) -> None:
    assert are_apart(name, (12_000, 131_072), (40_000, 8)) == [apart, apart]
