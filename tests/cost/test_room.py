"""What lies in the memory of a result counts as far as it is larger than that, each sharded as it is."""

import pytest

from autoshard import pipeline
from autoshard.check import Subject, check

MATRIX, NARROW, VECTOR = "tensor<512x512xf32>", "tensor<512x64xf32>", "tensor<512xf32>"


def softmax_sums(scores: str, result: str) -> str:
    """Scores are read twice and gone before the result, of the same size, is made."""
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%a: {NARROW} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}})
          -> ({MATRIX} {{sdy.sharding = #sdy.sharding<@mesh, {result}>}}) {{
        %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [1] : ({NARROW}, {NARROW}) -> {MATRIX}
        %1 = sdy.sharding_constraint %0 <@mesh, {scores}> : {MATRIX}
        %2 = stablehlo.reduce(%1 init: %low) applies stablehlo.maximum across dimensions = [1] : ({MATRIX}, tensor<f32>) -> {VECTOR}
        %3 = stablehlo.broadcast_in_dim %2, dims = [0] : ({VECTOR}) -> {MATRIX}
        %4 = stablehlo.subtract %1, %3 : {MATRIX}
        %5 = stablehlo.exponential %4 : {MATRIX}
        %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [1] : ({MATRIX}, tensor<f32>) -> {VECTOR}
        %7 = stablehlo.broadcast_in_dim %6, dims = [0] : ({VECTOR}) -> {NARROW}
        %8 = stablehlo.multiply %a, %7 : {NARROW}
        %9 = stablehlo.dot_general %8, %a, contracting_dims = [1] x [1] : ({NARROW}, {NARROW}) -> {MATRIX}
        return %9 : {MATRIX}
      }}"""


@pytest.mark.parametrize(
    ("scores", "result"), [("[{}, {}]", '[{"x"}, {"y"}]'), ('[{"x"}, {}]', '[{}, {"y"}]')]
)
def test_a_value_in_the_memory_of_a_smaller_result_counts(scores: str, result: str) -> None:
    """The peak holds both, the checker agrees, and a budget below the value's own bytes is refused."""
    text = softmax_sums(scores, result).encode()
    loaded = pipeline.load_module(text, pipeline.Request(hardware="tpu-v4", memory_bytes=None))
    plan = pipeline.plan_loaded(loaded)
    needed = 512 * 512 * 4 // 4 ** (scores.count('"') // 2)
    assert plan.price.peak_bytes >= needed
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed
    tight = pipeline.load_module(text, pipeline.Request(hardware="tpu-v4", memory_bytes=needed - 1))
    assert not pipeline.plan_loaded(tight).fits
