"""Casts of slices of what a loop steps through, made of the whole before the loop.

Of weights in float32 that are stacked by layer and used in 16 bits a scan slices out a layer's and casts it. XLA:TPU casts all layers in
front of the loop instead where that loop alone reads them, as in a forward pass; of a training step, whose backward loop and update read
them too, it does so on none of three. Seen of two forward passes (libtpu 0.0.52, v5e and v6e): 453 and 340 MB of casts, all that they took
beyond the prediction.
"""

from collections import Counter
from collections.abc import Sequence

from autoshard.mlir.listing import DataFlow, Listing, Op
from autoshard.program.handing import is_invariant
from autoshard.program.records import Kernel, Whole
from autoshard.program.repeating import is_narrowing
from autoshard.sharding import TensorType

_SLICE = "stablehlo.dynamic_slice"
_NAMES = frozenset({"stablehlo.reshape", "stablehlo.transpose"})


def hoisted_casts(kernels: Sequence[Kernel], listing: Listing) -> dict[int, tuple[Whole, ...]]:
    """Of each cast of a slice, by its result, the casts of all slices."""
    made_by = {value: op for op in listing.ops for value in op.results}
    stepped = _stepped_through(listing)
    found: dict[int, tuple[Whole, ...]] = {}
    for kernel in kernels:
        root = listing.ops[kernel.time]
        if not is_narrowing(root, listing):
            continue
        op = _behind_names(made_by.get(root.operands[0]), made_by)
        flow = stepped.get(op.operands[0]) if op is not None and op.name == _SLICE else None
        if op is None or flow is None or not flow.begin <= kernel.time < flow.end:
            continue
        type_, stack = kernel.shape.results[0], listing.values[flow.target].type
        if type_.rank and stack is not None and stack.num_elements % type_.num_elements == 0:
            slices = stack.num_elements // type_.num_elements
            whole = TensorType((slices * type_.shape[0], *type_.shape[1:]), type_.dtype)
            found[kernel.results[0]] = (Whole(flow.begin, flow.end, whole),)
    return found


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
