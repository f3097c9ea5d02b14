"""Sums that are scattered, against Shardy's own passes."""

import pytest

from autoshard import pipeline


@pytest.mark.parametrize("result", ['[{"x", "y"}, {}]', '[{"y", "x"}, {}]', '[{"y"}, {"x"}]'])
def test_axes_in_any_order(result: str) -> None:
    """Shardy names the axes of a reduce-scatter in the order in which the result has them, a plan in that of the mesh."""
    rows, made = "tensor<4096x512xf32>", "tensor<512x512xf32>"
    text = f"""
      sdy.mesh @mesh = <["x"=2, "y"=4]>
      func.func @main(%a: {rows} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x", "y"}}, {{}}]>}})
          -> ({made} {{sdy.sharding = #sdy.sharding<@mesh, {result}>}}) {{
        %0 = stablehlo.tanh %a : {rows}
        %1 = stablehlo.dot_general %0, %0, contracting_dims = [0] x [0] : ({rows}, {rows}) -> {made}
        return %1 : {made}
      }}"""
    request = pipeline.Request(hardware="tpu-v4")
    plan = pipeline.plan_loaded(pipeline.load_module(text.encode(), request))
    assert [one.kind for one in plan.price.collectives] == ["reduce_scatter"]
    assert pipeline.check_plan(text.encode(), plan, deep=True).passed


def test_sums_that_are_made_whole_first() -> None:
    """Where summing all and slicing is cheaper than a loop that scatters the sum, Shardy's passes make a reduce-scatter of the two."""
    text = """
      sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>
      func.func @main(%a: tensor<32768x1280xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", "z"}, {}]>},
          %b: tensor<32768x5120xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", "z"}, {}]>})
          -> (tensor<1280x5120xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y", "z"}, {}]>}) {
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0]
          : (tensor<32768x1280xbf16>, tensor<32768x5120xbf16>) -> tensor<1280x5120xbf16>
        %1 = stablehlo.convert %0 : (tensor<1280x5120xbf16>) -> tensor<1280x5120xf32>
        %2 = stablehlo.multiply %1, %1 : tensor<1280x5120xf32>
        %3 = stablehlo.exponential %1 : tensor<1280x5120xf32>
        %4 = stablehlo.add %2, %3 : tensor<1280x5120xf32>
        return %4 : tensor<1280x5120xf32>
      }"""
    plan = pipeline.plan_loaded(pipeline.load_module(text.encode(), pipeline.Request(hardware="tpu-v5p")))
    assert [one.kind for one in plan.price.collectives] == ["all_reduce", "all_slice"]
    assert pipeline.check_plan(text.encode(), plan, deep=True).passed
