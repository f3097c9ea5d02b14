"""Where a mesh axis is cut in two, because a factor takes a part of it and not the whole: 12 heads on an axis of 8 take `"x":(1)4`.

A factor of size n needs axis x cut at g = gcd(n, |x|) where 1 < g < |x|. The major part is for the factor, the rest is free for others,
which is also how Shardy fills a compound dimension: `[4096] -> [8, 512]` under an axis of 16 gives `"x":(1)8` to the 8 and `"x":(8)2` to
the 512. Who needs a cut: the leading factors of compound dimensions, which must divide evenly, and factors of contractions that
would be padded by more than a fifth or have fewer elements than the axis has devices. Values carry a cut along their dimensions to
the kernels and flows beside, as far as the next contraction that does not batch over it, so that it does not end in a reshard.
Each kernel and value takes at most one cut of each axis: first come those of compound dimensions, then the largest. Of axes of one size
one is cut, since the others would only say the same again.
"""

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autoshard.program import Flow, FlowKind, Kernel, KernelShape, Program
from autoshard.sharding import AxisRef, FactorKind, Mesh, TensorMapping
from autoshard.space.factors import may_split, useful_sizes
from autoshard.space.shardings import Cut, searched_axes

_WORTH_CUTTING = 1.25  # padded over real size, from where on a factor of a contraction has its axes cut

Cuts = tuple[Cut, ...]


@dataclass(frozen=True, slots=True)
class ProgramCuts:
    """Of every kernel by factor, of every flow by dimension; in the order of the program's."""

    kernels: tuple[Cuts, ...]
    flows: tuple[Cuts, ...]


def find_cuts(program: Program, mesh: Mesh) -> ProgramCuts:
    """The cuts that the planner considers in each kernel and each carried flow; none where all that matters divides."""
    search = _Search(program, mesh)
    for kernel, cut in _needs(program, mesh):
        search.spread(kernel, cut)
    return ProgramCuts(tuple(map(tuple, search.of_kernel)), tuple(map(tuple, search.of_flow)))


def _needs(program: Program, mesh: Mesh) -> Iterator[tuple[int, Cut]]:
    """(kernel, cut of a factor), the most urgent first."""
    found: list[tuple[bool, int, int, Cut]] = []
    axes = _axes_to_cut(program, mesh)
    needs: dict[KernelShape, list[tuple[bool, Cut]]] = {}
    for number, kernel in enumerate(program.kernels):
        if kernel.shape not in needs:
            needs[kernel.shape] = list(_needs_of(kernel.shape, axes, mesh))
        found += [(is_forced, cut.head.size, number, cut) for is_forced, cut in needs[kernel.shape]]
    for _, _, number, cut in sorted(found, key=lambda need: (not need[0], -need[1])):
        yield number, cut


def _axes_to_cut(program: Program, mesh: Mesh) -> list[AxisRef]:
    """One of each size: that which the fewest demands put on a leading dimension, as a batch, and of those the minor-most."""
    leading = Counter(
        axis.name
        for flow in program.flows
        for demand in flow.demands
        if not demand.is_foreign
        for axis in demand.axes[0]
    )
    best: dict[int, AxisRef] = {}
    for axis in searched_axes(mesh):
        other = best.get(axis.size)
        if other is None or leading[axis.name] <= leading[other.name]:
            best[axis.size] = axis
    return list(best.values())


def _needs_of(shape: KernelShape, axes: Sequence[AxisRef], mesh: Mesh) -> Iterator[tuple[bool, Cut]]:
    leading = {
        dim[0] for mapping in (*shape.rule.operands, *shape.rule.results) for dim in mapping if len(dim) > 1
    }
    for factor, size in enumerate(useful_sizes(shape)):
        is_window = shape.rule.factors[factor].kind is FactorKind.PERMUTATION
        if not may_split(shape, factor) or is_window or (factor not in leading and not shape.is_matmul):
            continue
        for axis in axes:
            part = math.gcd(size, axis.size)
            padded = -(-size // axis.size) * axis.size
            if 1 < part < axis.size and (factor in leading or padded > _WORTH_CUTTING * size):
                yield factor in leading, _cut(factor, axis, part, mesh)


def _cut(slot: int, axis: AxisRef, size: int, mesh: Mesh) -> Cut:
    return Cut(slot, mesh.axis(axis.name, 1, size), mesh.axis(axis.name, size, axis.size // size))


class _Search:
    """Spreads cuts from kernel to kernel over the values between them."""

    def __init__(self, program: Program, mesh: Mesh) -> None:
        self._program, self._mesh = program, mesh
        self.of_kernel: list[list[Cut]] = [[] for _ in program.kernels]
        self.of_flow: list[list[Cut]] = [[] for _ in program.flows]
        self._of_value: set[tuple[int, str]] = set()
        self._kernels: dict[int, list[tuple[int, TensorMapping]]] = {}
        self._flows: dict[int, list[int]] = {}
        for number, kernel in enumerate(program.kernels):
            for value, mapping in _tensors(kernel):
                self._kernels.setdefault(value, []).append((number, mapping))
        for number, flow in enumerate(program.flows):
            if flow.kind is FlowKind.CARRIED:
                for value in _values_of(flow):
                    self._flows.setdefault(value, []).append(number)

    def spread(self, kernel: int, cut: Cut) -> None:
        """Give the kernel this cut of a factor if it has none of that axis, and hand it on."""
        if not _take(self.of_kernel[kernel], cut):
            return
        queue = deque(self._handed_on(kernel, cut))
        while queue:
            value, at = queue.popleft()
            if (value, at.head.name) in self._of_value:
                continue
            self._of_value.add((value, at.head.name))
            for flow in self._flows.get(value, ()):
                _take(self.of_flow[flow], at)
                queue.extend((other, at) for other in _values_of(self._program.flows[flow]))
            for other, mapping in self._kernels.get(value, ()):
                queue.extend(self._joined(other, mapping, at))

    def _joined(self, kernel: int, mapping: TensorMapping, at: Cut) -> Iterator[tuple[int, Cut]]:
        shape = self._program.kernels[kernel].shape
        dim = mapping[at.slot]
        if not dim or not may_split(shape, dim[0]) or useful_sizes(shape)[dim[0]] % at.head.size:
            return
        cut = Cut(dim[0], at.head, at.tail)
        if _take(self.of_kernel[kernel], cut) and shape.matmul_roles[dim[0] :][:1] in ("", "b"):
            yield from self._handed_on(kernel, cut)

    def _handed_on(self, kernel: int, cut: Cut) -> Iterator[tuple[int, Cut]]:
        """The cut as one of dimensions of the kernel's operands and results."""
        for value, mapping in _tensors(self._program.kernels[kernel]):
            for number, dim in enumerate(mapping):
                if dim and dim[0] == cut.slot:
                    yield value, Cut(number, cut.head, cut.tail)


def _take(cuts: list[Cut], cut: Cut) -> bool:
    if any(cut.head.name == other.head.name for other in cuts):
        return False
    cuts.append(cut)
    return True


def _tensors(kernel: Kernel) -> Iterator[tuple[int, TensorMapping]]:
    rule = kernel.shape.rule
    yield from zip((use.value for use in kernel.uses), rule.operands, strict=True)
    yield from zip(kernel.results, rule.results, strict=True)


def _values_of(flow: Flow) -> Sequence[int]:
    return (flow.value, *(source.value for source in flow.sources))
