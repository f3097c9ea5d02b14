"""Values that a compiler keeps in vector memory instead of main memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import costmodels
from costmodels.vector_memory import VectorMemory

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
MEMORY = VectorMemory(values_mib=2)
MIB = 2**20
LONGEST = 6  # of a life, as if time were program time


def stays(*values: tuple[int, int, int]) -> list[bool]:
    """Of (begin, end, MiB)."""
    begin, end, size = np.asarray(values, dtype=np.int64).T
    return MEMORY.leaves(begin, end, size * MIB, end - begin > LONGEST, 1.0 * size * MIB).tolist()


def test_what_saves_most_by_the_root_of_its_bytes_comes_first() -> None:
    """What saves as its bytes: a value as large as the room is in, a smaller one out that overlaps it, and what is larger than the room."""
    assert stays((0, 1, 3), (0, 4, 1), (2, 4, 2), (4, 5, 2)) == [True, True, False, False]
    begin, end, size = np.asarray([(0, 2, 2), (1, 3, 1), (1, 4, 1)], dtype=np.int64).T
    never = np.zeros(3, dtype=np.bool_)
    for saved, stay in (((4.0, 2.0, 2.0), [False, True, True]), ((2.0, 2.0, 2.0), [True, False, False])):
        assert MEMORY.leaves(begin, end, size * MIB, never, np.asarray(saved)).tolist() == stay


@pytest.mark.parametrize("saved_ns", [0.0, -0.0])
def test_the_order_of_the_arguments_does_not_matter(saved_ns: float) -> None:
    """Of what saves nothing (no kernel makes or reads it) and is there at the same time the smaller is in."""
    begin, end, size = np.asarray([(0, 2, 1), (0, 2, 2)], dtype=np.int64).T
    for order in ([0, 1], [1, 0]):
        given = begin[order], end[order], size[order] * MIB
        found = MEMORY.leaves(*given, np.zeros(2, dtype=np.bool_), np.full(2, saved_ns))
        assert dict(zip(order, found.tolist(), strict=True)) == {0: False, 1: True}


def test_what_lives_long_stays_in_main_memory() -> None:
    """Though there is room; v5e's memory is copied eight times in 1.15 ms."""
    assert stays((0, 6, 1), (0, 7, 1)) == [False, True]
    assert VectorMemory(values_mib=112).holds_for_ns(819e9) == pytest.approx(1_147_160, rel=1e-4)


@pytest.mark.parametrize(("name", "product"), [("tpu-v5e", 9.0), ("tpu-v6e", 20.0), ("h100", 10.0)])
def test_how_long_products_take_by_the_times_of_the_compiler(name: str, product: float) -> None:
    assert costmodels.load(name).scheduled_product_ns(10.0) == product


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


def there(end: Ints, *waiting_ns: float, streaming: int = 0, is_streamed: bool = False) -> Floats:
    """[value, 5] as `occupancy` takes it."""
    rows = zip(waiting_ns, end.tolist(), strict=True)
    return np.asarray([(waiting, streaming, 0.0, last, is_streamed) for waiting, last in rows])


def test_peak() -> None:
    """What is handed over counts in full, the rest beyond the room; GPUs have none of that."""
    begin, end, size = np.asarray([(0, 9, 200), (1, 3, 100), (2, 4, 100)], dtype=np.int64).T
    fixed = np.asarray([True, False, False])
    tpu, gpu = (
        costmodels.load(name)
        .occupancy(begin, end, size * MIB, fixed, stays=there(end, 9e9, 2e3, 2e3))
        .peak_bytes
        for name in ("tpu-v5e", "h100")
    )
    assert tpu == 300 * MIB
    assert gpu == 400 * MIB


def test_what_is_there_at_the_peak() -> None:
    """Values of 100 MiB each, two of them at a time: one is in vector memory, and what does not overlap the peak is not there."""
    begin, end, size = np.asarray(
        [(0, 9, 200), (1, 3, 100), (2, 4, 100), (5, 6, 90), (7, 7, 500)], dtype=np.int64
    ).T
    fixed = np.asarray([True, False, False, False, False])
    found = costmodels.load("tpu-v5e").occupancy(begin, end, size * MIB, fixed, stays=there(end, *[9e9] * 5))
    assert found.held.tolist() == [True, True, True, False, False]
    assert found.peak_bytes == 400 * MIB + found.gap_bytes


def test_what_waits_just_as_long_as_it_may() -> None:
    """Whatever rounding made of the time, in which 24 copies over 32 MiB run, as eight of 96 MiB would."""
    hardware = costmodels.load("tpu-v6e")
    begin, end, size = np.asarray([(0, 2, 10)], dtype=np.int64).T
    fixed = np.zeros(1, dtype=np.bool_)
    copy_ns = 32 * MIB / hardware.hbm_bytes_per_s * 1e9

    def is_held(waiting_ns: float) -> bool:
        stays = there(end, waiting_ns)
        found = hardware.occupancy(begin, end, size * MIB, fixed, stays=stays)
        return bool(found.held[0])

    for count in range(40):
        before = sum([copy_ns] * count)
        assert not is_held(sum([copy_ns] * 24, before) - before)
    assert is_held(24.01 * copy_ns)


def test_what_is_written_over_is_there_meanwhile() -> None:
    """Of two values of 60 MiB one is in main memory where the second is written over the first, as if both were there while that runs."""
    begin, end, size = np.asarray([(0, 2, 60), (2, 4, 60)], dtype=np.int64).T
    fixed = np.zeros(2, dtype=np.bool_)
    hardware = costmodels.load("tpu-v5e")
    for until, is_held in (([2, 4], [False, False]), ([3, 4], [False, True])):
        stays = there(np.asarray(until), 0.0, 0.0)
        found = hardware.occupancy(begin, end, size * MIB, fixed, stays=stays)
        assert (found.peak_bytes > 0) == any(is_held)


@pytest.mark.parametrize(("name", "is_streamed", "is_held"), [
    ("tpu-v5e", False, False), ("tpu-v5p", False, True), ("tpu-v5p", True, False),
])  # fmt: skip
def test_two_cores_keep_no_results_of_products(name: str, is_streamed: bool, is_held: bool) -> None:
    begin, end, size = np.asarray([(0, 2, 10)], dtype=np.int64).T
    stays = there(end, 0.0, is_streamed=is_streamed)
    found = costmodels.load(name).occupancy(begin, end, size * MIB, np.zeros(1, dtype=np.bool_), stays=stays)
    assert found.held.tolist() == [is_held]
    assert not costmodels.load("tpu-v5p").keeps_near(1, together=1)
