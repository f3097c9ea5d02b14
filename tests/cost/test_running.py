"""Running sums along a split dimension, as XLA:TPU compiles them (libtpu 0.0.51, v5e 4x4 and 2x4)."""

import pytest

from autoshard import pipeline
from autoshard.annotated import price_as_written
from autoshard.check import Subject, check

GATHER, PERMUTE, SUM = "all_gather", "collective_permute", "all_reduce"
SEEN = {
    (100, 16, 4, False): {GATHER: 1600},
    (400, 16, 4, False): {GATHER: 64, PERMUTE: 10944},
    (512, 16, 4, False): {GATHER: 64, PERMUTE: 192},
    (512, 16, 4, True): {GATHER: 64, PERMUTE: 128},
    (640, 16, 4, False): {GATHER: 10240},
    (2048, 0, 4, False): {SUM: 64, PERMUTE: 12},
    (2048, 16, 4, True): {GATHER: 256, PERMUTE: 128},
    (16384, 16, 4, False): {GATHER: 2048, PERMUTE: 192},
    (65536, 16, 4, False): {GATHER: 64, PERMUTE: 256},
    (65536, 16, 4, True): {GATHER: 64, PERMUTE: 192},
    (2048, 16, 8, False): {GATHER: 128, PERMUTE: 320},
    (4096, 16, 8, False): {GATHER: 256, PERMUTE: 448},
    (16384, 16, 8, False): {GATHER: 1024, PERMUTE: 448},
    (4096, 16, 16, False): {GATHER: 128, PERMUTE: 320},
    (8192, 16, 16, False): {GATHER: 256, PERMUTE: 576},
    (8192, 16, 16, True): {GATHER: 256, PERMUTE: 576},
    (12288, 16, 16, False): {GATHER: 384, PERMUTE: 832},
    (16384, 16, 16, False): {GATHER: 512, PERMUTE: 960},
    (16384, 16, 16, True): {GATHER: 512, PERMUTE: 896},
}
"""Rows, columns (0: none), devices, and whether it runs from the end -> operand bytes of float32 by kind."""


def module(rows: int, columns: int, devices: int, is_from_the_end: bool) -> str:
    shape, ones = (f"{rows}x{columns}", "1, 1") if columns else (str(rows), "1")
    low, high = (0, rows - 1) if is_from_the_end else (rows - 1, 0)
    padding = f"[[{low}, {high}], [0, 0]]" if columns else f"[[{low}, {high}]]"
    window = f"{rows}, 1" if columns else str(rows)
    sharding = '[{"x"}, {}]' if columns else '[{"x"}]'
    held = f"tensor<{shape}xf32> {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"
    return f"""sdy.mesh @mesh = <["x"={devices}]>
func.func @main(%a: {held}) -> ({held}) {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %r = "stablehlo.reduce_window"(%a, %z) <{{base_dilations = array<i64: {ones}>, window_dilations = array<i64: {ones}>,
    padding = dense<{padding}> : tensor<{2 if columns else 1}x2xi64>, window_dimensions = array<i64: {window}>,
    window_strides = array<i64: {ones}>}}> ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }}) : (tensor<{shape}xf32>, tensor<f32>) -> tensor<{shape}xf32>
  return %r : tensor<{shape}xf32>
}}"""


@pytest.mark.parametrize(("case", "emitted"), SEEN.items(), ids=str)
def test_as_compiled(case: tuple[int, int, int, bool], emitted: dict[str, int]) -> None:
    """What is priced is what is emitted, and the checker finds the same."""
    loaded = pipeline.load_module(module(*case).encode(), pipeline.Request(topology=(4, case[2] // 4)))
    plan = price_as_written(loaded).plan()
    found: dict[str, int] = {}
    for one in (one for collective in plan.price.collectives for one in collective.emitted):
        found[one.kind] = found.get(one.kind, 0) + one.bytes
    assert found == emitted
    findings = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).findings
    assert [(finding.name, finding.detail) for finding in findings if not finding.ok] == []


@pytest.mark.parametrize(
    ("op", "low", "high", "size"),
    [
        pytest.param("reduce_window", 255, 256, 512, id="neighbours"),
        pytest.param("reduce_window", 512, 0, 513, id="longer than what it reads"),
        pytest.param("convolution", 511, 0, 512, id="causal convolution"),
    ],
)
def test_only_running_sums_are_made_in_blocks(op: str, low: int, high: int, size: int) -> None:
    """Of 512 rows of 16 columns in four parts XLA gathers all, products of default precision as bfloat16."""
    held = 'tensor<1x512x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}'
    type_, filter_ = held.split(" ")[0], f"tensor<{size}x16x16xf32>"
    made = {
        "reduce_window": f"""%r = "stablehlo.reduce_window"(%a, %z) <{{padding = dense<[[0, 0], [{low}, {high}], [0, 0]]> : tensor<3x2xi64>,
            window_dimensions = array<i64: 1, {size}, 1>}}> ({{
          ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %s = stablehlo.add %x, %y : tensor<f32>
            stablehlo.return %s : tensor<f32>
          }}) : ({type_}, tensor<f32>) -> {type_}""",
        "convolution": f"""%r = stablehlo.convolution(%a, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
            window = {{pad = [[{low}, {high}]]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
            : ({type_}, {filter_}) -> {type_}""",
    }
    text = f"""sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: {held}, %w: {filter_}) -> ({held}) {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  {made[op]}
  return %r : {type_}
}}"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request())
    plan = price_as_written(loaded).plan()
    (emitted,) = (one for collective in plan.price.collectives for one in collective.emitted)
    assert (emitted.kind, emitted.bytes) == (GATHER, 128 * 16 * (2 if op == "convolution" else 4))
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed
