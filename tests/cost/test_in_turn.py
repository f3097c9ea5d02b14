"""Gradients by the filters of dilated and of transposed convolutions, which cuDNN works out one position of the image after another."""

import pytest

from autoshard import pipeline
from autoshard.program import build_program
from autoshard.program.records import KernelShape

PLAIN = (1, 1, 64, 1)  # stride, dilation of the image, positions a side, padding
DILATED = (2, 1, 64, 2)
TRANSPOSED = (1, 2, 126, 1)
LARGER = (1, 2, 64, 1)
FORWARD = (14, 1, 14, 0)  # patches of an image


def module(stride: int, dilation: int, side: int, padding: int, images: int = 16) -> str:
    """[f, 64, 64, b] by [i, side, side, o], as JAX writes a gradient by a filter of `count` x `count` places."""
    rows = (64 - 1) * dilation + 1
    count = (rows + 2 * padding - side) // stride + 1
    image = f"tensor<{images}x64x64x8xbf16>"
    other, made = f"tensor<{images}x{side}x{side}x32xbf16>", f"tensor<{count}x{count}x8x32xbf16>"
    return f"""
      sdy.mesh @mesh = <["x"=2]>
      func.func @main(%a: {image}, %b: {other}) -> {made} {{
        %0 = stablehlo.convolution(%a, %b) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {{
          stride = [{stride}, {stride}], pad = [[{padding}, {padding}], [{padding}, {padding}]], lhs_dilate = [{dilation}, {dilation}],
          rhs_dilate = [1, 1], reverse = [false, false]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
          : ({image}, {other}) -> {made}
        return %0 : {made}
      }}"""


def shape_of(text: str) -> KernelShape:
    (kernel,) = build_program(pipeline.load_module(text.encode(), pipeline.Request()).listing).kernels
    return kernel.shape


@pytest.mark.parametrize(
    ("windows", "in_turn"),
    [
        pytest.param(PLAIN, (0, 1), id="of a plain convolution a kernel of its own"),
        pytest.param(DILATED, (64 * 64, 3 * 3), id="of a dilated one none"),
        pytest.param(TRANSPOSED, (126 * 126, 4 * 4), id="nor of a transposed one"),
        pytest.param(LARGER, (0, 1), id="more places than positions"),
        pytest.param(FORWARD, (0, 1), id="patches"),
    ],
)
def test_which_have_no_kernel(windows: tuple[int, int, int, int], in_turn: tuple[int, int]) -> None:
    assert shape_of(module(*windows)).in_turn == in_turn


def step_ns(text: str, hardware: str) -> int:
    asked = pipeline.Request(hardware=hardware, memory_bytes=None)
    return pipeline.cost_loaded(pipeline.load_module(text.encode(), asked)).price.step_ns


def test_what_they_take() -> None:
    """Of 16 images two steps of 16 bytes at each of 4096 positions, on a GPU; half of the images, half of the steps."""
    whole, half = (step_ns(module(*DILATED, images), "h200") for images in (16, 8))
    assert whole - step_ns(module(*PLAIN), "h200") == pytest.approx(4096 * 2 * 205, rel=0.02)
    assert whole - half == pytest.approx(4096 * 205, rel=0.02)
    assert step_ns(module(*DILATED), "tpu-v5e") < whole / 20
