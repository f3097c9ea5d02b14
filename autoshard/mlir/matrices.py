"""Calls of XLA's linear algebra, which Shardy's rules take apart by place: other operands or results than these end the process.

Qr, QrDecompositionBlock                     [..., m, n] -> [..., m, n], [..., k]
Eigh                                         [..., n, n] -> [..., n, n], perhaps [..., n]
ProductOfElementaryHouseholderReflectors     [..., m, n], [..., k] -> [..., m, n]
"""

from collections.abc import Sequence

from autoshard.errors import AutoshardError
from autoshard.mlir.attributes import called_by
from autoshard.mlir.context import ir
from autoshard.mlir.locations import Locations
from autoshard.mlir.walk import Walked

_CALLS = {  # numbers of operands and of results
    "Qr": ((1,), (2,)),
    "QrDecompositionBlock": ((1,), (2,)),
    "Eigh": ((1,), (1, 2)),
    "ProductOfElementaryHouseholderReflectors": ((2,), (1,)),
}


def refuse_malformed(walked: Walked, locations: Locations) -> None:
    """Raises AutoshardError: such a call has not the operands and results that it is made with."""
    for op in walked.ops:
        called = called_by(op.operation) if op.name == "stablehlo.custom_call" else None
        if called not in _CALLS:
            continue
        numbers = tuple(map(len, (op.operands, op.results)))
        is_known = all(number in known for number, known in zip(numbers, _CALLS[called], strict=True))
        types = [value.type for value in (*op.operands, *op.results)]
        if not (is_known and _are_matrices(types, len(op.operands))):
            raise AutoshardError(
                f"a custom call of {called} with {numbers[0]} operands and {numbers[1]} results of "
                + ", ".join(map(str, types)),
                where=locations.text(op.location),
                fix="it takes matrices [..., m, n], and makes a matrix and what belongs to its columns [..., k], as jax writes it",
            )


def _are_matrices(types: Sequence[ir.Type], operands: int) -> bool:
    """Whether the first operand and result are matrices and the others vectors, all in one batch."""
    if not all(isinstance(one, ir.RankedTensorType) for one in types):
        return False
    shapes = [tuple(ir.RankedTensorType(one).shape) for one in types]
    rank = len(shapes[0])
    ranks = [rank if number in (0, operands) else rank - 1 for number in range(len(shapes))]
    batch = shapes[0][: rank - 2]
    return rank >= 2 and all(
        len(shape) == wanted and shape[: rank - 2] == batch
        for shape, wanted in zip(shapes, ranks, strict=True)
    )
