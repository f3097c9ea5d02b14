"""Names of buffers that pad more than the buffer's own shape does."""

import pytest

from tests.mlir.modules import main_of
from tests.program.modules import program_of

HEADS = "tensor<8x50x2x64xf32>"


@pytest.mark.parametrize("is_scaled", [False, True])
def test_products_that_are_cut_into_heads(is_scaled: bool) -> None:
    """Of queries the name that the product of scores reads, scaled or not, and the name of keys."""
    queries = (
        f"%4 = stablehlo.multiply %2, %2 : {HEADS}"
        if is_scaled
        else f"%4 = stablehlo.reshape %0 : (tensor<8x50x128xf32>) -> {HEADS}"
    )
    weights = "(tensor<8x50x128xf32>, tensor<128x128xf32>) -> tensor<8x50x128xf32>"
    program = program_of(
        main_of(
            f"""
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [2] x [0] : {weights}
      %1 = stablehlo.dot_general %a, %c, contracting_dims = [2] x [0] : {weights}
      %2 = stablehlo.reshape %0 : (tensor<8x50x128xf32>) -> {HEADS}
      %3 = stablehlo.reshape %1 : (tensor<8x50x128xf32>) -> {HEADS}
      {queries}
      %5 = stablehlo.dot_general %4, %3, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3]
        : ({HEADS}, {HEADS}) -> tensor<8x2x50x50xf32>
      return %5 : tensor<8x2x50x50xf32>""",
            "%a: tensor<8x50x128xf32>, %b: tensor<128x128xf32>, %c: tensor<128x128xf32>",
            "tensor<8x2x50x50xf32>",
        )
    )
    scores = next(
        kernel
        for kernel in program.kernels
        if len(kernel.shape.results[0].shape) == 4 and kernel.shape.is_matmul
    )
    assert program.padding_names == {use.value for use in scores.uses}
