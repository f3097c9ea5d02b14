"""What one op makes of a value and of its transposition: one value to XLA, which transposes after elementwise ops of one operand.

Constraints on the one are then read of the other too. Seen in what libtpu 0.0.51 compiles for v5e: a table that a lookup reads converted
and by columns, and the product with its converted transposition by rows; the product read it by columns, and exchanged its other operand
of 206 MB (conversions and hyperbolic tangents in small programs).
"""

from collections.abc import Iterator

from autoshard.mlir.attributes import attributes_of_op
from autoshard.mlir.context import Value, ir
from autoshard.mlir.facts import RULE
from autoshard.mlir.walk import Walked

_TRANSPOSE = "stablehlo.transpose"
_NAMES = "abs ceil convert cosine exponential exponential_minus_one floor log log_plus_one logistic negate not rsqrt sign sine sqrt tanh"
_ELEMENTWISE = frozenset(f"stablehlo.{name}" for name in _NAMES.split())


def transposed_before(walked: Walked) -> dict[int, int]:
    """By number of each value made of a transposition, as another op makes it of what is transposed: the op that transposes."""
    numbers = {op: number for number, op in enumerate(walked.ops)}
    return {walked.ids[op.result]: numbers[op.operands[0].owner.operation] for op, _ in _pairs(walked, "")}


def transpose_after(walked: Walked, tag: str) -> dict[int, int]:
    """Let each such value be the transposition of what the other op makes, in place.

    Returns which tag took the place of which: the transposition before took that of the op. Tags do not count for equality.
    """
    moved: dict[int, int] = {}
    for op, other in list(_pairs(walked, tag)):
        before = op.operands[0].owner.operation
        if not other.is_before_in_block(op):
            other.move_before(op)
        after = ir.Operation.create(
            _TRANSPOSE,
            [op.result.type],
            [other.result],
            {name: before.attributes[name] for name in before.attributes if name != tag},
            loc=op.location,
            ip=ir.InsertionPoint(op),
        )
        after.attributes[tag] = op.attributes[tag]
        moved[_number(before, tag)] = _number(op, tag)
        op.result.replace_all_uses_with(after.result)
        op.erase()
    return moved


def _number(op: ir.Operation, tag: str) -> int:
    return ir.IntegerAttr(op.attributes[tag]).value


def _pairs(walked: Walked, tag: str) -> Iterator[tuple[ir.Operation, ir.Operation]]:
    """Each op that reads a transposition, and the one in the same block that makes the same of what is transposed, not itself such."""
    plain: dict[object, ir.Operation] = {}
    transposed: list[tuple[object, ir.Operation]] = []
    for scope, op in zip(walked.op_scopes, walked.ops, strict=True):
        if op.name not in _ELEMENTWISE:
            continue
        known = attributes_of_op(op)
        if known is None:
            continue
        made = ir.RankedTensorType(op.result.type).element_type
        attributes = tuple(item for item in known.items() if item[0] not in (tag, RULE))
        value = op.operands[0]
        plain.setdefault((scope, op.name, walked.ids[value], attributes, made), op)
        behind = _transposed(value)
        if behind is not None and behind in walked.ids:
            transposed.append(((scope, op.name, walked.ids[behind], attributes, made), op))
    found = {op: plain[key] for key, op in transposed if key in plain}
    yield from ((op, other) for op, other in found.items() if other not in found)


def _transposed(value: Value) -> Value | None:
    if not isinstance(value, ir.OpResult) or value.owner.name != _TRANSPOSE:
        return None
    return value.owner.operands[0]
