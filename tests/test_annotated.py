"""Modules priced as they are, at the prices of another profile's scheduler."""

from dataclasses import replace

import pytest

from autoshard import pipeline

MODULE = b"""sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x16xf32> {
  %0 = stablehlo.tanh %a : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}"""


@pytest.mark.parametrize(
    ("hardware", "target", "is_known"),
    [
        ("tpu-v5e", "tpu-v5e", True),
        ("tpu-v5e:scheduler", "tpu-v5e", True),
        ("tpu-v5p", "tpu-v5e", True),
        ("tpu-v5e", "tpu7x", False),
        ("h100", "tpu-v5e", False),
    ],
)
def test_prices_of_a_scheduler(hardware: str, target: str, is_known: bool) -> None:
    """Of a mesh on GPUs there are none: it does not lie on a torus."""
    loaded = pipeline.load_module(MODULE, pipeline.Request(hardware=hardware, memory_bytes=None))
    found = pipeline.price_as_written(loaded).at_scheduler_of(target)
    assert (found is not None) == is_known


def test_the_step_in_the_order_of_the_scheduler_beside_the_price() -> None:
    """As at the scheduler's prices; of compilers whose scheduler is not known, and of several slices, there is none."""
    asked = pipeline.Request(memory_bytes=None)
    plain, theirs = (
        pipeline.cost_loaded(pipeline.load_module(MODULE, replace(asked, hardware=name))).price
        for name in ("tpu-v5e", "tpu-v5e:scheduler")
    )
    assert plain.step_ns > theirs.step_ns
    assert plain.scheduled == theirs.scheduled is not None
    others = (
        replace(asked, hardware="h100"),
        replace(asked, hardware="tpu7x", topology=(2, 1, 1)),
        replace(asked, form="shardy"),
        replace(asked, slices=2),
    )
    for other in others:
        assert pipeline.cost_loaded(pipeline.load_module(MODULE, other)).price.scheduled is None
