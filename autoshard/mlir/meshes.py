"""Which mesh to plan for: the module's, the user's, or both where they agree."""

from collections.abc import Sequence

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, sdy
from autoshard.mlir.pipeline import run_pipeline
from autoshard.mlir.walk import body_of
from autoshard.sharding import Mesh, MeshAxis

_STABLEHLO_MESH = "stablehlo.mesh"


def module_meshes(module: ir.Operation) -> list[Mesh]:
    """The sdy.mesh symbols that have axes; jax also emits `@empty_mesh = <[]>`."""
    meshes = map(_mesh, _mesh_ops(module))
    return [mesh for mesh in meshes if mesh.axes]


def _mesh_ops(module: ir.Operation) -> list[ir.Operation]:
    operations = (op.operation for op in body_of(module).operations)
    return [op for op in operations if op.name == "sdy.mesh"]


def _mesh(op: ir.Operation) -> Mesh:
    attribute = sdy.MeshAttr(op.attributes["mesh"])
    axes = tuple(MeshAxis(a.name, a.size) for a in map(sdy.MeshAxisAttr, attribute.axes))
    return Mesh(axes, ir.StringAttr(op.attributes["sym_name"]).value, tuple(attribute.device_ids))


def chosen_mesh(module: ir.Operation, where: str, user_axes: Sequence[tuple[str, int]] | None) -> Mesh:
    """See `source.resolve_mesh`."""
    meshes = module_meshes(module)
    if user_axes is not None:
        return _agreeing(Mesh.of(user_axes), meshes, module, where)
    if not meshes:
        raise AutoshardError(
            "neither the module nor the command names a mesh", where=where, fix="add --mesh data=4,model=4"
        )
    if any((mesh.axes, mesh.device_ids) != (meshes[0].axes, meshes[0].device_ids) for mesh in meshes):
        raise AutoshardError(
            f"the module has several meshes: {_listed(meshes)}", where=where, fix="choose one with --mesh"
        )
    meshes[0].validate()
    return meshes[0]


def _agreeing(wanted: Mesh, meshes: Sequence[Mesh], module: ir.Operation, where: str) -> Mesh:
    if not wanted.axes:
        raise AutoshardError("the mesh has no axes", fix="write NAME=SIZE pairs, as in --mesh data=4,model=4")
    for mesh in meshes:
        if mesh.axes == wanted.axes:
            return mesh
    if meshes:
        raise AutoshardError(
            f"--mesh {wanted} is not the module's mesh {_listed(meshes)}",
            where=where,
            fix="leave --mesh out, or remove the sdy.mesh from the module",
        )
    return wanted if not _is_taken(wanted.name, module) else Mesh(wanted.axes, "autoshard_mesh")


def _is_taken(symbol: str, module: ir.Operation) -> bool:
    names = (op.operation.attributes.get("sym_name") for op in body_of(module).operations)
    return any(name is not None and ir.StringAttr(name).value == symbol for name in names)


def _listed(meshes: Sequence[Mesh]) -> str:
    return ", ".join(f"@{mesh.name} = {mesh}" for mesh in meshes)


def add_mesh(module: ir.Operation, mesh: Mesh) -> None:
    """Give the module the symbol @mesh of this mesh, unless it is there."""
    if any(theirs.name == mesh.name for theirs in module_meshes(module)):
        return
    with module.context, ir.Location.unknown():
        op = ir.Operation.parse(f"sdy.mesh {mesh.symbol} = {mesh}")
        ir.InsertionPoint.at_block_begin(body_of(module)).insert(op)


def lift_meshes(module: ir.Operation) -> None:
    """Give every mesh that is written inside a sharding a symbol of its own."""
    noted = {
        ir.StringAttr(op.attributes["sym_name"]).value
        for op in _mesh_ops(module)
        if _STABLEHLO_MESH in op.attributes
    }
    run_pipeline(module, "sdy-lift-inlined-meshes")
    for op in _mesh_ops(module):
        if ir.StringAttr(op.attributes["sym_name"]).value not in noted and _STABLEHLO_MESH in op.attributes:
            del op.attributes[_STABLEHLO_MESH]  # the pass notes its meshes twice
