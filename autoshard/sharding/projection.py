"""Between the two views of a strategy: axes per factor of a rule, and axes per dimension of each tensor.

Compound dimensions fill their major factor first; a later factor may be split only when every earlier one is split completely, and a
factor that is not the last must divide exactly (Shardy's sharding projection; there are no strided views).
"""

from collections.abc import Sequence

from autoshard.sharding.mesh import AxisRef, Mesh, merge_sub_axes, total_size
from autoshard.sharding.rule import OpShardingRule, TensorMapping
from autoshard.sharding.tensor import TensorSharding

FactorAxes = tuple[tuple[AxisRef, ...], ...]  # axes of each factor of a rule, major to minor


def tensor_sharding(
    rule: OpShardingRule, mapping: TensorMapping, factor_axes: Sequence[Sequence[AxisRef]], mesh: Mesh
) -> TensorSharding | None:
    """The sharding of a tensor under `factor_axes`, or None where the fill order of a compound dimension forbids it."""
    dims: list[tuple[AxisRef, ...]] = []
    for dim in mapping:
        axes: list[AxisRef] = []
        for position, factor in enumerate(dim):
            mine, size = factor_axes[factor], rule.factors[factor].size
            if not mine:
                continue
            if any(total_size(factor_axes[f]) != rule.factors[f].size for f in dim[:position]):
                return None
            if (position < len(dim) - 1 or axes) and size % total_size(mine) != 0:
                return None  # padding inside a dimension, or blocks that cross factors
            axes.extend(mine)
        dims.append(merge_sub_axes(axes, mesh))
    return TensorSharding.closed(dims)


def factor_axes_of(
    rule: OpShardingRule, mappings: Sequence[TensorMapping], shardings: Sequence[TensorSharding], mesh: Mesh
) -> FactorAxes | None:
    """The axes per factor that give exactly these shardings of these tensors, or None where none do: ops run on the plan's mesh."""
    if any(sharding.is_foreign for sharding in shardings):
        return None
    axes: list[tuple[AxisRef, ...] | None] = [None] * len(rule.factors)
    for mapping, sharding in zip(mappings, shardings, strict=True):
        for dim, wanted in zip(mapping, sharding.axes, strict=True):
            split = _split_by_factors([rule.factors[f].size for f in dim], wanted, mesh)
            if split is None:
                return None
            for factor, mine in zip(dim, split, strict=True):
                if axes[factor] is not None and axes[factor] != mine:
                    return None
                axes[factor] = mine
    flat = [axis for mine in axes for axis in mine or ()]
    if any(a.overlaps(b) for i, a in enumerate(flat) for b in flat[:i]):
        return None
    return tuple(mine or () for mine in axes)


def _split_by_factors(
    sizes: Sequence[int], axes: Sequence[AxisRef], mesh: Mesh
) -> list[tuple[AxisRef, ...]] | None:
    """Hand `axes` to factors of these sizes, major first, cutting an axis where a factor ends inside it."""
    split: list[tuple[AxisRef, ...]] = []
    rest = list(axes)
    for position, size in enumerate(sizes):
        if position == len(sizes) - 1:
            split.append(tuple(rest))
            rest = []
            break
        mine: list[AxisRef] = []
        while rest and size > 1:
            head = rest[0]
            if size % head.size == 0:
                mine.append(rest.pop(0))
                size //= head.size
            elif head.size % size == 0:
                mine.append(mesh.axis(head.name, head.begin, size))
                rest[0] = mesh.axis(head.name, head.begin * size, head.size // size)
                size = 1
            else:
                return None
        split.append(tuple(mine))
    return split if not rest else None
