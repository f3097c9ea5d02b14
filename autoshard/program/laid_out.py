"""Weights and their state that XLA for TPUs copies into the layout of a gradient, where the update is made.

A product's gradient of a weight is transposed to lie as the weight does. Where that exchanges the dimensions of the product's operands, it
is made so (`turning`). Where it moves one between two others (heads, columns that are summed over, columns of a head, as Gemma's queries),
it stays as it is made, and all that is updated with it is copied into that layout and back. XLA for v5e does so when the program begins,
beside what it sends meanwhile: of all that such weights, momenta and squares take on a device there are two until the update (libtpu
0.0.52: SGD, Adafactor and AdamW in bfloat16 and float32, whole and split over 16 devices; 24 blocks of 8 heads and AdamW 1.13, 34 blocks of
Gemma 3 1.22 of what was predicted). For v5p and v6e it does so right before the update, and for v5e in programs that gather nothing, which
is not told apart here; nor is that a gradient that is not summed over devices is written over the copies (one weight of 134 MB and its
momentum: 540 MB of 698 predicted).
"""

from collections.abc import Iterator, Mapping, Sequence

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import is_elementwise
from autoshard.program.records import Kernel, LaidOut, MinorDims
from autoshard.program.turning import turning_of

Where = tuple[int, int]  # a kernel's time and operand


def laid_out_for_updates(kernels: Sequence[Kernel], listing: Listing) -> dict[Where, tuple[LaidOut, ...]]:
    """Arguments by where the kernel that first updates with such a gradient, or what is made of it, reads them or what is made of them.

    They are there until the last elementwise work of that kind. Not in loops, which have copies of their own, nor of products that are
    several (attention's results). What is updated in parts, as gradients that are scattered are, is copied in parts.
    """
    lie = dict(_gradients(kernels, listing))
    if not lie:
        return {}
    types = [value.type for value in listing.values]
    behind: dict[int, dict[int, Where | None]] = {
        argument.value: {argument.value: None} for argument in listing.arguments
    }
    inside = {op: kernel for kernel in kernels for op in kernel.ops}
    ends, places = dict[int, int](), dict[int, tuple[Where, MinorDims]]()
    for number, op in enumerate(listing.ops):
        if not is_elementwise(op) or op.repeat > 1 or number not in inside:
            continue
        read = _read_from(op, inside[number], behind)
        dims = next((lie[value] for value in op.operands if value in lie), None)
        if dims is None:
            if read:
                behind[op.results[0]] = dict(read)
            continue
        lie[op.results[0]] = dims
        for argument, where in read.items():
            type_, result = types[argument], types[op.results[0]]
            if where is not None and type_ is not None and result is not None and type_.shape == result.shape:
                places.setdefault(argument, (where, dims))
                ends[argument] = max(ends.get(argument, 0), inside[number].time + 1)
    found: dict[Where, tuple[LaidOut, ...]] = {}
    for argument, (where, dims) in places.items():
        type_ = types[argument]
        assert type_ is not None, "it has the shape of a result"
        found[where] = (*found.get(where, ()), LaidOut(type_, dims, ends[argument]))
    return found


def _read_from(
    op: Op, kernel: Kernel, behind: Mapping[int, Mapping[int, Where | None]]
) -> dict[int, Where | None]:
    """The arguments that the op's operands are made of, and where its kernel reads what is made of each."""
    operands = {use.value: (kernel.time, number) for number, use in reversed(list(enumerate(kernel.uses)))}
    found: dict[int, Where | None] = {}
    for value in op.operands:
        for argument, where in behind.get(value, {}).items():
            found.setdefault(argument, operands.get(value, where))
    return found


def _gradients(kernels: Sequence[Kernel], listing: Listing) -> Iterator[tuple[int, MinorDims]]:
    """What transpositions alone make of products that stay as they are made: the products' last two dimensions are minor."""
    for kernel in kernels:
        turning = turning_of(listing.ops[kernel.time], listing) if kernel.shape.is_matmul else None
        if turning is None or turning.is_exchange or turning.has_batch:
            continue
        if turning.places != tuple(sorted(turning.places)):
            row, lane = turning.places[-2:]
            yield turning.result, ((lane,), (row,), True)
