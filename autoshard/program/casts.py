"""Casts that products read inside, of a compiler whose products are a library's.

What such a product reads is stored. But one of few rows waits for its weights, and XLA for GPUs then takes a kernel of its own, which reads
them as they are and casts them on the way: so decode steps do, whose weights are float32 and whose products are bfloat16 (two of them on an
H100, 32 and 64 rows; weights that 2000 rows and more are multiplied by are cast first, experiments/calibration).
"""

import math

from autoshard.mlir.listing import Listing, Op

FEW_ROWS = 256
"""Rows of the whole program up to which a GPU waits for the weights: it multiplies some 235 times for a byte it reads."""

_CONVERT = "stablehlo.convert"
_RELAYING = frozenset({"stablehlo.transpose", "stablehlo.reshape", "sdy.sharding_constraint"})


def cast_inside(listing: Listing) -> frozenset[int]:
    """Casts of arguments, as they are or transposed, that only products of few rows read."""
    arguments, casts = {argument.value for argument in listing.arguments}, set[int]()
    for op in listing.ops:
        if op.name in _RELAYING and not arguments.isdisjoint(op.operands[:1]):  # none of a constant
            arguments.update(op.results)
        if op.name == _CONVERT and op.operands[0] in arguments:
            casts.update(op.results)
    read_otherwise = {result.value for result in listing.results}
    for op in listing.ops:
        read_otherwise.update(
            value for number, value in enumerate(op.operands) if not _has_few_rows(op, number)
        )
    read_otherwise.update(source.value for flow in listing.data_flows for source in flow.sources)
    return frozenset(casts - read_otherwise)


def _has_few_rows(op: Op, number: int) -> bool:
    """Whether little is multiplied by each element of the operand."""
    if not op.is_matmul or op.rule is None or number > 1:
        return False
    own, others = (
        {factor for dim in op.rule.operands[which] for factor in dim} for which in (number, 1 - number)
    )
    return math.prod(op.rule.factors[factor].size for factor in others - own) <= FEW_ROWS
