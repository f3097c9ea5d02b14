"""Axes as parts, and Shardy's projection of dimension shardings on the factors of a rule, and back.

A part (name, begin, end) is what lies between two products of major sizes of a mesh axis: `"x"` of size 8 is (x, 1, 8), `"x":(2)2` is
(x, 2, 4). Parts that continue each other are always joined, so equal splits are equal values. The projection follows Shardy's
`buildTensorFactorShardings`: a compound dimension fills its major factor first, every factor but the last exactly.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

from autoshard.sharding import AxisRef, FactorKind, Mesh, OpShardingRule, TensorMapping, TensorSharding
from autoshard.sharding.rule import factor_symbol

Part = tuple[str, int, int]
Parts = tuple[Part, ...]
FactorParts = tuple[Parts, ...]  # of every factor of a rule


def parts_of(axes: Iterable[AxisRef]) -> Parts:
    return joined((axis.name, axis.begin, axis.end) for axis in axes)


def joined(parts: Iterable[Part]) -> Parts:
    """The same split with parts that continue each other made one."""
    result: list[Part] = []
    for name, begin, end in parts:
        if result and result[-1][0] == name and result[-1][2] == begin:
            begin = result.pop()[1]
        result.append((name, begin, end))
    return tuple(result)


def pieces(parts: Iterable[Part], *cuts: Iterable[Part]) -> frozenset[Part]:
    """Parts cut wherever one of them or of `cuts` begins or ends, so that what is the same of two splits is equal."""
    mine = list(parts)
    ends: dict[str, set[int]] = {}
    for name, begin, end in chain(mine, *cuts):
        ends.setdefault(name, set()).update((begin, end))
    found = set[Part]()
    for name, begin, end in mine:
        inside = sorted(point for point in ends[name] if begin <= point <= end)
        found.update((name, first, last) for first, last in pairwise(inside))
    return frozenset(found)


def continued(before: Parts, after: Parts) -> Parts | None:
    """What `after` splits by beyond `before`, None where it does not begin like that; the last part may have grown in place."""
    for name, begin, end in before:
        if not after or after[0][:2] != (name, begin) or after[0][2] < end:
            return None
        stop = after[0][2]
        after = after[1:] if stop == end else ((name, end, stop), *after[1:])
    return after


def num_shards(parts: Parts) -> int:
    return math.prod(end // begin for _, begin, end in parts)


def axis_refs(parts: Parts, mesh: Mesh) -> tuple[AxisRef, ...]:
    return tuple(mesh.axis(name, begin, end // begin) for name, begin, end in parts)


def overlapping(parts: Sequence[Part]) -> str | None:
    """The name of an axis of which some devices are used twice."""
    for position, (name, begin, end) in enumerate(parts):
        if any(name == other and begin < stop and start < end for other, start, stop in parts[:position]):
            return name
    return None


def dealt(parts: Parts, sizes: Sequence[int]) -> list[Parts] | None:
    """`parts` handed to factors of these sizes, major first; None where an axis would straddle a factor unevenly."""
    left = list(parts)
    shares: list[Parts] = []
    for size in sizes[:-1]:
        mine: list[Part] = []
        while left and size > 1:
            name, begin, end = left.pop(0)
            taken = math.gcd(end // begin, size)
            if taken < min(end // begin, size):
                return None
            mine.append((name, begin, begin * taken))
            if begin * taken < end:
                left.insert(0, (name, begin * taken, end))
            size //= taken
        shares.append(joined(mine))
    if sizes:
        shares.append(joined(left))
        return shares
    return None if left else shares


def project(
    rule: OpShardingRule, tensors: Iterable[tuple[TensorMapping, TensorSharding]]
) -> FactorParts | str:
    """The axes of each factor that these shardings give, or what is inconsistent about them."""
    found: list[Parts | None] = [None] * len(rule.factors)
    for mapping, sharding in tensors:
        for number, (dim, dim_sharding) in enumerate(zip(mapping, sharding.dims, strict=True)):
            shares = dealt(parts_of(dim_sharding.axes), [rule.factors[f].size for f in dim])
            if shares is None:
                return f"dimension {number} of {sharding} does not split by the factors of {rule}"
            for factor, share in zip(dim, shares, strict=True):
                earlier = found[factor]
                if earlier is not None and earlier != share:
                    return f"factor {factor_symbol(factor)} is split as {text(earlier)} and as {text(share)} in {rule}"
                found[factor] = share
    return tuple(parts or () for parts in found)


def conflict(rule: OpShardingRule, factors: FactorParts) -> str | None:
    """Why the op cannot run on these factor axes without a reshard, if it cannot."""
    for number, (factor, parts) in enumerate(zip(rule.factors, factors, strict=True)):
        if parts and factor.kind is FactorKind.NEED_REPLICATION:
            return f"factor {factor_symbol(number)} must stay whole and is split as {text(parts)} in {rule}"
    twice = overlapping([part for parts in factors for part in parts])
    return f'axis "{twice}" splits two factors of {rule}' if twice is not None else None


def tensor_sharding(mapping: TensorMapping, factors: FactorParts, mesh: Mesh) -> TensorSharding:
    """The sharding of a tensor whose dimensions map to these factors."""
    dims = (joined(part for factor in dim for part in factors[factor]) for dim in mapping)
    return TensorSharding.closed([axis_refs(parts, mesh) for parts in dims])


def text(parts: Parts) -> str:
    return "{" + ", ".join(f"{name}:({begin}){end // begin}" for name, begin, end in parts) + "}"
