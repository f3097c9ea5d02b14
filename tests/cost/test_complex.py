"""Sums of complex numbers, as XLA:TPU has them: halves that are reduced together are gathered, a product is three real ones."""

import pytest

from autoshard import pipeline
from tests.cost.test_accumulation import checked

BATCH, SUM = "tensor<64x256xcomplex<f32>>", "tensor<256xcomplex<f32>>"
REDUCED = f"""%z = stablehlo.constant dense<(0.0, 0.0)> : tensor<complex<f32>>
  %s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : ({BATCH}, tensor<complex<f32>>) -> {SUM}
  return %s : {SUM}"""
ROWS = 1 << 18
SQUARE = "tensor<256x256xcomplex<f32>>"
PRODUCT = f"""%s = stablehlo.dot_general %a, %a, contracting_dims = [0] x [0] : ({BATCH}, {BATCH}) -> {SQUARE}
  return %s : {SQUARE}"""


@pytest.mark.parametrize(
    ("body", "result", "emitted"),
    [
        (REDUCED, SUM, [("all_gather", 256 * 4)] * 2),
        (PRODUCT, SQUARE, [("all_reduce", 256 * 256 * 4)] * 3),
    ],
    ids=["reduction", "product"],
)
def test_sums_of_complex_numbers(body: str, result: str, emitted: list[tuple[str, int]]) -> None:
    """Six small programs compiled for v5e 4x4 have these kinds and bytes."""
    whole = ", ".join(["{}"] * result.count("256"))
    text = f"""sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: {BATCH} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> ({result} {{sdy.sharding = #sdy.sharding<@mesh, [{whole}]>}}) {{
  {body}
}}"""
    plan = checked(pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None)))
    (sum_,) = plan.price.collectives
    assert [(one.kind, one.bytes) for one in sum_.emitted] == emitted


def test_sums_scattered_with_their_product() -> None:
    """Three loops pass on half of a part each (an S5 layer on v5e 4x4: 418 kB of permutes, 279 of two halves)."""
    rows = f"tensor<{ROWS}x256xcomplex<f32>>"
    text = f"""sdy.mesh @mesh = <["x"=4, "y"=4]>
func.func @main(%a: {rows} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x", "y"}}, {{}}]>}})
    -> ({SQUARE} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x", "y"}}, {{}}]>}}) {{
  {PRODUCT.replace(BATCH, rows)}
}}"""
    plan = checked(pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None)))
    (sum_,) = plan.price.collectives
    assert [(one.kind, one.bytes) for one in sum_.emitted] == [("collective_permute", 17 * 3 * 16 * 256 * 4)]


def test_constant_halves_are_constrained() -> None:
    """What goes back to a real part has zeros for the other; XLA multiplies them by a real product of their own, as that is split."""
    real, made = "tensor<64x256xf32>", "tensor<64x256xcomplex<f32>>"
    text = f"""sdy.mesh @mesh = <["x"=4]>
func.func @main(%g: {real} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}, %a: {made}) -> {SQUARE} {{
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %z = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> {real}
  %h = stablehlo.complex %g, %z : {made}
  %s = stablehlo.dot_general %h, %a, contracting_dims = [0] x [0] : ({made}, {made}) -> {SQUARE}
  return %s : {SQUARE}
}}"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None))
    written = pipeline.write_planned(loaded, checked(loaded))
    assert f'<@mesh, [{{"x"}}, {{}}]> : {real}' in written
