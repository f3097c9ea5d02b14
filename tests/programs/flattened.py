"""Products of matrices where a module has products of batches of rows: as other front ends write them."""

import math
from typing import Any

from jax._src.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

_MATRIX = 2


def flattened(text: str, *, is_shared: bool = False) -> str:
    """The same module, but that each product reads its rows as one dimension and what it makes is reshaped.

    is_shared: products of one value read one reshape of it, as torch's do, else each its own.
    """
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        for function in module.body.operations:
            _flatten_inside(function.operation, is_shared=is_shared)
        module.operation.verify()
        return str(module)


def _flatten_inside(parent: ir.Operation, *, is_shared: bool) -> None:
    for region in parent.regions:
        for block in region.blocks:
            known: dict[Any, Any] = {}
            for op in list(block.operations):
                _flatten_inside(op.operation, is_shared=is_shared)
                if op.operation.name == "stablehlo.dot_general":
                    _flatten(op.operation, known if is_shared else {})


def _flatten(dot: ir.Operation, known: dict[Any, Any]) -> None:
    numbers = stablehlo.DotDimensionNumbers(dot.attributes["dot_dimension_numbers"])
    left, right = (ir.RankedTensorType(operand.type) for operand in dot.operands)
    contracted = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    if numbers.lhs_batching_dimensions or left.rank <= _MATRIX:
        return
    with ir.InsertionPoint(dot), dot.location:
        if contracted[0] == [left.rank - 1] and right.rank == _MATRIX:
            operands, along = (_as_rows(dot.operands[0], known), dot.operands[1]), ([1], contracted[1])
            shape = [math.prod(left.shape[:-1]), right.shape[1 - contracted[1][0]]]
        elif all(dims == list(range(left.rank - 1)) for dims in contracted) and left.rank == right.rank:
            operands, along = (_as_rows(dot.operands[0], known), _as_rows(dot.operands[1], known)), ([0], [0])
            shape = [left.shape[-1], right.shape[-1]]
        else:
            return
        result = ir.RankedTensorType(dot.results[0].type)
        made = stablehlo.dot_general(
            ir.RankedTensorType.get(shape, result.element_type),
            *operands,
            stablehlo.DotDimensionNumbers.get([], [], *along),
        )
        dot.results[0].replace_all_uses_with(
            made if list(result.shape) == shape else stablehlo.reshape(result, made)
        )
    dot.erase()


def _as_rows(value: Any, known: dict[Any, Any]) -> Any:
    type_ = ir.RankedTensorType(value.type)
    shape = [math.prod(type_.shape[:-1]), type_.shape[-1]]
    if value not in known:
        known[value] = stablehlo.reshape(ir.RankedTensorType.get(shape, type_.element_type), value)
    return known[value]
