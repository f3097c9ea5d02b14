"""Zeros around an image are the convolution's own, or the pooling's."""

import pytest

from tests.mlir.modules import main_of
from tests.program.modules import program_of

IMAGE, PADDED, KERNEL, RESULT = (
    "tensor<2x8x8x4xf32>",
    "tensor<2x10x10x4xf32>",
    "tensor<3x3x4x4xf32>",
    "tensor<2x8x8x4xf32>",
)


@pytest.mark.parametrize(
    ("integer", "reader", "is_stored"),
    [
        (0, "convolution", False),
        (1, "convolution", True),
        (0, "pooling", False),
        (1, "pooling", False),
        (0, "slice", True),
        (0, "pooled slice", False),
    ],
)
def test_padding_for_convolutions_is_not_stored(integer: int, reader: str, is_stored: bool) -> None:
    """What convolutions alone read has no buffer beside the image where it is padded by zeros, also converted ones; nor what is pooled."""
    cut = f"stablehlo.slice %2 [0:2, 2:10, 2:10, 0:4] : ({PADDED}) -> {RESULT}"

    def pooled(value: str, type_: str, window: int) -> str:
        return f"""\"stablehlo.reduce_window\"({value}, %value) <{{window_dimensions = array<i64: 1, {window}, {window}, 1>}}> ({{
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            %m = stablehlo.maximum %a, %b : tensor<f32>
            stablehlo.return %m : tensor<f32>
          }}) : ({type_}, tensor<f32>) -> {RESULT}"""

    readers = {
        "convolution": f"""stablehlo.convolution(%2, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{}}
          {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({PADDED}, {KERNEL}) -> {RESULT}""",
        "pooling": pooled("%2", PADDED, 3),
        "slice": cut,
        "pooled slice": f"{cut}\n%5 = {pooled('%3', RESULT, 1)}",
    }
    body = f"""
      %integer = stablehlo.constant dense<{integer}> : tensor<i32>
      %value = stablehlo.convert %integer : (tensor<i32>) -> tensor<f32>
      %0 = stablehlo.reverse %x, dims = [1] : {IMAGE}
      %2 = stablehlo.pad %0, %value, low = [0, 1, 1, 0], high = [0, 1, 1, 0], interior = [0, 0, 0, 0] : ({IMAGE}, tensor<f32>) -> {PADDED}
      %3 = {readers[reader]}
      %4 = stablehlo.reverse {"%5" if reader == "pooled slice" else "%3"}, dims = [1] : {RESULT}
      return %4 : {RESULT}"""
    program = program_of(main_of(body, f"%x: {IMAGE}, %k: {KERNEL}", RESULT))
    (padded,) = (k for k in program.kernels if program.listing.ops[k.time].name == "stablehlo.pad")
    assert program.ample_lifetimes[padded.results[0]].is_own_buffer is is_stored
