"""Sums of residual branches that end with a normalization: every second one is made in what reads it."""

import pytest

from autoshard.program import Compiler, Lifetime, Program, build_program
from tests.mlir.modules import listed, main_of

T, W, S = "tensor<8x16xf32>", "tensor<16x16xf32>", "tensor<8xf32>"
DOT = "stablehlo.dot_general"
TPU = Compiler(is_xla_tpu=True)


def product(made: str, read: str) -> str:
    return f"{made} = {DOT} {read}, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}"


def normalized(made: str, read: str) -> str:
    """Its rows less their sums."""
    return f"""{made}s = stablehlo.reduce({read} init: %zero) applies stablehlo.add across dimensions = [1] : ({T}, tensor<f32>) -> {S}
      {made}b = stablehlo.broadcast_in_dim {made}s, dims = [0] : ({S}) -> {T}
      {made} = stablehlo.subtract {read}, {made}b : {T}"""


def forward(branches: int, *, is_normalized: bool = True, work: str = "maximum", extra: str = "") -> str:
    """Branches of two products each, what is made of their sums with `work`."""
    lines, before = [product("%x0", "%a")], "%x0"
    for n in range(branches):
        lines += [product(f"%p{n}", before), product(f"%q{n}", f"%p{n}")]
        end = f"%q{n}"
        if is_normalized:
            lines.append(normalized(f"%n{n}", end))
            end = f"%n{n}"
        lines += [
            f"%r{n} = stablehlo.add {before}, {end} : {T}",
            f"%x{n + 1} = stablehlo.{work} %r{n}, %r{n} : {T}",
        ]
        before = f"%x{n + 1}"
    lines += [product("%o", before), extra]
    returned, types = ("%o, %again", f"{T}, {W}") if extra else ("%o", T)
    body = "\n".join([*lines, f"return {returned} : {types}"])
    return main_of("%zero = stablehlo.constant dense<0.0> : tensor<f32>\n" + body, f"%a: {T}, %w: {W}", types)


def stored(text: str, compiler: Compiler = TPU) -> list[bool]:
    """Of the branches' sums, with the work on them, which have a buffer."""
    program = build_program(listed(text), compiler=compiler)
    return [life.is_own_buffer or life.within is not None for life in lives_of_sums(program)]


def lives_of_sums(program: Program) -> list[Lifetime]:
    kernels = [
        kernel
        for kernel in program.kernels
        if any(program.listing.ops[op].name == "stablehlo.add" for op in kernel.ops)
    ]
    return [program.ample_lifetimes[kernel.results[0]] for kernel in kernels]


def test_every_second_sum_is_stored() -> None:
    """Of what libtpu 0.0.52 compiles for v5e, v6e and v5p of six blocks: four values of the branch, 1.43 of what was predicted."""
    assert stored(forward(5)) == [False, True, False, True, False]


def test_what_is_added_lives_until_the_next_sum() -> None:
    program = build_program(listed(forward(3)), compiler=TPU)
    first, second, *_ = (
        kernel
        for kernel in program.kernels
        if any(program.listing.ops[op].name == "stablehlo.add" for op in kernel.ops)
    )
    large = [use.value for use in first.uses if program.ample_lifetimes[use.value].is_own_buffer]
    assert len(large) >= 2
    assert all(program.ample_lifetimes[value].end >= second.time for value in large)


def test_a_sum_that_a_product_is_finished_with_is_stored() -> None:
    """Nothing is summed before it: the addition is part of the product."""
    assert stored(forward(4, is_normalized=False)) == [True] * 4


def test_what_a_backward_pass_reads_again_is_stored() -> None:
    again = f"%again = {DOT} %x1, %o, contracting_dims = [0] x [0] : ({T}, {T}) -> {W}"
    assert stored(forward(3, extra=again))[0]


@pytest.mark.parametrize("keeps", [False, True])
def test_costly_work_is_stored_on_v5p(keeps: bool) -> None:
    text = forward(3, work="power")
    assert stored(text, Compiler(is_xla_tpu=True, keeps_narrow_operands=keeps))[0] is keeps


def test_other_compilers_store_them() -> None:
    assert stored(forward(3), Compiler(is_xla_tpu=False))[:2] == [True, True]
