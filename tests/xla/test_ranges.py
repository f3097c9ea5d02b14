"""Which arguments must be indices or positive, traced back from where they are used."""

import pytest

from autoshard.xla.module import read_program
from autoshard.xla.ranges import ranges_of
from tests import programs


def below_of(text: str) -> dict[str, int | None]:
    program = read_program(text.encode(), "test")
    ranges = ranges_of(program.module, program.main)
    return {port.name: range_.below for port, range_ in zip(program.arguments, ranges, strict=True)}


def positive_of(text: str) -> set[str]:
    program = read_program(text.encode(), "test")
    ranges = ranges_of(program.module, program.main)
    return {port.name for port, range_ in zip(program.arguments, ranges, strict=True) if range_.is_positive}


def gathered(index: str, size: int = 10) -> str:
    """`index` computes %i, four row numbers, from %x; they pick rows of a table with `size` rows."""
    return f"""
    func.func @main(%table: tensor<{size}x3xf32>, %x: tensor<4xi32> {{jax.arg_name = "x"}}) -> tensor<4x3xf32> {{
      {index}
      %rows = "stablehlo.gather"(%table, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1],
        collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}}>
        : (tensor<{size}x3xf32>, tensor<4x1xi32>) -> tensor<4x3xf32>
      return %rows : tensor<4x3xf32>
    }}"""


RESHAPED = "%i = stablehlo.reshape {} : (tensor<4xi32>) -> tensor<4x1xi32>"


@pytest.mark.parametrize(
    ("index", "below"),
    [
        (RESHAPED.format("%x"), 10),
        (
            "%c = stablehlo.constant dense<3> : tensor<4xi32>\n%y = stablehlo.add %x, %c : tensor<4xi32>\n"
            + RESHAPED.format("%y"),
            7,
        ),
        (
            "%c = stablehlo.constant dense<10> : tensor<4xi32>\n%y = stablehlo.add %x, %c : tensor<4xi32>\n"
            + RESHAPED.format("%y"),
            10,
        ),
        (
            "%c = stablehlo.constant dense<2> : tensor<4xi32>\n%y = stablehlo.multiply %x, %c : tensor<4xi32>\n"
            + RESHAPED.format("%y"),
            5,
        ),
        ("%y = stablehlo.add %x, %x : tensor<4xi32>\n" + RESHAPED.format("%y"), 5),
        (
            "%r = stablehlo.iota dim = 0 : tensor<4xi32>\n%y = stablehlo.add %x, %r : tensor<4xi32>\n"
            + RESHAPED.format("%y"),
            7,
        ),
        ("%y = stablehlo.maximum %x, %x : tensor<4xi32>\n" + RESHAPED.format("%y"), 10),
    ],
    ids=[
        "plain",
        "plus constant",
        "wrapped when negative",
        "times constant",
        "sum of two",
        "plus iota",
        "maximum",
    ],
)
def test_index_arithmetic(index: str, below: int) -> None:
    """The bound of a table's rows, less what the program adds on the way."""
    assert below_of(gathered(index))["x"] == below


def test_index_through_loop_and_call() -> None:
    """Carried through a while loop and into a function, an index is still one."""
    text = """
    func.func @main(%table: tensor<10x3xf32>, %x: tensor<i32> {jax.arg_name = "x"}, %n: tensor<i32> {jax.arg_name = "n"})
        -> tensor<1x3xf32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %w:2 = stablehlo.while(%i = %x, %k = %zero) : tensor<i32>, tensor<i32>
        cond { %c = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
               stablehlo.return %c : tensor<i1> }
        do { %k1 = stablehlo.add %k, %one : tensor<i32>
             stablehlo.return %i, %k1 : tensor<i32>, tensor<i32> }
      %r = func.call @pick(%table, %w#0) : (tensor<10x3xf32>, tensor<i32>) -> tensor<1x3xf32>
      return %r : tensor<1x3xf32>
    }
    func.func private @pick(%t: tensor<10x3xf32>, %i: tensor<i32>) -> tensor<1x3xf32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %s = stablehlo.dynamic_slice %t, %i, %zero, sizes = [1, 3]
        : (tensor<10x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
      return %s : tensor<1x3xf32>
    }"""
    assert below_of(text) == {"argument 0": None, "x": 10, "n": None}


@pytest.mark.parametrize(
    ("program", "below"),
    [
        (programs.mlp_train, {"labels": 8}),
        (programs.embedding_train, {"tokens": 128, "targets": 128}),
        (programs.decode_step, {"token": 64, "position": 16}),
        (programs.transformer_train, {"tokens": 64, "targets": 64, "state['step']": None}),
        (programs.transformer_train_scan, {"tokens": 64, "targets": 64}),
        (programs.dropout_train, {"key": None}),
    ],
)
def test_programs(program: object, below: dict[str, int | None]) -> None:
    """Tokens stay below the vocabulary, positions below the sequence; counters and keys are free."""
    assert callable(program)
    found = below_of(str(program()))
    assert {name: found[name] for name in below} == below


@pytest.mark.parametrize("program", [programs.transformer_train, programs.transformer_train_scan])
def test_second_moments_are_positive(program: object) -> None:
    """Of Adam's state only the second moments are under a square root."""
    assert callable(program)
    text = str(program())
    names = {port.name for port in read_program(text.encode(), "test").arguments if port.type.dtype == "f32"}
    assert positive_of(text) & names == {name for name in names if "['nu']" in name}


def test_squares_need_no_sign() -> None:
    """A norm's square root is of squares, so what it normalises may be negative; a denominator may not."""
    text = """
    func.func @main(%x: tensor<4xf32> {jax.arg_name = "x"}, %d: tensor<4xf32> {jax.arg_name = "d"}) -> tensor<4xf32> {
      %s = stablehlo.multiply %x, %x : tensor<4xf32>
      %r = stablehlo.sqrt %s : tensor<4xf32>
      %q = stablehlo.divide %r, %d : tensor<4xf32>
      return %q : tensor<4xf32>
    }"""
    assert positive_of(text) == {"d"}
