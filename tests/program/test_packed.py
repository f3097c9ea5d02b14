"""What is stored otherwise where comparisons are packed into words."""

import pytest

from autoshard.loading import compiler_of
from autoshard.program import Program, build_program
from autoshard.program.records import Compiler
from autoshard.sharding import TensorType
from costmodels.profiles import load
from tests.mlir.modules import listed, main_of

WIDE, NARROW = "tensor<4x8x16xT>", "tensor<4x8x8xT>"
UP = f"({NARROW}, tensor<8x16xT>) -> {WIDE}"
DOWN = f"({WIDE}, tensor<16x8xT>) -> {NARROW}"
BACK = f"({NARROW}, tensor<16x8xT>) -> {WIDE}"
GRADIENT = f"({WIDE}, {NARROW}) -> tensor<16x8xT>"
HALF = "%half = stablehlo.constant dense<0.5> : " + WIDE
GELU = f"""
      {HALF}
      %2 = chlo.erfc %0 : {WIDE} -> {WIDE}
      %3 = stablehlo.multiply %0, %2 : {WIDE}
      %4 = stablehlo.multiply %3, %half : {WIDE}"""
ERROR_BACK = f"""%7 = stablehlo.multiply %0, %2 : {WIDE}
      %9 = stablehlo.multiply %8, %7 : {WIDE}"""
RECTIFIER = f"""
      %zero = stablehlo.constant dense<0.0> : {WIDE}
      %1 = stablehlo.compare GT, %0, %zero : ({WIDE}, {WIDE}) -> tensor<4x8x16xi1>
      %4 = stablehlo.maximum %0, %zero : {WIDE}"""
RECTIFIED_BACK = f"%9 = stablehlo.select %1, %8, %zero : (tensor<4x8x16xi1>, {WIDE}, {WIDE}) -> {WIDE}"
SQUARED = f"{RECTIFIER.replace('%4', '%2')}\n      %4 = stablehlo.multiply %2, %2 : {WIDE}"
SQUARED_BACK = f"""%7 = stablehlo.multiply %8, %2 : {WIDE}
      %9 = stablehlo.select %1, %7, %zero : (tensor<4x8x16xi1>, {WIDE}, {WIDE}) -> {WIDE}"""
PACKING = Compiler(is_xla_tpu=True, repeats_packed_erfc=True, narrows_packed=True)


def perceptron(work: str, back: str, dtype: str) -> str:
    """`work` makes `%4` of the hidden values `%0`, `back` the gradient `%9` of these of what goes back to it, `%8`."""
    body = f"""
      %0 = stablehlo.dot_general %x, %up, contracting_dims = [2] x [0] : {UP}
      {work}
      %5 = stablehlo.dot_general %4, %down, contracting_dims = [2] x [0] : {DOWN}
      %6 = stablehlo.dot_general %4, %5, contracting_dims = [0, 1] x [0, 1] : {GRADIENT}
      %8 = stablehlo.dot_general %5, %down, contracting_dims = [2] x [1] : {BACK}
      {back}
      %10 = stablehlo.dot_general %9, %x, contracting_dims = [0, 1] x [0, 1] : {GRADIENT}
      return %6, %10 : tensor<16x8xT>, tensor<16x8xT>"""
    text = main_of(
        body,
        f"%x: {NARROW}, %up: tensor<8x16xT>, %down: tensor<16x8xT>",
        "tensor<16x8xT>, tensor<16x8xT>",
    )
    return text.replace("xT>", f"x{dtype}>")


def packed(program: Program) -> list[tuple[str, TensorType | None]]:
    """The ops whose results are stored otherwise, and as what."""
    ops = {value: op.name for op in program.listing.ops for value in op.results}
    return [(ops[value], type_) for value, type_ in program.packed.items()]


@pytest.mark.parametrize(
    ("work", "back", "dtype", "expected"),
    [
        (GELU, ERROR_BACK, "bf16", [("chlo.erfc", None)]),
        (GELU, ERROR_BACK, "f32", []),
        (RECTIFIER, RECTIFIED_BACK, "f32", [("stablehlo.dot_general", TensorType((4, 8, 16), "bf16"))]),
        (RECTIFIER, RECTIFIED_BACK, "bf16", []),
        (SQUARED, SQUARED_BACK, "f32", []),
    ],
)
def test_of_perceptrons(
    work: str, back: str, dtype: str, expected: list[tuple[str, TensorType | None]]
) -> None:
    """Nothing narrower than the hidden values will do where what goes back is multiplied with their function."""
    listing = listed(perceptron(work, back, dtype))
    assert packed(build_program(listing, compiler=PACKING)) == expected
    assert packed(build_program(listing, compiler=Compiler(is_xla_tpu=True))) == []


def test_an_error_function_in_work_that_is_stored() -> None:
    """A gate whose halves are cut out of the function's result reads the error function where that is stored."""
    listing = listed(
        main_of(
            f"""
      %0 = stablehlo.dot_general %x, %up, contracting_dims = [2] x [0] : {UP}
      {GELU}
      %5 = stablehlo.slice %4 [0:4, 0:8, 0:8] : ({WIDE}) -> {NARROW}
      %6 = stablehlo.slice %4 [0:4, 0:8, 8:16] : ({WIDE}) -> {NARROW}
      %7 = stablehlo.dot_general %6, %y, contracting_dims = [1] x [0] : ({NARROW}, tensor<8x8xT>) -> {NARROW}
      %8 = stablehlo.transpose %7, dims = [0, 2, 1] : ({NARROW}) -> {NARROW}
      %9 = stablehlo.multiply %5, %8 : {NARROW}
      %10 = stablehlo.dot_general %2, %9, contracting_dims = [0, 1] x [0, 1] : {GRADIENT}
      return %9, %4, %10 : {NARROW}, {WIDE}, tensor<16x8xT>""".replace("xT>", "xbf16>"),
            f"%x: {NARROW}, %up: tensor<8x16xT>, %y: tensor<8x8xT>".replace("xT>", "xbf16>"),
            f"{NARROW}, {WIDE}, tensor<16x8xT>".replace("xT>", "xbf16>"),
        )
    )
    program = build_program(listing, compiler=PACKING)
    kept = {value for value, life in program.ample_lifetimes.items() if life.is_own_buffer}
    (error,) = (op.results[0] for op in listing.ops if op.name == "chlo.erfc")
    assert error in kept
    assert packed(program) == []


@pytest.mark.parametrize(
    ("chip", "devices", "repeats", "narrows"),
    [
        ("tpu-v5e", 32, False, True),
        ("tpu-v5e", 64, True, True),
        ("tpu-v5p", 64, False, True),
        ("tpu-v6e", 64, False, False),
        ("h100", 64, False, False),
    ],
)
def test_of_whom(chip: str, devices: int, repeats: bool, narrows: bool) -> None:
    compiler = compiler_of("xla", load(chip), devices)
    assert (compiler.repeats_packed_erfc, compiler.narrows_packed) == (repeats, narrows)
