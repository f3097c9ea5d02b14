"""Weights and their state that XLA for TPUs copies into the layout of a gradient, where the update is made.

A product's gradient of a weight is transposed to lie as the weight does. Where that puts the second operand's dimensions in front of the
first one's, the product is made so. Where it moves one between two others (heads, columns that are summed over, columns of a head, as
Gemma's queries), it stays as it is made, and all that is updated with it is copied into that layout and back. XLA for v5e does so when the
program begins, beside what it sends meanwhile: of all that such weights, momenta and squares take on a device there are two until the
update (libtpu 0.0.52: SGD, Adafactor and AdamW in bfloat16 and float32, whole and split over 16 devices; 24 blocks of 8 heads and AdamW
1.13, 34 blocks of Gemma 3 1.22 of what was predicted). For v5p and v6e it does so right before the update, and for v5e in programs that
gather nothing, which is not told apart here.
"""

from collections.abc import Iterator, Sequence

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import is_elementwise, rule_of
from autoshard.program.records import Kernel, LaidOut, MinorDims

_TRANSPOSE = "stablehlo.transpose"


def laid_out_for_updates(kernels: Sequence[Kernel], listing: Listing) -> dict[int, LaidOut]:
    """By argument, until the last elementwise work on it, or on what is made of it, with such a gradient, or what is made of that."""
    lie, found = dict(_gradients(kernels, listing)), dict[int, LaidOut]()
    if not lie:
        return found
    shapes = [None if value.type is None else value.type.shape for value in listing.values]
    behind = {argument.value: {argument.value} for argument in listing.arguments}
    times = {op: kernel.time for kernel in kernels for op in kernel.ops}
    for number, op in enumerate(listing.ops):
        if not is_elementwise(op):
            continue
        arguments = set[int]().union(*(behind.get(value, ()) for value in op.operands))
        dims = next((lie[value] for value in op.operands if value in lie), None)
        if dims is not None:
            lie[op.results[0]] = dims
            copy = LaidOut(dims, times.get(number, number) + 1)
            found |= {value: copy for value in arguments if shapes[value] == shapes[op.results[0]]}
        elif arguments:
            behind[op.results[0]] = arguments
    return found


def _gradients(kernels: Sequence[Kernel], listing: Listing) -> Iterator[tuple[int, MinorDims]]:
    """What transpositions alone make of products that stay as they are made: the products' last two dimensions are minor."""
    for kernel in kernels:
        if not kernel.shape.is_matmul or kernel.shape.is_turned:
            continue
        match listing.sites.get(kernel.results[0], ()):
            case [(number, 0)] if number >= 0 and listing.ops[number].name == _TRANSPOSE:
                rule = rule_of(listing.ops[number], listing)
                row, lane = (rule.results[0].index(factors) for factors in rule.operands[0][-2:])
                if (row, lane) != (len(rule.results[0]) - 2, len(rule.results[0]) - 1):
                    yield listing.ops[number].results[0], ((lane,), (row,), True)
            case _:
                pass
