"""How lookups and their gradients lie in memory: each slice along the lanes."""

import pytest

from autoshard.program import Program
from tests.mlir.modules import main_of
from tests.program.modules import program_of

TABLE, ROWS, IDS = "tensor<64x4xf32>", "tensor<8x4xf32>", "tensor<8x1xi32>"
SLICES = ((1,), (0,), True)


ADDED = f"%5 = stablehlo.add %t, %4 : {TABLE}"
SCALED = f"%s1 = stablehlo.multiply %4, %s : {TABLE}\n%5 = stablehlo.add %t, %s1 : {TABLE}"


def lookup(update: str = ADDED, *, is_read_twice: bool = False) -> Program:
    """A row of the table `%t` for each index, twice as large, and what `update` makes of those, `%4`; the table has a state `%s`."""
    other = "%4" if is_read_twice else "%t"
    return program_of(
        main_of(
            f"""
      %zeros = stablehlo.constant dense<0.0> : {TABLE}
      %0 = "stablehlo.gather"(%t, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
        start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 4>}}>
        : ({TABLE}, {IDS}) -> {ROWS}
      %1 = stablehlo.add %0, %0 : {ROWS}
      %4 = "stablehlo.scatter"(%zeros, %i, %1) <{{indices_are_sorted = false, unique_indices = false, scatter_dimension_numbers =
        #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
        index_vector_dim = 1>}}> ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %sum = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %sum : tensor<f32>
      }}) : ({TABLE}, {IDS}, {ROWS}) -> {TABLE}
      {update}
      %6 = stablehlo.dot_general {other}, %t, contracting_dims = [1] x [1] : ({TABLE}, {TABLE}) -> tensor<64x64xf32>
      return %5, %6 : {TABLE}, tensor<64x64xf32>""",
            f"%t: {TABLE}, %i: {IDS}, %s: {TABLE}",
            f"{TABLE}, tensor<64x64xf32>",
        )
    )


def made_by(program: Program, name: str) -> int:
    return next(k.results[0] for k in program.kernels if program.listing.ops[k.time].name == name)


@pytest.mark.parametrize("is_read_twice", [False, True])
def test_slices_lie_along_the_lanes(is_read_twice: bool) -> None:
    """What a gather makes stays so, and elementwise work on it; the table until it is updated, what a scatter makes if more reads it."""
    program = lookup(is_read_twice=is_read_twice)
    assert program.minor_dims[made_by(program, "stablehlo.gather")] == SLICES
    assert program.minor_dims[made_by(program, "stablehlo.add")] == SLICES
    scattered = made_by(program, "stablehlo.scatter")
    assert scattered not in program.minor_dims or not program.minor_dims[scattered][2]
    assert program.scattered_rows == {scattered: (SLICES, int(is_read_twice))}
    (table,), (_, end) = program.row_copies.keys(), program.row_copies[program.listing.arguments[0].value]
    assert table == program.listing.arguments[0].value
    assert (program.lifetimes[scattered].end < end) != is_read_twice


@pytest.mark.parametrize(
    ("update", "in_rows"),
    [
        (ADDED, {"t"}),
        (SCALED, set[str]()),
        (SCALED.replace("multiply %4", "add %4"), {"t", "s"}),
        (f"%z = stablehlo.maximum %4, %zeros : {TABLE}\n{SCALED.replace('%4', '%z')}", {"t", "s"}),
        (
            SCALED.replace("%5 = ", f"%z = stablehlo.add %s1, %zeros : {TABLE}\n%5 = ").replace(
                "%t, %s1", "%t, %z"
            ),
            set[str](),
        ),
    ],
)
def test_updates_in_rows(update: str, in_rows: set[str]) -> None:
    """Where the gradient is added to what is kept, or zeros that it is scattered into are picked again; scaled first, it is copied back."""
    program = lookup(update)
    arguments = {
        argument.value: name for argument, name in zip(program.listing.arguments, "tis", strict=True)
    }
    assert {arguments[value] for value in program.row_copies} == in_rows


def test_rows_that_are_given() -> None:
    """Of an argument that a scatter takes there is a copy in rows, until it is taken."""
    program = program_of(
        main_of(
            f"""
      %zeros = stablehlo.constant dense<0.0> : {TABLE}
      %0 = "stablehlo.scatter"(%zeros, %i, %rows) <{{indices_are_sorted = false, unique_indices = false, scatter_dimension_numbers =
        #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
        index_vector_dim = 1>}}> ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %sum = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %sum : tensor<f32>
      }}) : ({TABLE}, {IDS}, {ROWS}) -> {TABLE}
      return %0 : {TABLE}""",
            f"%i: {IDS}, %rows: {ROWS}",
            TABLE,
        )
    )
    (scatter,) = (k for k in program.kernels if k.shape.name == "stablehlo.scatter")
    assert program.row_copies == {program.listing.arguments[1].value: (SLICES, scatter.time + 1)}


@pytest.mark.parametrize(("indices", "is_copied"), [(3, True), (8, False), (77, True)])
def test_rows_that_do_not_fill_tiles_are_copied(indices: int, is_copied: bool) -> None:
    """What a gather makes of several indices for each of 16 is copied from rows, unless eight of them make a tile."""
    rows = f"tensor<16x{indices}x256xf32>"
    program = program_of(
        main_of(
            f"""
      %0 = "stablehlo.gather"(%t, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0],
        start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 256>}}>
        : (tensor<64x256xf32>, tensor<16x{indices}x1xi32>) -> {rows}
      %1 = stablehlo.dot_general %0, %w, contracting_dims = [2] x [0] : ({rows}, tensor<256x256xf32>) -> {rows}
      return %1 : {rows}""",
            f"%t: tensor<64x256xf32>, %i: tensor<16x{indices}x1xi32>, %w: tensor<256x256xf32>",
            rows,
        )
    )
    value = made_by(program, "stablehlo.gather")
    lies_in_rows = ((2,), (0,), True)
    assert [one.dims for one in program.wholes.get(value, ())] == ([lies_in_rows] if is_copied else [])
    assert program.minor_dims[value] == ((2,), (1,) if is_copied else (0, 1), True)
