"""Which arguments hold the batch, and along which dimension: found from the program, not from names.

A dimension is the batch as far as the program keeps it whole, or merges it with others behind it: it follows the kernels' rules from the
arguments to the matrix multiplications and is never summed over on the way. It is the leading one, or the second where a loop steps through
the first (microbatches, time). Of the types of arguments, the one with the most such work wins, state that is given back only where nothing
else brings much (dense experts are in all their work). Others of the same size there go with it (labels, masks) where all kernels that both
reach have them along the same factor, or where they bring as much work by themselves (the other tower of two) or are indices that bring any
(a tower of shorter texts); parameters can have the size by chance, state that is given back too, whatever work it brings.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from autoshard.program.records import Flow, FlowKind, Kernel, Program
from autoshard.sharding import FactorKind, TensorType

AS_MUCH = 4  # one part in so many of the most
_INDICES = frozenset({"i32", "i64", "ui32"})


class Batch(NamedTuple):
    """An argument, and which of its dimensions is the batch."""

    argument: Flow
    dim: int

    @property
    def size(self) -> int:
        return self.argument.type.shape[self.dim]


Reached = list[tuple[Kernel, set[int]]]
"""Kernels, each with the factors along which a dimension reaches it."""


class _Along(NamedTuple):
    """A dimension of arguments of one type, and what it reaches."""

    dim: int
    kernels: Reached


def batch_arguments(program: Program) -> tuple[Batch, ...]:
    """Arguments that hold the batch, in argument order; empty where no work follows one."""
    carried = {argument for _, argument in program.carried_pairs}
    state = {program.listing.arguments[index].value for index in carried}
    inputs = [f for f in program.flows if f.kind is FlowKind.ARGUMENT and f.value not in state]
    by_type: dict[TensorType, list[Flow]] = {}
    for flow in inputs:
        by_type.setdefault(flow.type, []).append(flow)
    along = {type_: _leading(program, flows) for type_, flows in by_type.items()}
    work = {type_: _work(found.kernels) for type_, found in along.items()}
    most = max(work.values(), default=0)
    if most <= 0:
        return ()
    enough = [type_ for type_ in work if work[type_] * AS_MUCH >= most]
    results = Counter(flow.type for flow in program.flows if flow.kind is FlowKind.RESULT)
    # likely to be state, though nothing is donated: several arguments, and as many results of their type
    given_back = {type_ for type_ in work if 1 < len(by_type[type_]) <= results[type_]}
    inputs_only = [type_ for type_ in enough if type_ not in given_back]
    best = max(inputs_only or enough, key=lambda type_: (work[type_], -type_.num_bytes * len(by_type[type_])))
    size = best.shape[along[best].dim]
    factors = {id(kernel): met for kernel, met in along[best].kernels}
    together = {
        type_
        for type_, (dim, kernels) in along.items()
        if type_.shape[dim] == size
        and (
            (type_ not in given_back and _has_enough(type_, work[type_], work[best]))
            or _goes_with(kernels, factors)
        )
    }
    return tuple(Batch(flow, along[flow.type].dim) for flow in inputs if flow.type in together)


def _leading(program: Program, flows: list[Flow]) -> _Along:
    """The first dimension, or the second where no product has the first; one of size 1 reaches nothing."""
    shape = flows[0].type.shape
    if shape[0] == 1:
        return _Along(0, [])
    first = list(_marked_kernels(program, flows, 0))
    if len(shape) > 1 and not _has_product(first):
        second = list(_marked_kernels(program, flows, 1))
        if _has_product(second):
            return _Along(1, second if shape[1] > 1 else [])
    return _Along(0, first)


def _has_product(kernels: Reached) -> bool:
    return any(kernel.shape.is_matmul for kernel, _ in kernels)


def _has_enough(type_: TensorType, work: int, most: int) -> bool:
    return work * AS_MUCH >= most or (type_.dtype in _INDICES and work > 0)


def _goes_with(kernels: Reached, factors: Mapping[int, set[int]]) -> bool:
    met = [(factors[id(kernel)], along) for kernel, along in kernels if id(kernel) in factors]
    return bool(met) and all(along <= theirs for theirs, along in met)


def _work(kernels: Reached) -> int:
    """FLOPs of kernels that keep the dimension, less those that sum over it."""
    work = 0
    for kernel, factors in kernels:
        kinds = {kernel.shape.rule.factors[f].kind for f in factors}
        flops = kernel.shape.flops * kernel.repeat * (100 if kernel.shape.is_matmul else 1)
        work += -flops if FactorKind.REDUCTION in kinds else flops
    return work


_Marks = frozenset[tuple[int, bool]]
"""Dimensions of a value that hold the batch, and whether it is major there: alone, or merged with others behind it."""


def _marked_kernels(program: Program, flows: list[Flow], dim: int) -> Iterator[tuple[Kernel, set[int]]]:
    """The kernels that the dimension reaches, through what loops carry too, and the factors along which it does."""
    marked: dict[int, _Marks] = {flow.value: frozenset({(dim, True)}) for flow in flows}
    size, before = flows[0].type.shape[dim], None
    while before != marked:
        before = dict(marked)
        _mark(program, marked, size)
    for kernel in program.kernels:
        if factors := _marked_factors(kernel, marked, size):
            yield kernel, factors


def _mark(program: Program, marked: dict[int, _Marks], size: int) -> None:
    """Marks of operands put on results, once through the program in its order."""
    for kernel in program.kernels:
        if factors := _marked_factors(kernel, marked, size):
            for value, mapping in zip(kernel.results, kernel.shape.rule.results, strict=True):
                dims = (
                    (number, factors.issuperset(_major(kernel, dim, size)))
                    for number, dim in enumerate(mapping)
                    if not factors.isdisjoint(dim)
                )
                marked[value] = marked.get(value, frozenset()).union(dims)
    for flow in program.flows:
        if flow.kind is FlowKind.CARRIED:
            handed = (marked.get(source.value, frozenset()) for source in flow.sources)
            marked[flow.value] = marked.get(flow.value, frozenset()).union(*handed)


def _marked_factors(kernel: Kernel, marked: Mapping[int, _Marks], size: int) -> set[int]:
    """Those that a batch of that size reaches: of a dimension in which it is major as many as it has, of others all."""
    found: set[int] = set()
    for use, mapping in zip(kernel.uses, kernel.shape.rule.operands, strict=True):
        for dim, is_major in marked.get(use.value, ()):
            found.update(_major(kernel, mapping[dim], size) if is_major else mapping[dim])
    return found


def _major(kernel: Kernel, factors: Sequence[int], size: int) -> list[int]:
    """Of the factors of a dimension, the major one first, those that so many elements take."""
    found, taken = list[int](), 1
    for factor in factors:
        found.append(factor)
        taken *= kernel.shape.rule.factors[factor].size
        if taken >= size:
            break
    return found
