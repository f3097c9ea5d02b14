"""Shardings on one device alone (a mesh without axes that names a device): read on ordinary ops, refused on what values pass through."""

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, sdy
from autoshard.mlir.locations import Locations
from autoshard.mlir.walk import SHARDING, body_of

_DATA_FLOW = frozenset(
    {"stablehlo.while", "stablehlo.case", "stablehlo.if", "stablehlo.optimization_barrier", "func.call"}
)
_DEMANDS = ("sharding", "in_shardings", "out_shardings", "arg_attrs", "res_attrs")
_INLINED = "<mesh<[], device_ids="


def refuse_maximal(module: ir.Operation, file: str) -> None:
    """Raises AutoshardError at the first value that is demanded on one device where a plan cannot have it."""
    locations = Locations(file)
    marks = (_INLINED, *_maximal_references(module))
    known: dict[ir.Attribute, bool] = {}
    found: list[str] = []

    def note(view: ir.Operation) -> ir.WalkResult:
        op = view.operation
        for key in (*_DEMANDS, SHARDING) if op.name in _DATA_FLOW else _DEMANDS:
            attribute = op.attributes.get(key)
            if attribute is None:
                continue
            if attribute not in known:
                text = str(attribute)
                known[attribute] = any(mark in text for mark in marks)
            if known[attribute]:
                found.append(f"{locations.text(op.location) or file}|{op.name}")
                return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    module.walk(note, ir.WalkOrder.PRE_ORDER)
    if found:
        where, _, name = found[0].rpartition("|")
        raise AutoshardError(
            f"{name} with a sharding on one device alone (a mesh with device_ids and no axes) is not supported yet",
            where=where,
            fix="replicate the value, or annotate the op that is to run on one device",
        )


def _maximal_references(module: ir.Operation) -> list[str]:
    operations = (op.operation for op in body_of(module).operations)
    meshes = [op for op in operations if op.name == "sdy.mesh"]
    attributes = ((op, sdy.MeshAttr(op.attributes["mesh"])) for op in meshes)
    maximal = [op for op, mesh in attributes if not len(mesh.axes) and len(mesh.device_ids)]
    symbols = (ir.StringAttr(op.attributes["sym_name"]).value for op in maximal)
    return [f"<{ir.FlatSymbolRefAttr.get(symbol, module.context)}, " for symbol in symbols]
