"""Whether every partial sum in the plan is one: made by a split sum, and read only by ops that are linear in it.

A value is unreduced over an axis when the devices along it hold addends. Written from the definitions of the ops, apart from the analysis
that the planner uses: f(sum of addends) must be the sum of f(addends).
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from autoshard.check.parts import Part, parts_of, pieces
from autoshard.check.planned import Planned
from autoshard.check.report import Finding, of_offenders
from autoshard.check.rules import Run
from autoshard.mlir.listing import Op
from autoshard.program import RESULT_SITE
from autoshard.sharding import TensorSharding

_CONTRACTIONS = ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution")
_ONE_FACTOR = (*_CONTRACTIONS, "stablehlo.multiply")
_EVERY_ADDEND = (
    "stablehlo.add", "stablehlo.subtract", "stablehlo.negate", "stablehlo.concatenate", "stablehlo.pad", "stablehlo.complex",
)  # fmt: skip
_REARRANGED = (
    "stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim", "stablehlo.slice", "stablehlo.reverse",
    "stablehlo.dynamic_slice", "stablehlo.gather", "stablehlo.real", "stablehlo.imag",
    "sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier",
)  # fmt: skip
_SUMS = ("stablehlo.reduce", "stablehlo.reduce_window")
_ADDING = ("stablehlo.add", "stablehlo.reshape", "stablehlo.transpose")
_LOSSLESS = {("bf16", "f32"), ("f16", "f32"), ("bf16", "f64"), ("f16", "f64"), ("f32", "f64")}

Axes = frozenset[Part]


def partial_sums(planned: Planned, runs: Mapping[int, Run], lowering: str) -> Finding:
    """All ops that make or read partial sums, and the ends of the program, where only demanded ones may be; XLA leaves a sum to an addition
    only that alone reads it.
    """
    touched = {
        number: _errors(planned, number, run) for number, run in runs.items() if _is_touched(planned, number)
    }
    offenders = [
        f"{planned.where(number)}: {error}" for number, errors in touched.items() for error in errors
    ]
    offenders += _undemanded(planned)
    if lowering == "xla-tpu":
        offenders += _not_added(planned, runs)
    return of_offenders(
        "partial sums", offenders, len(touched), "unreduced values are sums of what devices hold"
    )


def _not_added(planned: Planned, runs: Mapping[int, Run]) -> Iterator[str]:
    """Reads of addends that no addition of two of them makes in XLA."""
    readers = Counter(value for op in planned.listing.ops for value in op.operands)
    readers.update(source.value for flow in planned.listing.data_flows for source in flow.sources)
    readers.update(result.value for result in planned.listing.results)
    for number in runs:
        op = planned.listing.ops[number]
        for operand, value in enumerate(op.operands):
            if _read(planned, number, operand) and (readers[value] > 1 or op.name not in _ADDING):
                yield f"{planned.where(number)}: operand {operand} is read as addends, which XLA sums before"


def is_zero(planned: Planned, value: int) -> bool:
    return value in planned.zeros


def clone_operand_axes(planned: Planned, op: Op, operand: int, wanted: TensorSharding) -> tuple[object, ...]:
    """Unreduced axes that a copy of a recomputed op needs of an operand: those wanted of it, where it can make them so."""
    if not wanted.unreduced:
        return ()
    if all(is_zero(planned, value) for value in op.results):
        return wanted.unreduced if is_zero(planned, op.operands[operand]) else ()
    is_spread = op.name == "stablehlo.broadcast_in_dim" and planned.is_ranked(op.operands[0])
    return wanted.unreduced if is_spread else ()


def _is_touched(planned: Planned, number: int) -> bool:
    op = planned.listing.ops[number]
    made = any(value in planned.produced and planned.produced[value].unreduced for value in op.results)
    return made or any(_read(planned, number, i) for i in range(len(op.operands)))


def _read(planned: Planned, number: int, operand: int) -> Axes:
    if not planned.is_ranked(planned.listing.ops[number].operands[operand]):
        return frozenset()
    sharding = planned.read(number, operand)
    return frozenset(parts_of(sharding.unreduced)) if sharding is not None else frozenset()


def _errors(planned: Planned, number: int, run: Run) -> Iterator[str]:
    op = planned.listing.ops[number]
    if len(op.results) != 1:
        yield "partial sums around an op with several results"
        return
    result = planned.produced.get(op.results[0])
    left = parts_of(result.unreduced) if result is not None else ()
    read = {i: _read(planned, number, i) for i in range(len(op.operands))}
    cuts = (left, run.summed, *read.values())
    made, summed = (pieces(parts, *cuts) for parts in (left, run.summed))
    own, passing = made & summed, made - summed
    if own and not (
        op.name in _CONTRACTIONS
        or (op.name in ("stablehlo.reduce", "stablehlo.scatter") and op.reducer == "stablehlo.add")
    ):
        yield "what its split factors leave are no addends"
    used = {name for parts in run.factors for name, _, _ in parts}
    if any(name in used for name, _, _ in passing):
        yield "an axis splits it and is summed over as well"
    reads = {i: pieces(parts, *cuts) for i, parts in read.items()}
    wrong = [i for i, axes in reads.items() if axes and axes != passing]
    if wrong:
        yield f"operand {wrong[0]} is partial over other axes than the result"
    elif passing and not is_linear(planned, op, {i for i, axes in reads.items() if axes}):
        yield "the result is called partial, and the op is not linear in what it reads as partial"


def is_linear(planned: Planned, op: Op, partial: set[int]) -> bool:
    """Whether the op of addends of exactly these operands, the others the same everywhere, gives addends of its result."""
    count = len(op.operands)
    types = [planned.listing.values[value].type for value in (*op.operands, *op.results)]
    if any(type_ is None for type_ in types):
        return False
    before, after = types[0], types[-1]
    assert before is not None and after is not None
    if after.dtype == "i1" or not partial:
        return False
    addends = partial | {i for i in range(count) if is_zero(planned, op.operands[i])}
    if op.name in _EVERY_ADDEND or (op.name in _SUMS and op.reducer == "stablehlo.add"):
        return addends == set(range(count))
    if op.name in _ONE_FACTOR:
        return len(partial) == 1
    if op.name in _REARRANGED:
        return partial == {0}
    if op.name == "stablehlo.dynamic_update_slice":
        return addends >= {0, 1}
    if op.name == "stablehlo.select":
        return addends >= {1, 2} and 0 not in partial
    if op.name == "stablehlo.divide":
        return partial == {0} and "f" in after.dtype
    return op.name == "stablehlo.convert" and (
        before.dtype == after.dtype or (before.dtype, after.dtype) in _LOSSLESS
    )


def _undemanded(planned: Planned) -> Iterator[str]:
    """Arguments arrive, and results leave, whole unless the user says otherwise."""
    listing = planned.listing
    fed_by = {argument: result for result, argument in planned.program.carried_pairs}
    for number, argument in enumerate(listing.arguments):
        demands = [argument.demand]
        if number in fed_by:
            demands.append(listing.results[fed_by[number]].demand)
        yield from _unasked(f"argument {argument.name}", planned.settled.get(argument.value), demands)
    fed = {result: argument for argument, result in fed_by.items()}
    for index, result in enumerate(listing.results):
        returned = planned.uses.get((RESULT_SITE, index), planned.found(result.value))
        demands = [result.demand]
        if index in fed:
            demands.append(listing.arguments[fed[index]].demand)
        yield from _unasked(f"result {result.name}", returned, demands)


def _unasked(
    what: str, sharding: TensorSharding | None, demands: list[TensorSharding | None]
) -> Iterator[str]:
    if sharding is not None and sharding.unreduced:
        asked = [demand.unreduced for demand in demands if demand is not None]
        if sharding.unreduced not in asked:
            yield f"{what} is partial, which nobody asked for"
