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


OTHER_ROWS = f"""
      %p = stablehlo.dot_general %m, %w, contracting_dims = [1] x [0] : ({ROWS}, {W}) -> {ROWS}
      %c = stablehlo.reshape %p : ({ROWS}) -> tensor<8x4x16xf32>
      %k = stablehlo.negate %c : tensor<8x4x16xf32>
      %o = stablehlo.reshape %k : (tensor<8x4x16xf32>) -> {TEXTS}
"""
TWICE = f"""
      %p = stablehlo.dot_general %m, %w, contracting_dims = [1] x [0] : ({ROWS}, {W}) -> {ROWS}
      %o1 = stablehlo.reshape %p : ({ROWS}) -> {TEXTS}
      %o2 = stablehlo.reshape %p : ({ROWS}) -> {TEXTS}
      %o = stablehlo.multiply %o1, %o2 : {TEXTS}
"""
TURNED = f"""
      %t = stablehlo.dot_general %w, %m, contracting_dims = [0] x [1] : ({W}, {ROWS}) -> tensor<16x32xf32>
      %c = stablehlo.reshape %t : (tensor<16x32xf32>) -> {TEXTS}
      %o = stablehlo.negate %c : {TEXTS}
"""


def moved(body: str) -> str:
    """With constraints on what is reshaped and on what products make."""
    for name, type_ in (("%y", TEXTS), ("%p", ROWS)):
        made, constraint = f"{name} = ", f"{name} = sdy.sharding_constraint {name}0 <@mesh, [{{}}, {{}}"
        rank = ", {}" if type_ == TEXTS else ""
        head, _, tail = body.partition(made)
        line, _, rest = tail.partition("\n")
        body = f"{head}{name}0 = {line}\n{constraint}{rank}]> : {type_}\n{rest}"
    return body


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
        (WORK + AS_ROWS + OTHER_ROWS + GRADIENT, {"stablehlo.multiply"}),
        (WORK + AS_ROWS + TURNED + GRADIENT, {"stablehlo.multiply"}),
        (WORK + AS_ROWS + TWICE + GRADIENT, set()),
        (moved(WORK + AS_ROWS + BIASED + GRADIENT), {"stablehlo.multiply"}),
        (moved(WORK + AS_ROWS + CUT_AT_ONCE + GRADIENT), set()),
    ],
    ids=[
        "a bias is added to the rows",
        "cut into heads",
        "cut into the same rows at once",
        "cut into other rows",
        "rows last",
        "cut twice alike",
        "moved, a bias is added",
        "moved, cut at once",
    ],
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


def test_a_constant_is_spread_also_as_it_is_moved() -> None:
    scaled = f"""
      %c = stablehlo.constant dense<2.0> : {TEXTS}
      %s = sdy.sharding_constraint %c <@mesh, [{{"x"}}, {{}}, {{}}]> : {TEXTS}
      %y = stablehlo.multiply %x, %s : {TEXTS}
"""
    assert names(scaled + AS_ROWS + BIASED + GRADIENT) == {"stablehlo.multiply"}
    assert names(MATRIX + scaled + AS_ROWS + BIASED + GRADIENT, of=ROWS) == set()


@pytest.mark.parametrize(
    ("compiler", "is_stored"), [(XLA_TPU, True), (Compiler(is_xla_tpu=False), False)], ids=["tpu", "none"]
)
def test_it_has_a_buffer_where_memory_is_ample(compiler: Compiler, is_stored: bool) -> None:
    program = build_program(listed(text(WORK + AS_ROWS + BIASED + GRADIENT)), compiler=compiler)
    (made,) = (k for k in program.kernels if program.listing.ops[k.time].name == "stablehlo.multiply")
    assert program.ample_lifetimes[made.results[0]].is_own_buffer is is_stored


@pytest.mark.parametrize("texts", ["1x32x16", "32x1x16"])
def test_dimensions_of_one_element_merge_nothing(texts: str) -> None:
    body = (WORK + AS_ROWS + BIASED + GRADIENT).replace(TEXTS, f"tensor<{texts}xf32>")
    listing = listed(main_of(body, f"%x: tensor<{texts}xf32>, %w: {W}, %v: {V}", W))
    assert not read_as_matrices(listing)
