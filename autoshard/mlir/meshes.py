"""Which mesh to plan for: the module's, the user's, or both where they agree.

A module may name several meshes, as symbols and inside shardings (`mesh<["x"=2]>`); the one that its shardings are on is planned for.
A mesh is its axes and the order of its devices, whatever its symbol.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, sdy
from autoshard.mlir.locations import Locations
from autoshard.mlir.pipeline import run_pipeline
from autoshard.mlir.rewrites import rewrite
from autoshard.mlir.walk import SHARDING, body_of
from autoshard.sharding import Mesh, MeshAxis

_STABLEHLO_MESH = "stablehlo.mesh"
_MESH_REFERENCE = re.compile(r'<@("[^"]*"|[\w$.]+), ')
_ATTRIBUTES = (
    SHARDING,
    "sharding",
    "out_sharding",
    "in_shardings",
    "out_shardings",
    "arg_attrs",
    "res_attrs",
)
_MOST_DEVICE_IDS = 16  # that a message lists


@dataclass(frozen=True, slots=True)
class _Meshes:
    """The meshes of a module that have axes, each axes and device order once, and where shardings are on them."""

    all: tuple[Mesh, ...]
    inlined: frozenset[str]  # symbols that the user did not write
    used_at: Mapping[str, str]  # by symbol of the first mesh like it; empty where there is one mesh only

    @property
    def used(self) -> tuple[Mesh, ...]:
        return tuple(mesh for mesh in self.all if mesh.name in self.used_at)

    def text(self, mesh: Mesh) -> str:
        """The mesh as the user wrote it."""
        ids = mesh.device_ids
        listed = ", ".join(map(str, ids[:_MOST_DEVICE_IDS])) + (
            ", ..." if len(ids) > _MOST_DEVICE_IDS else ""
        )
        written = f"{str(mesh)[:-1]}, device_ids=[{listed}]>" if ids else str(mesh)
        return f"mesh{written}" if mesh.name in self.inlined else f"{mesh.symbol} = {written}"

    def name(self, mesh: Mesh) -> str:
        return self.text(mesh) if mesh.name in self.inlined else mesh.symbol

    def texts(self) -> str:
        return ", ".join(map(self.text, self.all))


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
    meshes = _meshes_of(module, where)
    if user_axes is not None:
        return _agreeing(Mesh.of(user_axes), meshes, module, where)
    if not meshes.all:
        raise AutoshardError(
            "neither the module nor the command names a mesh", where=where, fix="add --mesh data=4,model=4"
        )
    candidates = meshes.used or meshes.all
    if len(meshes.used) > 1:
        raise _several_used(meshes)
    if any(mesh.axes != candidates[0].axes for mesh in candidates):
        raise AutoshardError(
            f"the module has several meshes: {meshes.texts()}", where=where, fix="choose one with --mesh"
        )
    candidates[0].validate()
    return candidates[0]


def _meshes_of(module: ir.Operation, where: str) -> _Meshes:
    lifted = module.clone().operation
    _lift(lifted)
    named = {_symbol(op) for op in _mesh_ops(module)}
    first: dict[tuple[tuple[MeshAxis, ...], tuple[int, ...]], Mesh] = {}
    alike: dict[str, Mesh] = {}
    for mesh in module_meshes(lifted):
        alike[mesh.name] = first.setdefault((mesh.axes, mesh.device_ids), mesh)
    used_at = _first_uses(lifted, where, alike) if len(first) > 1 else {}
    return _Meshes(tuple(first.values()), frozenset(alike.keys() - named), used_at)


def _first_uses(module: ir.Operation, where: str, alike: Mapping[str, Mesh]) -> dict[str, str]:
    """The location of the first op with a sharding on each mesh."""
    locations = Locations(where)
    named: dict[ir.Attribute, frozenset[str]] = {}
    found: dict[str, str] = {}

    def note(view: ir.Operation) -> ir.WalkResult:
        attributes = view.operation.attributes
        for key in _ATTRIBUTES:
            attribute = attributes.get(key)
            if attribute is None:
                continue
            if attribute not in named:
                symbols = (name.strip('"') for name in _MESH_REFERENCE.findall(str(attribute)))
                named[attribute] = frozenset(alike[symbol].name for symbol in symbols if symbol in alike)
            for symbol in named[attribute]:
                found.setdefault(symbol, locations.text(view.operation.location) or where)
        return ir.WalkResult.ADVANCE

    module.walk(note, ir.WalkOrder.PRE_ORDER)
    return found


def _agreeing(wanted: Mesh, meshes: _Meshes, module: ir.Operation, where: str) -> Mesh:
    if not wanted.axes:
        raise AutoshardError("the mesh has no axes", fix="write NAME=SIZE pairs, as in --mesh data=4,model=4")
    agreeing = [mesh for mesh in meshes.all if mesh.axes == wanted.axes]
    if agreeing:
        foreign = [mesh for mesh in meshes.used if mesh not in agreeing]
        if len(meshes.used) > 1:
            raise _several_used(meshes)
        if foreign:
            raise AutoshardError(
                f"a sharding on mesh {meshes.name(foreign[0])} in a plan for mesh {meshes.name(agreeing[0])}: {meshes.texts()}",
                where=meshes.used_at[foreign[0].name],
                fix="leave --mesh out, or write the shardings on the other mesh",
            )
        return (meshes.used or agreeing)[0]
    if meshes.all:
        raise AutoshardError(
            f"--mesh {wanted} is not the module's mesh {meshes.texts()}",
            where=where,
            fix="leave --mesh out, or remove the module's own mesh and the shardings on it",
        )
    return Mesh(wanted.axes, _free_symbol(module, wanted.name))


def _several_used(meshes: _Meshes) -> AutoshardError:
    one, other = meshes.used[:2]
    differ = "the order of their devices" if one.axes == other.axes else "their axes"
    return AutoshardError(
        f"shardings on {meshes.text(other)} here and on {meshes.text(one)} at {meshes.used_at[one.name]}, which differ in {differ}",
        where=meshes.used_at[other.name],
        fix="a plan is for one mesh: write all shardings on one of them",
    )


def _free_symbol(module: ir.Operation, wanted: str) -> str:
    symbols = (op.operation.attributes.get("sym_name") for op in body_of(module).operations)
    taken = {ir.StringAttr(symbol).value for symbol in symbols if symbol is not None}
    free, number = wanted, 0
    while free in taken:
        free = f"autoshard_mesh{number or ''}"
        number += 1
    return free


def _symbol(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value


def add_mesh(module: ir.Operation, mesh: Mesh) -> None:
    """Give the module the symbol @mesh of this mesh, unless it is there, and put shardings on empty meshes on it.

    A sharding on a mesh without axes and devices is replicated where it is closed, on whatever mesh the rest is.
    """
    if all(theirs.name != mesh.name for theirs in module_meshes(module)):
        with module.context, ir.Location.unknown():
            op = ir.Operation.parse(f"sdy.mesh {mesh.symbol} = {mesh}")
            ir.InsertionPoint.at_block_begin(body_of(module)).insert(op)
    empty = [m for m in map(_mesh, _mesh_ops(module)) if not m.axes and not m.device_ids]
    if empty:
        _replace_meshes(module, {f"<{m.symbol}, ": f"<{mesh.symbol}, " for m in empty})


def _replace_meshes(module: ir.Operation, replaced: Mapping[str, str]) -> None:
    """Replace references to meshes in the shardings of ops."""

    def note(view: ir.Operation) -> ir.WalkResult:
        attributes = view.operation.attributes
        attribute = attributes.get(SHARDING)
        if attribute is not None:
            text = str(attribute)
            for old, new in replaced.items():
                text = text.replace(old, new)
            if text != str(attribute):
                attributes[SHARDING] = ir.Attribute.parse(text, module.context)
        return ir.WalkResult.ADVANCE

    module.walk(note, ir.WalkOrder.PRE_ORDER)


def lift_meshes(module: ir.Operation) -> None:
    """Give every mesh that is written inside a sharding a symbol of its own, and write as a demand what says the same in another way."""
    rewrite(module)
    _lift(module)


def _lift(module: ir.Operation) -> None:
    noted = {_symbol(op) for op in _mesh_ops(module) if _STABLEHLO_MESH in op.attributes}
    run_pipeline(module, "sdy-lift-inlined-meshes")
    for op in _mesh_ops(module):
        if _symbol(op) not in noted and _STABLEHLO_MESH in op.attributes:
            del op.attributes[_STABLEHLO_MESH]  # the pass notes its meshes twice
