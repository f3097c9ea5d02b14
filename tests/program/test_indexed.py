"""Caches of keys and values that a loop writes at a position: the heads' elements lie along the lanes, whatever the position would save."""

import pytest

from autoshard import pipeline
from autoshard.program.indexed import written_at_index
from tests.mlir.modules import counted_loop


def loop(cache: str, one: str, at: str, start: str = "%zeros") -> str:
    """Seven trips that write a row into a cache that starts from zeros, or from an argument, and return such a row."""
    first = ", ".join(f"0:{size}" for size in one.split("x"))
    written = f"""%w = stablehlo.dynamic_update_slice %x, %row, {at}
        : (tensor<{cache}xbf16>, tensor<{one}xbf16>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<{cache}xbf16>"""
    return f"""sdy.mesh @mesh = <["x"=2]>
func.func @main(%given: tensor<{cache}xbf16>, %row: tensor<{one}xbf16>) -> tensor<{one}xbf16> {{
  %c = stablehlo.constant dense<0.0> : tensor<bf16>
  %none = stablehlo.constant dense<0> : tensor<i32>
  %blank = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<bf16>) -> tensor<{cache}xbf16>
  %zeros = stablehlo.dynamic_update_slice %blank, %row, %none, %none, %none, %none
    : (tensor<{cache}xbf16>, tensor<{one}xbf16>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<{cache}xbf16>
  {counted_loop(7, [("%x", start, f"tensor<{cache}xbf16>")], written, ["%w"])}
  %s = stablehlo.slice %r#1 [{first}] : (tensor<{cache}xbf16>) -> tensor<{one}xbf16>
  return %s : tensor<{one}xbf16>
}}"""


@pytest.mark.parametrize(
    ("cache", "one", "at", "minor"),
    [
        ("8x1024x25x64", "8x1x25x64", "%none, %i, %none, %none", ((3,), (2,), True)),
        ("8x25x1024x64", "8x25x1x64", "%none, %none, %i, %none", ((3,), (1,), True)),
        (
            "1024x8x25x64",
            "1x8x25x64",
            "%i, %none, %none, %none",
            None,
        ),  # the first dimension is the major one anyway
    ],
)
def test_the_dimension_that_is_written_at_an_index_is_the_major_one(
    cache: str, one: str, at: str, minor: tuple[tuple[int, ...], tuple[int, ...], bool] | None
) -> None:
    loaded = pipeline.load_module(loop(cache, one, at).encode(), pipeline.Request(memory_bytes=None))
    found = written_at_index(loaded.listing)
    assert set(found.values()) == ({minor} if minor else set())
    assert len(found) == (3 if minor else 0)  # what it starts from, what it carries, what it writes


def test_arguments_lie_as_they_come() -> None:
    text = loop("8x1024x25x64", "8x1x25x64", "%none, %i, %none, %none", "%given")
    listing = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None)).listing
    assert listing.arguments[0].value not in written_at_index(listing)


def test_heads_take_whole_tiles() -> None:
    """25 heads of 64 take 32 x 128, as XLA:TPU has it (67 MB for each of 96 caches of GPT-2 XL, 26 of elements); `check` agrees."""
    text = loop("64x1024x25x64", "64x1x25x64", "%none, %i, %none, %none").encode()
    plan = pipeline.plan_loaded(
        pipeline.load_module(text, pipeline.Request(memory_bytes=None)), time_limit_s=20
    )
    assert plan.price.peak_bytes > 64 // 2 * 1024 * 32 * 128 * 2
    assert pipeline.check_plan(text, plan).passed
