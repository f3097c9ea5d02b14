"""How often a loop runs, where its condition shows it: a counter that starts, steps and stops at constants."""

import math

from autoshard.mlir.context import ir, stablehlo

Number = int | float

_PASS_THROUGH = frozenset(
    {"stablehlo.convert", "stablehlo.reshape", "stablehlo.broadcast_in_dim", "sdy.sharding_constraint", "sdy.reshard"}
)
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


def trip_count(loop: ir.Operation) -> int | None:
    """Trips of a stablehlo.while, or None where they depend on data.

    Of the two sides of an `and` either may end the loop, so the smaller count is the answer when one side is data.
    """
    condition = loop.regions[0].blocks[0]
    return _trips(_terminator(condition).operands[0], loop)


def _terminator(block: ir.Block) -> ir.Operation:
    operations = block.operations
    return operations[len(operations) - 1].operation


def _definition(value: ir.Value) -> ir.Operation | None:
    """The op that makes the value, looking through copies; None for a block argument."""
    while isinstance(value, ir.OpResult):
        op = value.owner.operation
        if op.name == "stablehlo.optimization_barrier":
            value = op.operands[value.result_number]
        elif op.name in _PASS_THROUGH:
            value = op.operands[0]
        else:
            return op
    return None


def _argument(value: ir.Value) -> ir.BlockArgument | None:
    """The block argument that the value copies, if it is one."""
    while isinstance(value, ir.OpResult):
        op = value.owner.operation
        if op.name not in _PASS_THROUGH:
            return None
        value = op.operands[0]
    return value if isinstance(value, ir.BlockArgument) else None


def _trips(condition: ir.Value, loop: ir.Operation) -> int | None:
    op = _definition(condition)
    if op is None:
        return None
    if op.name == "stablehlo.and":
        known = [n for side in op.operands if (n := _trips(side, loop)) is not None]
        return min(known, default=None)
    if op.name != "stablehlo.compare":
        return None
    direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    lhs, rhs = op.operands
    counted = _count(lhs, direction, rhs, loop)
    return counted if counted is not None else _count(rhs, _MIRRORED.get(direction, ""), lhs, loop)


def _count(counter: ir.Value, direction: str, limit: ir.Value, loop: ir.Operation) -> int | None:
    argument = _argument(counter)
    stop = constant(limit)
    if argument is None or stop is None or argument.owner.owner.operation != loop:
        return None
    start, step = constant(loop.operands[argument.arg_number]), _step(loop, argument.arg_number)
    if start is None or not step:
        return None
    distance = stop - start
    match direction:
        case "LT" if step > 0 or distance <= 0:
            trips = math.ceil(distance / step)
        case "GT" if step < 0 or distance >= 0:
            trips = math.ceil(distance / step)
        case "LE" if step > 0 or distance < 0:
            trips = math.floor(distance / step) + 1
        case "GE" if step < 0 or distance > 0:
            trips = math.floor(distance / step) + 1
        case "NE" if distance % step == 0 and distance / step >= 0:
            trips = int(distance / step)
        case _:
            return None
    return max(trips, 0)


def _step(loop: ir.Operation, index: int) -> Number | None:
    """What one trip adds to the loop's value `index`, if that is a constant."""
    body = loop.regions[1].blocks[0]
    op = _definition(_terminator(body).operands[index])
    if op is None or op.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    lhs, rhs = op.operands
    sign = 1 if op.name == "stablehlo.add" else -1
    if _argument(lhs) == body.arguments[index]:
        step = constant(rhs)
        return None if step is None else sign * step
    if sign == 1 and _argument(rhs) == body.arguments[index]:
        return constant(lhs)
    return None


def constant(value: ir.Value) -> Number | None:
    """The one number that the value holds everywhere, if it is a constant expression."""
    op = _definition(value)
    if op is None:
        argument = _argument(value)
        return None if argument is None else _unchanged(argument)
    if op.name == "stablehlo.constant":
        return _splat(op.attributes["value"])
    if op.name not in _ARITHMETIC:
        return None
    lhs, rhs = (constant(operand) for operand in op.operands)
    return None if lhs is None or rhs is None else _ARITHMETIC[op.name](lhs, rhs)


def _unchanged(argument: ir.BlockArgument) -> Number | None:
    """The constant that a loop carries along unchanged."""
    owner = argument.owner.owner.operation
    if owner.name != "stablehlo.while":
        return None
    body = owner.regions[1].blocks[0]
    carried = _terminator(body).operands[argument.arg_number]
    return constant(owner.operands[argument.arg_number]) if carried == body.arguments[argument.arg_number] else None


def _splat(attribute: ir.Attribute) -> Number | None:
    if isinstance(attribute, ir.DenseIntElementsAttr | ir.DenseFPElementsAttr) and (
        attribute.is_splat and len(attribute) > 0
    ):
        return attribute[0]
    return None


_ARITHMETIC = {
    "stablehlo.add": lambda a, b: a + b,
    "stablehlo.subtract": lambda a, b: a - b,
    "stablehlo.multiply": lambda a, b: a * b,
    "stablehlo.maximum": max,
    "stablehlo.minimum": min,
}
