"""How often a loop runs, where its condition shows it: a counter that starts, steps and stops at constants.

Start and limit may depend linearly on the counter of an enclosing loop (a triangular nest); the count is then the mean of
those at the enclosing loops' first and last trips.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from autoshard.mlir.context import BlockArgument, Value, ir, stablehlo

Number = int | float

_PASS_THROUGH = frozenset(
    {
        "stablehlo.convert",
        "stablehlo.reshape",
        "stablehlo.broadcast_in_dim",
        "sdy.sharding_constraint",
        "sdy.reshard",
    }
)
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}
_NEGATED = {"LT": "GE", "GT": "LE", "LE": "GT", "GE": "LT", "NE": "EQ", "EQ": "NE"}
_ARITHMETIC: dict[str, Callable[[Number, Number], Number]] = {
    "stablehlo.add": lambda a, b: a + b,
    "stablehlo.subtract": lambda a, b: a - b,
    "stablehlo.multiply": lambda a, b: a * b,
    "stablehlo.maximum": max,
    "stablehlo.minimum": min,
}


@dataclass(frozen=True, slots=True)
class _Moment:
    """A trip of the enclosing loops, the first or the last of each, at which counters are looked at."""

    is_last: bool = False
    counting: tuple[ir.Operation, ...] = ()
    """Loops whose trips are asked for: their counters have no value yet."""


def trip_count(loop: ir.Operation, counting: tuple[ir.Operation, ...] = ()) -> float | None:
    """Mean trips of a stablehlo.while, or None where they depend on data.

    Where either of two conditions may end the loop, the count is that of the one that is known, or the smaller.
    """
    condition = terminator(loop.regions[0].blocks[0]).operands[0]
    moments = (_Moment(is_last, (*counting, loop)) for is_last in (False, True))
    first, last = (_trips(condition, loop, False, moment) for moment in moments)
    return None if first is None or last is None else (first + last) / 2


def runs_once(loop: ir.Operation) -> bool:
    """Whether a stablehlo.while runs its body once, whatever the data, and counters of loops around it."""
    condition = _definition(terminator(loop.regions[0].blocks[0]).operands[0])
    if condition is None or condition.name != "stablehlo.compare":
        return False
    moment = _Moment(counting=(loop, *_around(loop)))
    return _trips(condition.results[0], loop, False, moment) == 1


def _around(op: ir.Operation) -> Iterator[ir.Operation]:
    while (parent := op.parent) is not None:
        op = parent.operation
        yield op


def terminator(block: ir.Block) -> ir.Operation:
    operations = block.operations
    return operations[len(operations) - 1].operation


def _trips(condition: Value, loop: ir.Operation, is_negated: bool, moment: _Moment) -> int | None:
    op = _definition(condition)
    if op is None:
        return None
    if op.name == "stablehlo.not":
        return _trips(op.operands[0], loop, not is_negated, moment)
    if op.name in ("stablehlo.and", "stablehlo.or"):
        sides = [_trips(side, loop, is_negated, moment) for side in op.operands]
        if (op.name == "stablehlo.and") != is_negated:
            return min((n for n in sides if n is not None), default=None)
        return max(n for n in sides if n is not None) if None not in sides else None
    if op.name != "stablehlo.compare":
        return None
    direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    lhs, rhs = op.operands
    truth = constant(rhs, moment)
    if isinstance(truth, bool) and direction in ("EQ", "NE"):
        return _trips(lhs, loop, is_negated != (truth == (direction == "NE")), moment)
    direction = _NEGATED[direction] if is_negated else direction
    counted = _count(lhs, direction, rhs, loop, moment)
    return counted if counted is not None else _count(rhs, _MIRRORED[direction], lhs, loop, moment)


def _count(counter: Value, direction: str, limit: Value, loop: ir.Operation, moment: _Moment) -> int | None:
    argument = _argument(counter)
    stop = constant(limit, moment)
    if argument is None or stop is None or _owner(argument) != loop:
        return None
    start, step = (
        constant(loop.operands[argument.arg_number], moment),
        _step(loop, argument.arg_number, moment),
    )
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


def _definition(value: Value) -> ir.Operation | None:
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


def _argument(value: Value) -> BlockArgument | None:
    """The block argument that the value copies, if it is one."""
    while isinstance(value, ir.OpResult):
        op = value.owner.operation
        if op.name not in _PASS_THROUGH:
            return None
        value = op.operands[0]
    return value if isinstance(value, ir.BlockArgument) else None


def _owner(argument: BlockArgument) -> ir.Operation:
    return argument.owner.owner.operation


def _step(loop: ir.Operation, index: int, moment: _Moment) -> Number | None:
    """What one trip adds to the loop's value `index`, if that is a constant; `moment`: of the loops around."""
    body = loop.regions[1].blocks[0]
    op = _definition(terminator(body).operands[index])
    if op is None or op.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    lhs, rhs = op.operands
    counter, moment = body.arguments[index], replace(moment, counting=(*moment.counting, loop))
    if _is(_argument(lhs), counter):
        step = constant(rhs, moment)
        return -step if step is not None and op.name == "stablehlo.subtract" else step
    is_added = op.name == "stablehlo.add" and _is(_argument(rhs), counter)
    return constant(lhs, moment) if is_added else None


def _is(found: BlockArgument | None, wanted: BlockArgument) -> bool:
    return found is not None and found == wanted


def constant(value: Value, moment: _Moment) -> Number | None:
    """The one number that the value holds everywhere at that moment, if it is an expression of constants and counters."""
    number = _constant(value, moment)
    is_float = isinstance(number, float)
    return int(number) if is_float and _is_of_integers(value) else number


def _is_of_integers(value: Value) -> bool:
    return isinstance(ir.RankedTensorType(value.type).element_type, ir.IntegerType)


def _constant(value: Value, moment: _Moment) -> Number | None:
    op = _definition(value)
    if op is None:
        argument = _argument(value)
        return None if argument is None else _carried(argument, moment)
    if op.name == "stablehlo.constant":
        return _splat(op.attributes["value"])
    arithmetic = _ARITHMETIC.get(op.name)
    if arithmetic is None:
        return None
    lhs, rhs = (constant(operand, moment) for operand in op.operands)
    return None if lhs is None or rhs is None else arithmetic(lhs, rhs)


def _carried(argument: BlockArgument, moment: _Moment) -> Number | None:
    """A value that a loop carries: the constant that it never changes, or its counter at that moment."""
    loop = _owner(argument)
    if loop.name != "stablehlo.while":
        return None
    index = argument.arg_number
    body = loop.regions[1].blocks[0]
    start = constant(loop.operands[index], moment)
    if start is None or terminator(body).operands[index] == body.arguments[index]:
        return start
    if loop in moment.counting:
        return None
    step, trips = _step(loop, index, moment), trip_count(loop, moment.counting)
    if step is None or trips is None:
        return None
    return start + step * max(int(trips) - 1, 0) if moment.is_last else start


def _splat(attribute: ir.Attribute) -> Number | None:
    if not isinstance(attribute, ir.DenseIntElementsAttr | ir.DenseFPElementsAttr):
        return None
    if not attribute.is_splat or not len(attribute):
        return None
    is_float = isinstance(attribute, ir.DenseFPElementsAttr)
    number = (
        ir.FloatAttr(attribute.get_splat_value()).value if is_float else attribute[0]
    )  # [0] knows no bfloat16
    return number if math.isfinite(number) else None
