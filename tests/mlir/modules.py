"""Small modules as text, and the way from text to a listing."""

from autoshard.mlir.listing import Listing
from autoshard.mlir.read import Handles, read
from autoshard.mlir.source import SourceModule, load, resolve_mesh
from autoshard.sharding import Mesh, TensorSharding, parse_sharding

MESH = Mesh.of([("x", 2), ("y", 2), ("z", 4)])
MESH_TEXT = 'sdy.mesh @mesh = <["x"=2, "y"=2, "z"=4]>'


def main_of(body: str, arguments: str = "%a: tensor<8x16xf32>", results: str = "tensor<8x16xf32>") -> str:
    """A module on `MESH` whose main has this body."""
    return f"module {{\n{MESH_TEXT}\nfunc.func public @main({arguments}) -> ({results}) {{\n{body}\n}}\n}}"


def source_of(text: str) -> SourceModule:
    return load(text.encode())


def listed(text: str, axes: list[tuple[str, int]] | None = None) -> Listing:
    return read_text(text, axes)[1]


def read_text(text: str, axes: list[tuple[str, int]] | None = None) -> tuple[SourceModule, Listing, Handles]:
    source = source_of(text)
    return source, *read(source, resolve_mesh(source, axes))


def sharding(text: str) -> TensorSharding:
    return parse_sharding(text, MESH)
