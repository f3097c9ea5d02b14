"""Noise that a plan splits and products read is constrained: XLA may propagate otherwise than Shardy through the module as written."""

import pytest

from autoshard import pipeline

NOISE, HIDDEN, WEIGHT = "tensor<64x16xf32>", "tensor<64x32xf32>", "tensor<16x32xf32>"


PRODUCT = "stablehlo.dot_general %1, %w, contracting_dims = [1] x [0]"
OLD_PRODUCT = "stablehlo.dot %1, %w"


@pytest.mark.parametrize(
    ("product", "key", "is_constrained"),
    [(PRODUCT, "{}", True), (OLD_PRODUCT, "{}", True), (PRODUCT, '{"x"}', False)],
)
def test_split_noise(product: str, key: str, is_constrained: bool) -> None:
    """Not what something split comes into: that says how it is split."""
    text = f"""sdy.mesh @mesh = <["x"=4]>
func.func @main(%k: tensor<64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{key}]>}},
    %w: {WEIGHT} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}},
    %x: {HIDDEN} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
    -> ({HIDDEN} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}}) {{
  %0 = stablehlo.broadcast_in_dim %k, dims = [0] : (tensor<64xf32>) -> {NOISE}
  %1 = stablehlo.cosine %0 : {NOISE}
  %2 = {product} : ({NOISE}, {WEIGHT}) -> {HIDDEN}
  %3 = stablehlo.add %2, %x : {HIDDEN}
  return %3 : {HIDDEN}
}}"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None))
    plan = pipeline.plan_loaded(loaded, time_limit_s=300)
    written = pipeline.write_planned(loaded, plan)
    assert (f'<@mesh, [{{"x"}}, {{}}]> : {NOISE}' in written) == is_constrained
