"""In which sets of its operands a kernel is jointly linear: the linearity of its ops composed, so that partial sums can pass through."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import Group

MAX_WAYS = 8  # of a kernel: products of many factors are linear in each, sums of such in every combination


@dataclass(frozen=True, slots=True)
class LinearWay:
    """If these operands are partial sums over some axes and no others are, the result is one over the same axes."""

    operands: tuple[int, ...]  # of the kernel's rule
    inner: frozenset[int]  # values inside the kernel that are then partial as well
    free_reads: frozenset[tuple[int, int]]  # (op, operand): recomputed values that are then read as partial


@dataclass(frozen=True, slots=True)
class _State:
    partial: frozenset[int]
    whole: frozenset[int]

    def with_operands(self, partial: Iterable[int], whole: Iterable[int]) -> "_State":
        return _State(self.partial | frozenset(partial), self.whole | frozenset(whole))

    @property
    def is_consistent(self) -> bool:
        return self.partial.isdisjoint(self.whole)


def linear_ways(
    group: Group, uses: Sequence[int], listing: Listing, zeros: frozenset[int]
) -> tuple[LinearWay, ...]:
    """The ways of a kernel that reads the values `uses`, its operands; `zeros` are values that are zero everywhere."""
    root = listing.ops[group.root]
    if len(root.results) != 1:
        return ()
    states = [_State(frozenset(root.results), frozenset())]
    made = {listing.ops[index].results[0] for index in group.ops}
    for index in sorted(group.ops, reverse=True):
        states = [after for state in states for after in _through(state, index, listing)][:MAX_WAYS]
    found: dict[tuple[int, ...], LinearWay] = {}
    for state in states:
        way = _way(state, group, uses, listing, made, zeros)
        if way is not None:
            found.setdefault(way.operands, way)
    return tuple(found.values())


def _through(state: _State, index: int, listing: Listing) -> Iterable[_State]:
    """What an op of the kernel, whose readers have all been met, demands of its operands."""
    op = listing.ops[index]
    if op.results[0] not in state.partial:
        after = state.with_operands((), op.operands)
        return (after,) if after.is_consistent else ()
    ways = (frozenset(op.operands[i] for i in way) for way in op.linear)
    rest = (frozenset(v for i, v in enumerate(op.operands) if i not in way) for way in op.linear)
    each = (state.with_operands(partial, whole) for partial, whole in zip(ways, rest, strict=True))
    return [after for after in each if after.is_consistent]


def _way(
    state: _State,
    group: Group,
    uses: Sequence[int],
    listing: Listing,
    made: set[int],
    zeros: frozenset[int],
) -> LinearWay | None:
    operands = tuple(i for i, value in enumerate(uses) if value in state.partial)
    if not operands or not state.partial - made - set(uses) <= zeros:
        return None  # a scalar, or a constant that is not zero
    inner = frozenset(
        v for v in group.mapping if v in state.partial and v not in listing.ops[group.root].results
    )
    free = frozenset((r.op, r.operand) for r in group.free_reads if r.value in state.partial)
    return LinearWay(operands, inner, free)
