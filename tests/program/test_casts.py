"""Casts of weights that a product of a library reads inside, as it waits for them."""

import pytest

from autoshard import pipeline
from autoshard.program import build_program
from tests.mlir.modules import listed
from tests.program.test_traffic import APART

CAST = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<ROWSx64xbf16>, %w: tensor<128x64xf32>) -> (RESULTS) {
  %t = stablehlo.transpose %w, dims = [1, 0] : (tensor<128x64xf32>) -> tensor<64x128xf32>
  %c = stablehlo.convert %t : (tensor<64x128xf32>) -> tensor<64x128xbf16>
  %y = stablehlo.dot_general %x, %c, contracting_dims = [1] x [0] : (tensor<ROWSx64xbf16>, tensor<64x128xbf16>) -> tensor<ROWSx128xbf16>
  MORE
}
"""
Y, C = "tensor<ROWSx128xbf16>", "tensor<64x128xbf16>"


def is_written(rows: int, more: str = f"return %y : {Y}", results: str = Y) -> bool:
    text = CAST.replace("MORE", more).replace("RESULTS", results).replace("ROWS", str(rows))
    program = build_program(listed(text), compiler=APART)
    (cast,) = (kernel for kernel in program.kernels if kernel.shape.name == "stablehlo.convert")
    (product,) = (kernel for kernel in program.kernels if kernel.shape.is_matmul)
    read = [
        count * type_.num_bytes
        for count, type_ in zip(product.shape.reads, product.shape.operands, strict=True)
    ]
    assert read == [rows * 64 * 2, 64 * 128 * (2 if cast.shape.writes else 4)]
    for lives in (program.lifetimes, program.ample_lifetimes):
        assert lives[cast.results[0]].is_own_buffer == bool(cast.shape.writes)
    return bool(cast.shape.writes)


@pytest.mark.parametrize(("rows", "is_cast_first"), [(32, False), (256, False), (512, True)])
def test_a_product_of_few_rows_casts_the_weights_that_it_reads(rows: int, is_cast_first: bool) -> None:
    """It reads them in float32; a product of many rows reads them from where they were cast to."""
    assert is_written(rows) is is_cast_first


def test_what_is_returned_too_is_cast_first() -> None:
    assert is_written(32, f"return %y, %c : {Y}, {C}", f"{Y}, {C}")


def test_two_products_of_few_rows_cast_it_each() -> None:
    operands = "contracting_dims = [1] x [0] : (tensor<ROWSx64xbf16>, tensor<64x128xbf16>)"
    both = f"%n = stablehlo.dot_general %x, %c, {operands} -> {Y}\n  return %y, %n : {Y}, {Y}"
    text = CAST.replace("MORE", both).replace("RESULTS", f"{Y}, {Y}").replace("ROWS", "32")
    program = build_program(listed(text), compiler=APART)
    (cast,) = (kernel for kernel in program.kernels if kernel.shape.name == "stablehlo.convert")
    assert not program.ample_lifetimes[cast.results[0]].is_own_buffer
    reads = [kernel.shape.reads for kernel in program.kernels if kernel.shape.is_matmul]
    assert reads == [(1, 2), (1, 2)]


def test_constraints_without_operands() -> None:
    """One that says what the op in front of it does already is no op of the listing that is priced; its place stays, empty."""
    text = """sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %t = stablehlo.tanh %a : tensor<8x16xf32>
  %s = sdy.sharding_constraint %t <@mesh, [{"x"}, {}]> : tensor<8x16xf32>
  return %s : tensor<8x16xf32>
}"""
    asked = pipeline.Request(hardware="h200", memory_bytes=None)
    assert pipeline.cost_loaded(pipeline.load_module(text.encode(), asked)).price.step_ns > 0
