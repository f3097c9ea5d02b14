"""Which bytes kernels move: what is worked out on a product as it leaves the matrix unit is neither stored nor loaded."""

import pytest

from autoshard.program import Kernel
from tests.program.modules import program_of

ADDED = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>, %b: tensor<64x16xf32>) -> (RESULTS) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %z = stablehlo.add %y, %b : tensor<64x16xf32>
  MORE
}
"""


def kernels(results: int, more: str) -> dict[str, Kernel]:
    text = ADDED.replace("RESULTS", ", ".join(["tensor<64x16xf32>"] * results)).replace("MORE", more)
    return {kernel.shape.name: kernel for kernel in program_of(text).kernels}


def test_sum_is_added_to_a_product() -> None:
    """The product is not written, and the addition reads its other operand alone."""
    found = kernels(1, "return %z : tensor<64x16xf32>")
    assert found["stablehlo.dot_general"].shape.is_fused_product
    assert found["stablehlo.add"].shape.reads == (0, 1)
    assert found["stablehlo.add"].shape.writes == 1


@pytest.mark.parametrize(
    "more",
    [
        "return %z, %y : tensor<64x16xf32>, tensor<64x16xf32>",
        "%t = stablehlo.multiply %y, %z : tensor<64x16xf32>\n return %z, %t : tensor<64x16xf32>, tensor<64x16xf32>",
    ],
    ids=["returned", "read twice"],
)
def test_product_is_stored(more: str) -> None:
    """For others than one reader."""
    found = kernels(2, more)
    assert found["stablehlo.dot_general"].shape.writes == 1
    assert 1 in found["stablehlo.add"].shape.reads
