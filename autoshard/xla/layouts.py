"""Pins Fourier transforms to row-major layouts, in place.

XLA:CPU spreads the layouts that collectives prefer to the transforms beside them and then finds that its kernel takes
row-major arrays only.
"""

from typing import Any

import numpy as np

from autoshard.mlir.context import ir, stablehlo
from autoshard.xla.prepare import walk


def pin_transforms(module: ir.Operation) -> None:
    for op in list(walk(module)):
        if op.name == "stablehlo.fft":
            op.operands[0] = _row_major(op.operands[0], ir.InsertionPoint(op))
            users = [(use.owner, use.operand_number) for use in op.results[0].uses]
            pinned = _row_major(op.results[0], ir.InsertionPoint.after(op))
            for user, position in users:
                user.operation.operands[position] = pinned


def _row_major(value: Any, at: Any) -> Any:
    with at, value.location:
        minor_to_major: Any = np.arange(value.type.rank - 1, -1, -1, dtype=np.int64)
        layout = ir.DenseIntElementsAttr.get(minor_to_major, type=ir.IndexType.get())
        constraint = stablehlo.CustomCallOp(
            [value.type],
            [value],
            ir.StringAttr.get("LayoutConstraint"),
            operand_layouts=ir.ArrayAttr.get([layout]),
            result_layouts=ir.ArrayAttr.get([layout]),
        )
        return constraint.results[0]
