"""Exponentials of a softmax beside their scores: what keeps XLA:TPU from working both out as the product leaves the matrix unit."""

import pytest

from autoshard.program import build_program
from autoshard.program.records import Compiler
from tests.mlir.modules import listed, main_of


def attention(mask: str, queries: int = 256, row: int = 256, groups: int = 1, dtype: str = "f32") -> str:
    """Softmax of scaled scores, masked by `%mask` where `mask` makes that of `%m`."""
    grouped = f"{groups}x" if groups > 1 else ""
    scores = f"tensor<4x{queries}x{grouped}{row}xf32>" if groups > 1 else f"tensor<4x{queries}x{row}xf32>"
    asked = f"tensor<4x{queries}x{grouped}64xbf16>"
    read, rows = f"tensor<4x{row}x64xbf16>", f"tensor<4x{grouped}{queries}xf32>"
    rank = 4 if groups > 1 else 3
    made = f"tensor<4x{queries}x{grouped}{row}x{dtype}>"
    turned = f"tensor<4x{grouped}{queries}x{row}xf32>"
    order = "[0, 2, 1, 3]" if groups > 1 else "[0, 1, 2]"
    wide = f"%1 = stablehlo.convert %0 : ({made}) -> {scores}" if dtype != "f32" else ""
    last = f"[{rank - 2}, {rank - 1}]"
    masked = f"""
      {mask}
      %no = stablehlo.constant dense<-1.0e30> : tensor<f32>
      %nos = stablehlo.broadcast_in_dim %no, dims = [] : (tensor<f32>) -> {turned}
      %every = stablehlo.broadcast_in_dim %mask, dims = {last} : (tensor<{queries}x{row}xi1>) -> {turned.replace("f32", "i1")}
      %s = stablehlo.select %every, %t, %nos : {turned.replace("f32", "i1")}, {turned}"""
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [{rank - 1}] x [2]
        : ({asked}, {read}) -> {made}
      {wide}
      %t = stablehlo.transpose %{1 if wide else 0}, dims = {order} : ({scores}) -> {turned}
      {masked if mask else f"%s = stablehlo.negate %t : {turned}"}
      %2 = stablehlo.reduce(%s init: %zero) applies stablehlo.maximum across dimensions = [{rank - 1}]
        : ({turned}, tensor<f32>) -> {rows}
      %3 = stablehlo.broadcast_in_dim %2, dims = [{", ".join(map(str, range(rank - 1)))}] : ({rows}) -> {turned}
      %4 = stablehlo.subtract %s, %3 : {turned}
      %5 = stablehlo.exponential %4 : {turned}
      %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [{rank - 1}]
        : ({turned}, tensor<f32>) -> {rows}
      %7 = stablehlo.broadcast_in_dim %6, dims = [{", ".join(map(str, range(rank - 1)))}] : ({rows}) -> {turned}
      %8 = stablehlo.divide %5, %7 : {turned}
      %9 = stablehlo.convert %8 : ({turned}) -> {turned.replace("f32", "bf16")}
      %10 = stablehlo.dot_general %9, %k, batching_dims = [0] x [0], contracting_dims = [{rank - 1}] x [1]
        : ({turned.replace("f32", "bf16")}, {read}) -> tensor<4x{grouped}{queries}x64xbf16>
      return %10 : tensor<4x{grouped}{queries}x64xbf16>"""
    inputs = f"%q: {asked}, %k: {read}, %m: tensor<{queries}x{row}xi1>"
    return main_of(body, inputs, f"tensor<4x{grouped}{queries}x64xbf16>")


ARGUMENT = "%mask = stablehlo.not %m : tensor<{0}x{1}xi1>"
TURNED = "%mask = stablehlo.transpose %m, dims = [1, 0] : (tensor<{1}x{0}xi1>) -> tensor<{0}x{1}xi1>"
CAUSAL = """
      %i = stablehlo.iota dim = 0 : tensor<{0}x{1}xi32>
      %j = stablehlo.iota dim = 1 : tensor<{0}x{1}xi32>
      %mask = stablehlo.compare GE, %i, %j : (tensor<{0}x{1}xi32>, tensor<{0}x{1}xi32>) -> tensor<{0}x{1}xi1>"""


def beside(text: str, *, masks_apart: bool = True) -> list[tuple[int, ...]]:
    program = build_program(listed(text), compiler=Compiler(is_xla_tpu=True, masks_apart=masks_apart))
    return [whole.type.shape for wholes in program.wholes.values() for whole in wholes]


@pytest.mark.parametrize(
    ("mask", "queries", "row", "groups", "is_apart"),
    [
        (ARGUMENT, 256, 256, 1, True),
        (ARGUMENT, 256, 512, 1, False),  # rows lie along the lanes, as the mask does
        (ARGUMENT, 256, 512, 2, True),
        (TURNED, 256, 256, 1, False),
        (CAUSAL, 256, 256, 1, False),
        (CAUSAL, 512, 4096, 1, False),
        (CAUSAL, 512, 4096, 2, True),
        (CAUSAL, 512, 2048, 2, False),
        ("", 512, 4096, 2, False),
        ("", 256, 256, 1, False),
        ("", 512, 8192, 1, True),
    ],
)
def test_apart(mask: str, queries: int, row: int, groups: int, is_apart: bool) -> None:
    found = beside(attention(mask.format(queries, row), queries, row, groups))
    grouped = (groups,) if groups > 1 else ()
    assert found == [(4, *grouped, queries, row)] * is_apart


@pytest.mark.parametrize("groups", [1, 4])
def test_scores_of_one_sequence_that_all_read_the_same_keys_are_not(groups: int) -> None:
    """A batch of one is none for XLA, which makes a product of one matrix of it."""
    text = attention("", 512, 8192, groups)
    assert beside(text)
    assert beside(text.replace("<4x", "<1x")) == []


def test_scores_that_are_widened_behind_the_product_are_not() -> None:
    assert beside(attention(ARGUMENT.format(256, 256), dtype="bf16")) == []


def test_other_compilers_take_the_mask_as_it_lies() -> None:
    assert beside(attention(ARGUMENT.format(256, 256)), masks_apart=False) == []


def test_exponentials_of_a_loss_are_not_apart() -> None:
    """Its logits, of a product of one matrix, are kept, however long their rows."""
    logits, rows = "tensor<8x8192xf32>", "tensor<8xf32>"
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x8192xf32>) -> {logits}
      %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.maximum across dimensions = [1] : ({logits}, tensor<f32>) -> {rows}
      %2 = stablehlo.broadcast_in_dim %1, dims = [0] : ({rows}) -> {logits}
      %3 = stablehlo.subtract %0, %2 : {logits}
      %4 = stablehlo.exponential %3 : {logits}
      %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : ({logits}, tensor<f32>) -> {rows}
      %6 = stablehlo.dot_general %4, %w, contracting_dims = [1] x [1] : ({logits}, tensor<64x8192xf32>) -> tensor<8x64xf32>
      return %5, %6 : {rows}, tensor<8x64xf32>"""
    text = main_of(body, "%x: tensor<8x64xf32>, %w: tensor<64x8192xf32>", f"{rows}, tensor<8x64xf32>")
    assert beside(text) == []
