"""FLOP of the matrix products and convolutions of a compiled module on one device, over all runs of a step.

XLA:TPU writes every product as a convolution. Only positions inside the operand count, not those in padding or between dilated
elements, as in XLA's own cost analysis.
"""

import math
import re

import numpy as np

from autoshard.xla.collectives import visits
from autoshard.xla.hlo import Computation, HloModule, Instruction, dims_of

_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_CONTRACTED = re.compile(r"\blhs_contracting_dims=\{([\d,]*)\}")
_BATCH_GROUPS = re.compile(r"\bbatch_group_count=(\d+)")


def matrix_flops(module: HloModule) -> int:
    return sum(
        visit.times * _flops(visit.computation, instruction)
        for visit in visits(module)
        for instruction in visit.computation.instructions
        if instruction.opcode in ("convolution", "dot")
    )


def _flops(computation: Computation, instruction: Instruction) -> int:
    operands = [computation.by_name[name] for name in instruction.operands[:2]]
    left, right = (dims_of(one.type) for one in operands)
    if instruction.opcode == "dot":
        contracted = _CONTRACTED.search(instruction.attributes)
        sizes = [left[int(i)] for i in contracted[1].split(",") if i] if contracted else []
        return 2 * math.prod(dims_of(instruction.type)) * math.prod(sizes)
    labels = _LABELS.search(instruction.attributes)
    if labels is None:
        return 0
    window = _Window(instruction.attributes)
    positions = math.prod(
        window.positions_inside(
            int(dim), left[labels[1].index(dim)], dims_of(instruction.type)[labels[3].index(dim)]
        )
        for dim in labels[1]
        if dim.isdigit()
    )
    batch_groups = _BATCH_GROUPS.search(instruction.attributes)
    batch = left[labels[1].index("b")] // (int(batch_groups[1]) if batch_groups else 1)
    return 2 * positions * batch * right[labels[2].index("i")] * right[labels[2].index("o")]


class _Window:
    """The `window={size=3x3 stride=2x2 pad=1_1x1_1}` of a convolution."""

    def __init__(self, attributes: str) -> None:
        found = _WINDOW.search(attributes)
        self._fields = dict(re.findall(r"(\w+)=([\dx_\-]+)", found[1] if found else ""))

    def positions_inside(self, dim: int, operand_size: int, result_size: int) -> int:
        """Pairs of a result and a kernel position along a spatial dimension that read an element of the operand."""
        stride, dilation = self._of("stride", dim), self._of("lhs_dilate", dim)
        reached = np.arange(self._of("size", dim)) * self._of("rhs_dilate", dim) - self._of("pad", dim, 0)
        reached = reached[np.argsort(reached % dilation, kind="stable")]
        residues = reached % dilation
        phases = np.arange(min(dilation, result_size))  # of every dilation-th result the first
        wanted = -phases * stride % dilation
        begins, ends = (np.searchsorted(residues, wanted, side) for side in ("left", "right"))
        count, step = 0, dilation * stride
        for phase in np.flatnonzero(begins < ends).tolist():
            first = reached[begins[phase] : ends[phase]] + phase * stride
            last = (result_size - 1 - phase) // dilation
            begin = np.maximum(-(first // step), 0)
            end = np.minimum((operand_size * dilation - 1 - first) // step, last)
            count += int(np.maximum(end - begin + 1, 0).sum())
        return count

    def _of(self, field: str, dim: int, default: int = 1) -> int:
        """Of `pad`, what is added before the first element."""
        values = self._fields.get(field)
        return default if values is None else int(values.split("x")[dim].split("_")[0])
