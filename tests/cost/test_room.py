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
    loaded = pipeline.load_module(text, pipeline.Request(hardware="tpu7x", memory_bytes=None))
    plan = pipeline.plan_loaded(loaded)
    needed = 512 * 512 * 4 // 4 ** (scores.count('"') // 2)
    assert plan.price.peak_bytes >= needed
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed
    tight = pipeline.load_module(text, pipeline.Request(hardware="tpu7x", memory_bytes=needed - 1))
    assert not pipeline.plan_loaded(tight).fits


def test_a_scatter_that_another_makes_takes_no_room_beyond_a_result() -> None:
    """Two whole gradients of a table, the second of which is there; the result, made later, is a quarter of that on each device."""
    table, ids, rows, square = (
        "tensor<512x256xf32>",
        "tensor<8x1xi32>",
        "tensor<8x256xf32>",
        "tensor<256x256xf32>",
    )

    def scatter(name: str) -> str:
        return f"""%{name} = "stablehlo.scatter"(%zeros, %i, %{name}_rows) <{{scatter_dimension_numbers = #stablehlo.scatter<
          update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
          ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %s = stablehlo.add %x, %y : tensor<f32>
            stablehlo.return %s : tensor<f32>
        }}) {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{}}, {{}}]>]>}} : ({table}, {ids}, {rows}) -> {table}"""

    def product(name: str, of: str) -> str:
        return f"%{name} = stablehlo.dot_general %{of}, %w, contracting_dims = [1] x [0] : ({table}, {square}) -> {table}"

    text = f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%i: {ids}, %a_rows: {rows}, %b_rows: {rows}, %w: {square}) -> {table} {{
        %zeros = stablehlo.constant dense<0.0> : {table}
        {scatter("a")}
        {scatter("b")}
        %both = stablehlo.add %a, %b {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"x"}}, {{}}]>]>}} : {table}
        {product("d", "both")}
        %e = stablehlo.tanh %d : {table}
        {product("r", "e")}
        return %r : {table}
      }}"""
    whole = 512 * 256 * 4
    request = pipeline.Request(hardware="tpu7x", memory_bytes=2 * whole + whole // 4)
    plan = pipeline.plan_loaded(pipeline.load_module(text.encode(), request))
    assert plan.fits
