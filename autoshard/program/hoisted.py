"""Casts of slices of what a loop steps through, made of the whole before the loop.

Of weights in float32 that are stacked by layer and used in 16 bits, a scan slices out a layer's and casts it. XLA:TPU casts all layers in
front of the loop instead, once for all loops that do so, as the forward and the backward pass of a training step do, also where a barrier
keeps what is made anew in the backward pass apart. What products of default precision take narrower without a word of it is cast so only
where one loop alone reads the weights, as in a forward pass; of a training step, whose backward loop and update read them too, on none of
three. A stack that is gathered for the loops is gathered cast, and that is all there is of it. Seen of three forward passes and eight
training steps (libtpu 0.0.52, v5e, v6e, and some on v5p): 200 to 522 MB of casts, nearly all that they took beyond the prediction.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from autoshard.mlir.listing import DataFlow, Listing, Op
from autoshard.program.handing import BARRIER, is_invariant
from autoshard.program.records import Kernel, Whole
from autoshard.program.repeating import is_narrowing
from autoshard.sharding import TensorType

_SLICE = "stablehlo.dynamic_slice"
_NAMES = frozenset({"stablehlo.reshape", "stablehlo.transpose"})


def hoisted_casts(kernels: Sequence[Kernel], listing: Listing) -> dict[int, tuple[Whole, ...]]:
    """The casts of all slices of arguments, by these: one of a stack, however many alike are made of it."""
    made_by = {value: op for op in listing.ops for value in op.results}
    barred = {
        flow.target: made_by[flow.sources[0].value]
        for flow in listing.data_flows
        if flow.kind == BARRIER and flow.sources[0].value in made_by
    }
    made_by |= barred  # the cast is moved through
    stepped, alone = _stepped_through(listing)
    found: dict[tuple[int, str], Whole] = {}
    for kernel in kernels:
        for before, type_ in _casts(kernel, listing):
            op = _behind_names(made_by.get(before), made_by)
            flow = stepped.get(op.operands[0]) if op is not None and op.name == _SLICE else None
            if op is None or flow is None or not flow.begin <= kernel.time < flow.end:
                continue
            stack = flow.sources[0].value
            is_for_others = kernel.shape.is_matmul and stack not in alone
            if not type_.rank or is_for_others or not _steps_through(op, listing, made_by):
                continue
            all_ = listing.values[stack].type
            assert all_ is not None
            whole = Whole(flow.begin, flow.end, TensorType(all_.shape, type_.dtype))
            known = found.get((stack, type_.dtype), whole)
            begin, end = min(known.begin, flow.begin), max(known.end, flow.end)
            found[stack, type_.dtype] = known._replace(begin=begin, end=end)
    wholes: dict[int, tuple[Whole, ...]] = {}
    for (stack, _), whole in found.items():
        wholes[stack] = (*wholes.get(stack, ()), whole)
    return wholes


def _casts(kernel: Kernel, listing: Listing) -> Iterator[tuple[int, TensorType]]:
    """(what is cast, the narrower type) of a cast, or of what a product takes narrower."""
    root = listing.ops[kernel.time]
    if is_narrowing(root, listing):
        yield root.operands[0], kernel.shape.results[0]
    elif kernel.shape.is_matmul:
        for use, type_, taken in zip(kernel.uses, kernel.shape.operands, kernel.shape.travels, strict=True):
            if taken.num_bytes < type_.num_bytes:
                yield use.value, taken


def _steps_through(op: Op, listing: Listing, made_by: dict[int, Op]) -> bool:
    """Whether one slice of the operand is taken each trip, and not another or the same part."""
    stack, part = (listing.values[value].type for value in (op.operands[0], op.results[0]))
    if stack is None or part is None:
        return False
    cut = [
        dim for dim, (all_, taken) in enumerate(zip(stack.shape, part.shape, strict=True)) if all_ != taken
    ]
    if len(cut) != 1 or part.shape[cut[0]] != 1:
        return False
    index = _behind_names(made_by.get(op.operands[1 + cut[0]]), made_by)
    return index is None or index.name != "stablehlo.constant"


def _behind_names(op: Op | None, made_by: dict[int, Op]) -> Op | None:
    while op is not None and op.name in _NAMES:
        op = made_by.get(op.operands[0])
    return op


def _stepped_through(listing: Listing) -> tuple[dict[int, DataFlow], frozenset[int]]:
    """Loops by what they carry unchanged of arguments, and those of these that nothing else reads."""
    arguments = {argument.value for argument in listing.arguments}
    reads = Counter(value for op in listing.ops for value in op.operands)
    reads.update(source.value for flow in listing.data_flows for source in flow.sources)
    reads.update(result.value for result in listing.results)
    found = {
        flow.target: flow
        for flow in listing.data_flows
        if is_invariant(flow) and flow.sources[0].value in arguments
    }
    return found, frozenset(argument for argument in arguments if reads[argument] == 1)
