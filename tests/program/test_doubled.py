"""Exponentials that are stored twice, of float32 scores that a softmax reads as a product makes them."""

import pytest

from autoshard.program import build_program
from autoshard.program.records import Compiler
from tests.mlir.modules import listed, main_of

HEADS, SCORES, ROWS = "tensor<4x16x8xT>", "tensor<4x16x16xT>", "tensor<4x16xT>"
DOT = "batching_dims = [0] x [0], contracting_dims"


def attention(between: str, dtype: str, *, has_gradient: bool = True) -> str:
    """Softmax of `%s`, which `between` makes of the product `%0`; a second product stands for what goes back."""
    back = f"%10 = stablehlo.dot_general %5, %9, {DOT} = [1] x [1] : ({SCORES}, {HEADS}) -> {HEADS}"
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<T>
      %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<T>) -> {SCORES}
      %0 = stablehlo.dot_general %q, %k, {DOT} = [2] x [2] : ({HEADS}, {HEADS}) -> {SCORES}
      {between}
      %2 = stablehlo.reduce(%s init: %zero) applies stablehlo.maximum across dimensions = [2] : ({SCORES}, tensor<T>) -> {ROWS}
      %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : ({ROWS}) -> {SCORES}
      %4 = stablehlo.subtract %s, %3 : {SCORES}
      %5 = stablehlo.exponential %4 : {SCORES}
      %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [2] : ({SCORES}, tensor<T>) -> {ROWS}
      %7 = stablehlo.broadcast_in_dim %6, dims = [0, 1] : ({ROWS}) -> {SCORES}
      %8 = stablehlo.divide %5, %7 : {SCORES}
      %9 = stablehlo.dot_general %8, %v, {DOT} = [2] x [1] : ({SCORES}, {HEADS}) -> {HEADS}
      {back if has_gradient else f"%10 = stablehlo.add %9, %9 : {HEADS}"}
      return %10 : {HEADS}"""
    text = main_of(body, f"%q: {HEADS}, %k: {HEADS}, %v: {HEADS}", HEADS)
    return text.replace("xT>", f"x{dtype}>").replace("tensor<T>", f"tensor<{dtype}>")


def doubled(text: str, *, is_doubling: bool = True) -> list[tuple[int, ...]]:
    program = build_program(
        listed(text), compiler=Compiler(is_xla_tpu=True, doubles_exponentials=is_doubling)
    )
    return [whole.type.shape for wholes in program.wholes.values() for whole in wholes]


@pytest.mark.parametrize(
    ("between", "dtype", "count"),
    [
        ("%s = stablehlo.add %0, %zeros : tensor<4x16x16xf32>", "f32", 1),
        ("%s = stablehlo.add %0, %0 : tensor<4x16x16xf32>", "f32", 0),
        ("%s = stablehlo.tanh %0 : tensor<4x16x16xf32>", "f32", 0),
        ("%s = stablehlo.add %0, %zeros : tensor<4x16x16xbf16>", "bf16", 0),
    ],
)
def test_of_scores_as_they_are(between: str, dtype: str, count: int) -> None:
    text = attention(between, dtype)
    assert doubled(text) == [(4, 16, 16)] * count
    assert doubled(text, is_doubling=False) == []


def test_not_where_nothing_goes_back() -> None:
    between = "%s = stablehlo.add %0, %zeros : tensor<4x16x16xf32>"
    assert doubled(attention(between, "f32", has_gradient=False)) == []
