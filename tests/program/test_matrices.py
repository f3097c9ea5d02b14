"""Work that products read through a reshape has a buffer, but where XLA for TPUs does without the reshape.

Each text is what libtpu 0.0.52 was seen to fuse so, but smaller.
"""

import pytest

from autoshard.program import Compiler, build_program
from autoshard.program.matrices import read_as_matrices
from autoshard.program.records import XLA_TPU
from tests.mlir.modules import listed, main_of

TEXTS, ROWS, HEADS = "tensor<4x8x16xf32>", "tensor<32x16xf32>", "tensor<4x8x2x8xf32>"
W, V = "tensor<16x16xf32>", "tensor<16xf32>"
WORK = f"""
      %s = stablehlo.broadcast_in_dim %v, dims = [2] : ({V}) -> {TEXTS}
      %y = stablehlo.multiply %x, %s : {TEXTS}
"""
AS_ROWS = f"%m = stablehlo.reshape %y : ({TEXTS}) -> {ROWS}\n"
BIASED = f"""
      %p = stablehlo.dot_general %m, %w, contracting_dims = [1] x [0] : ({ROWS}, {W}) -> {ROWS}
      %a = stablehlo.broadcast_in_dim %v, dims = [1] : ({V}) -> {ROWS}
      %b = stablehlo.add %p, %a : {ROWS}
      %o = stablehlo.reshape %b : ({ROWS}) -> {TEXTS}
"""
CUT_AT_ONCE = f"""
      %p = stablehlo.dot_general %m, %w, contracting_dims = [1] x [0] : ({ROWS}, {W}) -> {ROWS}
      %o = stablehlo.reshape %p : ({ROWS}) -> {TEXTS}
"""
INTO_HEADS = f"""
      %p = stablehlo.dot_general %m, %w, contracting_dims = [1] x [0] : ({ROWS}, {W}) -> {ROWS}
      %c = stablehlo.reshape %p : ({ROWS}) -> {TEXTS}
      %h = stablehlo.reshape %c : ({TEXTS}) -> {HEADS}
      %o = stablehlo.reshape %h : ({HEADS}) -> {TEXTS}
      %again = stablehlo.negate %h : {HEADS}
"""
GRADIENT = f"""
      %n = stablehlo.negate %o : {TEXTS}
      %g = stablehlo.reshape %n : ({TEXTS}) -> {ROWS}
      %d = stablehlo.dot_general %m, %g, contracting_dims = [0] x [0] : ({ROWS}, {ROWS}) -> {W}
      return %d : {W}
"""
MATRIX = f"%x = stablehlo.reshape %q : ({ROWS}) -> {TEXTS}"


def text(body: str, *, of: str = TEXTS) -> str:
    name = "%x" if of == TEXTS else "%q"
    return main_of(body, f"{name}: {of}, %w: {W}, %v: {V}", W)


def names(body: str, *, of: str = TEXTS) -> set[str]:
    listing = listed(text(body, of=of))
    makers = {value: op.name for op in listing.ops for value in op.results}
    return {makers[value] for value in read_as_matrices(listing)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (WORK + AS_ROWS + BIASED + GRADIENT, {"stablehlo.multiply"}),
        (WORK + AS_ROWS + INTO_HEADS + GRADIENT, {"stablehlo.multiply"}),
        (WORK + AS_ROWS + CUT_AT_ONCE + GRADIENT, set()),
    ],
    ids=["a bias is added to the rows", "cut into heads", "cut into the same rows at once"],
)
def test_work_is_stored_unless_its_product_is_cut_into_the_same_rows(body: str, expected: set[str]) -> None:
    assert names(body) == expected


def test_work_on_what_was_cut_from_a_matrix_is_done_on_the_matrix() -> None:
    body = MATRIX + WORK + AS_ROWS + BIASED + GRADIENT
    assert names(body, of=ROWS) == set()
    summed = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [2] : ({TEXTS}, tensor<f32>) -> tensor<4x8xf32>
"""
    assert names(MATRIX + summed + WORK + AS_ROWS + BIASED + GRADIENT, of=ROWS) == {"stablehlo.multiply"}


@pytest.mark.parametrize(
    ("compiler", "is_stored"), [(XLA_TPU, True), (Compiler(is_xla_tpu=False), False)], ids=["tpu", "none"]
)
def test_it_has_a_buffer_where_memory_is_ample(compiler: Compiler, is_stored: bool) -> None:
    program = build_program(listed(text(WORK + AS_ROWS + BIASED + GRADIENT)), compiler=compiler)
    (made,) = (k for k in program.kernels if program.listing.ops[k.time].name == "stablehlo.multiply")
    assert program.ample_lifetimes[made.results[0]].is_own_buffer is is_stored
