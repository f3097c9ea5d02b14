"""Gradients of several lookups of one table: XLA for TPUs makes them in one scatter."""

import pytest

from autoshard.program import Program
from tests.mlir.modules import main_of
from tests.program.modules import program_of

TABLE = "tensor<64x4xf32>"


def scatter(result: str, indices: tuple[int, int]) -> str:
    ids, rows = f"tensor<{indices[0]}x{indices[1]}x1xi32>", f"tensor<{indices[0]}x{indices[1]}x4xf32>"
    return f"""
      %u{result} = stablehlo.sine %r{result} : {rows}
      %{result} = "stablehlo.scatter"(%zeros, %i{result}, %u{result}) <{{indices_are_sorted = false, unique_indices = false,
        scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0],
        scatter_dims_to_operand_dims = [0], index_vector_dim = 2>}}> ({{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %s = stablehlo.add %x, %y : tensor<f32>
          stablehlo.return %s : tensor<f32>
      }}) : ({TABLE}, {ids}, {rows}) -> {TABLE}"""


def lookups(*indices: tuple[int, int], sums: str) -> Program:
    """Scatters %a, %b, %c of so many rows each, and %end made of them."""
    named = list(zip("abc", indices, strict=False))
    arguments = ", ".join(
        f"%i{name}: tensor<{m}x{n}x1xi32>, %r{name}: tensor<{m}x{n}x4xf32>" for name, (m, n) in named
    )
    text = "".join(scatter(*one) for one in named)
    body = f"%zeros = stablehlo.constant dense<0.0> : {TABLE}\n{text}\n{sums}\n return %end : {TABLE}"
    return program_of(main_of(body, f"%t: {TABLE}, {arguments}", TABLE))


def add(result: str, first: str, second: str) -> str:
    return f"%{result} = stablehlo.add %{first}, %{second} : {TABLE}\n"


TWO = add("end", "a", "b")
THREE = add("ab", "a", "b") + add("end", "ab", "c")


@pytest.mark.parametrize(
    ("indices", "sums", "number"),
    [
        (((4, 8), (4, 8)), TWO, 1),
        (((4, 8), (4, 2)), TWO, 1),
        (((4, 8), (1, 8)), TWO, 1),
        (((4, 8), (2, 2)), TWO, 0),
        (((4, 2), (4, 8), (4, 8)), THREE, 2),
        (((4, 8), (4, 8), (2, 8)), THREE, 2),
        (((4, 8), (4, 8), (4, 2)), THREE, 1),  # the first two are put together along the first dimension
        (((4, 8), (4, 8)), add("ta", "t", "a") + add("end", "ta", "b"), 1),  # onto the table
        (((4, 8), (4, 8)), add("ab", "a", "b") + add("end", "ab", "a"), 0),  # %a is read twice
    ],
)
def test_sums_of_scatters_are_one(indices: tuple[tuple[int, int], ...], sums: str, number: int) -> None:
    """As in 14 small programs: with 400000 rows of 128 three take 420 MB beside the table's 205, and 826 where none merge."""
    program = lookups(*indices, sums=sums)
    assert len(program.merged_scatters) == number


def test_updates_wait_for_the_last() -> None:
    program = lookups((4, 8), (4, 8), sums=TWO)
    made = {program.listing.ops[kernel.time].name: kernel for kernel in program.kernels}
    last = made["stablehlo.scatter"].time
    first = next(kernel.results[0] for kernel in program.kernels if kernel.shape.name == "stablehlo.sine")
    assert program.ample_lifetimes[first].end == last + 1


ROWS, IDS, UPDATES = "tensor<64x64xf32>", "tensor<8x1xi32>", "tensor<8x64xf32>"
ALONG_ROWS = """update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
  index_vector_dim = 1"""
ALONG_COLUMNS = """update_window_dims = [0], inserted_window_dims = [1], scatter_dims_to_operand_dims = [1],
  index_vector_dim = 1"""
OF_ELEMENTS = "inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1"


def one_scatter(result: str, dims: str = ALONG_ROWS, ids: str = IDS, updates: str = UPDATES) -> str:
    """Of %i and %u."""
    number = result[-1]
    return f"""
      %{result} = "stablehlo.scatter"(%zeros, %i{number}, %u{number}) <{{indices_are_sorted = false, unique_indices = false,
        scatter_dimension_numbers = #stablehlo.scatter<{dims}>}}> ({{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %s = stablehlo.add %x, %y : tensor<f32>
          stablehlo.return %s : tensor<f32>
      }}) : ({ROWS}, {ids}, {updates}) -> {ROWS}"""


@pytest.mark.parametrize(
    ("dims", "ids", "updates", "number"),
    [
        (ALONG_ROWS, IDS, UPDATES, 1),
        (ALONG_COLUMNS, IDS, "tensor<64x8xf32>", 0),
        (OF_ELEMENTS, "tensor<8x2xi32>", "tensor<8xf32>", 0),  # indices of another length
    ],
)
def test_scatters_of_another_kind_are_two(dims: str, ids: str, updates: str, number: int) -> None:
    """Their indices and updates cannot be put together."""
    both = f"{one_scatter('a0')}\n{one_scatter('b1', dims, ids, updates)}"
    arguments = f"%i0: {IDS}, %u0: {UPDATES}, %i1: {ids}, %u1: {updates}"
    body = (
        f"%zeros = stablehlo.constant dense<0.0> : {ROWS}\n{both}\n%end = stablehlo.add %a0, %b1 : {ROWS}\n"
    )
    program = program_of(main_of(f"{body}return %end : {ROWS}", arguments, ROWS))
    assert len(program.merged_scatters) == number


def test_a_scatter_outside_a_branch_is_its_own() -> None:
    body = f"""%zeros = stablehlo.constant dense<0.0> : {ROWS}
    {one_scatter("a0")}
    %end = "stablehlo.if"(%p) ({{
      {one_scatter("b0")}
      %both = stablehlo.add %a0, %b0 : {ROWS}
      stablehlo.return %both : {ROWS}
    }}, {{
      stablehlo.return %zeros : {ROWS}
    }}) : (tensor<i1>) -> {ROWS}
    return %end : {ROWS}"""
    program = program_of(main_of(body, f"%i0: {IDS}, %u0: {UPDATES}, %p: tensor<i1>", ROWS))
    assert not program.merged_scatters


def test_updates_behind_many_names() -> None:
    """What is evaluated in place of a buffer is looked through once, in however many ways it reads what is before it."""
    steps = 60
    work = "\n".join(
        f"""%y{i} = stablehlo.tanh %x{i} : {UPDATES}
        %x{i + 1} = stablehlo.multiply %x{i}, %y{i} : {UPDATES}
        %p{i} = stablehlo.dot_general %y{i}, %x{i + 1}, contracting_dims = [1] x [1] : ({UPDATES}, {UPDATES}) -> tensor<8x8xf32>
        %s{i + 1} = stablehlo.add %s{i}, %p{i} : tensor<8x8xf32>"""
        for i in range(steps)
    )
    body = f"""%zeros = stablehlo.constant dense<0.0> : {ROWS}
    %s0 = stablehlo.constant dense<0.0> : tensor<8x8xf32>
    %x0 = stablehlo.sine %u1 : {UPDATES}
    {work}
    %u0 = stablehlo.negate %x{steps} : {UPDATES}
    {one_scatter("a0")}
    {one_scatter("b1")}
    %end = stablehlo.add %a0, %b1 : {ROWS}
    return %end, %s{steps} : {ROWS}, tensor<8x8xf32>"""
    arguments = f"%i0: {IDS}, %i1: {IDS}, %u1: {UPDATES}"
    program = program_of(main_of(body, arguments, f"{ROWS}, tensor<8x8xf32>"))
    assert len(program.merged_scatters) == 1
