"""How weights of several heads lie that are gathered for products: as attention layers have them, [width, heads, width of a head].

A product whose columns are two dimensions is run as a convolution, whose kernel has heads for a window: the last dimension along the lanes
and what is summed over behind it. Rows of 64 lie as an argument does, and shorter ones across, what is summed over along the lanes. So a
head of 64, 80 or 160 columns is padded to whole rows of 128 for as long as the gathered weight is there, and one of 48 is not (libtpu
0.0.52, v5e, v6e and v5p: training steps of four blocks with 4 to 16 heads of 32 to 256 columns, and of a diffusion transformer).
"""

from autoshard.mlir.listing import Listing, Op
from autoshard.program.records import MOVES, Compiler, MinorDims

_RANK, _ROW = 3, 64


def weights_of_heads(listing: Listing, compiler: Compiler) -> dict[int, MinorDims]:
    """Those that such products read, under whatever name -> the minor dimensions of what is gathered of them."""
    found: dict[int, MinorDims] = {}
    for op in reversed(listing.ops) if compiler.is_xla_tpu else ():
        if op.name in MOVES:
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
