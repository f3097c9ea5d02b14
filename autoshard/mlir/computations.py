"""Named computations replaced by what they hold, for readers of the written module that know no such op: upstream's tools, and XLA."""

from autoshard.mlir.context import Value, ir, sdy
from autoshard.mlir.walk import Walked, walk

_NAME = "sdy.named_computation"


def without_named_computations(walked: Walked, entry: str, *, constrained: bool) -> Walked:
    """The module with the bodies in place of the ops, in place.

    Args:
        constrained: whether what enters and leaves is constrained to the shardings that the op demands; a plan has no reshard at its edges.
    """
    for op in _inner_first(walked.main):
        _splice(op, constrained)
    return walk(walked.module, entry)


def _inner_first(main: ir.Operation) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def note(op: ir.Operation) -> ir.WalkResult:
        if op.name == _NAME:
            found.append(op.operation)
        return ir.WalkResult.ADVANCE

    main.walk(note, ir.WalkOrder.POST_ORDER)
    return found


def _splice(op: ir.Operation, constrained: bool) -> None:
    block = op.regions[0].blocks[0]
    *body, terminator = (view.operation for view in block.operations)
    entering = _at_edge(op, "in_shardings", list(op.operands), constrained)
    for argument, value in zip(block.arguments, entering, strict=True):
        argument.replace_all_uses_with(value)
    for inner in body:
        inner.move_before(op)
    leaving = _at_edge(op, "out_shardings", list(terminator.operands), constrained)
    for result, value in zip(op.results, leaving, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _at_edge(op: ir.Operation, key: str, values: list[Value], constrained: bool) -> list[Value]:
    if not constrained or key not in op.attributes:
        return values
    shardings = sdy.TensorShardingPerValueAttr(op.attributes[key]).shardings
    return [_constrained(op, *each) for each in zip(values, shardings, strict=True)]


def _constrained(op: ir.Operation, value: Value, sharding: ir.Attribute) -> Value:
    if not isinstance(value.type, ir.RankedTensorType) or not value.type.rank:
        return value
    with value.location, ir.InsertionPoint(op):
        return ir.Operation.create(
            "sdy.sharding_constraint", [value.type], [value], {"sharding": sharding}
        ).result
