"""Gaps between buffers that come and go."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from costmodels.heap import MOST_GAPS, alive_bytes, gap_bytes, packed_bytes
from costmodels.tiles import Tiles

Rows = list[tuple[int, int, int]]


def columns(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    begin, end, bytes_ = np.asarray(rows, dtype=np.int64).reshape(-1, 3).T
    return begin, end, bytes_


def test_a_gap_that_is_too_small() -> None:
    """Scores of 100 that come after 60 has gone from below 50 lie above both: 210 for 150 that are alive."""
    rows = [(0, 2, 60), (1, 9, 50), (3, 5, 100)]
    assert (alive_bytes(*columns(rows)), packed_bytes(*columns(rows))) == (150, 210)
    assert gap_bytes(*columns(rows)) == int(150 * MOST_GAPS)
    assert gap_bytes(*columns([(0, 2, 60), (1, 9, 50), (3, 5, 70)])) == int(120 * MOST_GAPS)


def test_the_smallest_gap_that_holds() -> None:
    """Of two gaps that hold a buffer it takes the smaller, so that the larger one is left for another."""
    rows = [(0, 5, 70), (1, 9, 1), (2, 5, 40), (3, 9, 1), (6, 9, 30), (7, 9, 70)]
    assert packed_bytes(*columns(rows)) == 112


def test_usual_gaps_are_in_the_bytes_already() -> None:
    """Only what exceeds them counts."""
    tiles = Tiles(lanes=128, sublanes=8, word_bits=32, heap_slack=0.06)
    assert tiles.more_gaps(*columns([(0, 2, 60), (1, 9, 50), (3, 5, 60)])) == 0
    assert tiles.more_gaps(*columns([(0, 2, 600), (1, 9, 500), (3, 5, 1000)])) == (
        int((1500 + int(1500 * MOST_GAPS)) / 1.06) - 1500
    )


ONE_AFTER_THE_OTHER = [(0, 50, 40_000), (0, 54, 40_000), (0, 100, 100_000), (60, 100, 80_000)]


def test_small_buffers_that_last_keep_freed_places_apart() -> None:
    """Two of 40 go one after the other; a gradient of a byte that is made in between lies where the first was, so that 80 find no place.
    One that is gone soon does not count, though it is there when 80 come."""
    rows = columns([*ONE_AFTER_THE_OTHER, (52, 100, 1)])
    assert gap_bytes(*rows) == int(180_001 * MOST_GAPS)
    assert packed_bytes(*rows, is_between=rows[2] == 1) == 220_001
    assert gap_bytes(*columns([*ONE_AFTER_THE_OTHER, (57, 61, 1)])) == 0


def test_what_lies_in_between_takes_no_place_that_is_taken_again() -> None:
    """Of the two places that are free the last is taken before the small buffer comes, which then lies in the other."""
    large = [(0, 9, 70), (0, 3, 40), (0, 2, 30), (4, 9, 40)]
    rows = columns([*large, (5, 9, 1), (6, 9, 30)])
    is_small = np.asarray([False] * 4 + [True, False])
    assert packed_bytes(*columns([*large, (6, 9, 30)])) == 140
    assert packed_bytes(*rows, is_between=is_small) == 141


def test_a_buffer_of_no_bytes_does_not_count() -> None:
    assert gap_bytes(*columns([*ONE_AFTER_THE_OTHER, (52, 100, 0)])) == 0


def test_the_order_in_which_buffers_are_told_does_not_matter() -> None:
    rows = [(0, 2, 60), (0, 9, 50), (0, 4, 10), (3, 5, 60), (3, 9, 70), (3, 4, 5)]
    assert len({packed_bytes(*columns(list(told))) for told in itertools.permutations(rows)}) == 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(1, 99)), max_size=12))
def test_no_heap_is_smaller_than_what_is_alive(drawn: Rows) -> None:
    rows = columns([(begin, begin + life, size) for begin, life, size in drawn])
    assert alive_bytes(*rows) <= packed_bytes(*rows) <= int(rows[2].sum())
