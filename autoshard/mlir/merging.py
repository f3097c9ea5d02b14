"""Ops that compute the same from the same are one to XLA, whose propagation sees the module after that.

So a mask that every layer makes anew carries a sharding from one layer into all others (libtpu 0.0.51: key and value caches of a decode
step, split in one layer's attention, were computed split in every layer and gathered where they are returned).
"""

from autoshard.mlir.attributes import attributes_of_op
from autoshard.mlir.context import Value, ir
from autoshard.mlir.walk import Walked

_KEPT = frozenset({"stablehlo.custom_call", "stablehlo.rng", "stablehlo.rng_bit_generator", "func.call"})


def merge_equal(walked: Walked, tag: str) -> dict[int, int]:
    """Drop every op without regions that equals an earlier one of its block, which its users read instead.

    Returns which tag took the place of which, of the ops that have the integer attribute `tag`; it does not count for equality.
    """
    merged: dict[int, int] = {}
    dropped: list[ir.Operation] = []
    first: dict[tuple[object, ...], ir.Operation] = {}
    leader: dict[Value, Value] = {}
    for scope, op in zip(walked.op_scopes, walked.ops, strict=True):
        known = None if len(op.regions) or op.name in _KEPT else attributes_of_op(op)
        if known is None:
            continue
        attributes = dict(known)
        mine = attributes.pop(tag, None)
        operands = tuple(walked.ids[leader.get(value, value)] for value in op.operands)
        types = tuple(result.type for result in op.results)
        key = (scope, op.name, operands, tuple(attributes.items()), types, mine is None)
        kept = first.setdefault(key, op)
        if kept is op:
            continue
        dropped.append(op)
        leader.update(zip(op.results, kept.results, strict=True))
        if mine is not None:
            merged[ir.IntegerAttr(mine).value] = ir.IntegerAttr(kept.attributes[tag]).value
    for op in dropped:
        for result in op.results:
            result.replace_all_uses_with(leader[result])
    for op in reversed(dropped):
        op.erase()
    return merged
