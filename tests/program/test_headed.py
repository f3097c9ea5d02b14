"""Weights of several heads that are gathered lie for the product that reads them, padded to whole lanes."""

import numpy as np
import pytest

from autoshard import pipeline
from autoshard.annotated import price_as_written
from autoshard.program import Compiler, build_program, lie_for_heads
from autoshard.program.headed import scaled_weights
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


@pytest.mark.parametrize(
    "held", ['{"x", "y"}, {}, {}', '{"x"}, {"y"}, {}', '{"x"}, {}, {"y"}', '{}, {"x"}, {"y"}']
)
@pytest.mark.parametrize("read", ["{}, {}, {}", '{}, {}, {"y"}', '{}, {"y"}, {}'])
def test_planner_and_checker_count_alike(held: str, read: str) -> None:
    """Also of small weights that are gathered along two dimensions, beside larger ones: they are laid out ahead of time."""
    w, v, rows = "tensor<2048x16x64xbf16>", "tensor<2048x8192xbf16>", '{"x", "y"}, {}, {}'
    x, q, h = ("tensor<64x256x2048xbf16>", "tensor<64x256x16x64xbf16>", "tensor<64x256x8192xbf16>")
    mine = "{{sdy.sharding = #sdy.sharding<@mesh, [{}]>}}"
    wide, names = mine.format('{"x", "y"}, {}'), ["%p", "%q", "%r", "%s"]
    weights = ", ".join(f"{name}: {w} {mine.format(held)}" for name in names)
    body, last = "", "%n"
    for name in names:
        body += f"""
        {name}w = sdy.sharding_constraint {name} <@mesh, [{read}]> : {w}
        {name}h = stablehlo.dot_general {last}, {name}w, contracting_dims = [2] x [0] : ({x}, {w}) -> {q}
        {name}x = stablehlo.dot_general {name}h, {name}w, contracting_dims = [2, 3] x [1, 2] : ({q}, {w}) -> {x}"""
        last = f"{name}x"
    text = f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%x: {x} {mine.format(rows)}, %v: {v} {wide}, %u: {v} {wide}, {weights})
          -> ({x} {mine.format(rows)}) {{
        %m = stablehlo.dot_general %x, %v, contracting_dims = [2] x [0] : ({x}, {v}) -> {h}
        %k = stablehlo.dot_general %m, %v, contracting_dims = [2] x [1] : ({h}, {v}) -> {x}
        %o = stablehlo.dot_general %k, %u, contracting_dims = [2] x [0] : ({x}, {v}) -> {h}
        %n = stablehlo.dot_general %o, %u, contracting_dims = [2] x [1] : ({h}, {v}) -> {x}
        {body}
        return {last} : {x}
      }}""".encode()
    request = pipeline.Request(hardware="tpu-v5e", topology=(4, 4), memory_bytes=None)
    assert pipeline.check_plan(text, pipeline.plan_loaded(pipeline.load_module(text, request))).passed


def test_which_parts_lie_so() -> None:
    """Several heads of half the lanes or more."""
    parts = np.asarray([[1024, 16, 64], [1024, 1, 64], [1024, 16, 16], [256, 2, 128]])
    assert lie_for_heads(parts).tolist() == [True, False, False, True]


@pytest.mark.parametrize(
    ("weight", "scale", "groups", "is_stored"),
    [
        ((2048, 16, 64), (1, 16, 64), None, True),  # a scale a column of every head
        ((2048, 16, 64), (16, 1, 16, 64), (16, 128, 16, 64), True),
        ((2048, 1024), (1, 1024), None, False),
        ((2048, 1024), (2048, 8, 1), (2048, 8, 128), True),  # groups along the lanes
        ((2048, 1024), (16, 1, 1024), (16, 128, 1024), False),
        ((16384, 1024), (128, 1, 1024), (128, 128, 1024), True),
        ((2048, 16, 64), None, None, False),  # converted alone
    ],
)
def test_weights_that_are_scaled_once(
    weight: tuple[int, ...], scale: tuple[int, ...] | None, groups: tuple[int, ...] | None, is_stored: bool
) -> None:
    """Of int8; what is not stored is scaled inside the products of both passes (libtpu 0.0.52 for v5e, v6e and v5p)."""

    def tensor(shape: tuple[int, ...], dtype: str = "bf16") -> str:
        return f"tensor<{'x'.join(map(str, shape))}x{dtype}>"

    x, w = f"tensor<64x256x{weight[0]}xbf16>", tensor(weight)
    y = f"tensor<64x256x{'x'.join(map(str, weight[1:]))}xbf16>"
    apart = groups or weight
    lines = [f"%c = stablehlo.convert %w : ({tensor(weight, 'i8')}) -> {w}"]
    if groups is not None:
        lines.append(f"%g = stablehlo.reshape %c : ({w}) -> {tensor(groups)}")
    if scale is not None:
        spread = f"dims = {list(range(len(apart)))} : ({tensor(scale)}) -> {tensor(apart)}"
        lines.append(f"%f = stablehlo.broadcast_in_dim %s, {spread}")
        lines.append(f"%m = stablehlo.multiply {'%g' if groups else '%c'}, %f : {tensor(apart)}")
    if groups is not None:
        lines.append(f"%v = stablehlo.reshape %m : ({tensor(groups)}) -> {w}")
    read = "%v" if groups else "%m" if scale else "%c"
    scaled = "\n".join(lines)
    columns = list(range(2, 1 + len(weight)))
    body = f"""{scaled}
      %y = stablehlo.dot_general %x, {read}, contracting_dims = [2] x [0] : ({x}, {w}) -> {y}
      %t = stablehlo.tanh %y : {y}
      %b = stablehlo.dot_general %t, {read}, contracting_dims = {columns} x {[dim - 1 for dim in columns]} : ({y}, {w}) -> {x}
      return %b : {x}"""
    arguments = f"%x: {x}, %w: {tensor(weight, 'i8')}, %s: {tensor(scale or (1,))}"
    listing = listed(main_of(body, arguments, x))
    program = build_program(listing, compiler=XLA_TPU)
    made = {op.name: op.results[0] for op in listing.ops}
    value = made["stablehlo.multiply" if scale else "stablehlo.convert"]
    assert (value in scaled_weights(listing)) == is_stored
    assert program.ample_lifetimes[value].is_own_buffer == is_stored
