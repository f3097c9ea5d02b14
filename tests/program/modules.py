"""From module text to a program, and its kernels in words."""

from collections.abc import Sequence

from autoshard.program import Program, build_program
from tests.mlir.modules import listed


def program_of(
    text: str, carry: Sequence[tuple[int, int]] | None = None, axes: list[tuple[str, int]] | None = None
) -> Program:
    return build_program(listed(text, axes), carry)


def kernel_ops(program: Program) -> list[list[str]]:
    """Op names of every kernel, the root last, without the dialect."""
    return [
        [program.listing.ops[op].name.partition(".")[2] for op in kernel.ops] for kernel in program.kernels
    ]


LOOP = """
sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>
func.func @main(%a: tensor<8x16xf32>, %w: tensor<16x16xf32>) -> tensor<8x16xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %five = stablehlo.constant dense<5> : tensor<i32>
  %e = stablehlo.dot_general %w, %w, contracting_dims = [1] x [0]
    : (tensor<16x16xf32>, tensor<16x16xf32>) -> tensor<16x16xf32>
  %r:2 = stablehlo.while(%x = %a, %i = %zero) : tensor<8x16xf32>, tensor<i32>
  cond {
    %p = stablehlo.compare LT, %i, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %y = stablehlo.dot_general %x, %e, contracting_dims = [1] x [0]
      : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %z = stablehlo.add %y, %x : tensor<8x16xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %z, %j : tensor<8x16xf32>, tensor<i32>
  }
  %o = stablehlo.dot_general %r#0, %w, contracting_dims = [1] x [0]
    : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
  return %o : tensor<8x16xf32>
}"""
"""`x <- x @ (w @ w) + x` five times, and then `x @ w`."""
