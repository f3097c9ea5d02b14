"""Products of one row or column, or over one element: XLA broadcasts a vector once for all that read it."""

import pytest

from autoshard.mlir.decisions import Decisions
from autoshard.mlir.row_products import is_multiplied
from autoshard.mlir.write import write
from autoshard.sharding import TensorSharding
from tests.mlir.modules import listed, main_of, read_text, sharding

ROWS = "tensor<64x32xf32>"
COLUMN, WEIGHTS = "tensor<64x1xf32>", "tensor<32x1xf32>"
LAYER = main_of(
    f"""%f = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({ROWS}, {WEIGHTS}) -> {COLUMN}
    %b = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : ({COLUMN}, {WEIGHTS}) -> {ROWS}
    return %f, %b : {COLUMN}, {ROWS}""",
    f"%a: {ROWS}, %w: {WEIGHTS}, %g: {COLUMN}",
    f"{COLUMN}, {ROWS}",
)
"""A layer with one unit, and what it gives back: both multiply by the weights, broadcast to all rows."""


def written(backward: str) -> str:
    """The layer split over x and y, and what it gives back as named, where its operand is split so."""
    source, listing, handles = read_text(LAYER)
    (forward, back), (a, w, g) = listing.ops, (argument.value for argument in listing.arguments)
    split, other, whole = sharding('[{"x", "y"}, {}]'), sharding(backward), sharding("[{}, {}]")
    shardings: dict[int, TensorSharding] = {a: split, w: whole, g: other}
    shardings |= {forward.results[0]: split, back.results[0]: other}
    return write(source, handles, listing, Decisions(shardings, {}), "xla")


@pytest.mark.parametrize(("backward", "count"), [('[{"x", "y"}, {}]', 0), ('[{"z"}, {}]', 1)])
def test_the_second_reads_a_value_of_its_own(backward: str, count: int) -> None:
    """Where the two are split alike, one broadcast serves both."""
    text = written(backward)
    assert text.count("sdy.sharding_constraint %arg1") + text.count("sdy.sharding_constraint %w") == count


@pytest.mark.parametrize(
    ("left", "right", "made", "is_one"),
    [
        ("64x32", "32x1", "64x1", True),
        ("64x1", "1x32", "64x32", True),
        ("64x32", "32x2", "64x2", False),
    ],
)
def test_which_products(left: str, right: str, made: str, is_one: bool) -> None:
    body = f"""%f = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
      : (tensor<{left}xf32>, tensor<{right}xf32>) -> tensor<{made}xf32>
    return %f : tensor<{made}xf32>"""
    listing = listed(main_of(body, f"%a: tensor<{left}xf32>, %w: tensor<{right}xf32>", f"tensor<{made}xf32>"))
    assert is_multiplied(listing.ops[0]) == is_one
