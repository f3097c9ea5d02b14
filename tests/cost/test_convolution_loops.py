"""Convolutions that XLA makes loops of in modules as they are written: their sums scattered and filters gathered in passes."""

import importlib.util

import pytest

from autoshard import pipeline
from autoshard.plans import emitted_bytes
from tests.cost.priced import compiled_bytes

MESH, BATCH = 'sdy.mesh @mesh = <["x"=4, "y"=4]>', '[{"x", "y"}, {}, {}, {}]'
INPUTS, OUTPUTS, WHOLE = '[{}, {}, {"x", "y"}, {}]', '[{}, {}, {}, {"x", "y"}]', "[{}, {}, {}, {}]"
FORWARD = "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
TO_IMAGES = "[b, 0, 1, f]x[0, 1, o, i]->[b, 0, 1, f]"
TO_FILTER = "[f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f]"
FILTER = "tensor<3x3x256x256xf32>"
PART_BYTES = 3 * 3 * 256 * 256 * 4 // 16


def sharded(sharding: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"


def convolution(dims: str, second: tuple[str, str], result: tuple[str, str], groups: int = 1) -> str:
    """Of images that are split over all devices, and what else it reads; the type and the sharding of that and of the result."""
    x = "tensor<32x32x32x256xf32>"
    (other, given), (made, returned) = (
        (type_.replace("X", x), sharding) for type_, sharding in (second, result)
    )
    return f"""
      {MESH}
      func.func @main(%a: {x} {sharded(BATCH)}, %b: {other} {sharded(given)}) -> ({made} {sharded(returned)}) {{
        %0 = stablehlo.convolution(%a, %b) dim_numbers = {dims}, window = {{stride = [1, 1], pad = [[1, 1], [1, 1]],
          lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]}} {{batch_group_count = {groups} : i64,
          feature_group_count = 1 : i64}} : ({x}, {other}) -> {made}
        return %0 : {made}
      }}"""


GRADIENT = convolution(TO_FILTER, ("X", BATCH), (FILTER, INPUTS))
ACROSS = convolution(TO_FILTER, ("X", BATCH), (FILTER, OUTPUTS))
IN_GROUPS = convolution(TO_FILTER, ("X", BATCH), ("tensor<3x3x64x256xf32>", OUTPUTS), groups=4)
SUMMED_OVER = convolution(FORWARD, (FILTER, INPUTS), ("X", BATCH))
KEPT = convolution(FORWARD, (FILTER, OUTPUTS), ("X", BATCH))
BACKWARD = convolution(TO_IMAGES, (FILTER, INPUTS), ("X", BATCH))

CASES = [
    pytest.param(GRADIENT, {"collective_permute": 17 * PART_BYTES}, id="sum"),
    pytest.param(ACROSS, {"collective_permute": 17 * PART_BYTES}, id="sum over the other dimension"),
    pytest.param(IN_GROUPS, {"all_reduce": 4 * PART_BYTES}, id="sum in groups"),
    pytest.param(SUMMED_OVER, {"collective_permute": 17 * PART_BYTES // 2}, id="filter cut along its sum"),
    pytest.param(KEPT, {"collective_permute": 17 * PART_BYTES // 2}, id="filter cut along what is kept"),
    pytest.param(BACKWARD, {"collective_permute": 17 * PART_BYTES // 2}, id="filter of a gradient"),
]


@pytest.mark.parametrize(("text", "emitted"), CASES)
def test_what_is_emitted(text: str, emitted: dict[str, int]) -> None:
    """Sums in float32 and filters as bfloat16, in one pass more than there are devices."""
    asked = pipeline.Request(topology=(4, 4), memory_bytes=None)
    assert emitted_bytes(pipeline.cost_loaded(pipeline.load_module(text.encode(), asked)).price) == emitted


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.parametrize(("text", "emitted"), CASES)
def test_the_compiler_emits_it(text: str, emitted: dict[str, int]) -> None:
    assert compiled_bytes(text, "tpu:v5e:4x4") == emitted


@pytest.mark.parametrize("text", [GRADIENT, SUMMED_OVER])
def test_a_plan_constrains_them(text: str) -> None:
    """And has no loop: parts have few channels."""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(topology=(4, 4), memory_bytes=None))
    plan = pipeline.plan_loaded(loaded)
    assert "collective_permute" not in emitted_bytes(plan.price)
    assert pipeline.check_plan(text.encode(), plan).passed
    assert f"@mesh, {WHOLE}>" in pipeline.write_planned(loaded, plan)
