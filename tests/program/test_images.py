"""Arguments that convolutions read are copied, and the copy stays for the gradient of the filter."""

import pytest

from autoshard import pipeline
from autoshard.program import Compiler, Program, build_program
from tests.mlir.modules import listed, main_of

IMAGES, RESULT, FILTER = "tensor<16x3x32x32xbf16>", "tensor<16x8x32x32xbf16>", "tensor<8x3x3x3xbf16>"
WINDOW = """window = {stride = [1, 1], pad = [[1, 1], [1, 1]]}
      {batch_group_count = 1 : i64, feature_group_count = 1 : i64}"""
READINGS = {
    "as it is": "",
    "narrowed": "%i = stablehlo.convert %x : (tensor<16x3x32x32xf32>) -> tensor<16x3x32x32xbf16>",
    "worked on": """%n = stablehlo.convert %x : (tensor<16x3x32x32xf32>) -> tensor<16x3x32x32xbf16>
      %i = stablehlo.multiply %n, %n : tensor<16x3x32x32xbf16>""",
}


def convolved(reading: str, *, has_gradient: bool = True) -> str:
    """One convolution of images, something else, and the gradient of its filter."""
    name = "%x" if reading == "as it is" else "%i"
    given = IMAGES if reading == "as it is" else IMAGES.replace("bf16", "f32")
    gradient = f"""
      %2 = stablehlo.convolution({name}, %1) dim_numbers = [f, b, 0, 1]x[i, o, 0, 1]->[f, b, 0, 1], {WINDOW}
        : ({IMAGES}, {RESULT}) -> {FILTER}"""
    body = f"""
      {READINGS[reading]}
      %0 = stablehlo.convolution({name}, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], {WINDOW}
        : ({IMAGES}, {FILTER}) -> {RESULT}
      %1 = stablehlo.exponential %0 : {RESULT}
      {gradient if has_gradient else ""}
      return {"%1, %2" if has_gradient else "%1"} : {RESULT}{f", {FILTER}" if has_gradient else ""}"""
    results = f"{RESULT}, {FILTER}" if has_gradient else RESULT
    return main_of(body, f"%x: {given}, %w: {FILTER}", results)


def built(text: str, *, is_xla_tpu: bool = True) -> Program:
    return build_program(listed(text), compiler=Compiler(is_xla_tpu=is_xla_tpu))


def times(program: Program) -> list[int]:
    return [time for time, op in enumerate(program.listing.ops) if op.name == "stablehlo.convolution"]


@pytest.mark.parametrize("has_gradient", [False, True])
def test_copies_stay_for_the_last_convolution(has_gradient: bool) -> None:
    program = built(convolved("as it is", has_gradient=has_gradient))
    first, *_ = run = times(program)
    ((time, copy),) = program.image_copies.items()
    assert (time, copy.end) == (first, run[-1] + 1)
    assert (copy.type.shape, copy.type.dtype) == ((16, 3, 32, 32), "bf16")
    assert copy.dims[:2] == ((0,), (1,))


def test_what_has_a_layout_of_its_own_and_filters_are_not_copied() -> None:
    assert not built(convolved("worked on")).image_copies
    assert not built(convolved("narrowed")).image_copies


def test_only_xla_for_tpus_copies_them() -> None:
    assert not built(convolved("as it is"), is_xla_tpu=False).image_copies


@pytest.mark.parametrize(
    ("images", "padded"),
    [(16, 128 * 4), (64, 128 * 4), (2, 128 * 2)],  # lanes by sublanes
)
def test_copies_are_padded(images: int, padded: int) -> None:
    """Of 16 images with three channels the compiler's copy is bf16[16,3,224,224]{0,1,3,2:T(4,128)(2,1)}, of two {1,0,3,2:T(2,128)(2,1)}."""
    text = convolved("as it is").replace("x32x32", "x512x512").replace("tensor<16x", f"tensor<{images}x")
    request = pipeline.Request(hardware="tpu-v5e", memory_bytes=None)
    held = pipeline.price_as_written(pipeline.load_module(text.encode(), request)).held()
    (copy,) = (one for one in held.buffers if one.note == "images as a convolution reads them")
    assert copy.bytes == pytest.approx(512 * 512 * padded * 2, rel=0.07)
