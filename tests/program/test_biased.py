"""Quotients of a softmax that have a buffer of their own: a bias was added to scores whose sequences and heads were one dimension."""

import pytest

from autoshard.program import Compiler, build_program
from tests.mlir.modules import listed, main_of

SCORES, HEADS = "tensor<4x2x32x32x{d}>", "tensor<2x32x32x{d}>"
BIASES = {
    "none": "%b = stablehlo.negate %zeros : {scores}",
    "as large as the scores": "%b = stablehlo.negate %large : {scores}",
    "as large, of a product": """
      %p = stablehlo.dot_general %k, %q, {batched} : ({asked}, {asked}) -> {made}
      %b = stablehlo.reshape %p : ({made}) -> {scores}""",
    "by head": """
      %c = stablehlo.negate %heads : {heads}
      %b = stablehlo.broadcast_in_dim %c, dims = [1, 2, 3] : ({heads}) -> {scores}""",
    "by sequence": "%b = stablehlo.broadcast_in_dim %mask, dims = [0, 2, 3] : (tensor<4x32x32x{d}>) -> {scores}",
    "looked up": """
      %g = "stablehlo.gather"(%table, %at) <{{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0],
        start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 2>}}>
        : (tensor<8x2x{d}>, tensor<32x32x1xi32>) -> tensor<32x32x2x{d}>
      %c = stablehlo.transpose %g, dims = [2, 0, 1] : (tensor<32x32x2x{d}>) -> {heads}
      %b = stablehlo.broadcast_in_dim %c, dims = [1, 2, 3] : ({heads}) -> {scores}""",
}


def attention(bias: str, *, dtype: str = "bf16", is_learnt: bool = False, is_merged: bool = True) -> str:
    """Scores to which a bias is added, their softmax, which two products read, and what is summed over sequences."""
    scores, heads = SCORES.format(d=dtype), HEADS.format(d=dtype)
    lead = "8" if is_merged else "4x2"
    asked, made = f"tensor<{lead}x32x16x{dtype}>", f"tensor<{lead}x32x32x{dtype}>"
    batch, last = ("0", 2) if is_merged else ("0, 1", 3)
    batched = f"batching_dims = [{batch}] x [{batch}], contracting_dims = [{last}] x [{last}]"
    row = f"tensor<4x2x32x{dtype}>"
    renamed, back = (
        (f"stablehlo.reshape %0 : ({made}) -> {scores}", f"stablehlo.reshape %d : ({scores}) -> {made}")
        if is_merged
        else (f"stablehlo.negate %0 : {scores}", f"stablehlo.negate %d : {scores}")
    )
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<{dtype}>
      %zeros = stablehlo.constant dense<1.0> : {scores}
      %0 = stablehlo.dot_general %q, %k, {batched} : ({asked}, {asked}) -> {made}
      %s = {renamed}
      {BIASES[bias].format(d=dtype, scores=scores, heads=heads, asked=asked, made=made, batched=batched)}
      %a = stablehlo.add %s, %b : {scores}
      %m = stablehlo.reduce(%a init: %zero) applies stablehlo.maximum across dimensions = [3] : ({scores}, tensor<{dtype}>) -> {row}
      %n = stablehlo.broadcast_in_dim %m, dims = [0, 1, 2] : ({row}) -> {scores}
      %l = stablehlo.subtract %a, %n : {scores}
      %e = stablehlo.exponential %l : {scores}
      %r = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [3] : ({scores}, tensor<{dtype}>) -> {row}
      %t = stablehlo.broadcast_in_dim %r, dims = [0, 1, 2] : ({row}) -> {scores}
      %d = stablehlo.divide %e, %t : {scores}
      %y = {back}
      %1 = stablehlo.dot_general %y, %v, batching_dims = [{batch}] x [{batch}], contracting_dims = [{last}] x [{last - 1}]
        : ({made}, {asked}) -> {asked}
      %2 = stablehlo.dot_general %y, %1, batching_dims = [{batch}] x [{batch}], contracting_dims = [{last - 1}] x [{last - 1}]
        : ({made}, {asked}) -> {asked}
      %h = stablehlo.reduce(%large init: %zero) applies stablehlo.add across dimensions = [{0 if is_learnt else 3}]
        : ({scores}, tensor<{dtype}>) -> {heads if is_learnt else row}
      return %2, %h : {asked}, {heads if is_learnt else row}"""
    inputs = f"""%q: {asked}, %k: {asked}, %v: {asked}, %large: {scores}, %heads: {heads}, %mask: tensor<4x32x32x{dtype}>,
      %table: tensor<8x2x{dtype}>, %at: tensor<32x32x1xi32>"""
    return main_of(body, inputs, f"{asked}, {heads if is_learnt else row}")


def is_stored(text: str, *, is_xla_tpu: bool = True) -> bool:
    """Whether the quotients have a buffer where memory is ample."""
    program = build_program(listed(text), compiler=Compiler(is_xla_tpu=is_xla_tpu))
    (made,) = (
        kernel
        for kernel in program.kernels
        if any(program.listing.ops[op].name == "stablehlo.divide" for op in kernel.ops)
    )
    return program.ample_lifetimes[made.results[0]].is_own_buffer


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("bias", "is_learnt", "is_found"),
    [
        ("none", False, False),
        ("as large as the scores", False, True),
        ("as large, of a product", False, False),
        ("by head", False, False),
        ("by head", True, True),
        ("by sequence", False, False),
        ("by sequence", True, False),
        ("looked up", False, True),
    ],
)
def test_quotients_behind_a_bias(bias: str, is_learnt: bool, is_found: bool, dtype: str) -> None:
    assert is_stored(attention(bias, dtype=dtype, is_learnt=is_learnt)) == is_found
    assert not is_stored(attention(bias, dtype=dtype, is_learnt=is_learnt, is_merged=False))


def test_only_xla_for_tpus_stores_them() -> None:
    text = attention("looked up")
    assert is_stored(text)
    assert not is_stored(text, is_xla_tpu=False)
