"""Sums whose emission depends on the rest of the program: those made before, and those of which readers take one part."""

import pytest

from autoshard import pipeline
from autoshard.check import Subject, check
from autoshard.plans import Plan

MESH = (("x", 4), ("y", 4))
ROWS, N = 4096, 2048
TYPE = f"tensor<{ROWS}x{N}xf32>"
SPLIT = '{sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}'
HEADER = 'sdy.mesh @mesh = <["x"=4, "y"=4]>\n'
SUM = "stablehlo.reduce({0} init: %zero) applies stablehlo.add across dimensions = [1]"

TWICE = f"""
  func.func @main(%a: {TYPE} {SPLIT}) -> ({TYPE} {SPLIT}) {{
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = {SUM.format("%a")} : ({TYPE}, tensor<f32>) -> tensor<{ROWS}xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<{ROWS}xf32>) -> {TYPE}
    %3 = stablehlo.subtract %a, %2 : {TYPE}
    %4 = {SUM.format("%a")} : ({TYPE}, tensor<f32>) -> tensor<{ROWS}xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<{ROWS}xf32>) -> {TYPE}
    %6 = stablehlo.divide %3, %5 : {TYPE}
    return %6 : {TYPE}
  }}"""

SLICED = """
  func.func @main(%a: tensor<2048x512xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}},
      %b: tensor<512x2048xbf16> {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{}}]>}})
      -> (tensor<2048x2048xbf16> {{sdy.sharding = #sdy.sharding<@mesh, {0}>}}) {{
    %1 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<2048x512xbf16>, tensor<512x2048xbf16>) -> tensor<2048x2048xbf16>
    %2 = sdy.sharding_constraint %1 <@mesh, [{{}}, {{}}]> : tensor<2048x2048xbf16>
    %3 = stablehlo.negate %2 : tensor<2048x2048xbf16>
    return %3 : tensor<2048x2048xbf16>
  }}"""
PART = 528 * 2048 * 2


def emitted(module: str) -> tuple[pipeline.Loaded, Plan, list[tuple[str, int]]]:
    loaded = pipeline.load_module((HEADER + module).encode(), pipeline.Request(mesh=MESH))
    plan = pipeline.cost_loaded(loaded)
    return loaded, plan, [(e.kind, e.bytes) for c in plan.price.collectives for e in c.emitted]


def test_equal_sums_are_one() -> None:
    """`check` says the same."""
    loaded, plan, sent = emitted(TWICE)
    assert sent == [("all_reduce", 4 * ROWS)]
    report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
    assert report.passed, report.to_text()


def test_equal_sums_of_all_elements_are_one() -> None:
    module = TWICE.replace("dimensions = [1]", "dimensions = [0, 1]").replace(
        f"tensor<{ROWS}xf32>", "tensor<f32>"
    )
    loaded, plan, sent = emitted(module.replace("dims = [0]", "dims = []"))
    assert sent == [("all_reduce", 4)]
    report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
    assert report.passed, report.to_text()


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ('[{"x"}, {}]', [("all_reduce", 4 * PART), ("collective_permute", 3 * 16 * 2048 * 2)]),
        ('[{}, {"x"}]', [("all_reduce", 2048 * 2048 * 2)]),
        ("[{}, {}]", [("all_reduce", 2048 * 2048 * 2)]),
    ],
    ids=["rows", "columns", "all"],
)
def test_sums_of_which_a_part_is_read(result: str, expected: list[tuple[str, int]]) -> None:
    """Parts along the outermost dimension are padded to 528 of 512 rows, and a permute moves what that displaces."""
    assert emitted(SLICED.format(result))[2] == expected
