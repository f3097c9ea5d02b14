"""Stacks of layers that a scan steps through where they lie otherwise than it slices them."""

import pytest

from autoshard.program import Compiler, Program, build_program
from tests.mlir.modules import counted_loop, listed, main_of

X = "tensor<8x16xbf16>"


def scan(dims: str = "[1, 0, 2]", dtype: str = "bf16", also: str = "", on: str = "tpu") -> Program:
    """Four layers of a product each, which are stacked along another dimension than the first."""
    lies = "16x16x4" if dims == "[2, 0, 1]" else "16x4x16"
    held, stack, w = (f"tensor<{shape}x{dtype}>" for shape in (lies, "4x16x16", "16x16"))
    layer = f"""
      %w0 = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 16, 16]
        : ({stack}, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x16x{dtype}>
      %w1 = stablehlo.reshape %w0 : (tensor<1x16x16x{dtype}>) -> {w}
      %w2 = stablehlo.convert %w1 : ({w}) -> tensor<16x16xbf16>
      %next = stablehlo.dot_general %a, %w2, contracting_dims = [1] x [0] : ({X}, tensor<16x16xbf16>) -> {X}"""
    text = f"""%zero = stablehlo.constant dense<0> : tensor<i32>
      %t = stablehlo.transpose %s, dims = {dims} : ({held}) -> {stack}
      {counted_loop(4, (("%a", "%x", X), ("%w", "%t", stack)), layer, ("%next", "%w"))}
      {also or f"%u = stablehlo.negate %s : {held}"}
      return %r#1 : {X}"""
    main = main_of(text, f"%x: {X}, %s: {held}", X)
    return build_program(listed(main), compiler=Compiler(is_xla_tpu=on == "tpu"))


def is_stored(program: Program) -> bool:
    (turned,) = [op.results[0] for op in program.listing.ops if op.name == "stablehlo.transpose"]
    return program.ample_lifetimes[turned].is_own_buffer


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({}, False),
        ({"dims": "[2, 0, 1]"}, True),  # the last dimension moves
        ({"dtype": "f32"}, True),  # narrowed as a whole, in front of the loop
        ({"also": "%u = stablehlo.negate %t : tensor<4x16x16xbf16>"}, True),  # read by others
        ({"on": "gpu"}, True),
    ],
)
def test_a_stack_is_sliced_as_it_lies(given: dict[str, str], stored: bool) -> None:
    assert is_stored(scan(**given)) == stored
