"""Sharding constraints that ask for nothing: every dimension open and without axes, nothing replicated nor unreduced.

jax writes one after every op of a manual computation that leaves axes of the mesh free, also inside what an all-reduce reduces with.
"""

from autoshard.mlir.context import ir, sdy
from autoshard.mlir.meshes import module_meshes
from autoshard.mlir.walk import function_named, ops_named
from autoshard.sharding import Mesh


def asks_nothing(attribute: ir.Attribute) -> bool:
    """Whether a sharding says nothing of a value, also of one without dimensions."""
    sharding = sdy.TensorShardingAttr(attribute)
    dims = map(sdy.DimensionShardingAttr, sharding.dimension_shardings)
    is_open = not any(dim.is_closed or len(dim.axes) or dim.priority is not None for dim in dims)
    return is_open and not (len(sharding.replicated_axes) or len(sharding.unreduced_axes))


def drop_vacuous(module: ir.Operation, entry: str, mesh: Mesh) -> None:
    """Erase them from the entry function, in place, where they are on a mesh with the axes of `mesh`."""
    symbols = frozenset(found.symbol for found in module_meshes(module) if found.axes == mesh.axes)
    known: dict[ir.Attribute, bool] = {}
    for op in ops_named(function_named(module, entry), frozenset({"sdy.sharding_constraint"})):
        attribute = op.attributes["sharding"]
        if attribute not in known:
            symbol = str(sdy.TensorShardingAttr(attribute).mesh_or_ref)
            known[attribute] = symbol in symbols and asks_nothing(attribute)
        if known[attribute]:
            op.result.replace_all_uses_with(op.operands[0])
            op.erase()
