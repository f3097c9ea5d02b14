"""Which arguments hold the batch: found from the program, not from names.

A leading dimension is a batch dimension as far as the program keeps it whole: it follows the kernels' rules from the arguments to the
matrix multiplications and is never summed over on the way. Of the types of arguments, the one with the most such work wins. Others of
the same leading size go with it (labels, masks) where all kernels that both reach have them along the same factor, or where they bring
as much work by themselves (the other tower of two); parameters can have the size by chance.
"""

from collections.abc import Iterator, Mapping

from autoshard.program.records import Flow, FlowKind, Kernel, Program
from autoshard.sharding import FactorKind, TensorType

AS_MUCH = 4  # one part in so many of the most


def batch_arguments(program: Program) -> tuple[Flow, ...]:
    """Arguments whose first dimension is the batch, in argument order; empty where no work follows one."""
    carried = {argument for _, argument in program.carried_pairs}
    state = {program.listing.arguments[index].value for index in carried}
    by_type: dict[TensorType, list[Flow]] = {}
    for flow in program.flows:
        if flow.kind is FlowKind.ARGUMENT and flow.value not in state and flow.type.shape[0] > 1:
            by_type.setdefault(flow.type, []).append(flow)
    work = {type_: _work_along(program, flows) for type_, flows in by_type.items()}
    best = max(work, key=lambda type_: (work[type_], -type_.num_bytes * len(by_type[type_])), default=None)
    if best is None or work[best] <= 0:
        return ()
    factors = {id(kernel): along for kernel, along in _marked_kernels(program, by_type[best])}
    return tuple(
        flow
        for flow in program.flows
        if flow in by_type.get(flow.type, ())
        and flow.type.shape[0] == best.shape[0]
        and (work[flow.type] * AS_MUCH >= work[best] or _goes_with(program, by_type[flow.type], factors))
    )


def _goes_with(program: Program, flows: list[Flow], factors: Mapping[int, set[int]]) -> bool:
    met = [(factors[id(k)], along) for k, along in _marked_kernels(program, flows) if id(k) in factors]
    return bool(met) and all(along <= theirs for theirs, along in met)


def _work_along(program: Program, flows: list[Flow]) -> int:
    """FLOPs of kernels that keep the dimension, less those that sum over it."""
    work = 0
    for kernel, factors in _marked_kernels(program, flows):
        kinds = {kernel.shape.rule.factors[f].kind for f in factors}
        flops = kernel.shape.flops * kernel.repeat * (100 if kernel.shape.is_matmul else 1)
        work += -flops if FactorKind.REDUCTION in kinds else flops
    return work


def _marked_kernels(program: Program, flows: list[Flow]) -> Iterator[tuple[Kernel, set[int]]]:
    """The kernels that the dimension reaches, through what loops carry too, and the factors along which it does."""
    marked = {flow.value: frozenset({0}) for flow in flows}
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
                dims = (d for d, dim in enumerate(mapping) if dim and dim[0] in factors)
                marked[value] = marked.get(value, frozenset()).union(dims)
    for flow in program.flows:
        if flow.kind is FlowKind.CARRIED:
            handed = (marked.get(source.value, frozenset()) for source in flow.sources)
            marked[flow.value] = marked.get(flow.value, frozenset()).union(*handed)


def _marked_factors(kernel: Kernel, marked: Mapping[int, frozenset[int]]) -> set[int]:
    found: set[int] = set()
    for use, mapping in zip(kernel.uses, kernel.shape.rule.operands, strict=True):
        for dim in marked.get(use.value, ()):
            found.update(mapping[dim][:1])
    return found
