"""The attributes of an op, as far as MLIR's bindings hand them out."""

from collections.abc import Mapping

from autoshard.mlir.context import ir


def attributes_of_op(op: ir.Operation) -> Mapping[str, ir.Attribute] | None:
    """By name; None for an op with an attribute that has no Python type (a constant of complex numbers)."""
    try:
        return dict(op.attributes)
    except TypeError:
        return None


def called_by(op: ir.Operation) -> str:
    """The target of a custom call; "" of other ops."""
    name = op.attributes.get("call_target_name")
    return "" if name is None else ir.StringAttr(name).value
