"""How weights of several heads lie that are gathered for products: as attention layers have them, [width, heads, width of a head].

A product whose columns are two dimensions is run as a convolution, whose kernel has heads for a window: the last dimension along the lanes
and what is summed over behind it. Rows of 64 lie as an argument does, and shorter ones across, what is summed over along the lanes. So a
head of 64, 80 or 160 columns is padded to whole rows of 128 for as long as the gathered weight is there, and one of 48 is not (libtpu
0.0.52, v5e, v6e and v5p: training steps of four blocks with 4 to 16 heads of 32 to 256 columns, and of a diffusion transformer).
"""

import numpy as np
from numpy.typing import NDArray

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, FREE_LEAVES, RESHAPE, is_elementwise
from autoshard.program.records import MOVES, Compiler, MinorDims

_RANK, _ROW, _MOST_ROWS = 3, 64, 8192
_CONVERT, _NAMES = "stablehlo.convert", MOVES | {RESHAPE}


def weights_of_heads(listing: Listing, compiler: Compiler) -> dict[int, MinorDims]:
    """Those that such products read, under whatever name -> the minor dimensions of what is gathered of them."""
    found: dict[int, MinorDims] = {}
    for op in reversed(listing.ops) if compiler.is_xla_tpu else ():
        if op.name in MOVES or op.name == _CONVERT:
            moved = zip(op.operands, op.results, strict=True)
            found.update((value, found[result]) for value, result in moved if result in found)
        elif op.is_matmul:
            for number, value in enumerate(op.operands):
                type_ = listing.values[value].type
                if type_ is not None and _has_heads(op, number):
                    lanes = type_.shape[-1]
                    if lanes >= _ROW:
                        found[value] = ((2,), (1,) if lanes == _ROW else (0,), True)
    return found


def scaled_weights(listing: Listing) -> frozenset[int]:
    """Work on arguments, more than a conversion, that such products read or that is reshaped along the lanes for one.

    The kernel of that convolution is a reshape of it, and XLA fuses nothing into a product that a reshape is before: quantized weights are
    scaled once, for the forward and the backward pass (int8 and bfloat16 by a scale a row, a column or a group, twelve layers; libtpu
    0.0.52, v5e, v6e and v5p). Groups of whole rows of a matrix are scaled inside the product up to 8192 rows (4096 and 8192, not 10240 to
    14336, in groups of 64, 128 and 256), and so are weights with heads in front.
    """
    of_arguments = {argument.value for argument in listing.arguments}
    worked_out, found = set[int](), set[int]()
    behind: dict[
        int, tuple[int, bool]
    ] = {}  # of a name the work, and whether it was reshaped along the lanes
    for op in listing.ops:
        is_made_here = bool(op.operands) and of_arguments.issuperset(op.operands)
        if op.is_matmul:
            for number, value in enumerate(op.operands):
                work, is_reshaped = behind.get(value, (value, False))
                if work in worked_out and (is_reshaped or _has_heads(op, number)):
                    found.add(work)
        elif op.name in FREE_LEAVES:
            of_arguments.update(op.results)
        elif is_made_here and op.name in _NAMES:
            of_arguments.update(op.results)
            work, was_reshaped = behind.get(op.operands[0], (op.operands[0], False))
            behind[op.results[0]] = work, was_reshaped or _is_in_front(op, listing)
        elif is_made_here and (op.name in (BROADCAST, _CONVERT) or is_elementwise(op)):
            of_arguments.update(op.results)
            if op.name not in (BROADCAST, _CONVERT):
                worked_out.update(op.results)
    return frozenset(found)


def _is_in_front(op: Op, listing: Listing) -> bool:
    """Whether it makes one dimension of the last two, or of the first two more rows than are scaled inside a product."""
    before, after = (listing.values[values[0]].type for values in (op.operands, op.results))
    if op.name != RESHAPE or before is None or after is None or not 0 < after.rank < before.rank:
        return False
    groups, rows, *_ = before.shape
    *_, outer, lanes = before.shape
    merges_lanes = outer > 1 and after.shape[-1] == outer * lanes
    return merges_lanes or (groups > 1 and after.shape[0] == groups * rows and after.shape[0] > _MOST_ROWS)


def lie_for_heads(parts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[K] whether what a device has of such a weight, [K, 3], has several heads still, and rows of half the lanes or more."""
    return (parts[:, 1] > 1) & (parts[:, 2] >= _ROW)


def _has_heads(product: Op, operand: int) -> bool:
    """Whether the first of three dimensions is summed over and the others are not, nor has the other operand one of them."""
    if product.rule is None or len(product.rule.operands[operand]) != _RANK:
        return False
    (summed, *columns), (made,) = product.rule.operands[operand], product.rule.results
    other = {factor for dim in product.rule.operands[1 - operand] for factor in dim}
    results = {factor for dim in made for factor in dim}
    return (
        other.issuperset(summed)
        and results.isdisjoint(summed)
        and all(len(dim) == 1 and product.rule.factors[dim[0]].size > 1 for dim in columns)
        and all(other.isdisjoint(dim) and results.issuperset(dim) for dim in columns)
    )
