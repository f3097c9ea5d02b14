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

from collections.abc import Iterator, Sequence

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import is_elementwise
from autoshard.program.records import Kernel, LaidOut, MinorDims
from autoshard.program.turning import turning_of


def laid_out_for_updates(kernels: Sequence[Kernel], listing: Listing) -> dict[int, LaidOut]:
    """By argument, until the last elementwise work on it, or on what is made of it, with such a gradient, or what is made of that.

    Not in loops, which have copies of their own, nor of products that are several (attention's results).
    """
    lie, found = dict(_gradients(kernels, listing)), dict[int, LaidOut]()
    if not lie:
        return found
    shapes = [None if value.type is None else value.type.shape for value in listing.values]
    behind = {argument.value: {argument.value} for argument in listing.arguments}
    times = {op: kernel.time for kernel in kernels for op in kernel.ops}
    for number, op in enumerate(listing.ops):
        if not is_elementwise(op) or op.repeat > 1:
            continue
        arguments = set[int]().union(*(behind.get(value, ()) for value in op.operands))
        dims = next((lie[value] for value in op.operands if value in lie), None)
        if dims is not None:
            lie[op.results[0]] = dims
            for value in arguments:
                if shapes[value] == shapes[op.results[0]]:
                    known = found.get(value, LaidOut(dims, 0))
                    found[value] = known._replace(end=max(known.end, times.get(number, number) + 1))
        elif arguments:
            behind[op.results[0]] = arguments
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
