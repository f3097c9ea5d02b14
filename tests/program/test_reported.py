"""What a step returns beside its state is worked out as soon as what it reads is there."""

import pytest

from autoshard.program import Compiler, Program, build_program
from tests.mlir.modules import listed, main_of

X, W, N, ONE = "tensor<256x64xf32>", "tensor<64x64xf32>", "tensor<256xf32>", "tensor<f32>"
STEP = f"""
  %zero = stablehlo.constant dense<0.0> : {ONE}
  %made = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {X}
  %back = stablehlo.dot_general %x, %made, contracting_dims = [0] x [0] : ({X}, {X}) -> {W}
  %next = stablehlo.subtract %w, %back : {W}
  %square = stablehlo.multiply %made, %made : {X}
  %each = stablehlo.reduce(%square init: %zero) applies stablehlo.add across dimensions = [1] : ({X}, {ONE}) -> {N}
  %told = stablehlo.negate %each : {N}
  %loss = stablehlo.reduce(%told init: %zero) applies stablehlo.add across dimensions = [0] : ({N}, {ONE}) -> {ONE}
"""
SCALED = f"""
  %spread = stablehlo.broadcast_in_dim %loss, dims = [] : ({ONE}) -> {W}
  %scaled = stablehlo.multiply %next, %spread : {W}
"""
MADE, SUMMED = 1, 5  # when


def stepped(
    state: str = "%next", told: str = "%loss", type_: str = ONE, *, more: str = "", is_tpu: bool = True
) -> Program:
    module = main_of(
        f"{STEP}{more}  return {state}, {told} : {W}, {type_}",
        f"%w: {W} {{tf.aliasing_output = 0 : i32}}, %x: {X}",
        f"{W}, {type_}",
    )
    return build_program(listed(module), [(0, 0)], Compiler(is_xla_tpu=is_tpu))


def end_of_product(program: Program) -> int:
    value = next(kernel.results[0] for kernel in program.kernels if kernel.time == MADE)
    return program.lifetimes[value].end


def test_a_loss_reads_a_product_as_soon_as_that_is_there() -> None:
    """It comes behind the update, for which the product is gone; its gradient comes right behind the product."""
    program = stepped()
    assert program.early[SUMMED] == MADE
    assert end_of_product(program) == MADE + 2


def test_another_compiler_works_it_out_in_its_place() -> None:
    program = stepped(is_tpu=False)
    assert not program.early
    assert end_of_product(program) == SUMMED + 1


def test_state_that_waits_for_it_keeps_it_in_its_place() -> None:
    program = stepped("%scaled", more=SCALED)
    assert not program.early
    assert end_of_product(program) == SUMMED + 1


@pytest.mark.parametrize("told", ["%square", "%made"])
def test_what_is_as_large_as_anything_stays_in_its_place(told: str) -> None:
    assert not stepped(told=told, type_=X).early
