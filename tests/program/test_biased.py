"""Quotients of a softmax that have a buffer of their own: a bias was added to scores whose sequences and heads were one dimension."""

import re
from typing import Any

import pytest

from autoshard.mlir.listing import Op
from autoshard.program import Compiler, build_program
from autoshard.program.biased import biased_exponentials
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
    "by head, one more dimension": """
      %c = stablehlo.reshape %heads : ({heads}) -> tensor<1x2x32x32x{d}>
      %b = stablehlo.broadcast_in_dim %c, dims = [0, 1, 2, 3] : (tensor<1x2x32x32x{d}>) -> {scores}""",
    "a constant": """
      %c = stablehlo.constant dense<2.0> : {heads}
      %b = stablehlo.broadcast_in_dim %c, dims = [1, 2, 3] : ({heads}) -> {scores}""",
    "looked up, of a product as large": """
      %p = stablehlo.dot_general %k, %q, {batched} : ({asked}, {asked}) -> {made}
      %g = "stablehlo.gather"(%p, %rows) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1, 2], collapsed_slice_dims = [0],
        start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 32, 32>}}> : ({made}, tensor<{both}x1xi32>) -> {made}
      %b = stablehlo.reshape %g : ({made}) -> {scores}""",
    "by sequence": "%b = stablehlo.broadcast_in_dim %mask, dims = [0, 2, 3] : (tensor<4x32x32x{d}>) -> {scores}",
    "looked up": """
      %g = "stablehlo.gather"(%table, %at) <{{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0],
        start_index_map = [0], index_vector_dim = 2>, slice_sizes = array<i64: 1, 2>}}>
        : (tensor<8x2x{d}>, tensor<32x32x1xi32>) -> tensor<32x32x2x{d}>
      %c = stablehlo.transpose %g, dims = [2, 0, 1] : (tensor<32x32x2x{d}>) -> {heads}
      %b = stablehlo.broadcast_in_dim %c, dims = [1, 2, 3] : ({heads}) -> {scores}""",
}


def attention(
    bias: str,
    *,
    dtype: str = "bf16",
    summed: int = 3,
    is_merged: bool = True,
    is_late: bool = True,
    batch: int = 4,
) -> str:
    """Scores to which a bias is added, their softmax, which two products read, and what is summed over one dimension.

    is_late: the bias is added behind the reshape.
    """
    scores, heads = SCORES.format(d=dtype), HEADS.format(d=dtype)
    lead = "8" if is_merged else "4x2"
    asked, made = f"tensor<{lead}x32x16x{dtype}>", f"tensor<{lead}x32x32x{dtype}>"
    dims, last = ("0", 2) if is_merged else ("0, 1", 3)
    batched = f"batching_dims = [{dims}] x [{dims}], contracting_dims = [{last}] x [{last}]"
    row = f"tensor<4x2x32x{dtype}>"
    total = {0: heads, 1: f"tensor<4x32x32x{dtype}>", 3: row}[summed]
    renamed, back = (
        (f"stablehlo.reshape %0 : ({made}) -> {scores}", f"stablehlo.reshape %d : ({scores}) -> {made}")
        if is_merged
        else (f"stablehlo.negate %0 : {scores}", f"stablehlo.negate %d : {scores}")
    )
    added = f"""%s = {renamed}
      %a = stablehlo.add %s, %b : {scores}"""
    if not is_late:
        added = f"""%f = stablehlo.reshape %b : ({scores}) -> {made}
      %s = stablehlo.add %0, %f : {made}
      %a = stablehlo.reshape %s : ({made}) -> {scores}"""
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<{dtype}>
      %zeros = stablehlo.constant dense<1.0> : {scores}
      %0 = stablehlo.dot_general %q, %k, {batched} : ({asked}, {asked}) -> {made}
      {BIASES[bias].format(d=dtype, scores=scores, heads=heads, asked=asked, made=made, batched=batched, both=lead)}
      {added}
      %m = stablehlo.reduce(%a init: %zero) applies stablehlo.maximum across dimensions = [3] : ({scores}, tensor<{dtype}>) -> {row}
      %n = stablehlo.broadcast_in_dim %m, dims = [0, 1, 2] : ({row}) -> {scores}
      %l = stablehlo.subtract %a, %n : {scores}
      %e = stablehlo.exponential %l : {scores}
      %r = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [3] : ({scores}, tensor<{dtype}>) -> {row}
      %t = stablehlo.broadcast_in_dim %r, dims = [0, 1, 2] : ({row}) -> {scores}
      %d = stablehlo.divide %e, %t : {scores}
      %y = {back}
      %1 = stablehlo.dot_general %y, %v, batching_dims = [{dims}] x [{dims}], contracting_dims = [{last}] x [{last - 1}]
        : ({made}, {asked}) -> {asked}
      %2 = stablehlo.dot_general %y, %1, batching_dims = [{dims}] x [{dims}], contracting_dims = [{last - 1}] x [{last - 1}]
        : ({made}, {asked}) -> {asked}
      %h = stablehlo.reduce(%large init: %zero) applies stablehlo.add across dimensions = [{summed}]
        : ({scores}, tensor<{dtype}>) -> {total}
      return %2, %h : {asked}, {total}"""
    inputs = f"""%q: {asked}, %k: {asked}, %v: {asked}, %large: {scores}, %heads: {heads}, %mask: tensor<4x32x32x{dtype}>,
      %table: tensor<8x2x{dtype}>, %at: tensor<32x32x1xi32>, %rows: tensor<8x1xi32>"""
    text = main_of(body, inputs, f"{asked}, {total}")
    if batch != 4:
        text = text.replace("<4x", f"<{batch}x")
        text = re.sub(r"<8x(32x|1x)", lambda found: f"<{2 * batch}x{found[1]}", text)
    return text


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
@pytest.mark.parametrize("batch", [4, 2])  # sequences, of two heads
@pytest.mark.parametrize(
    ("bias", "summed", "is_found"),
    [
        ("none", 3, False),
        ("as large as the scores", 3, True),
        ("as large, of a product", 3, False),
        ("looked up, of a product as large", 3, False),
        ("by head", 3, False),
        ("by head", 1, False),
        ("by head", 0, True),
        ("by head, one more dimension", 0, True),
        ("a constant", 0, False),
        ("by sequence", 3, False),
        ("by sequence", 1, False),
        ("by sequence", 0, False),
        ("looked up", 3, True),
    ],
)
def test_quotients_behind_a_bias(bias: str, summed: int, is_found: bool, dtype: str, batch: int) -> None:
    assert is_stored(attention(bias, dtype=dtype, summed=summed, batch=batch)) == is_found
    if bias != "looked up, of a product as large":
        assert not is_stored(attention(bias, dtype=dtype, summed=summed, batch=batch, is_merged=False))


def test_biases_before_the_reshape_leave_the_product_with_the_scores() -> None:
    assert not is_stored(attention("as large as the scores", is_late=False))


def test_one_sequence_is_no_dimension_of_its_own() -> None:
    assert not is_stored(attention("as large as the scores", batch=1))


def test_what_goes_back_to_scores_is_no_quotient() -> None:
    text, scores = attention("looked up"), SCORES.format(d="bf16")
    less = f"""%u = stablehlo.subtract %large, %t : {scores}
      %w = stablehlo.multiply %d, %u : {scores}
      %y = stablehlo.reshape %w"""
    back = text.replace("%y = stablehlo.reshape %d", less)
    assert is_stored(text)
    assert not is_stored(back)


def test_chains_of_exponentials_take_no_time() -> None:
    """Each is looked at once: what 1600 ops took 109 s for, walked anew from each."""
    t = "tensor<8x8xbf16>"
    chain = "\n".join(
        f"%m{n} = stablehlo.subtract %x{n}, %a : {t}\n%x{n + 1} = stablehlo.exponential %m{n} : {t}"
        for n in range(1500)
    )
    body = f"%x0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [0] : ({t}, {t}) -> {t}\n{chain}\nreturn %x1500 : {t}"
    listing = listed(main_of(body, f"%a: {t}", t))
    walked = [0]
    made_by = _Counted({value: op for op in listing.ops for value in op.results}, walked)
    assert not biased_exponentials(listing, made_by)
    assert walked[0] < 10 * len(listing.ops)


class _Counted(dict[int, Op]):
    def __init__(self, of: dict[int, Op], count: list[int]) -> None:
        super().__init__(of)
        self._count = count

    def get(self, key: int, default: Any = None) -> Any:
        self._count[0] += 1
        return super().get(key, default)


def test_only_xla_for_tpus_stores_them() -> None:
    text = attention("looked up")
    assert is_stored(text)
    assert not is_stored(text, is_xla_tpu=False)
