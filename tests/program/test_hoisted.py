"""Casts of what a loop steps through."""

import pytest

from tests.mlir.modules import main_of
from tests.program.modules import program_of

STACK, SLICE, W, X = "tensor<4x16x16xf32>", "tensor<1x16x16xf32>", "tensor<16x16xf32>", "tensor<8x16xbf16>"


def scan(also: str = "", results: str = "%r#1", types: str = X) -> str:
    """Four layers of a product with weights that are cast."""
    return f"""
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %last = stablehlo.constant dense<4> : tensor<i32>
      %r:3 = stablehlo.while(%i = %zero, %a = %x, %w = %s) : tensor<i32>, {X}, {STACK}
      cond {{
        %c = stablehlo.compare LT, %i, %last : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      }} do {{
        %0 = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 16, 16] : ({STACK}, tensor<i32>, tensor<i32>, tensor<i32>) -> {SLICE}
        %1 = stablehlo.reshape %0 : ({SLICE}) -> {W}
        %2 = stablehlo.convert %1 : ({W}) -> tensor<16x16xbf16>
        %3 = stablehlo.dot_general %a, %2, contracting_dims = [1] x [0] : ({X}, tensor<16x16xbf16>) -> {X}
        %4 = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %4, %3, %w : tensor<i32>, {X}, {STACK}
      }}
      {also}
      return {results} : {types}"""


def test_all_slices_are_cast_before_a_loop_that_alone_reads_them() -> None:
    """As long as the loop runs, of four times the rows."""
    program = program_of(main_of(scan(), f"%x: {X}, %s: {STACK}", X))
    ((whole,),) = program.wholes.values()
    (loop,) = {(flow.begin, flow.end) for flow in program.listing.data_flows}
    assert (whole.begin, whole.end) == loop
    assert (whole.type.shape, whole.type.dtype) == ((64, 16), "bf16")


@pytest.mark.parametrize(
    ("also", "results", "types"),
    [
        (f"%u = stablehlo.add %s, %s : {STACK}", "%r#1, %u", f"{X}, {STACK}"),
        ("", "%r#1, %s", f"{X}, {STACK}"),
    ],
)
def test_what_is_read_or_returned_besides_is_cast_in_the_loop(also: str, results: str, types: str) -> None:
    """As weights are that are updated."""
    program = program_of(main_of(scan(also, results, types), f"%x: {X}, %s: {STACK}", types))
    assert not program.wholes
