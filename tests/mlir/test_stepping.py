"""Scans over layers that are stacked along another dimension than the first."""

from pathlib import Path

import pytest

from autoshard import pipeline
from autoshard.mlir.read import read
from autoshard.mlir.source import resolve_mesh
from tests.mlir.modules import counted_loop, main_of, source_of

X, W = "tensor<8x16xf32>", "tensor<16x16xf32>"
SLICE = """%w0 = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 16, 16]
        : (tensor<4x16x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x16xf32>"""
TWO = SLICE.replace("[1, 16, 16]", "[2, 16, 16]").replace("-> tensor<1x", "-> tensor<2x")


def scan(
    dims: str = "[1, 0, 2]", lies: str = "16x4x16", slices: str = SLICE, again: str = "%w", also: str = ""
) -> str:
    """Four layers of a product each."""
    held, stack, count = f"tensor<{lies}xf32>", "tensor<4x16x16xf32>", 2 if slices == TWO else 1
    layer = f"""{slices}
      %w1 = stablehlo.slice %w0 [0:1, 0:16, 0:16] : (tensor<{count}x16x16xf32>) -> tensor<1x16x16xf32>
      %w2 = stablehlo.reshape %w1 : (tensor<1x16x16xf32>) -> {W}
      %b = stablehlo.dot_general %a, %w2, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
      %next = stablehlo.tanh %b : {X}
      {f"%other = stablehlo.negate %w : {stack}" if again != "%w" else ""}"""
    text = f"""%zero = stablehlo.constant dense<0> : tensor<i32>
      %t = stablehlo.transpose %s, dims = {dims} : ({held}) -> {stack}
      {counted_loop(4, (("%a", "%x", X), ("%w", "%t", stack)), layer, ("%next", again))}
      {also or f"%u = stablehlo.constant dense<0.0> : {stack}"}
      %e = stablehlo.reduce(%u init: %f) applies stablehlo.add across dimensions = [0, 1, 2] : ({stack}, tensor<f32>) -> tensor<f32>
      return %r#1, %e : {X}, tensor<f32>"""
    return main_of(
        f"%f = stablehlo.constant dense<0.0> : tensor<f32>\n{text}",
        f"%x: {X}, %s: {held}",
        f"{X}, tensor<f32>",
    )


def is_turned(text: str) -> bool:
    source = source_of(text)
    listing, _ = read(source, resolve_mesh(source, None), drops_dead=True)
    return any(op.name == "stablehlo.transpose" for op in listing.ops)


def test_the_loop_slices_the_stack_as_it_lies() -> None:
    assert not is_turned(scan())
    assert not is_turned(scan("[0, 1, 2]", "4x16x16"))


@pytest.mark.parametrize(
    "given",
    [
        {"dims": "[2, 0, 1]", "lies": "16x16x4"},  # the last dimension is another
        {"dims": "[1, 2, 0]", "lies": "16x4x16"},  # a layer is turned itself
        {"again": "%other"},
        {"also": "%u = stablehlo.abs %t : tensor<4x16x16xf32>"},
        {"also": "%u = stablehlo.abs %r#2 : tensor<4x16x16xf32>"},
        {"slices": TWO},
    ],
)
def test_other_loops_are_left(given: dict[str, str]) -> None:
    assert is_turned(scan(**given))


def test_the_result_is_the_same(tmp_path: Path) -> None:
    """What is written computes what was read, on all devices."""
    (tmp_path / "read.mlir").write_text(scan())
    loaded = pipeline.load_module((tmp_path / "read.mlir").read_bytes(), pipeline.Request())
    (tmp_path / "written.mlir").write_text(pipeline.write_planned(loaded, pipeline.plan_loaded(loaded)))
    assert "stablehlo.transpose" not in (tmp_path / "written.mlir").read_text()
    report = pipeline.verify_modules(
        *(str(tmp_path / f"{name}.mlir") for name in ("written", "read")), devices=16
    )
    assert report.passed, report.to_text()
