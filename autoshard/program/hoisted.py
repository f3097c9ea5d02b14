"""Casts of slices of what a loop steps through, made of the whole before the loop.

Of weights in float32 that are stacked by layer and used in 16 bits, as products of default precision do without a word of it, a scan
slices out a layer's and casts it. XLA:TPU casts all layers in front of the loop instead where that loop alone reads them, as in a forward
pass; of a training step, whose backward loop and update read them too, it does so on none of three. Seen of three forward passes (libtpu
0.0.52, v5e, v6e, and one in float32 on these and v5p): 340 to 522 MB of casts, nearly all that they took beyond the prediction.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from autoshard.mlir.listing import DataFlow, Listing, Op
from autoshard.program.handing import is_invariant
from autoshard.program.records import Kernel, Whole
from autoshard.program.repeating import is_narrowing
from autoshard.sharding import TensorType

_SLICE = "stablehlo.dynamic_slice"
_NAMES = frozenset({"stablehlo.reshape", "stablehlo.transpose"})


def hoisted_casts(kernels: Sequence[Kernel], listing: Listing) -> Iterator[tuple[int, Whole]]:
    """Of a cast of a slice, by what has its sharding, the casts of all slices: once of a stack, however many alike are made of it."""
    made_by = {value: op for op in listing.ops for value in op.results}
    stepped = _stepped_through(listing)
    cast: set[tuple[int, str]] = set()
    for kernel in kernels:
        for value, before, type_ in _casts(kernel, listing):
            op = _behind_names(made_by.get(before), made_by)
            flow = stepped.get(op.operands[0]) if op is not None and op.name == _SLICE else None
            if op is None or flow is None or not flow.begin <= kernel.time < flow.end:
                continue
            slices = _num_slices(op, listing, made_by)
            if type_.rank and slices and (flow.target, type_.dtype) not in cast:
                cast.add((flow.target, type_.dtype))
                whole = TensorType((slices * type_.shape[0], *type_.shape[1:]), type_.dtype)
                yield value, Whole(flow.begin, flow.end, whole)


def _casts(kernel: Kernel, listing: Listing) -> Iterator[tuple[int, int, TensorType]]:
    """(value whose sharding it has, what is cast, the narrower type) of a cast, or of what a product takes narrower."""
    root = listing.ops[kernel.time]
    if is_narrowing(root, listing):
        yield kernel.results[0], root.operands[0], kernel.shape.results[0]
    elif kernel.shape.is_matmul:
        for use, type_, taken in zip(kernel.uses, kernel.shape.operands, kernel.shape.travels, strict=True):
            if taken.num_bytes < type_.num_bytes:
                yield use.value, use.value, taken


def _num_slices(op: Op, listing: Listing, made_by: dict[int, Op]) -> int:
    """How many slices the operand has along the dimension, of which one is taken each trip; 0 where another or the same part is."""
    stack, part = (listing.values[value].type for value in (op.operands[0], op.results[0]))
    if stack is None or part is None:
        return 0
    cut = [
        dim for dim, (all_, taken) in enumerate(zip(stack.shape, part.shape, strict=True)) if all_ != taken
    ]
    if len(cut) != 1 or part.shape[cut[0]] != 1:
        return 0
    index = _behind_names(made_by.get(op.operands[1 + cut[0]]), made_by)
    return 0 if index is not None and index.name == "stablehlo.constant" else stack.shape[cut[0]]


def _behind_names(op: Op | None, made_by: dict[int, Op]) -> Op | None:
    while op is not None and op.name in _NAMES:
        op = made_by.get(op.operands[0])
    return op


def _stepped_through(listing: Listing) -> dict[int, DataFlow]:
    """Loops by what they carry unchanged of arguments that nothing else reads."""
    arguments = {argument.value for argument in listing.arguments}
    reads = Counter(value for op in listing.ops for value in op.operands)
    reads.update(source.value for flow in listing.data_flows for source in flow.sources)
    reads.update(result.value for result in listing.results)
    found: dict[int, DataFlow] = {}
    for flow in listing.data_flows:
        first = flow.sources[0].value
        if is_invariant(flow) and first in arguments and reads[first] == 1:
            found[flow.target] = flow
    return found
