"""Which arguments hold the batch, and along which dimension: found from the program, not from names.

A dimension is the batch as far as the program keeps it whole: it follows the kernels' rules from the arguments to the matrix
multiplications and is never summed over on the way. It is the leading one, or the second where a loop steps through the first
(microbatches, time). Of the types of arguments, the one with the most such work wins. Others of the same size there go with it (labels,
masks) where all kernels that both reach have them along the same factor, or where they bring as much work by themselves (the other
tower of two); parameters can have the size by chance.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from autoshard.program.records import Flow, FlowKind, Kernel, Program
from autoshard.sharding import FactorKind, TensorType

AS_MUCH = 4  # one part in so many of the most


class Batch(NamedTuple):
    """An argument, and which of its dimensions is the batch."""

    argument: Flow
    dim: int


def batch_arguments(program: Program) -> tuple[Batch, ...]:
    """Arguments that hold the batch, in argument order; empty where no work follows one."""
    carried = {argument for _, argument in program.carried_pairs}
    state = {program.listing.arguments[index].value for index in carried}
    by_type: dict[TensorType, list[Flow]] = {}
    for flow in program.flows:
        if flow.kind is FlowKind.ARGUMENT and flow.value not in state:
            by_type.setdefault(flow.type, []).append(flow)
    leading = {type_: _leading(program, flows) for type_, flows in by_type.items()}
    work = {type_: most for type_, (_, most) in leading.items()}
    best = max(work, key=lambda type_: (work[type_], -type_.num_bytes * len(by_type[type_])), default=None)
    if best is None or work[best] <= 0:
        return ()
    size = best.shape[leading[best][0]]
    factors = {
        id(kernel): along for kernel, along in _marked_kernels(program, by_type[best], leading[best][0])
    }
    return tuple(
        Batch(flow, dim)
        for flow in program.flows
        if flow in by_type.get(flow.type, ())
        and flow.type.shape[dim := leading[flow.type][0]] == size
        and (work[flow.type] * AS_MUCH >= work[best] or _goes_with(program, by_type[flow.type], dim, factors))
    )


def _leading(program: Program, flows: list[Flow]) -> tuple[int, int]:
    """The first dimension, or the second where no product has the first; and the work along it."""
    shape = flows[0].type.shape
    if shape[0] == 1:
        return 0, 0
    for dim in range(min(2, len(shape))):
        if any(kernel.shape.is_matmul for kernel, _ in _marked_kernels(program, flows, dim)):
            return dim, _work_along(program, flows, dim) if shape[dim] > 1 else 0
    return 0, _work_along(program, flows, 0)


def _goes_with(program: Program, flows: list[Flow], dim: int, factors: Mapping[int, set[int]]) -> bool:
    met = [(factors[id(k)], along) for k, along in _marked_kernels(program, flows, dim) if id(k) in factors]
    return bool(met) and all(along <= theirs for theirs, along in met)


def _work_along(program: Program, flows: list[Flow], dim: int) -> int:
    """FLOPs of kernels that keep the dimension, less those that sum over it."""
    work = 0
    for kernel, factors in _marked_kernels(program, flows, dim):
        kinds = {kernel.shape.rule.factors[f].kind for f in factors}
        flops = kernel.shape.flops * kernel.repeat * (100 if kernel.shape.is_matmul else 1)
        work += -flops if FactorKind.REDUCTION in kinds else flops
    return work


def _marked_kernels(program: Program, flows: list[Flow], dim: int) -> Iterator[tuple[Kernel, set[int]]]:
    """The kernels that the dimension reaches, through what loops carry too, and the factors along which it does."""
    marked = {flow.value: frozenset({dim}) for flow in flows}
    before = None
    while before != marked:
        before = dict(marked)
        _mark(program, marked)
    for kernel in program.kernels:
        if factors := _marked_factors(kernel, marked):
            yield kernel, factors


def _mark(program: Program, marked: dict[int, frozenset[int]]) -> None:
    """Marks of operands put on results, once through the program in its order."""
    for kernel in program.kernels:
        if factors := _marked_factors(kernel, marked):
            for value, mapping in zip(kernel.results, kernel.shape.rule.results, strict=True):
                dims = (d for d, dim in enumerate(mapping) if factors.intersection(dim))
                marked[value] = marked.get(value, frozenset()).union(dims)
    for flow in program.flows:
        if flow.kind is FlowKind.CARRIED:
            handed = (marked.get(source.value, frozenset()) for source in flow.sources)
            marked[flow.value] = marked.get(flow.value, frozenset()).union(*handed)


def _marked_factors(kernel: Kernel, marked: Mapping[int, frozenset[int]]) -> set[int]:
    found: set[int] = set()
    for use, mapping in zip(kernel.uses, kernel.shape.rule.operands, strict=True):
        for dim in marked.get(use.value, ()):
            found.update(mapping[dim])
    return found
