"""Random meshes, axis references, shardings and rules, all of them such as Shardy accepts."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st

from autoshard.sharding import (
    AxisRef,
    DimSharding,
    Factor,
    FactorAxes,
    FactorKind,
    Mesh,
    OpShardingRule,
    TensorMapping,
    TensorSharding,
    merge_sub_axes,
)

untimed = settings(deadline=None)  # how long an example takes says nothing about the law

NAMES = ("x", "y", "z", "w")


@st.composite
def meshes(draw: st.DrawFn, sizes: Sequence[int] = (1, 2, 3, 4, 6, 8, 12)) -> Mesh:
    count = draw(st.integers(1, 4))
    return Mesh.of([(name, draw(st.sampled_from(sizes))) for name in NAMES[:count]])


@st.composite
def cuts(draw: st.DrawFn, mesh: Mesh) -> list[AxisRef]:
    """Every axis of the mesh, whole or cut into sub-axes that can stand side by side, in mesh order."""
    parts: list[AxisRef] = []
    for axis in mesh.axes:
        pre = 1
        while pre < axis.size:
            rest = axis.size // pre
            size = draw(st.sampled_from([d for d in range(2, rest + 1) if rest % d == 0]))
            parts.append(mesh.axis(axis.name, pre, size))
            pre *= size
    return parts


@st.composite
def axis_refs(draw: st.DrawFn, mesh: Mesh) -> AxisRef:
    """A whole axis of the mesh or a part of one."""
    axis = draw(st.sampled_from(mesh.axes))
    divisors = [d for d in range(1, axis.size + 1) if axis.size % d == 0]
    pre = draw(st.sampled_from(divisors))
    sizes = [d for d in divisors if d > 1 and axis.size % (pre * d) == 0]
    return mesh.axis(axis.name, pre, draw(st.sampled_from(sizes))) if sizes else mesh.axis(axis.name)


@st.composite
def dealt(draw: st.DrawFn, mesh: Mesh, slots: int) -> FactorAxes:
    """Disjoint parts of axes in so many slots, consecutive parts merged; some are left over."""
    hands: list[list[AxisRef]] = [[] for _ in range(slots + 1)]
    for part in draw(cuts(mesh).flatmap(st.permutations)):
        hands[draw(st.integers(0, slots))].append(part)
    return tuple(merge_sub_axes(hand, mesh) for hand in hands[:slots])


@st.composite
def shardings(draw: st.DrawFn, mesh: Mesh) -> TensorSharding:
    """Open and closed dimensions, priorities, replicated and unreduced axes."""
    rank = draw(st.integers(0, 4))
    *dims, replicated, unreduced = draw(dealt(mesh, rank + 2))
    return TensorSharding(
        tuple(draw(_dims(axes)) for axes in dims), _in_order(replicated, mesh), _in_order(unreduced, mesh)
    )


@st.composite
def _dims(draw: st.DrawFn, axes: tuple[AxisRef, ...]) -> DimSharding:
    is_closed = draw(st.booleans())
    has_priority = (bool(axes) or not is_closed) and draw(st.booleans())
    return DimSharding(axes, is_closed, draw(st.integers(0, 12)) if has_priority else None)


def _in_order(axes: Sequence[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    return merge_sub_axes(sorted(axes, key=mesh.order), mesh)


@st.composite
def rules(
    draw: st.DrawFn, most_factors: int = 5, sizes: Sequence[int] = (1, 2, 3, 4, 6, 8)
) -> OpShardingRule:
    """Every factor is in some tensor, at most once in each; compound dimensions and all kinds of factors."""
    count = draw(st.integers(1, most_factors))
    kinds = st.sampled_from(FactorKind)
    factors = [Factor(draw(st.sampled_from(sizes)), draw(kinds), draw(st.booleans())) for _ in range(count)]
    tensors = [draw(_mappings(list(range(count))))]
    for _ in range(draw(st.integers(1, 3))):
        subset = draw(st.sets(st.integers(0, count - 1)))
        tensors.append(draw(_mappings(sorted(subset))))
    split = draw(st.integers(1, len(tensors) - 1))
    return OpShardingRule(tuple(factors), tuple(tensors[:split]), tuple(tensors[split:]), draw(st.booleans()))


@st.composite
def _mappings(draw: st.DrawFn, factors: list[int]) -> TensorMapping:
    """These factors in any order, neighbours in one dimension now and then."""
    dims: list[list[int]] = []
    for factor in draw(st.permutations(factors)):
        if dims and draw(st.integers(0, 2)) == 0:
            dims[-1].append(factor)
        else:
            dims.append([factor])
    return tuple(map(tuple, dims))


@dataclass(frozen=True, slots=True)
class Assigned:
    """A rule and axes for each of its factors."""

    mesh: Mesh
    rule: OpShardingRule
    factor_axes: FactorAxes


@st.composite
def assigned(draw: st.DrawFn) -> Assigned:
    mesh = draw(meshes(sizes=(2, 3, 4, 6)))
    rule = draw(rules(most_factors=4, sizes=(1, 2, 3, 4, 6)))
    return Assigned(mesh, rule, draw(dealt(mesh, len(rule.factors))))
