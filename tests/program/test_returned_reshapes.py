"""What is returned, or handed on, under the name that a reshape gives it keeps its memory; and labels picked along rows."""

import pytest

from autoshard.program import build_program
from autoshard.program.repeating import into_matmuls
from tests.mlir.modules import listed, main_of

P, X, W = "tensor<4096x4096xf32>", "tensor<4096x1024xbf16>", "tensor<1024x4096xbf16>"
N, U, M = "tensor<4096x4096xbf16>", "tensor<4096x256xbf16>", "tensor<64x64x4096xf32>"


def narrow_reads(named: str, rest: str) -> str:
    """Of a product, or of what is `named` after it."""
    return f"""%p = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {P}
      %2 = stablehlo.reshape %p : ({P}) -> {M}
      %q = stablehlo.reshape %{named} : ({M if named == "2" else P}) -> {P}
      %t = stablehlo.negate %q : {P}
      %n = stablehlo.convert %t : ({P}) -> {N}
      %0 = stablehlo.dot_general %n, %u, contracting_dims = [1] x [0] : ({N}, {U}) -> {U}
      %1 = stablehlo.dot_general %n, %v, contracting_dims = [1] x [0] : ({N}, {U}) -> {U}
      return %0, %1{rest}"""


@pytest.mark.parametrize("named", ["p", "2"])
@pytest.mark.parametrize("is_returned", [False, True])
def test_of_a_product_that_others_read_narrower(is_returned: bool, named: str) -> None:
    """What they read takes its place only where nobody is given the product."""
    types = f"{U}, {U}, {M}" if is_returned else f"{U}, {U}"
    body = narrow_reads(named, f"{', %2' if is_returned else ''} : {types}")
    listing = listed(main_of(body, f"%x: {X}, %w: {W}, %u: {U}, %v: {U}", types))
    program = build_program(listing)
    product = program.lifetimes[listing.ops[0].results[0]]
    assert (product.is_own_buffer and product.end == program.num_times) == is_returned


@pytest.mark.parametrize("is_read", [False, True])
def test_of_a_convolution_in_front_of_a_depthwise_one(is_read: bool) -> None:
    """It is made by itself where it is returned as rows."""
    x, c, k, d, r = (
        f"tensor<{shape}xf32>"
        for shape in ("64x32x32x64", "64x32x32x256", "1x1x64x256", "3x3x1x256", "64x1024x256")
    )
    dims = "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    body = f"""%0 = stablehlo.convolution(%x, %k) {dims}, window = {{stride = [1, 1]}} {{batch_group_count = 1 : i64,
        feature_group_count = 1 : i64}} : ({x}, {k}) -> {c}
      %2 = stablehlo.reshape %0 : ({c}) -> {r}
      %5 = stablehlo.reshape {"%2" if is_read else "%0"} : ({r if is_read else c}) -> {c}
      %1 = stablehlo.convolution(%5, %d) {dims}, window = {{pad = [[1, 1], [1, 1]]}} {{batch_group_count = 1 : i64,
        feature_group_count = 256 : i64}} : ({c}, {d}) -> {c}
      return %1, %2 : {c}, {r}"""
    listing = listed(main_of(body, f"%x: {x}, %k: {k}, %d: {d}", f"{c}, {r}"))
    program = build_program(listing)
    assert program.lifetimes[listing.ops[0].results[0]].is_own_buffer


def test_slices_of_logarithms_are_no_labels() -> None:
    """A gather that drops no dimension of what goes back to logits picks along none."""
    a, b, w = "tensor<8x16x128xbf16>", "tensor<8x16x128xf32>", "tensor<64x128xbf16>"
    rows, made, d = "tensor<128x64xbf16>", "tensor<128x128xbf16>", "tensor<64x128xf32>"
    body = f"""%l = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({rows}, {w}) -> {made}
      %n = stablehlo.reshape %l : ({made}) -> {a}
      %f = stablehlo.convert %n : ({a}) -> {b}
      %e = stablehlo.exponential %f : {b}
      %g = "stablehlo.gather"(%e, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [0, 1, 2], start_index_map = [0],
        index_vector_dim = 0>, slice_sizes = array<i64: 4, 16, 128>, indices_are_sorted = false}}>
        : ({b}, tensor<1xi32>) -> tensor<4x16x128xf32>
      %c = stablehlo.convert %e : ({b}) -> {a}
      %r = stablehlo.reshape %c : ({a}) -> {made}
      %0 = stablehlo.dot_general %x, %r, contracting_dims = [0] x [0] : ({rows}, {made}) -> {d}
      return %g, %0 : tensor<4x16x128xf32>, {d}"""
    text = main_of(body, f"%x: {rows}, %w: {w}, %i: tensor<1xi32>", f"tensor<4x16x128xf32>, {d}")
    assert not build_program(listed(text)).picked


@pytest.mark.parametrize(("columns", "is_folded"), [(32, True), (1024, False)])
def test_transposes_that_products_read_as_one_matrix(columns: int, is_folded: bool) -> None:
    """As the matrix unit takes them, but where columns are merged, as the heads of attention are."""
    x, t = "tensor<8x16x64x32xf32>", "tensor<8x64x16x32xf32>"
    m, w, y = (
        f"tensor<{shape}xf32>"
        for shape in (f"{262144 // columns}x{columns}", f"{columns}x8", f"{262144 // columns}x8")
    )
    body = f"""%t = stablehlo.transpose %x, dims = [0, 2, 1, 3] : ({x}) -> {t}
      %r = stablehlo.reshape %t : ({t}) -> {m}
      %0 = stablehlo.dot_general %r, %w, contracting_dims = [1] x [0] : ({m}, {w}) -> {y}
      return %0 : {y}"""
    listing = listed(main_of(body, f"%x: {x}, %w: {w}", y))
    assert (listing.ops[0].results[0] in into_matmuls(listing, frozenset(), frozenset())) == is_folded
