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
