"""Small modules as text, and the way from text to a listing."""

from collections.abc import Sequence

from autoshard.mlir.listing import Listing
from autoshard.mlir.read import Handles, read
from autoshard.mlir.source import SourceModule, load, resolve_mesh
from autoshard.sharding import Mesh, TensorSharding, parse_sharding

MESH = Mesh.of([("x", 2), ("y", 2), ("z", 4)])
MESH_TEXT = 'sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>'


def main_of(body: str, arguments: str = "%a: tensor<8x16xf32>", results: str = "tensor<8x16xf32>") -> str:
    """A module on `MESH` whose main has this body."""
    return f"module {{\n{MESH_TEXT}\nfunc.func public @main({arguments}) -> ({results}) {{\n{body}\n}}\n}}"


def counted_loop(
    trips: int,
    carried: Sequence[tuple[str, str, str]],
    body: str,
    again: Sequence[str],
    name: str = "r",
    counter: str = "i",
) -> str:
    """So many trips of a body over a counter and what is carried: (name, start, type) each, which becomes `again`.

    Results are `%name#1` and so on; the counter starts from `%counter_zero`.
    """
    i, types = counter, ", ".join(["tensor<i32>", *(type_ for _, _, type_ in carried)])
    given = ", ".join([f"%{i} = %{i}_zero", *(f"{value} = {start}" for value, start, _ in carried)])
    return f"""%{i}_zero = stablehlo.constant dense<0> : tensor<i32>
    %{name}:{len(carried) + 1} = stablehlo.while({given}) : {types} cond {{
      %{i}_end = stablehlo.constant dense<{trips}> : tensor<i32>
      %{i}_goes = stablehlo.compare LT, %{i}, %{i}_end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %{i}_goes : tensor<i1>
    }} do {{
      %{i}_one = stablehlo.constant dense<1> : tensor<i32>
      %{i}_next = stablehlo.add %{i}, %{i}_one : tensor<i32>
      {body}
      stablehlo.return {", ".join([f"%{i}_next", *again])} : {types}
    }}"""


def one_a_row(into: str, places: str, given: str, types: tuple[str, str, str], index_vector_dim: int) -> str:
    """A scatter in float32 that adds to one element of each row of a matrix, as the gradient of a loss does to its labels."""
    wide, indices, updates = types
    return f""""stablehlo.scatter"({into}, {places}, {given}) <{{indices_are_sorted = false, unique_indices = false,
        scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0],
        scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = {index_vector_dim}>}}> ({{
        ^bb0(%old: tensor<f32>, %added: tensor<f32>):
          %both = stablehlo.add %old, %added : tensor<f32>
          stablehlo.return %both : tensor<f32>
      }}) : ({wide}, {indices}, {updates}) -> {wide}"""


def source_of(text: str) -> SourceModule:
    return load(text.encode())


def listed(text: str, axes: list[tuple[str, int]] | None = None) -> Listing:
    return read_text(text, axes)[1]


def read_text(text: str, axes: list[tuple[str, int]] | None = None) -> tuple[SourceModule, Listing, Handles]:
    source = source_of(text)
    return source, *read(source, resolve_mesh(source, axes))


def sharding(text: str) -> TensorSharding:
    return parse_sharding(text, MESH)
