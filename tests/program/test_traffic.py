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


SLICED = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>) -> (tensor<60x16xf32>, tensor<60x16xf32>RESULT) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %z = stablehlo.slice %y [0:60, 0:16] : (tensor<64x16xf32>) -> tensor<60x16xf32>
  %s = stablehlo.sine %z : tensor<60x16xf32>
  %t = stablehlo.cosine %z : tensor<60x16xf32>
  return %s, %tMORE : tensor<60x16xf32>, tensor<60x16xf32>TYPE
}
"""


@pytest.mark.parametrize("is_returned", [False, True])
def test_slice_of_a_product(is_returned: bool) -> None:
    """Its operands are sliced: the whole is there for others only, and else makes room when the slice is there."""
    more = (", tensor<64x16xf32>", ", %y", ", tensor<64x16xf32>") if is_returned else ("", "", "")
    text = SLICED
    for mark, word in zip(("RESULT", "MORE", "TYPE"), more, strict=True):
        text = text.replace(mark, word)
    program = program_of(text)
    product, slice_ = (
        next(kernel for kernel in program.kernels if kernel.shape.name == f"stablehlo.{name}")
        for name in ("dot_general", "slice")
    )
    assert product.shape.is_fused_product is not is_returned
    if not is_returned:
        assert program.lifetimes[product.results[0]].end == program.lifetimes[slice_.results[0]].begin
