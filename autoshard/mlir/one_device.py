"""Reshards to and from one device, out of sight of `sdy-reshard-to-collectives`, which knows no collectives for them and fails."""

from autoshard.mlir.attributes import called_by
from autoshard.mlir.context import Value, ir, sdy
from autoshard.mlir.meshes import all_meshes
from autoshard.mlir.signature import attributes_of
from autoshard.mlir.walk import SHARDING, ops_named

_CHANGES = frozenset({"sdy.reshard", "sdy.sharding_constraint"})
_HIDDEN = "autoshard.move_across_meshes"


def hide_moves(module: ir.Operation) -> None:
    """Each such reshard as a custom call that no pass looks into, in place."""
    marks = [f"<{mesh.symbol}, " for mesh in all_meshes(module) if mesh.is_one_device]
    for op in ops_named(module, _CHANGES if marks else frozenset()):
        target = str(op.attributes["sharding"])
        if any(mark in target or mark in _sharding_text(op.operands[0]) for mark in marks):
            per_value = f"#sdy.sharding_per_value<[{target.removeprefix('#sdy.sharding')}]>"
            name = ir.StringAttr.get(_HIDDEN, module.context)
            attributes = {"call_target_name": name, SHARDING: ir.Attribute.parse(per_value, module.context)}
            _replace(op, "stablehlo.custom_call", attributes)


def show_moves(module: ir.Operation) -> None:
    """The reshards again, in place."""
    for op in ops_named(module, frozenset({"stablehlo.custom_call"})):
        if called_by(op) == _HIDDEN:
            (sharding,) = sdy.TensorShardingPerValueAttr(op.attributes[SHARDING]).shardings
            _replace(op, "sdy.reshard", {"sharding": sharding})


def _replace(op: ir.Operation, name: str, attributes: dict[str, ir.Attribute]) -> None:
    with op.location, ir.InsertionPoint(op):
        made = ir.Operation.create(name, [op.result.type], list(op.operands), attributes)
    op.result.replace_all_uses_with(made.result)
    op.erase()


def _sharding_text(value: Value) -> str:
    """The sharding of a value, or those of all that its op makes."""
    if isinstance(value, ir.OpResult):
        attributes = value.owner.operation.attributes
        return str(attributes.get("sharding", attributes.get(SHARDING, "")))
    argument = ir.BlockArgument(value)
    owner = argument.owner.owner.operation
    if owner.name != "func.func":
        return str(owner.attributes.get(SHARDING, owner.attributes.get("in_shardings", "")))
    return str(
        attributes_of(owner, "arg_attrs", len(argument.owner.arguments))[argument.arg_number].get(
            SHARDING, ""
        )
    )
