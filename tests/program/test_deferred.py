"""What products read whose sums loops scatter, where these run last."""

import pytest

from autoshard.program import Compiler, Program, build_program, with_deferred
from tests.mlir.modules import listed, main_of

X, W = "tensor<8x16xbf16>", "tensor<16x16xbf16>"
STEP = f"""
  %a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
  %first = stablehlo.dot_general %x, %a, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
  %b = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
  %c = stablehlo.tanh %b : {X}
  %second = stablehlo.dot_general %c, %a, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
  %d = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
  %third = stablehlo.dot_general %d, %d, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
  %e = stablehlo.dot_general %d, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
  return %first, %second, %third, %e : {W}, {W}, {W}, {X}"""


def step(*, scatters_last: bool) -> Program:
    compiler = Compiler(is_xla_tpu=True, scatters_last=scatters_last)
    return build_program(listed(main_of(STEP, f"%x: {X}, %w: {W}", f"{W}, {W}, {W}, {X}")), compiler=compiler)


def products(program: Program) -> list[int]:
    """Their results, in program order: a, first, b, second, d, third, e."""
    return [kernel.results[0] for kernel in program.kernels if kernel.shape.is_matmul]


def test_operands_of_all_but_the_first_stay_to_the_last_product() -> None:
    """What is worked out for a loop is handed to it until then, instead of what it is worked out from."""
    program = step(scatters_last=True)
    a, first, b, second, d, third, e = products(program)
    lives, before = (
        with_deferred(program, program.ample_lifetimes, {first, second, third}),
        program.ample_lifetimes,
    )
    end = next(kernel.time for kernel in program.kernels if e in kernel.results) + 1
    assert (lives.of_values[a].end, lives.of_values[d].end) == (end, end)
    assert before[a].end < end
    assert lives.of_values[b] == before[b]
    times = {value: kernel.time for kernel in program.kernels for value in kernel.results}
    assert lives.end_of_handed(times[second]) == end
    assert lives.end_of_handed(times[first]) == times[first] + 1


@pytest.mark.parametrize(("scatters_last", "scattered"), [(False, (1, 3, 5)), (True, (1,)), (True, ())])
def test_others_run_in_their_place(scatters_last: bool, scattered: tuple[int, ...]) -> None:
    """Of other compilers, and where there is one at most."""
    program = step(scatters_last=scatters_last)
    values = {products(program)[number] for number in scattered}
    lives = with_deferred(program, program.ample_lifetimes, values)
    assert lives.of_values == program.ample_lifetimes
    assert not lives.handed
