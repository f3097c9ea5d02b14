"""Masks that are cut, of which XLA:TPU writes the whole or makes the part alone, as it was seen to."""

import pytest

from autoshard import pipeline
from autoshard.check import Subject, check
from tests.program.modules import program_of

ROWS = """
  %i = stablehlo.iota dim = 0 : tensor<64xi32>
  %r = stablehlo.broadcast_in_dim %i, dims = [0] : (tensor<64xi32>) -> tensor<64x1xi32>
  %c = stablehlo.broadcast_in_dim %i, dims = [1] : (tensor<64xi32>) -> tensor<1x64xi32>
  %rows = stablehlo.broadcast_in_dim %r, dims = [0, 1] : (tensor<64x1xi32>) -> tensor<64x64xi32>
  %columns = stablehlo.broadcast_in_dim %c, dims = [0, 1] : (tensor<1x64xi32>) -> tensor<64x64xi32>
  %mask = stablehlo.compare GE, %rows, %columns : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi1>"""
WITH_HEADS = (
    "  %heads = stablehlo.broadcast_in_dim %mask, dims = [1, 2] : (tensor<64x64xi1>) -> tensor<1x64x64xi1>"
)
CUT = "  %cut = stablehlo.slice %heads [0:1, 0:8, 0:8] : (tensor<1x64x64xi1>) -> tensor<1x8x8xi1>"
KEEPING_ONES = """
  %i = stablehlo.iota dim = 0 : tensor<64xi32>
  %r = stablehlo.broadcast_in_dim %i, dims = [1] : (tensor<64xi32>) -> tensor<1x64x1xi32>
  %c = stablehlo.broadcast_in_dim %i, dims = [2] : (tensor<64xi32>) -> tensor<1x1x64xi32>
  %rows = stablehlo.broadcast_in_dim %r, dims = [0, 1, 2] : (tensor<1x64x1xi32>) -> tensor<1x64x64xi32>
  %columns = stablehlo.broadcast_in_dim %c, dims = [0, 1, 2] : (tensor<1x1x64xi32>) -> tensor<1x64x64xi32>
  %mask = stablehlo.compare GE, %rows, %columns : (tensor<1x64x64xi32>, tensor<1x64x64xi32>) -> tensor<1x64x64xi1>
  %more = stablehlo.reshape %mask : (tensor<1x64x64xi1>) -> tensor<1x1x64x64xi1>
  %part = stablehlo.slice %more [0:1, 0:1, 0:8, 0:8] : (tensor<1x1x64x64xi1>) -> tensor<1x1x8x8xi1>
  %cut = stablehlo.reshape %part : (tensor<1x1x8x8xi1>) -> tensor<1x8x8xi1>"""
CUT_FIRST = """
  %part = stablehlo.slice %mask [0:8, 0:8] : (tensor<64x64xi1>) -> tensor<8x8xi1>
  %cut = stablehlo.broadcast_in_dim %part, dims = [1, 2] : (tensor<8x8xi1>) -> tensor<1x8x8xi1>"""
CAST = """
  %wide = stablehlo.convert %heads : (tensor<1x64x64xi1>) -> tensor<1x64x64xf32>
  %part = stablehlo.slice %wide [0:1, 0:8, 0:8] : (tensor<1x64x64xf32>) -> tensor<1x8x8xf32>
  %cut = stablehlo.convert %part : (tensor<1x8x8xf32>) -> tensor<1x8x8xi1>"""
SELECTED = """
  %zero = stablehlo.constant dense<0.0> : tensor<1x64x64xf32>
  %low = stablehlo.constant dense<-1.0> : tensor<1x64x64xf32>
  %wide = stablehlo.select %heads, %zero, %low : tensor<1x64x64xi1>, tensor<1x64x64xf32>
  %part = stablehlo.slice %wide [0:1, 0:8, 0:8] : (tensor<1x64x64xf32>) -> tensor<1x8x8xf32>
  %cut = stablehlo.convert %part : (tensor<1x8x8xf32>) -> tensor<1x8x8xi1>"""
TWICE = """
  %other = stablehlo.slice %heads [0:1, 8:16, 0:8] : (tensor<1x64x64xi1>) -> tensor<1x8x8xi1>
  %one = stablehlo.slice %heads [0:1, 0:8, 0:8] : (tensor<1x64x64xi1>) -> tensor<1x8x8xi1>
  %cut = stablehlo.or %one, %other : tensor<1x8x8xi1>"""


def text(*parts: str) -> str:
    body = "\n".join(parts)
    return f"""sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<4x8x8xf32>) -> tensor<4x8x8xf32> {{
{body}
  %each = stablehlo.broadcast_in_dim %cut, dims = [0, 1, 2] : (tensor<1x8x8xi1>) -> tensor<4x8x8xi1>
  %made = stablehlo.select %each, %x, %x : tensor<4x8x8xi1>, tensor<4x8x8xf32>
  return %made : tensor<4x8x8xf32>
}}"""


@pytest.mark.parametrize(
    ("parts", "stored"),
    [
        ((ROWS, WITH_HEADS, CUT), ["tensor<1x64x64xi1>"]),
        ((ROWS, CUT_FIRST), []),
        ((KEEPING_ONES,), []),
        ((ROWS, WITH_HEADS, CAST), ["tensor<1x64x64xi1>"]),
        ((ROWS, WITH_HEADS, SELECTED), ["tensor<1x64x64xf32>"]),
        ((ROWS, WITH_HEADS, TWICE), ["tensor<1x64x64xi1>"]),
    ],
)
def test_what_is_stored(parts: tuple[str, ...], stored: list[str]) -> None:
    assert [str(whole.type) for whole in program_of(text(*parts)).generated] == stored


def test_memory() -> None:
    """It counts on every device in what has to fit, for the plan and for the check."""
    request = pipeline.Request(memory_bytes=64 * 128 * 4)
    for parts, fits in (((ROWS, WITH_HEADS, SELECTED), False), ((ROWS, CUT_FIRST), True)):
        loaded = pipeline.load_module(text(*parts).encode(), request)
        plan = pipeline.plan_loaded(loaded)
        report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
        assert report.passed, report.to_text()
        assert plan.fits == fits


def test_memory_of_nothing_else() -> None:
    """One element of a mask is all that is wanted: there is nothing to choose, and the check says so too."""
    element = "  %cut = stablehlo.slice %heads [0:1, 0:1, 0:1] : (tensor<1x64x64xi1>) -> tensor<1x1x1xi1>"
    body = "\n".join((ROWS, WITH_HEADS, element))
    module = f"""sdy.mesh @mesh = <["x"=2]>
func.func @main() -> tensor<i1> {{
{body}
  %made = stablehlo.reshape %cut : (tensor<1x1x1xi1>) -> tensor<i1>
  return %made : tensor<i1>
}}"""
    loaded = pipeline.load_module(module.encode(), pipeline.Request(memory_bytes=1000))
    assert loaded.program.generated
    report = check(
        Subject(loaded.program, loaded.hardware, loaded.communication), pipeline.plan_loaded(loaded)
    )
    assert report.passed, report.to_text()


def test_sharding_of_a_part() -> None:
    """A part that is split is whole first: XLA would split what it is cut from, and exchange rows of it."""
    request = pipeline.Request(memory_bytes=None)
    module = text(ROWS, CUT_FIRST).replace(
        "%x: tensor<4x8x8xf32>",
        '%x: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}, {}]>}',
    )
    loaded = pipeline.load_module(module.encode(), request)
    written = pipeline.write_planned(loaded, pipeline.plan_loaded(loaded))
    at = written.index("stablehlo.slice")
    first, second = [line for line in written[at:].split("\n") if "sharding_constraint" in line][:2]
    assert "[{}, {}]" in first
    assert '[{"x"}, {}]' in second
