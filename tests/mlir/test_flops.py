"""Flops by op kind, from closed forms."""

import pytest

from tests.mlir.modules import listed, main_of

T = "tensor<8x16xf32>"


@pytest.mark.parametrize(
    ("body", "arguments", "flops"),
    [
        (
            f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({T}, tensor<16x32xf32>) -> tensor<8x32xf32>",
            f"%a: {T}, %b: tensor<16x32xf32>",
            2 * 8 * 16 * 32,
        ),
        (
            "%0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
            "window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
            "(tensor<2x28x28x8xf32>, tensor<3x3x8x16xf32>) -> tensor<2x28x28x16xf32>",
            "%a: tensor<2x28x28x8xf32>, %b: tensor<3x3x8x16xf32>",
            2
            * (2 * (3 * 28 - 2) ** 2 * 16)
            * 8,  # without the padding: two windows in each dimension have two rows
        ),
        (
            "%0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
            "window = {pad = [[2, 2], [2, 2]], lhs_dilate = [2, 2]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
            "(tensor<2x14x14x8xf32>, tensor<4x4x8x16xf32>) -> tensor<2x28x28x16xf32>",
            "%a: tensor<2x14x14x8xf32>, %b: tensor<4x4x8x16xf32>",
            2 * (2 * (4 * 14 - 2) ** 2 * 16) * 8,  # as the convolution that this is the gradient of
        ),
        (f"%0 = stablehlo.add %a, %a : {T}", f"%a: {T}", 8 * 16),
        (f"%0 = stablehlo.transpose %a, dims = [1, 0] : ({T}) -> tensor<16x8xf32>", f"%a: {T}", 0),
        (f"%0 = stablehlo.reshape %a : ({T}) -> tensor<128xf32>", f"%a: {T}", 0),
        (
            f"%0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1] : ({T}, tensor<f32>) -> tensor<8xf32>",
            f"%a: {T}, %z: tensor<f32>",
            8 * 16,
        ),
        (
            "%0 = stablehlo.fft %a, type = FFT, length = [16] : (tensor<8x16xcomplex<f32>>) -> tensor<8x16xcomplex<f32>>",
            "%a: tensor<8x16xcomplex<f32>>",
            5 * 8 * 16 * 4,
        ),
        (
            f'%0 = "stablehlo.sort"(%a) <{{dimension = 1 : i64}}> ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>):'
            f" %l = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>"
            f" stablehlo.return %l : tensor<i1> }}) : ({T}) -> {T}",
            f"%a: {T}",
            8 * 16 // 2 * (4 * 5 // 2) * 52,
        ),
        (
            "%0:2 = chlo.top_k(%a, k = 2) : tensor<8x16xf32> -> (tensor<8x2xf32>, tensor<8x2xi32>)",
            f"%a: {T}",
            8 * 16 // 2 * (4 * 5 // 2) * 26,
        ),
        (
            f'%0 = "stablehlo.reduce_window"(%a, %z) <{{window_dimensions = array<i64: 2, 4>, window_strides = array<i64: 2, 4>}}> '
            f"({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>): %m = stablehlo.maximum %x, %y : tensor<f32> stablehlo.return %m : tensor<f32> }})"
            f" : ({T}, tensor<f32>) -> tensor<4x4xf32>",
            f"%a: {T}, %z: tensor<f32>",
            4 * 4 * 8,
        ),
        (
            '%0 = "stablehlo.reduce_window"(%a, %z) <{window_dimensions = array<i64: 1, 4096>, '
            "padding = dense<[[0, 0], [4095, 0]]> : tensor<2x2xi64>}> "
            "({ ^bb0(%x: tensor<f32>, %y: tensor<f32>): %m = stablehlo.add %x, %y : tensor<f32> stablehlo.return %m : tensor<f32> })"
            " : (tensor<8x4096xf32>, tensor<f32>) -> tensor<8x4096xf32>",
            "%a: tensor<8x4096xf32>, %z: tensor<f32>",
            8 * 4096 * 128,
        ),
        (
            "%0 = stablehlo.cholesky %a, lower = true : tensor<2x6x6xf32>",
            "%a: tensor<2x6x6xf32>",
            2 * 6**3 // 3,
        ),
    ],
)
def test_whole_op(body: str, arguments: str, flops: int) -> None:
    assert listed(main_of(f"{body}\nreturn", arguments, "")).ops[0].flops == flops


def test_transcendentals_weigh_more_than_an_addition() -> None:
    add, tanh = listed(
        main_of(f"%0 = stablehlo.add %a, %a : {T}\n%1 = stablehlo.tanh %0 : {T}\nreturn %1 : {T}")
    ).ops
    assert tanh.flops > add.flops


@pytest.mark.parametrize(
    ("batch", "rows", "columns", "is_matmul"),
    [(1, 64, 128, True), (32, 64, 2, True), (32, 64, 1, False), (32, 1, 128, False), (1, 64, 1, False)],
)
def test_by_a_vector_nothing_is_multiplied_as_matrices(
    batch: int, rows: int, columns: int, is_matmul: bool
) -> None:
    """What libtpu 0.0.52 makes no convolution of."""
    left, right, made = (
        f"tensor<{batch}x{rows}x845xf32>",
        f"tensor<{batch}x845x{columns}xf32>",
        f"tensor<{batch}x{rows}x{columns}xf32>",
    )
    dims = "batching_dims = [0] x [0], contracting_dims = [2] x [1]"
    body = f"%0 = stablehlo.dot_general %a, %b, {dims} : ({left}, {right}) -> {made}\nreturn %0 : {made}"
    (op,) = listed(main_of(body, f"%a: {left}, %b: {right}", made)).ops
    assert op.is_matmul == is_matmul
