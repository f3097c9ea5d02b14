"""Which factors of a kernel may be split, and in how many parts at most."""

from autoshard.program import KernelShape
from autoshard.sharding import FactorKind

_WINDOWED = frozenset(
    {
        "stablehlo.convolution", "stablehlo.pad", "stablehlo.reduce_window", "stablehlo.reverse",
        "stablehlo.select_and_scatter", "stablehlo.slice",
    }
)  # fmt: skip
"""Ops whose permutation factors may be split: the rows that they need of other devices are known.

Not concatenate: where its rule has such a factor (its operands are slices), Shardy moves the operands once more.
"""


def may_split(shape: KernelShape, factor: int) -> bool:
    match shape.rule.factors[factor].kind:
        case FactorKind.NEED_REPLICATION:
            return False
        case FactorKind.PERMUTATION:
            return shape.name in _WINDOWED
        case _:
            return True


def useful_sizes(shape: KernelShape) -> list[int]:
    """Factor sizes, capped by the real dimension where a rule's factor is larger (windows, padding)."""
    rule = shape.rule
    sizes = [factor.size for factor in rule.factors]
    tensors = zip((*rule.operands, *rule.results), (*shape.operands, *shape.results), strict=True)
    for mapping, type_ in tensors:
        for dim, size in zip(mapping, type_.shape, strict=True):
            if len(dim) == 1:
                sizes[dim[0]] = min(sizes[dim[0]], size)
    return sizes
