"""Gradients by the filters of dilated and of transposed convolutions, which cuDNN works out one position of the image after another."""

from typing import NamedTuple

import pytest

from autoshard import pipeline
from autoshard.program import build_program
from autoshard.program.records import KernelShape


class Slid(NamedTuple):
    """Windows over images; of `side` x `side` positions, or in one row."""

    side: int
    stride: int = 1
    dilation: int = 1  # of the images
    padding: int = 0
    images: int = 16
    rows: int = 64  # and columns of the images
    is_flat: bool = False

    @property
    def places(self) -> int:
        """Along each dimension."""
        return ((self.rows - 1) * self.dilation + 1 + 2 * self.padding - self.side) // self.stride + 1


DILATED = Slid(64, stride=2, padding=2)


def module(slid: Slid) -> str:
    """[f, 64, 64, b] by [i, side, side, o], as JAX writes a gradient by a filter of places x places."""
    side, stride, dilation, padding, images, rows, is_flat = slid
    heights = (1, 1, 1) if is_flat else (rows, side, slid.places)
    a, b, made = (
        f"{height}x{width}" for height, width in zip(heights, (rows, side, slid.places), strict=True)
    )
    image, other, result = (
        f"tensor<{images}x{a}x8xbf16>",
        f"tensor<{images}x{b}x32xbf16>",
        f"tensor<{made}x8x32xbf16>",
    )
    first = (1, 0, 1) if is_flat else (stride, padding, dilation)
    return f"""
      sdy.mesh @mesh = <["x"=2]>
      func.func @main(%a: {image}, %b: {other}) -> {result} {{
        %0 = stablehlo.convolution(%a, %b) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {{
          stride = [{first[0]}, {stride}], pad = [[{first[1]}, {first[1]}], [{padding}, {padding}]],
          lhs_dilate = [{first[2]}, {dilation}], rhs_dilate = [1, 1], reverse = [false, false]}}
          {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({image}, {other}) -> {result}
        return %0 : {result}
      }}"""


def shape_of(text: str) -> KernelShape:
    (kernel,) = build_program(pipeline.load_module(text.encode(), pipeline.Request()).listing).kernels
    return kernel.shape


@pytest.mark.parametrize(
    ("slid", "in_turn"),
    [
        pytest.param(Slid(64, padding=1), (0, 1), id="of a plain convolution a kernel of its own"),
        pytest.param(DILATED, (64 * 64, 3 * 3), id="of a dilated one none"),
        pytest.param(Slid(126, dilation=2, padding=1), (126 * 126, 4 * 4), id="nor of a transposed one"),
        pytest.param(Slid(2044, stride=2, rows=2048, is_flat=True), (2044, 3), id="nor in one dimension"),
        pytest.param(Slid(64, dilation=2, padding=1), (0, 1), id="more places than positions"),
        pytest.param(Slid(40, stride=40, rows=120), (0, 1), id="patches"),
        pytest.param(Slid(3, stride=2, padding=1, rows=4), (0, 1), id="small images, forwards"),
    ],
)
def test_which_have_no_kernel(slid: Slid, in_turn: tuple[int, int]) -> None:
    assert shape_of(module(slid)).in_turn == in_turn


def step_ns(slid: Slid, hardware: str) -> int:
    asked = pipeline.Request(hardware=hardware, memory_bytes=None)
    return pipeline.cost_loaded(pipeline.load_module(module(slid).encode(), asked)).price.step_ns


def test_what_they_take() -> None:
    """Of 16 images two steps of 16 bytes at each of 4096 positions, on a GPU; half of the images, half of the steps."""
    whole, half = (step_ns(DILATED._replace(images=images), "h200") for images in (16, 8))
    assert whole - step_ns(Slid(64, padding=1), "h200") == pytest.approx(4096 * 2 * 205, rel=0.02)
    assert whole - half == pytest.approx(4096 * 205, rel=0.02)
    assert step_ns(DILATED, "tpu-v5e") < whole / 20


def test_no_places() -> None:
    """Windows larger than the images make nothing."""
    assert 0 < step_ns(Slid(66, stride=2, padding=0), "h200") < 1e6
