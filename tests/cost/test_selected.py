"""A loss that gives logits back selects them element by element where they are read; what is cut is scattered whole before."""

from autoshard import pipeline
from tests.mlir.modules import one_a_row

LOGITS, ROW = "tensor<16384x16384xf32>", "tensor<16384xf32>"
PLACES = "tensor<16384x1xi32>"
WHOLE = 16384 * 16384 * 4
TEXT = f"""
module {{
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%places: {PLACES}, %ones: {ROW}) -> ({ROW} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}}) {{
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {LOGITS}
    %given = {one_a_row("%zeros", "%places", "%ones", (LOGITS, PLACES, ROW), 1)}
    MOVED
    %n = stablehlo.negate %m : {LOGITS}
    %r = stablehlo.reduce(%n init: %zero) applies stablehlo.add across dimensions = [1] : ({LOGITS}, tensor<f32>) -> {ROW}
    return %r : {ROW}
  }}
}}
"""


def peak_bytes(*shardings: str) -> int:
    """Of the text with constraints of those shardings in a row behind the scatter."""
    names = ["%given", *(f"%c{number}" for number in range(len(shardings) - 1)), "%m"]
    moved = "\n".join(
        f"{after} = sdy.sharding_constraint {before} <@mesh, {sharding}> : {LOGITS}"
        for before, after, sharding in zip(names, names[1:], shardings, strict=False)
    )
    request = pipeline.Request(hardware="tpu-v5e")
    text = TEXT.replace("MOVED", moved).encode()
    return pipeline.cost_loaded(pipeline.load_module(text, request)).price.peak_bytes


def test_what_is_cut_is_there_whole() -> None:
    split = peak_bytes('[{"x"}, {}]')
    assert split < WHOLE // 2
    assert peak_bytes("[{}, {}]", '[{"x"}, {}]') >= WHOLE
