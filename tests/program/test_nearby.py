"""Which bytes kernels in loops move: what a loop keeps on the chip is neither stored nor loaded, and slices of stacks are read in place."""

import pytest

from autoshard.cost import local_work
from autoshard.program import Kernel
from tests.cost.priced import HARDWARE, loaded
from tests.program.modules import program_of

RECURRENT = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%xs: tensor<9xROWSx64xf32>, %w: tensor<64x64xf32>, %h0: tensor<ROWSx64xf32>) -> tensor<9xROWSx64xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %trips = stablehlo.constant dense<9> : tensor<i32>
  %r:5 = stablehlo.while(%i = %zero, %h = %h0, %ys = %xs, %v = %w, %in = %xs)
    : tensor<i32>, tensor<ROWSx64xf32>, tensor<9xROWSx64xf32>, tensor<64x64xf32>, tensor<9xROWSx64xf32>
  cond {
    %p = stablehlo.compare LT, %i, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %s = stablehlo.dynamic_slice %in, %i, %zero, %zero, sizes = [1, ROWS, 64]
      : (tensor<9xROWSx64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1xROWSx64xf32>
    %x = stablehlo.reshape %s : (tensor<1xROWSx64xf32>) -> tensor<ROWSx64xf32>
    %m = stablehlo.dot_general %h, %v, contracting_dims = [1] x [0]
      : (tensor<ROWSx64xf32>, tensor<64x64xf32>) -> tensor<ROWSx64xf32>
    %y = stablehlo.add %m, %x : tensor<ROWSx64xf32>
    %u = stablehlo.reshape %y : (tensor<ROWSx64xf32>) -> tensor<1xROWSx64xf32>
    %out = stablehlo.dynamic_update_slice %ys, %u, %i, %zero, %zero
      : (tensor<9xROWSx64xf32>, tensor<1xROWSx64xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<9xROWSx64xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %y, %out, %v, %in
      : tensor<i32>, tensor<ROWSx64xf32>, tensor<9xROWSx64xf32>, tensor<64x64xf32>, tensor<9xROWSx64xf32>
  }
  return %r#2 : tensor<9xROWSx64xf32>
}
"""
"""`h <- h @ w + xs[i]`, `ys[i] <- h`."""


def kernels(rows: int) -> dict[str, Kernel]:
    """Those with a value of at least one row."""
    program = program_of(RECURRENT.replace("ROWS", str(rows)))
    return {kernel.shape.name: kernel for kernel in program.kernels if kernel.shape.rule.factors}


def test_state_and_weights_of_a_loop_stay_near() -> None:
    product = kernels(8)["stablehlo.dot_general"].shape
    assert product.near_reads == product.reads == (1, 1)
    assert product.is_near


def test_stack_is_read_by_the_slice_and_written_by_the_update() -> None:
    """The slice itself moves nothing; the addition reads it from the stack, and the update reads near what it stores."""
    found = kernels(8)
    assert found["stablehlo.dynamic_slice"].shape.writes == 0
    added = found["stablehlo.add"].shape
    assert sum(added.reads) == 1
    assert not any(added.near_reads)
    update = found["stablehlo.dynamic_update_slice"].shape
    assert update.reads[:2] == (0, 2)
    assert update.near_reads[:2] == (0, 1)


@pytest.mark.parametrize(("rows", "is_near"), [(8, True), (2**20, False)])
def test_product_of_a_loop(rows: int, is_near: bool) -> None:
    """Of a state that vector memory holds, and of one of 256 MiB."""
    _, priced = loaded(RECURRENT.replace("ROWS", str(rows)))
    (space,) = [space for space in priced.kernel_prices if space.shape.is_matmul]
    (moved,) = set(local_work(space.shape, [space.strategies[0]], HARDWARE).bytes.tolist())
    assert (moved == 0) == is_near
