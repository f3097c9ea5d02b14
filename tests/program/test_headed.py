"""Weights of several heads that are gathered lie for the product that reads them, padded to whole lanes."""

import pytest

from autoshard import pipeline
from autoshard.annotated import price_as_written
from autoshard.program import Compiler, build_program
from autoshard.program.records import XLA_TPU
from tests.mlir.modules import listed, main_of

WIDTH = 65536  # so that vector memory does not hold a weight
X = f"tensor<64x256x{WIDTH}xbf16>"


def products(heads: int, columns: int) -> str:
    """Of a query's weight, and with what goes back to it."""
    w, q = f"tensor<{WIDTH}x{heads}x{columns}xbf16>", f"tensor<64x256x{heads}x{columns}xbf16>"
    return f"""
      %q = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : ({X}, {w}) -> {q}
      %b = stablehlo.dot_general %q, %w, contracting_dims = [2, 3] x [1, 2] : ({q}, {w}) -> {X}
      return %b : {X}"""


@pytest.mark.parametrize(
    ("columns", "compiler", "minor"),
    [
        (48, XLA_TPU, None),
        (64, XLA_TPU, ((2,), (1,), True)),
        (80, XLA_TPU, ((2,), (0,), True)),
        (256, XLA_TPU, ((2,), (0,), True)),
        (64, Compiler(is_xla_tpu=False), None),
    ],
)
def test_which_dimensions_are_minor(columns: int, compiler: Compiler, minor: object) -> None:
    """As libtpu 0.0.52 lays them for v5e, v6e and v5p."""
    w = f"tensor<{WIDTH}x16x{columns}xbf16>"
    body = f"""%c = sdy.sharding_constraint %v <@mesh, [{{}}, {{}}, {{}}]> : {w}
      {products(16, columns).replace("%w", "%c")}"""
    listing = listed(main_of(body, f"%x: {X}, %v: {w}", X))
    (given,) = (argument.value for argument in listing.arguments[1:])
    found = build_program(listing, compiler=compiler).weights_of_heads
    assert found.get(given) == minor
    assert set(found.values()) <= {minor}
    assert listing.arguments[0].value not in found


def test_what_has_no_heads() -> None:
    """Experts lie along a batch dimension; one head is none."""
    for w, dims in (
        (f"tensor<64x{WIDTH}x256xbf16>", "batching_dims = [0] x [0], contracting_dims = [2] x [1]"),
        (f"tensor<{WIDTH}x1x256xbf16>", "contracting_dims = [2] x [0]"),
    ):
        y = "tensor<64x256x256xbf16>" if "batching" in dims else "tensor<64x256x1x256xbf16>"
        body = f"%y = stablehlo.dot_general %x, %w, {dims} : ({X}, {w}) -> {y}\nreturn %y : {y}"
        assert not build_program(
            listed(main_of(body, f"%x: {X}, %w: {w}", y)), compiler=XLA_TPU
        ).weights_of_heads


@pytest.mark.parametrize(("columns", "rows_of"), [(32, 32), (64, 128), (80, 128)])
def test_a_gathered_weight_of_heads(columns: int, rows_of: int) -> None:
    """It takes whole rows of 128 lanes from 64 columns on (libtpu 0.0.52 for v5e 4x4); 100 MB of vector memory hold what has fewer."""
    w, everywhere = f"tensor<{WIDTH}x16x{columns}xbf16>", '{"x", "y"}'
    of = "{{sdy.sharding = #sdy.sharding<@mesh, [{}, {{}}, {{}}]>}}"
    text = f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%x: {X} {of.format(everywhere)}, %v: {w} {of.format(everywhere)})
          -> ({X} {of.format(everywhere)}) {{
        %w = sdy.sharding_constraint %v <@mesh, [{{}}, {{}}, {{}}]> : {w}
        {products(16, columns)}
      }}"""
    request = pipeline.Request(hardware="tpu-v5e", topology=(4, 4), memory_bytes=None)
    loaded = pipeline.load_module(text.encode(), request)
    written = price_as_written(loaded)
    copied = [one.bytes for one in written.held().buffers if one.kind == "copy"]
    assert copied == ([] if columns < 64 else [pytest.approx(WIDTH * 16 * rows_of * 2, rel=0.08)])
    assert pipeline.check_plan(text.encode(), pipeline.plan_loaded(loaded)).passed
