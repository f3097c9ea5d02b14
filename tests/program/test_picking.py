"""Which products read what goes back to logits, and where what labels are picked from is there at the same time."""

from typing import Any

import pytest

from autoshard.program import picked_beside
from autoshard.sharding import Mesh, parse_sharding
from tests.program.modules import program_of
from tests.programs.unembedding import ROWS, WIDTH, WORDS, unembedding

MESH = Mesh.of([("x", 4), ("y", 4), ("z", 3)])
SPLIT, BY_Y, UNEVEN = '[{}, {"x", "y"}]', '[{}, {"y"}]', '[{}, {"x", "y", "z"}]'
WHOLE, ROWS_OVER_ALL, ROWS_OVER_X = "[{}, {}]", '[{"x", "y"}, {}]', '[{"x"}, {}]'


def is_beside(read: str, made: str, settled: str, **options: Any) -> bool:
    """Of the product that hands on what goes back, under those shardings of what it reads and makes."""
    program = program_of(unembedding(**options))
    types = {value: program.listing.values[value].type for value, _ in picked_beside(program)}
    (picked,) = (
        found
        for (value, _), found in picked_beside(program).items()
        if (type_ := types[value]) is not None and type_.shape == (ROWS, WIDTH)
    )
    assert picked.type.shape == (ROWS, WORDS)
    return picked.is_beside(*(parse_sharding(one, MESH) for one in (read, made, settled)))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("from_copy", [False, True])
def test_labels_of_split_words_are_picked_behind_sums_of_what_goes_back(
    has_bias: bool, from_copy: bool
) -> None:
    """A sum over all devices waits for it, which theirs joins: not one over some of them, nor where no norm is trained."""
    options = {"has_bias": has_bias, "from_copy": from_copy}
    assert is_beside(SPLIT, WHOLE, ROWS_OVER_ALL, **options)
    assert not is_beside(BY_Y, ROWS_OVER_X, ROWS_OVER_ALL, **options)
    assert not is_beside(SPLIT, WHOLE, ROWS_OVER_ALL, has_scale=False, **options)


@pytest.mark.parametrize(
    ("has_bias", "from_copy", "expected"),
    [(False, False, True), (True, False, False), (False, True, False), (True, True, True)],
)
def test_of_whole_words_one_fusion_makes_both(has_bias: bool, from_copy: bool, expected: bool) -> None:
    """The logarithms, or where a bias is summed a copy of the logits."""
    assert (
        is_beside(ROWS_OVER_ALL, ROWS_OVER_ALL, ROWS_OVER_ALL, has_bias=has_bias, from_copy=from_copy)
        is expected
    )


def test_padded_words_are_picked_apart() -> None:
    assert not is_beside(UNEVEN, WHOLE, ROWS_OVER_ALL)
