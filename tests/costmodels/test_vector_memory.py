"""Values that a compiler keeps in vector memory instead of main memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodels
from costmodels.vector_memory import VectorMemory

MEMORY = VectorMemory(values_mib=2, table_kib=48)
MIB = 2**20
LONGEST = 6  # of a life, as if time were program time


def stays(*values: tuple[int, int, int]) -> list[bool]:
    """Of (begin, end, MiB)."""
    begin, end, size = np.asarray(values, dtype=np.int64).T
    return MEMORY.leaves(begin, end, size * MIB, end - begin > LONGEST).tolist()


def test_the_least_room_times_time_comes_first() -> None:
    """A value as large as the room is out while a smaller one is in, and in after that."""
    assert stays((0, 1, 3), (0, 4, 1), (2, 4, 2), (4, 5, 2)) == [True, False, True, False]


def test_what_lives_long_stays_in_main_memory() -> None:
    """Though there is room; v5e's memory is copied eight times in 1.15 ms."""
    assert stays((0, 6, 1), (0, 7, 1)) == [False, True]
    assert VectorMemory(values_mib=112, table_kib=48).holds_for_ns(819e9) == pytest.approx(
        1_147_160, rel=1e-4
    )


@pytest.mark.parametrize(("name", "product"), [("tpu-v5e", 40.0), ("h100", 15.0)])
def test_how_long_values_wait_for_a_kernel(name: str, product: float) -> None:
    """XLA:TPU takes products for four times as long as they take at the least, and what streams for as long as its bytes take."""
    hardware = costmodels.load(name)
    assert hardware.waiting_ns(10.0, 15.0) == product
    assert hardware.waiting_ns(1.0, 15.0) == 15.0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=12))
def test_what_is_kept_there_fits(values: list[tuple[int, int, int]]) -> None:
    lives = [(begin, begin + length, size) for begin, length, size in values]
    kept = [life for life, stay in zip(lives, stays(*lives), strict=True) if not stay]
    for time in range(20):
        assert sum(size for begin, end, size in kept if begin <= time < end) <= MEMORY.values_mib


def test_loops_keep_what_is_small_where_all_may_fit() -> None:
    """A value takes half of the room at most."""
    assert MEMORY.keeps(MIB, together=2 * MIB)
    assert not MEMORY.keeps(MIB + 1, together=2 * MIB)
    assert not MEMORY.keeps(1, together=2 * MIB + 1)
    assert not costmodels.load("h100").keeps_near(1, together=1)


def test_peak() -> None:
    """What is handed over counts in full, the rest beyond the room, tables of each temporary value on top; GPUs have none of that."""
    begin, end, size = np.asarray([(0, 9, 200), (1, 3, 100), (2, 4, 100)], dtype=np.int64).T
    fixed, waiting_ns = np.asarray([True, False, False]), np.asarray([9e9, 2e3, 2e3])
    tpu, gpu = (
        costmodels.load(name)
        .occupancy(begin, end, size * MIB, fixed, values=2, waiting_ns=waiting_ns)
        .peak_bytes
        for name in ("tpu-v5e", "h100")
    )
    assert tpu == 300 * MIB + 2 * 48 * 1024
    assert gpu == 400 * MIB


def test_what_is_there_at_the_peak() -> None:
    """Values of 100 MiB each, two of them at a time: one is in vector memory, and what does not overlap the peak is not there."""
    begin, end, size = np.asarray(
        [(0, 9, 200), (1, 3, 100), (2, 4, 100), (5, 6, 90), (7, 7, 500)], dtype=np.int64
    ).T
    fixed, waiting_ns = np.asarray([True, False, False, False, False]), np.full(5, 9e9)
    found = costmodels.load("tpu-v5e").occupancy(
        begin, end, size * MIB, fixed, values=0, waiting_ns=waiting_ns
    )
    assert found.held.tolist() == [True, True, True, False, False]
    assert found.peak_bytes == 400 * MIB + found.gap_bytes
    assert found.tables_bytes == 0
