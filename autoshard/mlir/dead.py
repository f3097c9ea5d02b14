"""Ops that compute what nobody reads, or what they read, which no compiler runs.

jax leaves some behind where it differentiates: of a maximum, what a tie needs; of a convolution, a kernel of one position reversed. XLA
takes that for the kernel only after Shardy has propagated past it, and gathers both. Numpyro draws the indices of a plate in a loop, a
round each, also where nobody asks for them: XLA:TPU removes loops and branches too (libtpu 0.0.51). Torchax maps over the one row of a
group norm: of a loop that runs once XLA keeps the body. Penzai's layers, and scans that are unrolled, put what all layers leave for the
backward pass into one array by concatenation, and slice it again: XLA takes the parts themselves (AlgebraicSimplifier, libtpu 0.0.52).
They slice what the layers' weights are stacked in once more for the backward pass: what is gathered of a slice is there until then, as XLA
gathers it once.

What is computed again, product for product, XLA computes once: of a layer in a loop that runs once, to be computed again for the backward
pass, all stays until then (MaxText's DeepSeek, whose first layer is such a loop, v5e, v6e and v5p; DiffLlama writes its scores twice).
"""

from collections.abc import Hashable
from functools import partial

from autoshard.mlir.context import Value, ir
from autoshard.mlir.equal import Equals
from autoshard.mlir.linearity import body_name
from autoshard.mlir.repeated import said_of, unchanged
from autoshard.mlir.stepping import step_as_stacked
from autoshard.mlir.trips import runs_once, terminator
from autoshard.mlir.walk import SHARDING, function_named

_ASKED = frozenset({SHARDING})
_BARRIER = "stablehlo.optimization_barrier"
_ADDING = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape"})
_PRODUCTS = frozenset({"stablehlo.convolution", "stablehlo.dot_general"})
DIALECTS = frozenset({"stablehlo", "chlo"})
_CONTROL_FLOW = frozenset({"stablehlo.case", "stablehlo.if", "stablehlo.while"})
EFFECTS = frozenset(
    {f"stablehlo.{name}" for name in ("custom_call", "infeed", "outfeed", "recv", "send")}
    | {
        f"stablehlo.{name}"
        for name in ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute")
    }
    | {"stablehlo.partition_id", "stablehlo.reduce_scatter", "stablehlo.replica_id", "stablehlo.rng"}
)
"""Ops that may do more than compute."""


def drop_dead(module: ir.Operation, entry: str) -> None:
    """Erase them from the entry function, in place, and loops that run once; those that the user gave a sharding stay."""
    main = function_named(module, entry)
    _simplify(main)
    step_as_stacked(main)
    _slice_once(main)
    _multiply_once(main)
    _drop(main)


def _simplify(owner: ir.Operation) -> None:
    """Put what ops read in the place of those that make it again, and the bodies of loops that run once in theirs."""
    for region in owner.regions:
        for block in region.blocks:
            for op in list(block.operations):
                _simplify_op(op.operation)


def _simplify_op(op: ir.Operation) -> None:
    same = unchanged(op)
    made = op.operands[same] if same is not None else _part_sliced(op) or _taken_back(op)
    if made is not None and not _has_a_say(op):
        op.results[0].replace_all_uses_with(made)
        op.erase()
        return
    if op.name in _CONTROL_FLOW or op.name.startswith("sdy."):
        _simplify(op)
    if op.name == "stablehlo.while" and _only_its_body_counts(op) and not _has_a_say(op):
        for inner in _put_body_before(op):
            _simplify_op(inner)


def _part_sliced(op: ir.Operation) -> Value | None:
    """What was concatenated, where the op slices exactly that again."""
    whole = op.operands[0].owner if op.name == "stablehlo.slice" else None
    if (
        whole is None
        or isinstance(whole, ir.Block)
        or whole.name != "stablehlo.concatenate"
        or _has_a_say(whole)
    ):
        return None
    dim = ir.IntegerAttr(whole.attributes["dimension"]).value
    begin = list(ir.DenseI64ArrayAttr(op.attributes["start_indices"]))[dim]
    for part in whole.operands:
        size = list(ir.RankedTensorType(part.type).shape)[dim]
        if begin <= 0 and size:
            return part if begin == 0 and part.type == op.results[0].type and _is_dense(op) else None
        begin -= size
    return None


def _taken_back(op: ir.Operation) -> Value | None:
    """What was given dimensions of one element, as what a scan stacks is, where the op takes these away again."""
    before = op.operands[0].owner if op.name == "stablehlo.reshape" else None
    if before is None or isinstance(before, ir.Block) or before.name not in _ADDING or _has_a_say(before):
        return None
    if before.name == "stablehlo.broadcast_in_dim":
        dims = list(ir.DenseI64ArrayAttr(before.attributes["broadcast_dimensions"]))
        if dims != sorted(dims):
            return None
    added, given = before.results[0], before.operands[0]
    return given if _long_dims(added) == _long_dims(given) and given.type == op.results[0].type else None


def _long_dims(value: Value) -> list[int]:
    return [size for size in ir.RankedTensorType(value.type).shape if size != 1]


def _is_dense(op: ir.Operation) -> bool:
    return all(stride == 1 for stride in ir.DenseI64ArrayAttr(op.attributes["strides"]))


def _slice_once(main: ir.Operation) -> None:
    """Put the first slice of an argument in the place of equal ones, reshaped or not.

    Other equal ops stay apart in the listing (`repeated.first_of_equals`), as a plan may want them in several shardings, but products and
    what is made of those.
    """
    block = main.regions[0].blocks[0]
    equals = Equals(said_of)
    read = {"stablehlo.slice": set[Value](block.arguments), "stablehlo.reshape": set[Value]()}
    for view in list(block.operations):
        op = view.operation
        if op.name not in read or op.operands[0] not in read[op.name] or _has_a_say(op):
            continue
        first = equals.first(op, (op.name, op.operands[0]))
        if first is op:
            read["stablehlo.reshape"].add(op.results[0])
        else:
            op.results[0].replace_all_uses_with(first.results[0])
            op.erase()


def _multiply_once(owner: ir.Operation) -> None:
    """Put the first of equal products of a body, and of equal ops that read one, in the place of the others."""
    for region in owner.regions:
        for block in region.blocks:
            _multiply_once_in(block)


def _multiply_once_in(block: ir.Block) -> None:
    numbers: dict[Value, Hashable] = {}  # equal values have one
    once = set[Value]()
    equals = Equals(partial(said_of, but=_ASKED))
    for view in list(block.operations):
        op = view.operation
        if op.name in _CONTROL_FLOW or op.name.startswith("sdy."):
            _multiply_once(op)
        if not _makes_the_same_each_time(op) or _is_in_a_group(op):
            continue
        same = equals.first(op, (op.name, *(numbers.get(operand, operand) for operand in op.operands)))
        if same is op:
            continue
        numbers.update(zip(op.results, same.results, strict=True))
        reads_one = op.name in _PRODUCTS or not once.isdisjoint(op.operands)
        if reads_one and _takes_what_is_asked(same, op):
            once.update(same.results)
            for mine, theirs in zip(op.results, same.results, strict=True):
                mine.replace_all_uses_with(theirs)
            op.erase()


def _makes_the_same_each_time(op: ir.Operation) -> bool:
    """Whether it makes the same of the same; of what has a body, reductions."""
    is_known = not _may_do_more(op) and op.name != _BARRIER
    return is_known and len(op.results) > 0 and (not len(op.regions) or bool(body_name(op)))


def _takes_what_is_asked(op: ir.Operation, other: ir.Operation) -> bool:
    """Let an op have the shardings that the user gave the results of another; whether it has none but those."""
    if SHARDING not in other.attributes:
        return True
    asked = other.attributes[SHARDING]
    if SHARDING in op.attributes:
        return bool(op.attributes[SHARDING] == asked)
    op.attributes[SHARDING] = asked
    return True


def _has_a_say(op: ir.Operation) -> bool:
    """Whether the user gave its results shardings, or put them into sharding groups, which what they are made of need not fit."""
    return SHARDING in op.attributes or _is_in_a_group(op)


def _is_in_a_group(op: ir.Operation) -> bool:
    return any(use.owner.name == "sdy.sharding_group" for result in op.results for use in result.uses)


def _only_its_body_counts(loop: ir.Operation) -> bool:
    """Whether the loop runs once, and its condition does nothing else."""
    condition = loop.regions[0].blocks[0]
    return runs_once(loop) and all(_only_computes(op.operation) for op in condition.operations)


def _put_body_before(loop: ir.Operation) -> list[ir.Operation]:
    """The ops of the body, which are not in the loop then."""
    body = loop.regions[1].blocks[0]
    for argument, operand in zip(body.arguments, loop.operands, strict=True):
        argument.replace_all_uses_with(operand)
    carried = list(terminator(body).operands)
    ops = [op.operation for op in body.operations][:-1]
    for op in ops:
        op.move_before(loop)
    for result, value in zip(loop.results, carried, strict=True):
        result.replace_all_uses_with(value)
    loop.erase()
    return ops


def _drop(owner: ir.Operation) -> None:
    for region in owner.regions:
        for block in region.blocks:
            for op in reversed(list(block.operations)):
                operation = op.operation
                if _is_dead(operation):
                    operation.erase()
                elif operation.name in _CONTROL_FLOW or operation.name.startswith("sdy."):
                    _drop(operation)


def _is_dead(op: ir.Operation) -> bool:
    is_read = any(True for result in op.results for _ in result.uses)
    return len(op.results) > 0 and not is_read and _only_computes(op)


def _only_computes(op: ir.Operation) -> bool:
    """Without effects, and shardings that the user gave, in it or in what it holds."""
    if _may_do_more(op) or SHARDING in op.attributes:
        return False
    inside = (
        inner.operation for region in op.regions for block in region.blocks for inner in block.operations
    )
    return all(map(_only_computes, inside))


def _may_do_more(op: ir.Operation) -> bool:
    """Than compute its results."""
    return op.name.split(".")[0] not in DIALECTS or op.name in EFFECTS
