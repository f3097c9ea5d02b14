"""What the products of experts read."""

import pytest

from autoshard.program import Program, build_program
from tests.mlir.modules import listed, main_of

ROWS, HIDDEN, EXPERTS, SIZES = (
    "tensor<64x16xbf16>",
    "tensor<64x32xbf16>",
    "tensor<4x32x16xbf16>",
    "tensor<4xi32>",
)
RAGGED = """{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [],
  lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}"""


def experts(*, are_ragged: bool, gate: str = f"%g = stablehlo.multiply %h, %u : {HIDDEN}") -> Program:
    """A gate, the product that reads it, and another one that reads it when much else has been made."""
    product = (
        f'"chlo.ragged_dot"(%g, %w, %n) {RAGGED} : ({HIDDEN}, {EXPERTS}, {SIZES}) -> {ROWS}'
        if are_ragged
        else f"stablehlo.dot_general %g, %m, contracting_dims = [1] x [0] : ({HIDDEN}, tensor<32x16xbf16>) -> {ROWS}"
    )
    body = f"""
      %h = stablehlo.dot_general %a, %m, contracting_dims = [1] x [1] : ({ROWS}, tensor<32x16xbf16>) -> {HIDDEN}
      %u = stablehlo.dot_general %b, %m, contracting_dims = [1] x [1] : ({ROWS}, tensor<32x16xbf16>) -> {HIDDEN}
      {gate}
      %y = {product}
      %s = stablehlo.tanh %y : {ROWS}
      %o = stablehlo.dot_general %g, %s, contracting_dims = [0] x [0] : ({HIDDEN}, {ROWS}) -> tensor<32x16xbf16>
      %q = stablehlo.dot_general %h, %s, contracting_dims = [0] x [0] : ({HIDDEN}, {ROWS}) -> tensor<32x16xbf16>
      %r = stablehlo.dot_general %u, %s, contracting_dims = [0] x [0] : ({HIDDEN}, {ROWS}) -> tensor<32x16xbf16>
      return %o, %q, %r : tensor<32x16xbf16>, tensor<32x16xbf16>, tensor<32x16xbf16>"""
    given = f"%a: {ROWS}, %b: {ROWS}, %m: tensor<32x16xbf16>, %w: {EXPERTS}, %n: {SIZES}"
    return build_program(listed(main_of(body, given, ", ".join(["tensor<32x16xbf16>"] * 3))))


@pytest.mark.parametrize("are_ragged", [True, False])
def test_what_ragged_products_read_is_stored(*, are_ragged: bool) -> None:
    """Until its last reader; a plain product makes it itself, of what is stored anyway (libtpu 0.0.52, Qwen3's experts on v5p)."""
    program = experts(are_ragged=are_ragged)
    (gate,) = (op.results[0] for op in program.listing.ops if op.name == "stablehlo.multiply")
    assert program.ample_lifetimes[gate].is_own_buffer == are_ragged


def test_under_another_shape() -> None:
    """What is reshaped for a ragged product is stored as it is made."""
    reshaped = f"""%g1 = stablehlo.multiply %h, %u : {HIDDEN}
      %g2 = stablehlo.reshape %g1 : ({HIDDEN}) -> tensor<32x64xbf16>
      %g = stablehlo.reshape %g2 : (tensor<32x64xbf16>) -> {HIDDEN}"""
    program = experts(are_ragged=True, gate=reshaped)
    (gate,) = (op.results[0] for op in program.listing.ops if op.name == "stablehlo.multiply")
    assert program.ample_lifetimes[gate].is_own_buffer
