"""Values that are computed twice: by equal ops of equal operands in one body. XLA computes them once, before it partitions.

Nor does it compute what changes nothing (its pass AlgebraicSimplifier): a kernel of one position that is reversed for the gradient of a
convolution is the kernel, a mask of an attention that is true besides, as jax has it, is the mask, and torch adds with a factor of one.
"""

from collections.abc import Sequence

from autoshard.mlir.attributes import attributes_of_op
from autoshard.mlir.confirmed import BEHIND
from autoshard.mlir.context import Value, ir
from autoshard.mlir.equal import Equals
from autoshard.mlir.linearity import body_name, splat_of
from autoshard.mlir.walk import Walked

_ITS_OWN = frozenset(
    {"stablehlo.custom_call", "stablehlo.rng", "stablehlo.infeed", "stablehlo.recv", "stablehlo.create_token"}
)
"""Ops that may make something else each time."""

_IDENTITIES = frozenset(
    {
        "stablehlo.convert",
        "stablehlo.dynamic_slice",
        "stablehlo.dynamic_update_slice",
        "stablehlo.reshape",
        "stablehlo.reverse",
        "stablehlo.slice",
    }
)
"""They change nothing where they make the type that they read, a reverse of dimensions of one element."""

_NEUTRAL = {
    "stablehlo.add": (0.0, (0, 1)),
    "stablehlo.and": (True, (0, 1)),
    "stablehlo.divide": (1.0, (1,)),
    "stablehlo.multiply": (1.0, (0, 1)),
    "stablehlo.or": (False, (0, 1)),
    "stablehlo.subtract": (0.0, (1,)),
}
"""What changes nothing everywhere in one of these operands, a number or a predicate."""

_COMMUTATIVE = frozenset(
    {f"stablehlo.{name}" for name in ("add", "and", "maximum", "minimum", "multiply", "or", "xor")}
)
_SPREAD = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"})


def first_of_equals(walked: Walked, operands: Sequence[Sequence[int]]) -> dict[int, int]:
    """Of each value that is computed again: the one that is computed first. `operands` are those of each op, by number."""
    first: dict[int, int] = {}
    equals = Equals(said_of)
    for op, scope, numbers in zip(walked.ops, walked.op_scopes, operands, strict=True):
        if op.name in _ITS_OWN or not len(op.results) or (len(op.regions) and not body_name(op)):
            continue
        read = tuple(first.get(number, number) for number in numbers)
        if (same := unchanged(op)) is not None:
            first[walked.ids[op.results[0]]] = read[same]
            continue
        before = equals.first(op, (op.name, scope, read))
        if before is not op:
            made = zip(op.results, before.results, strict=True)
            first.update((walked.ids[mine], walked.ids[theirs]) for mine, theirs in made)
    return first


def said_of(op: ir.Operation, but: frozenset[str] = frozenset()) -> tuple[object, ...] | None:
    """All that is said of an op, beside its name, operands and some attributes, that has no regions, or the one of a reduction; None where
    that is not known.
    """
    known = attributes_of_op(op)
    types = tuple(value.type for value in op.results)
    if known is None:  # complex numbers; a copy alone is printed without all that is around it
        return (types, str(op.clone())) if op.name == "stablehlo.constant" else None
    return types, tuple(item for item in known.items() if item[0] not in but | {BEHIND}), _body_of(op)


def _body_of(op: ir.Operation) -> tuple[object, ...]:
    """What the one op of a reduction's body says, and which of the body's arguments it reads; nothing where there is no such body."""
    if not body_name(op):
        return ()
    block = op.regions[0].blocks[0]
    inner = block.operations[0].operation
    known, arguments = attributes_of_op(inner), list(block.arguments)
    read = [arguments.index(operand) for operand in inner.operands]
    said = str(inner.clone()) if known is None else tuple(known.items())
    return inner.name, said, tuple(sorted(read) if inner.name in _COMMUTATIVE else read)


def unchanged(op: ir.Operation) -> int | None:
    """Which of its operands it makes again: the one it reads, or the one that it writes over all of another."""
    if op.name in _NEUTRAL:
        neutral, places = _NEUTRAL[op.name]
        return next((1 - at for at in places if _is_all(op.operands[at], neutral)), None)
    if op.name == "stablehlo.concatenate":
        # with nothing, as scans put what they unroll behind what is left over
        return next((n for n, part in enumerate(op.operands) if part.type == op.results[0].type), None)
    number = 1 if op.name == "stablehlo.dynamic_update_slice" else 0
    if op.name not in _IDENTITIES or op.operands[number].type != op.results[0].type:
        return None
    if op.name == "stablehlo.reverse":
        shape = ir.RankedTensorType(op.results[0].type).shape
        if any(shape[dim] != 1 for dim in ir.DenseI64ArrayAttr(op.attributes["dimensions"])):
            return None
    return number


def _is_all(value: Value, wanted: bool | float) -> bool:
    """Whether it is that number, or that predicate, everywhere."""
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.name in _SPREAD:
        owner = owner.operands[0].owner
    found = None if isinstance(owner, ir.Block) else splat_of(owner.operation)
    return found == wanted and isinstance(found, bool) == isinstance(wanted, bool)
