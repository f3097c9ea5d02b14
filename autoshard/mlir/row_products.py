"""Products of one row or column, or over one element. XLA makes them multiplications of broadcasts, and sums, before it partitions.

The vector that a product and its gradient both read is so one broadcast for both, and the sharding of the first product becomes that of
the second (libtpu 0.0.51, v5e: what a layer of a graph attention network gives back to its edges, 150 MB, was made as its forward pass is
split, and gathered). Where the plan splits the two differently, one of them is to read the vector as a value of its own.
"""

import math
from collections.abc import Callable

from autoshard.mlir.listing import Listing, Op
from autoshard.sharding import PRODUCT, AxisRef, TensorSharding, factor_axes_of

_Split = tuple[tuple[tuple[AxisRef, ...], ...], tuple[tuple[int, tuple[AxisRef, ...]], ...]]
"""How a broadcast is split: along the dimensions of what is broadcast, and along those that it gets, by size."""


def is_multiplied(op: Op) -> bool:
    """Whether XLA makes a multiplication, and a sum, of the op."""
    rule = op.rule
    if op.name != PRODUCT or rule is None or len(rule.operands) != 2:
        return False
    left, right = ({factor for dim in mapping for factor in dim} for mapping in rule.operands)
    made = {factor for dim in rule.results[0] for factor in dim}
    sizes = (
        math.prod(rule.factors[factor].size for factor in factors)
        for factors in (made & (left - right), made & (right - left), (left & right) - made)
    )
    return min(sizes) == 1


class Broadcasts:
    """What the products of one row of a program broadcast; `operand` says how an op, by number, reads an operand."""

    def __init__(self, listing: Listing, operand: Callable[[int, int], TensorSharding]) -> None:
        self._listing, self._operand = listing, operand
        self._made: dict[object, list[_Split]] = {}

    def numbers(self, index: int) -> dict[int, int]:
        """Of each operand that op `index` broadcasts: which of the ways in which products so far split that broadcast; 0 is the first."""
        op = self._listing.ops[index]
        if op.rule is None or not is_multiplied(op):
            return {}
        reads = [self._operand(index, position) for position in range(len(op.operands))]
        axes = factor_axes_of(op.rule, op.rule.operands, reads, self._listing.mesh)
        if axes is None:
            return {}
        long = {number for number, factor in enumerate(op.rule.factors) if factor.size > 1}
        found: dict[int, int] = {}
        for position, mapping in enumerate(op.rule.operands):
            own = [factor for dim in mapping for factor in dim if factor in long]
            others = sorted(
                ((op.rule.factors[factor].size, axes[factor]) for factor in long.difference(own)),
                key=lambda one: (one[0], [(axis.name, axis.pre_size) for axis in one[1]]),
            )
            if not others:
                continue
            value = self._listing.first_of(op.operands[position])
            key = value, reads[position], tuple(size for size, _ in others)
            made = self._made.setdefault(key, [])
            split = tuple(axes[factor] for factor in own), tuple(others)
            if split not in made:
                made.append(split)
            found[position] = made.index(split)
        return found
