"""Which products read what goes back to logits, and where what labels are picked from is there at the same time."""

from dataclasses import replace
from typing import Any

import pytest

from autoshard.program import AddedUp, Compiler, build_program
from autoshard.program.picking import picked_beside
from autoshard.sharding import Mesh, parse_sharding
from tests.mlir.modules import listed
from tests.programs.unembedding import ROWS, WIDTH, WORDS, unembedding

MESH = Mesh.of([("x", 4), ("y", 4), ("z", 3)])
SPLIT, BY_Y, UNEVEN = '[{}, {"x", "y"}]', '[{}, {"y"}]', '[{}, {"x", "y", "z"}]'
WHOLE, ROWS_OVER_ALL, ROWS_OVER_X = "[{}, {}]", '[{"x", "y"}, {}]', '[{"x"}, {}]'


def is_beside(read: str, made: str, settled: str, *, picks_behind_loops: bool = True, **options: Any) -> bool:
    """Of the product that hands on what goes back, under those shardings of what it reads and makes."""
    compiler = Compiler(is_xla_tpu=True, picks_behind_loops=picks_behind_loops)
    program = build_program(listed(unembedding(**options)), compiler=compiler)
    values = program.listing.values
    (picked,) = (
        found
        for (value, _), found in program.picked.items()
        if (type_ := values[value].type) is not None and type_.shape == (ROWS, WIDTH)
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


def test_what_waits_for_what_is_picked_is_made_behind_it() -> None:
    """As of preferences, whose gradient is scaled by how likely answers are."""
    program = build_program(listed(unembedding(weighs_by_loss=True)), compiler=Compiler(is_xla_tpu=True))
    assert not program.picked


def test_logarithms_of_biased_logits_wait_where_the_compiler_picks_later() -> None:
    """Not behind the loop at once, where what it read still takes room; a copy is there all the same."""
    for from_copy in (False, True):
        options = {"has_bias": True, "from_copy": from_copy, "picks_behind_loops": False}
        assert is_beside(SPLIT, WHOLE, ROWS_OVER_ALL, **options) is from_copy


def test_padded_words_are_picked_apart() -> None:
    assert not is_beside(UNEVEN, WHOLE, ROWS_OVER_ALL)


def test_a_sum_that_is_made_behind_a_loop_over_microbatches_is_not_waited_for() -> None:
    compiler = Compiler(is_xla_tpu=True)
    program = build_program(listed(unembedding()), compiler=compiler)
    added = AddedUp(1, 4 * WIDTH, WIDTH)
    scales = {
        kernel.results[0]: added
        for kernel in program.kernels
        if kernel.shape.name == "stablehlo.reduce" and kernel.shape.results[0].shape == (WIDTH,)
    }
    later = picked_beside(replace(program, sums_after_loops=scales), compiler)
    assert any(picked.sums for picked in program.picked.values())
    assert not any(picked.sums for picked in later.values())
