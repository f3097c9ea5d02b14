"""Which mesh to plan for: the module's, the user's, or both where they agree; and which others its shardings are on.

A module may name several meshes, as symbols and inside shardings (`mesh<["x"=2]>`); the one that most of its shardings are on is planned
for. A mesh is its axes and the order of its devices, whatever its symbol.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    """The meshes of a module, each axes and device order once, and where shardings are on them.

    The keys of `uses` and `used_at` are symbols of the first mesh like it; both are empty where there is one mesh only.
    """

    all: tuple[Mesh, ...]  # that have axes
    single: tuple[Mesh, ...]  # of one device
    inlined: frozenset[str]  # symbols that the user did not write
    uses: Counter[str]  # how many shardings are on it
    used_at: Mapping[str, str]  # the first op with one

    @property
    def used(self) -> tuple[Mesh, ...]:
        return tuple(mesh for mesh in self.all if mesh.name in self.used_at)

    @property
    def used_single(self) -> tuple[Mesh, ...]:
        return tuple(mesh for mesh in self.single if mesh.name in self.used_at)

    def preferred(self, candidates: Sequence[Mesh]) -> Mesh:
        """The one that most shardings are on; where there are none, the one with the most devices. The first of equals."""
        return max(candidates, key=self._weight)

    def _weight(self, mesh: Mesh) -> int:
        return self.uses[mesh.name] if self.used else mesh.num_devices

    def text(self, mesh: Mesh) -> str:
        """The mesh as the user wrote it."""
        ids = mesh.device_ids
        more = ", ...]>" if len(ids) > _MOST_DEVICE_IDS else "]>"
        written = (
            replace(mesh, device_ids=ids[:_MOST_DEVICE_IDS]).definition.removesuffix("]>") + more
            if ids
            else str(mesh)
        )
        return f"mesh{written}" if mesh.name in self.inlined else f"{mesh.symbol} = {written}"

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
    return _of_attribute(op.attributes["mesh"], _symbol(op))


def _of_attribute(mesh: ir.Attribute, name: str) -> Mesh:
    attribute = sdy.MeshAttr(mesh)
    axes = tuple(MeshAxis(a.name, a.size) for a in map(sdy.MeshAxisAttr, attribute.axes))
    return Mesh(axes, name, tuple(attribute.device_ids))


def mesh_of(sharding: ir.Attribute, named: Mapping[str, Mesh]) -> Mesh:
    """The mesh that a sharding is on: one of `named`, or the one that is written inside it."""
    mesh = sdy.TensorShardingAttr(sharding).mesh_or_ref
    if isinstance(mesh, ir.FlatSymbolRefAttr):
        return named[mesh.value]
    return _of_attribute(mesh, "mesh")


def all_meshes(module: ir.Operation) -> list[Mesh]:
    """Every sdy.mesh symbol, those without axes too."""
    return list(map(_mesh, _mesh_ops(module)))


def chosen_mesh(module: ir.Operation, where: str, user_axes: Sequence[tuple[str, int]] | None) -> Mesh:
    """See `source.resolve_mesh`."""
    meshes = _meshes_of(module, where)
    if user_axes is not None:
        chosen = _asked(Mesh.of(user_axes), meshes, module, where)
    elif meshes.all:
        chosen = meshes.preferred(meshes.all)
        chosen.validate()
    else:
        raise AutoshardError(
            "neither the module nor the command names a mesh", where=where, fix="add --mesh data=4,model=4"
        )
    return replace(chosen, others=_others(chosen, meshes))


def meshes_text(module: ir.Operation, where: str) -> str:
    """The meshes of a module as it writes them, those with axes and those of one device."""
    meshes = _meshes_of(module, where)
    return ", ".join(map(meshes.text, (*meshes.all, *meshes.single)))


def mesh_warnings(module: ir.Operation, where: str, chosen: Mesh, *, is_asked: bool) -> tuple[str, ...]:
    """What to say of a module's other meshes; `is_asked`: the user has named the mesh to plan for."""
    meshes = _meshes_of(module, where)
    others = [mesh for mesh in meshes.used if mesh != chosen]
    other = next((mesh for mesh in meshes.all if mesh.axes != chosen.axes), None)
    how = (
        ""
        if is_asked or other is None
        else f"; another one is chosen with --mesh, as in --mesh {_option(other)}"
    )
    if others:
        kept = ", ".join(f"{meshes.uses[mesh.name]} on {meshes.text(mesh)}" for mesh in others)
        return (
            f"the plan is for mesh {meshes.text(chosen)}; shardings on other meshes are kept as they are: {kept}{how}",
        )
    if not is_asked and len(meshes.all) > 1 and not meshes.used:
        return (
            f"no sharding is on any of the meshes {meshes.texts()}; the plan is for {chosen.symbol}, which has the most devices{how}",
        )
    return ()


def _option(mesh: Mesh) -> str:
    return ",".join(f"{axis.name}={axis.size}" for axis in mesh.axes)


def _meshes_of(module: ir.Operation, where: str) -> _Meshes:
    lifted = module.clone().operation
    lift_inlined(lifted)
    named = {_symbol(op) for op in _mesh_ops(module)}
    first: dict[tuple[tuple[MeshAxis, ...], tuple[int, ...]], Mesh] = {}
    alike: dict[str, Mesh] = {}
    for mesh in all_meshes(lifted):
        if mesh.axes or mesh.is_one_device:
            alike[mesh.name] = first.setdefault((mesh.axes, mesh.device_ids), mesh)
    is_plural = len(first) > 1 or any(mesh.is_one_device for mesh in first.values())
    uses, used_at = _uses(lifted, where, alike) if is_plural else (Counter[str](), {})
    with_axes = tuple(mesh for mesh in first.values() if mesh.axes)
    single = tuple(mesh for mesh in first.values() if not mesh.axes)
    return _Meshes(with_axes, single, frozenset(alike.keys() - named), uses, used_at)


def _uses(
    module: ir.Operation, where: str, alike: Mapping[str, Mesh]
) -> tuple[Counter[str], Mapping[str, str]]:
    """How many shardings are on each mesh, and the location of the first op with one."""
    locations = Locations(where)
    named: dict[ir.Attribute, Counter[str]] = {}
    count: Counter[str] = Counter()
    found: dict[str, str] = {}

    def note(view: ir.Operation) -> ir.WalkResult:
        attributes = view.operation.attributes
        for key in _ATTRIBUTES:
            attribute = attributes.get(key)
            if attribute is None:
                continue
            if attribute not in named:
                symbols = (name.strip('"') for name in _MESH_REFERENCE.findall(str(attribute)))
                named[attribute] = Counter(alike[symbol].name for symbol in symbols if symbol in alike)
            count.update(named[attribute])
            for symbol in named[attribute]:
                found.setdefault(symbol, locations.text(view.operation.location) or where)
        return ir.WalkResult.ADVANCE

    module.walk(note, ir.WalkOrder.PRE_ORDER)
    return count, found


def _asked(wanted: Mesh, meshes: _Meshes, module: ir.Operation, where: str) -> Mesh:
    """The mesh of --mesh, which must be one of the module's where that has any."""
    if not wanted.axes:
        raise AutoshardError("the mesh has no axes", fix="write NAME=SIZE pairs, as in --mesh data=4,model=4")
    agreeing = [mesh for mesh in meshes.all if mesh.axes == wanted.axes]
    if agreeing:
        return meshes.preferred(agreeing)
    if meshes.all:
        raise AutoshardError(
            f"--mesh {wanted} is not the module's mesh {meshes.texts()}",
            where=where,
            fix="leave --mesh out, or remove the module's own mesh and the shardings on it",
        )
    return Mesh(wanted.axes, _free_symbol(module, wanted.name))


def _others(chosen: Mesh, meshes: _Meshes) -> tuple[Mesh, ...]:
    """The other meshes that shardings are on.

    Raises:
        AutoshardError: one that is not over the devices of the mesh to plan for.
    """
    others = tuple(mesh for mesh in (*meshes.used, *meshes.used_single) if mesh != chosen)
    for mesh in others:
        mesh.validate()
        has_others = (
            max(mesh.device_ids) >= chosen.num_devices
            if mesh.is_one_device
            else mesh.num_devices != chosen.num_devices
        )
        if has_others:
            raise AutoshardError(
                f"a sharding on mesh {meshes.text(mesh)} in a plan for mesh {meshes.text(chosen)}, which is over other devices",
                where=meshes.used_at[mesh.name],
                fix="write all shardings on meshes of the same devices, or take it off",
            )
    return others


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
    """Give the module the symbols of this mesh and its others, unless they are there, and put shardings on empty meshes on this one.

    A sharding on a mesh without axes and devices is replicated where it is closed, on whatever mesh the rest is.
    """
    present = {theirs.name for theirs in all_meshes(module)}
    for missing in (one for one in (*mesh.others, mesh) if one.name not in present):
        with module.context, ir.Location.unknown():
            op = ir.Operation.parse(f"sdy.mesh {missing.symbol} = {missing.definition}")
            ir.InsertionPoint.at_block_begin(body_of(module)).insert(op)
    empty = [m for m in all_meshes(module) if not m.axes and not m.device_ids]
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
    """Give every mesh a symbol, and write as a demand what says the same in another way."""
    rewrite(module)
    lift_inlined(module)


def lift_inlined(module: ir.Operation) -> None:
    """Give every mesh that is written inside a sharding a symbol of its own."""
    noted = {_symbol(op) for op in _mesh_ops(module) if _STABLEHLO_MESH in op.attributes}
    run_pipeline(module, "sdy-lift-inlined-meshes")
    for op in _mesh_ops(module):
        if _symbol(op) not in noted and _STABLEHLO_MESH in op.attributes:
            del op.attributes[_STABLEHLO_MESH]  # the pass notes its meshes twice
