"""Sums of two stored values: worked out again where they are pooled, stored where a product reads them."""

from dataclasses import replace

import pytest

from autoshard.program import build_program
from autoshard.program.records import XLA_TPU
from tests.mlir.modules import listed, main_of

T, W, SMALL = "tensor<8x16xf32>", "tensor<16x16xf32>", "tensor<8x8xf32>"


def pooled(window: int, stride: int, made: str) -> str:
    """Of `%s`, a rectified sum along its last dimension."""
    return f"""
      %p = "stablehlo.reduce_window"(%s, %zero)
          <{{window_dimensions = array<i64: 1, {window}>, window_strides = array<i64: 1, {stride}>}}> ({{
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %n = stablehlo.add %l, %r : tensor<f32>
          stablehlo.return %n : tensor<f32>
      }}) : ({T}, tensor<f32>) -> {made}"""


def sum_of(reader: str) -> str:
    """What is pooled is a rectified sum of two products, which others read too; the sum's gradient waits for what is pooled."""
    made = f"tensor<8x{15 if reader == 'overlapping' else 8}xf32>"
    window = pooled(2, 1, made) if reader == "overlapping" else pooled(2, 2, made)
    again = pooled(4, 4, "tensor<8x4xf32>").replace("%p =", "%p2 =") if reader == "another pool" else ""
    besides = {"product": "%s", "name of it": "%h"}.get(reader, "%x")
    return main_of(
        f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {T}
      %x = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %v = stablehlo.add %x, %y : {T}
      %s = stablehlo.maximum %v, %zeros : {T}
      %h = stablehlo.negate %s : {T}
      %o = stablehlo.dot_general {besides}, %y, contracting_dims = [1] x [1] : ({T}, {T}) -> {SMALL}
      {window}
      {again}
      %q = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [1] : ({made}, tensor<f32>) -> tensor<8xf32>
      %b = stablehlo.broadcast_in_dim %q, dims = [0] : (tensor<8xf32>) -> {T}
      %g = stablehlo.multiply %b, %v : {T}
      %d = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      return %o, %d : {SMALL}, {T}""",
        f"%a: {T}, %w: {W}",
        f"{SMALL}, {T}",
    )


@pytest.mark.parametrize(
    ("reader", "is_stored"),
    [
        ("gradient", False),
        ("another pool", False),
        ("product", True),
        ("name of it", True),
        ("overlapping", True),
    ],
)
def test_sums_that_are_pooled(reader: str, is_stored: bool) -> None:
    """A gradient waits for what is pooled; a product that does not reads the sum from a buffer, and so do windows that overlap."""
    program = build_program(listed(sum_of(reader)), compiler=XLA_TPU)
    (sum_,) = (
        k for k in program.kernels if program.listing.ops[k.time].name == "stablehlo.add" and len(k.uses) == 2
    )
    for lives in (program.lifetimes, program.ample_lifetimes):
        assert lives[sum_.results[0]].is_own_buffer is is_stored
    elsewhere = build_program(listed(sum_of(reader)), compiler=replace(XLA_TPU, is_xla_tpu=False))
    assert elsewhere.lifetimes[sum_.results[0]].is_own_buffer


def test_what_goes_back_through_a_pool_lies_as_what_was_pooled() -> None:
    """Images and channels are minor, with elementwise work on it too."""
    large, small = "tensor<64x16x16x32xbf16>", "tensor<64x8x8x32xbf16>"
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<bf16>
      %g = "stablehlo.select_and_scatter"(%x, %y, %zero)
          <{{window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}}> ({{
        ^bb0(%l: tensor<bf16>, %r: tensor<bf16>):
          %n = stablehlo.compare GE, %l, %r : (tensor<bf16>, tensor<bf16>) -> tensor<i1>
          stablehlo.return %n : tensor<i1>
      }}, {{
        ^bb0(%l: tensor<bf16>, %r: tensor<bf16>):
          %n = stablehlo.add %l, %r : tensor<bf16>
          stablehlo.return %n : tensor<bf16>
      }}) : ({large}, {small}, tensor<bf16>) -> {large}
      %h = stablehlo.multiply %g, %x : {large}
      return %g, %h : {large}, {large}"""
    program = build_program(
        listed(main_of(body, f"%x: {large}, %y: {small}", f"{large}, {large}")), compiler=XLA_TPU
    )
    for kernel in program.kernels:
        assert program.minor_dims[kernel.results[0]] == ((0,), (3,), False)
