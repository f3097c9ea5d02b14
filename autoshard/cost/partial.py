"""Where partial sums are worth a choice: which values may stay unreduced, over which axes.

Forward, a value may be partial if a sum over split axes makes it, or something linear of a value that may be. Backward, one that may is
worth it only on the way to where addends meet (a sum of two products, a gradient accumulated by a loop) or the partial sum gets smaller
than what it is made of. A value that some other reader needs whole at least as often stays whole for all. What the user demands unreduced
always may be. Programs without such places have the choices that they had.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.program import Flow, FlowKind, FlowSource, Kernel, KernelShape, Program
from autoshard.sharding import AxisRef, Mesh, TensorSharding
from autoshard.space import PartialSums, reducible_axes

Axes = tuple[AxisRef, ...]
AxesSets = frozenset[Axes]
NONE: AxesSets = frozenset()


@dataclass(frozen=True, slots=True)
class PartialPlan:
    """By value number, the sets of axes over which it may be left partial."""

    kept: Mapping[int, AxesSets] = field(default_factory=dict[int, AxesSets])
    whole: frozenset[int] = frozenset()  # of those, the ones that no reader takes partial

    def of_kernel(self, kernel: Kernel, order: Mesh) -> PartialSums:
        """What may be partial around a kernel with one result."""
        if not kernel.results:
            return PartialSums()
        arriving = {
            (way.operands, axes): None
            for way in kernel.ways
            for i in way.operands
            if kernel.uses[i].value not in self.whole
            for axes in in_order(self.kept.get(kernel.uses[i].value, NONE), order)
        }
        return PartialSums(in_order(self.kept.get(kernel.results[0], NONE), order), tuple(arriving))

    def of_value(self, value: int, order: Mesh) -> tuple[Axes, ...]:
        return in_order(self.kept.get(value, NONE), order)


def in_order(sets: Iterable[Axes], mesh: Mesh) -> tuple[Axes, ...]:
    return tuple(sorted(sets, key=lambda axes: (len(axes), [mesh.order(axis) for axis in axes])))


def plan_partial_sums(
    program: Program, mesh: Mesh, demanded: Mapping[int, Sequence[TensorSharding]]
) -> PartialPlan:
    """Args:
    demanded: the user's shardings of values; the unreduced ones seed the analysis.
    """
    seeds = {
        value: frozenset(s.unreduced for s in shardings if s.unreduced)
        for value, shardings in demanded.items()
        if any(s.unreduced for s in shardings)
    }
    if not seeds and not any(kernel.shape.leaves_addends for kernel in program.kernels):
        return PartialPlan()
    return _Analysis(program, mesh, seeds).plan()


def _may_carry_partial(flow: Flow) -> bool:
    """The edge of a manual computation takes partial sums only where the user says so."""
    is_asked = any(demand.unreduced for demand in flow.demands)
    return flow.kind is FlowKind.CARRIED and (flow.crossing is None or is_asked)


def _without(manual: Axes, sets: AxesSets) -> AxesSets:
    """Those over none of the manual axes."""
    return frozenset(axes for axes in sets if not set(manual) & set(axes))


class _Analysis:
    def __init__(self, program: Program, mesh: Mesh, seeds: Mapping[int, AxesSets]) -> None:
        self._program, self._mesh, self._seeds = program, mesh, seeds
        self._carried = [flow for flow in program.flows if _may_carry_partial(flow)]
        self._kernel_of = {k.results[0]: k for k in program.kernels if len(k.results) == 1}
        self._whole = self._needed_whole() - seeds.keys()
        self._readers = Counter(use.value for kernel in program.kernels for use in kernel.uses)
        self._readers.update(source.value for flow in program.flows for source in flow.sources)
        self._own: dict[KernelShape, AxesSets] = {}
        self.may: dict[int, AxesSets] = dict(seeds)

    def plan(self) -> PartialPlan:
        while self._forward():
            pass
        alive = set(self._seeds) | {
            kernel.results[0] for kernel in self._kernel_of.values() if self._pays_off(kernel)
        }
        while self._backward(alive):
            pass
        kept = {value: self.may[value] for value in alive if self.may.get(value)}
        return PartialPlan(kept, frozenset(self._whole))

    def _needed_whole(self) -> set[int]:
        """Values that a reader which is not linear in them reads at least as often as any that is."""
        whole: dict[int, int] = {}
        linear: dict[int, int] = {}
        for kernel in self._program.kernels:
            passing = {i for way in kernel.ways for i in way.operands}
            for i, use in enumerate(kernel.uses):
                reads = linear if i in passing else whole
                reads[use.value] = max(reads.get(use.value, 0), kernel.repeat)
        for flow in self._program.flows:
            for source in flow.sources:
                reads = linear if _may_carry_partial(flow) else whole
                reads[source.value] = max(reads.get(source.value, 0), source.repeat)
        return {value for value, times in whole.items() if value in linear and times >= linear[value]}

    def _arriving(self, value: int) -> AxesSets:
        """Over which axes readers may find the value partial, if it may be at all."""
        return NONE if value in self._whole else self.may.get(value, NONE)

    def _forward(self) -> bool:
        changes = False
        for value, kernel in self._kernel_of.items():
            if self._program.listing.values[value].type is not None and kernel.shape.results[0].rank:
                changes |= self._add(value, self._of_kernel(kernel))
        for flow in self._carried:
            if self._can_carry(flow.sources):
                arriving = (self._arriving(source.value) for source in flow.sources)
                changes |= self._add(flow.value, *(_without(flow.manual_axes, sets) for sets in arriving))
        return changes

    def _can_carry(self, sources: Iterable[FlowSource]) -> bool:
        """Recomputed values are partial only where they are zero."""
        cloneable, zeros = self._program.cloneable, self._program.zeros
        return all(s.value not in cloneable or s.value in zeros for s in sources)

    def _add(self, value: int, *sets: AxesSets) -> bool:
        before = self.may.get(value, NONE)
        self.may[value] = before.union(*sets)
        return self.may[value] != before

    def _of_kernel(self, kernel: Kernel) -> AxesSets:
        own = self._own_sums(kernel.shape)
        through = {
            axes for way in kernel.ways for i in way.operands for axes in self._arriving(kernel.uses[i].value)
        }
        both = {
            tuple(sorted((*a, *b), key=self._mesh.order))
            for a in own
            for b in through
            if not any(x.overlaps(y) for x in a for y in b)
        }
        return own | through | both

    def _own_sums(self, shape: KernelShape) -> AxesSets:
        if not shape.leaves_addends:
            return NONE
        if shape not in self._own:
            self._own[shape] = frozenset(reducible_axes(shape, self._mesh))
        return self._own[shape]

    def _pays_off(self, kernel: Kernel) -> bool:
        """Whether addends meet here, or what is partial gets smaller on its only way."""
        result = kernel.shape.results[0]
        if not result.rank:
            return False
        for way in kernel.ways:
            arriving = [(i, self._arriving(kernel.uses[i].value)) for i in way.operands]
            partial = [(i, axes) for i, axes in arriving if axes]
            if len(partial) > 1 and any(a & b for n, (_, a) in enumerate(partial) for _, b in partial[:n]):
                return True
            if any(
                self._readers.get(kernel.uses[i].value) == 1
                and kernel.shape.operands[i].num_bytes > result.num_bytes
                for i, _ in partial
            ):
                return True
        return False

    def _backward(self, alive: set[int]) -> bool:
        before = len(alive)
        for value in list(alive):
            kernel = self._kernel_of.get(value)
            if kernel is not None:
                uses = {kernel.uses[i].value for way in kernel.ways for i in way.operands}
                alive.update(v for v in uses if self._arriving(v))
        for flow in self._carried:
            if flow.value in alive:
                alive.update(s.value for s in flow.sources if self._arriving(s.value))
        return len(alive) > before
