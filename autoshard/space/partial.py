"""Strategies that leave their result a partial sum, or work on partial sums.

A result is left unreduced over axes U. Those of U that split reduction factors are the kernel's own addends, which it does not add up; over
the rest, C, the operands of one linear way arrive unreduced. Split reduction axes outside U are summed by the kernel as ever.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autoshard.program import MOVES, KernelShape
from autoshard.sharding import AxisRef, FactorKind, Mesh, TensorSharding
from autoshard.space.shardings import assignments, searched_axes
from autoshard.space.strategies import Strategy, distinct, meeting

Axes = tuple[AxisRef, ...]


@dataclass(frozen=True, slots=True)
class PartialSums:
    """What may be partial around a kernel: its result, over which axes, and its operands, by way and axes."""

    kept: tuple[Axes, ...] = ()
    arriving: tuple[tuple[tuple[int, ...], Axes], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.kept)


def with_partial_sums(shape: KernelShape, found: Sequence[Strategy], sums: PartialSums) -> list[Strategy]:
    """The strategies `found`, and after them those with partial sums; a move leaves what it demands."""
    if shape.name in MOVES:
        return list(found)
    runs = distinct(found, lambda strategy: strategy.factor_axes)
    more = [strategy for run in runs for strategy in _of_run(shape, run, sums)]
    return [*found, *more]


def reducible_axes(shape: KernelShape, mesh: Mesh) -> Iterator[Axes]:
    """The axes that its reduction factors may be split over, together."""
    factors = shape.rule.factors
    sizes = [factor.size for factor in factors if factor.kind is FactorKind.REDUCTION]
    free = [axis for axis in searched_axes(mesh) if axis not in shape.manual_axes]
    for assigned in assignments(sizes, free):
        axes = tuple(sorted((axis for mine in assigned for axis in mine), key=mesh.order))
        if axes:
            yield axes


def _of_run(shape: KernelShape, run: Strategy, sums: PartialSums) -> Iterator[Strategy]:
    split = [axis for axes in run.factor_axes for axis in axes]
    own = run.reduced
    for kept in sums.kept:
        mine = [axis for axis in kept if axis in own]
        passing = tuple(axis for axis in kept if axis not in own)
        if (mine and not shape.leaves_addends) or any(a.overlaps(b) for a in passing for b in split):
            continue
        if not all(map(_comparable, (kept,), shape.demands)):
            continue
        left = replace(run, reduced=tuple(axis for axis in own if axis not in mine))
        for way in _ways(passing, sums):
            yield _with(left, way, passing, kept, shape)


def _comparable(kept: Axes, demand: TensorSharding | None) -> bool:
    """Shardy adds no axis to those that a value is unreduced over already."""
    return demand is None or set(demand.unreduced) <= set(kept)


def _ways(passing: Axes, sums: PartialSums) -> Iterator[tuple[int, ...]]:
    if not passing:
        yield ()
    else:
        yield from (way for way, axes in sums.arriving if axes == passing)


def _with(run: Strategy, way: Sequence[int], passing: Axes, kept: Axes, shape: KernelShape) -> Strategy:
    operands = tuple(
        replace(sharding, unreduced=passing) if i in way else sharding
        for i, sharding in enumerate(run.operands)
    )
    produced: tuple[TensorSharding, ...] = (replace(run.produced[0], unreduced=kept),)
    settled = tuple(map(meeting, produced, shape.demands))
    return replace(run, operands=operands, produced=produced, settled=settled)
