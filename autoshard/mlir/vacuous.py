"""Sharding constraints that ask for nothing: every dimension open and without axes, nothing replicated nor unreduced.

jax writes one after every op of a manual computation that leaves axes of the mesh free, also inside what an all-reduce reduces with.
"""

import re

from autoshard.mlir.context import ir
from autoshard.mlir.meshes import module_meshes
from autoshard.mlir.walk import function_named, ops_named
from autoshard.sharding import Mesh

_OPEN = re.compile(r"#sdy\.sharding<@\"?([^\s\",]+)\"?, \[(?:\{\?\}(?:, )?)*\]>")


def drop_vacuous(module: ir.Operation, entry: str, mesh: Mesh) -> None:
    """Erase them from the entry function, in place, where they are on a mesh with the axes of `mesh`."""
    names = frozenset(found.name for found in module_meshes(module) if found.axes == mesh.axes)
    known: dict[ir.Attribute, bool] = {}
    for op in ops_named(function_named(module, entry), frozenset({"sdy.sharding_constraint"})):
        attribute = op.attributes["sharding"]
        if attribute not in known:
            found = _OPEN.fullmatch(str(attribute))
            known[attribute] = found is not None and found[1] in names
        if known[attribute]:
            op.result.replace_all_uses_with(op.operands[0])
            op.erase()
