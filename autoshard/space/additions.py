"""Strategies of kernels around additions that a compiler sums once (`program.additions`).

A kernel whose sum is such an addend leaves it unreduced: where it is not read so, the sum is the first step of the change of sharding.
One that adds reads addends over the same axes as they come, and sums what it adds; one between a sum and the addition passes them on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoshard.program import PASSED, KernelShape
from autoshard.sharding import PRODUCT, AxisRef, DimSharding, Mesh, TensorSharding, is_cut_over_all
from autoshard.space.strategies import Strategy, scattered

_Axes = tuple[AxisRef, ...]
_Arriving = Mapping[tuple[DimSharding, ...], frozenset[_Axes]]


@dataclass(frozen=True, slots=True)
class Meeting:
    """What one kernel has to do with addends.

    Attributes:
        leaves: whether its result may be left as addends.
        arriving: of each operand that may come as addends, how its provider leaves it.
    """

    leaves: bool = False
    arriving: Mapping[int, Sequence[TensorSharding]] = field(
        default_factory=dict[int, Sequence[TensorSharding]]
    )

    def __bool__(self) -> bool:
        return self.leaves or bool(self.arriving)


def with_addends(
    shape: KernelShape, found: Sequence[Strategy], meeting: Meeting, mesh: Mesh
) -> list[Strategy]:
    """The strategies `found`, those that sum leaving their addends, and after them those that read addends."""
    arriving = {i: _by_dims(shardings) for i, shardings in meeting.arriving.items()}
    reading = [more for one in found for more in _reading(shape, one, arriving, mesh, leaves=meeting.leaves)]
    left = [one for each in found for one in _left(shape, each, mesh)] if meeting.leaves else found
    return [*left, *reading]


def reads_addends(strategy: Strategy) -> bool:
    return any(operand.unreduced for operand in strategy.operands)


def _by_dims(shardings: Iterable[TensorSharding]) -> _Arriving:
    found: dict[tuple[DimSharding, ...], frozenset[_Axes]] = {}
    for sharding in shardings:
        if sharding.unreduced:
            found[sharding.dims] = found.get(sharding.dims, frozenset()) | {sharding.unreduced}
    return found


def _left(shape: KernelShape, strategy: Strategy, mesh: Mesh) -> Iterator[Strategy]:
    """The strategy that leaves the addends; of one that scatters its sum as the product runs itself, otherwise none: what is summed after
    the addition is scattered there.
    """
    if not strategy.is_scattered or shape.demands[0] is not None:
        yield _leaving(strategy)
    elif shape.name == PRODUCT and is_cut_over_all(
        strategy.produced[0], strategy.settled[0], shape.results[0].shape, mesh
    ):
        yield strategy


def _leaving(strategy: Strategy) -> Strategy:
    """The same with its sum left to whoever reads it; one that settles otherwise than it is made sums by itself."""
    if not strategy.reduced or strategy.settled != strategy.produced:
        return strategy
    made = (replace(strategy.produced[0], unreduced=strategy.reduced),)
    return replace(strategy, produced=made, settled=made, reduced=())


def _reading(
    shape: KernelShape, strategy: Strategy, arriving: Mapping[int, _Arriving], mesh: Mesh, *, leaves: bool
) -> Iterator[Strategy]:
    """The strategy with addends for operands, in every way."""
    if shape.name in PASSED:
        if leaves and 0 in arriving and strategy.settled == strategy.produced:
            for axes in _over_same(strategy, (0,), arriving, mesh):
                made = (replace(strategy.produced[0], unreduced=axes),)
                yield replace(_of_addends(strategy, (0,), axes), produced=made, settled=made)
        return
    found = [strategy]
    for number, addition in enumerate(shape.additions):
        if arriving.keys() >= set(addition.operands):
            found += [more for one in found for more in _adding(shape, one, number, arriving, mesh, leaves)]
    yield from found[1:]


def _adding(
    shape: KernelShape,
    strategy: Strategy,
    number: int,
    arriving: Mapping[int, _Arriving],
    mesh: Mesh,
    leaves: bool,
) -> Iterator[Strategy]:
    """The strategy with one more of its additions reading addends; a sum that is the result may be scattered."""
    addition = shape.additions[number]
    if any(strategy.operands[i].unreduced for i in addition.operands):
        return
    for axes in _over_same(strategy, addition.operands, arriving, mesh):
        one = _of_addends(strategy, addition.operands, axes)
        one = replace(one, added=(*strategy.added, number))
        if not addition.is_result:
            yield _leaving(one) if leaves else one
            continue
        whole = strategy.produced[0]
        made = (replace(whole, unreduced=axes),)
        is_free = strategy.settled == strategy.produced
        if leaves and is_free:
            yield replace(one, produced=made, settled=made)
            continue
        yield replace(one, produced=made)
        if is_free and shape.demands[0] is None:
            yield from (
                replace(one, produced=made, settled=(part,)) for part in scattered(whole, axes, shape, mesh)
            )


def _over_same(
    strategy: Strategy, operands: Sequence[int], arriving: Mapping[int, _Arriving], mesh: Mesh
) -> list[_Axes]:
    """Over which axes all of these operands come, split as the strategy reads them."""
    each = [arriving[i].get(strategy.operands[i].dims, frozenset[_Axes]()) for i in operands]
    split = [axis for axes in strategy.factor_axes for axis in axes]
    same = frozenset.intersection(*each)
    free = [axes for axes in same if not any(a.overlaps(b) for a in axes for b in split)]
    return sorted(free, key=lambda axes: (len(axes), [mesh.order(axis) for axis in axes]))


def _of_addends(strategy: Strategy, operands: Sequence[int], axes: _Axes) -> Strategy:
    read = (
        replace(sharding, unreduced=axes) if i in operands else sharding
        for i, sharding in enumerate(strategy.operands)
    )
    return replace(strategy, operands=tuple(read))
