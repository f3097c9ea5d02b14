"""Weights that are stacked by layer along a dimension behind the first, which a scan steps through.

They are transposed in front of it. XLA:TPU lays the carried stack out as it lies and slices it there, where the last dimension stays and
nothing is narrowed (`hoisted` otherwise): decoding and reading of MaxText's Llama, whose layers are stacked along the second dimension
(libtpu 0.0.52, v5e; 0.5 GB of 5.5 otherwise).
"""

from autoshard.mlir.listing import Listing, Op
from autoshard.program.handing import is_invariant
from autoshard.sharding import dtype_bits

_MOST_BITS = 16


def turned_stacks(listing: Listing) -> frozenset[int]:
    """Transposed arguments that have no buffer, as loops alone read them, slice by slice."""
    arguments = {argument.value for argument in listing.arguments}
    readers: dict[int, list[Op]] = {}
    turned: dict[int, Op] = {}
    for op in listing.ops:
        for operand in op.operands:
            readers.setdefault(operand, []).append(op)
        if op.name == "stablehlo.transpose" and op.operands[0] in arguments and _keeps_the_last(op, listing):
            turned[op.results[0]] = op
    found, others = set[int](), {result.value for result in listing.results}
    for flow in listing.data_flows:
        stack = flow.sources[0].value
        slices = readers.get(flow.target, ())
        is_stepped = (
            flow.kind == "while"
            and is_invariant(flow)
            and all(_is_slice_of(op, flow.target) for op in slices)
        )
        (found if is_stepped and stack in turned else others).add(stack)
        others.update(source.value for source in flow.sources[1:])
    return frozenset(found - others - readers.keys())


def _keeps_the_last(op: Op, listing: Listing) -> bool:
    type_ = listing.values[op.results[0]].type
    if op.rule is None or type_ is None or not type_.rank or dtype_bits(type_.dtype) > _MOST_BITS:
        return False
    return op.rule.operands[0][-1] == op.rule.results[0][-1]


def _is_slice_of(op: Op, value: int) -> bool:
    return op.name == "stablehlo.dynamic_slice" and op.operands[0] == value
