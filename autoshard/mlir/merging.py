"""Ops that compute the same from the same are one to XLA, whose propagation sees the module after that.

So a mask that every layer makes anew carries a sharding from one layer into all others (libtpu 0.0.51: key and value caches of a decode
step, split in one layer's attention, were computed split in every layer and gathered where they are returned).
"""

from functools import partial

from autoshard.mlir.attributes import attributes_of_op
from autoshard.mlir.context import Value, ir
from autoshard.mlir.equal import Equals
from autoshard.mlir.walk import Walked

_KEPT = frozenset({"stablehlo.custom_call", "stablehlo.rng", "stablehlo.rng_bit_generator", "func.call"})


def merge_equal(walked: Walked, tag: str) -> dict[int, int]:
    """Drop every op without regions that equals an earlier one of its block, which its users read instead.

    Returns which tag took the place of which, of the ops that have the integer attribute `tag`; it does not count for equality.
    """
    merged: dict[int, int] = {}
    dropped: list[ir.Operation] = []
    equals = Equals(partial(_said, tag=tag))
    leader: dict[Value, Value] = {}
    for scope, op in zip(walked.op_scopes, walked.ops, strict=True):
        if len(op.regions) or op.name in _KEPT:
            continue
        reads = (scope, op.name, *(walked.ids[leader.get(value, value)] for value in op.operands))
        kept = equals.first(op, reads)
        if kept is op:
            continue
        dropped.append(op)
        leader.update(zip(op.results, kept.results, strict=True))
        if tag in op.attributes:
            merged[_number(op, tag)] = _number(kept, tag)
    for op in dropped:
        for result in op.results:
            result.replace_all_uses_with(leader[result])
    for op in reversed(dropped):
        op.erase()
    return merged


def _said(op: ir.Operation, tag: str) -> tuple[object, ...] | None:
    """All that is said of an op beside its name, its operands and its number; None where that is not known."""
    known = attributes_of_op(op)
    if known is None:
        return None
    attributes = tuple(item for item in known.items() if item[0] != tag)
    return attributes, tuple(result.type for result in op.results), tag in known


def _number(op: ir.Operation, tag: str) -> int:
    return ir.IntegerAttr(op.attributes[tag]).value
