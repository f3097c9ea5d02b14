"""What random inputs of `main` must look like for the program to do its work: index ranges, positive numbers.

An integer argument that reaches an index operand (gather, scatter, dynamic slice and update) or a
comparison with an iota stays below the smallest bound it meets on the way. A float argument that reaches a
square root, a logarithm, a power or a denominator without being squared or subtracted is positive: a
variance, Adam's second moment, a norm to divide by.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autoshard.mlir.context import ir, stablehlo
from autoshard.xla.flow import Flow
from autoshard.xla.prepare import walk


@dataclass(frozen=True, slots=True)
class Range:
    """`below`: smallest bound that an integer argument must stay under; None where it reaches no index."""

    below: int | None = None
    is_positive: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """`bounds` of an index operand: one for all, or one a position along `dim` (the index vector)."""

    value: Any
    bounds: tuple[int, ...]
    dim: int = -1

    @property
    def smallest(self) -> int:
        return min(self.bounds)


def ranges_of(module: Any, main: Any) -> list[Range]:
    """For each argument of `main`, what its values must satisfy."""
    flow = Flow(module)
    arguments = {argument: i for i, argument in enumerate(main.regions[0].blocks[0].arguments)}
    ops = list(walk(module))
    below = _smallest_bounds(flow, [demand for op in ops for demand in _index_demands(op, flow)])
    positive = _reaching_positive(flow, [value for op in ops for value in _positive_operands(op, flow)])
    return [Range(below.get(argument), argument in positive) for argument in arguments]


def _smallest_bounds(flow: Flow, demands: list[Demand]) -> dict[Any, int]:
    known: dict[Any, int] = {}
    while demands:
        demand = demands.pop()
        if known.get(demand.value, math.inf) <= demand.smallest:
            continue
        known[demand.value] = demand.smallest
        demands.extend(_carried_back(demand, flow))
    return known


def _carried_back(demand: Demand, flow: Flow) -> Iterator[Demand]:
    value, bound = demand.value, demand.smallest
    if isinstance(value, ir.BlockArgument):
        yield from (Demand(source, (bound,)) for source in flow.sources(value))
        return
    op = value.owner.operation
    if op.name == "stablehlo.concatenate" and ir.IntegerAttr(op.attributes["dimension"]).value == demand.dim:
        begin = 0
        for operand in op.operands:
            size = operand.type.shape[demand.dim]
            yield Demand(operand, demand.bounds[begin : begin + size])
            begin += size
    elif op.name in ("stablehlo.convert", "stablehlo.select"):
        yield from (Demand(source, demand.bounds, demand.dim) for source in flow.sources(value))
    elif op.name in ("stablehlo.add", "stablehlo.subtract", "stablehlo.multiply"):
        yield from _through_arithmetic(op, bound, flow)
    elif op.name in _BOUNDED_OPERANDS:
        yield from (Demand(op.operands[i], (bound,)) for i in _BOUNDED_OPERANDS[op.name])
    else:
        yield from (Demand(source, (bound,)) for source in flow.sources(value))


_BOUNDED_OPERANDS = {
    "stablehlo.clamp": (1,),
    "stablehlo.divide": (0,),
    "stablehlo.maximum": (0, 1),
    "stablehlo.minimum": (0, 1),
}


def _through_arithmetic(op: Any, bound: int, flow: Flow) -> Iterator[Demand]:
    """The bound of `x` in `x + c`, `x - y`, `x * c`, and of both terms of a sum."""
    constants = [_constant(operand, flow) for operand in op.operands]
    for operand, other in zip(op.operands, reversed(constants), strict=True):
        if op.name == "stablehlo.multiply":
            allowed = bound // other if other is not None and other > 0 else bound
        elif op.name == "stablehlo.subtract" or other is None:
            allowed = bound if op.name == "stablehlo.subtract" else (bound + 1) // 2
        else:
            allowed = bound - other if 0 < other < bound else bound  # `x + size` only wraps a negative index
        yield Demand(operand, (max(allowed, 1),))


def _constant(value: Any, flow: Flow) -> int | None:
    """Value of a constant that is one whole number throughout, or the largest one of an iota."""
    origin = _origin(value, flow)
    if origin.name == "stablehlo.iota":
        return _iota_size(origin) - 1
    if origin.name != "stablehlo.constant":
        return None
    attribute = origin.attributes["value"]
    if not isinstance(attribute, ir.DenseElementsAttr) or not attribute.is_splat:
        return None
    splat: Any = ir.DenseElementsAttr(attribute).get_splat_value()
    number = splat.value
    return int(number) if number == int(number) else None


def _origin(value: Any, flow: Flow) -> Any:
    """The op that computed `value` or the argument's block, stepping back over single copies."""
    for _ in range(20):
        sources = () if isinstance(value, ir.BlockArgument) else tuple(flow.sources(value))
        if len(sources) != 1:
            break
        value = sources[0]
    return value.owner.owner.operation if isinstance(value, ir.BlockArgument) else value.owner.operation


def _iota_size(op: Any) -> int:
    return op.results[0].type.shape[op.attributes["iota_dimension"].value]


def _index_demands(op: Any, flow: Flow) -> Iterator[Demand]:
    if op.name == "stablehlo.gather":
        numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
        sizes = list(ir.DenseI64ArrayAttr(op.attributes["slice_sizes"]))
        shape = op.operands[0].type.shape
        bounds = tuple(shape[d] - sizes[d] + 1 for d in numbers.start_index_map)
        yield Demand(op.operands[1], bounds, numbers.index_vector_dim)
    elif op.name == "stablehlo.scatter":
        yield _scatter_demand(op)
    elif op.name in ("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"):
        first = 1 if op.name == "stablehlo.dynamic_slice" else 2
        part = op.results[0] if op.name == "stablehlo.dynamic_slice" else op.operands[1]
        for d, (whole, size) in enumerate(zip(op.operands[0].type.shape, part.type.shape, strict=True)):
            yield Demand(op.operands[first + d], (whole - size + 1,))
    elif op.name == "stablehlo.compare":
        for operand, other in ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0])):
            origin = _origin(other, flow)
            if origin.name == "stablehlo.iota":
                yield Demand(operand, (_iota_size(origin),))


def _scatter_demand(op: Any) -> Demand:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    inputs = (len(op.operands) - 1) // 2
    shape = op.operands[0].type.shape
    updates = op.operands[inputs + 1].type.shape
    hidden = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    window_dims = [d for d in range(len(shape)) if d not in hidden]
    window = dict(zip(window_dims, (updates[d] for d in numbers.update_window_dims), strict=True))
    bounds = tuple(shape[d] - window.get(d, 1) + 1 for d in numbers.scattered_dims_to_operand_dims)
    return Demand(op.operands[inputs], bounds, numbers.index_vector_dim)


_POSITIVE_OPERANDS = {
    "stablehlo.divide": (1,),
    "stablehlo.log": (0,),
    "stablehlo.power": (0, 1),
    "stablehlo.rsqrt": (0,),
    "stablehlo.sqrt": (0,),
}
_KEEP_SIGN = {
    "stablehlo.add": (0, 1),
    "stablehlo.divide": (0, 1),
    "stablehlo.maximum": (0, 1),
    "stablehlo.minimum": (0, 1),
    "stablehlo.sqrt": (0,),
    "stablehlo.rsqrt": (0,),
}


def _positive_operands(op: Any, flow: Flow) -> Iterator[Any]:
    if op.name == "stablehlo.power" and _constant(op.operands[1], flow) is not None:
        return  # any number has whole powers
    for i in _POSITIVE_OPERANDS.get(op.name, ()):
        if isinstance(op.operands[i].type.element_type, ir.FloatType):
            yield op.operands[i]


def _reaching_positive(flow: Flow, values: list[Any]) -> set[Any]:
    seen: set[Any] = set()
    while values:
        value = values.pop()
        if value in seen:
            continue
        seen.add(value)
        op = None if isinstance(value, ir.BlockArgument) else value.owner.operation
        if op is not None and op.name == "stablehlo.multiply":
            values.extend(op.operands if op.operands[0] != op.operands[1] else ())
        elif op is not None and op.name in _KEEP_SIGN:
            values.extend(op.operands[i] for i in _KEEP_SIGN[op.name])
        else:
            values.extend(flow.sources(value))
    return seen
