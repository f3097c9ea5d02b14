"""Sharding constraints on what an op makes of values sharded so, element by element or by cutting: what they say is written on the op.

In jax's explicit sharding mode every op is followed by a constraint. One behind an elementwise op whose operands are all known to be
split as it asks moves nothing, and every compiler fuses through it; as an op of its own it would be a buffer and a kernel. Known are
values behind constraints, annotated ops and arguments, and of what a loop carries those that it is handed first. A constraint on what a
loop has carried so from the start and after every trip is written on the loop. Broadcasts and what is made of constants are made where
they are read: if all readers compute with them, no device holds them in any sharding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.mlir.context import Value, ir, sdy
from autoshard.mlir.signature import attributes_of
from autoshard.mlir.vacuous import asks_nothing
from autoshard.mlir.walk import SHARDING, function_named, ops_named

_CONSTRAINT = "sdy.sharding_constraint"
_BROADCAST = "stablehlo.broadcast_in_dim"
_TRANSPOSE = "stablehlo.transpose"
_WHILE = "stablehlo.while"
_CONSTANTS = frozenset({"stablehlo.constant", "stablehlo.iota", "sdy.constant"})
_ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        "abs", "add", "and", "atan2", "broadcast_in_dim", "cbrt", "ceil", "clamp", "compare", "complex", "convert", "cosine",
        "count_leading_zeros", "divide", "exponential", "exponential_minus_one", "floor", "imag", "is_finite", "log",
        "log_plus_one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or", "popcnt", "power", "real",
        "reduce_precision", "remainder", "round_nearest_afz", "round_nearest_even", "rsqrt", "select", "shift_left",
        "shift_right_arithmetic", "shift_right_logical", "sign", "sine", "sqrt", "subtract", "tan", "tanh", "transpose", "xor",
    )
)  # fmt: skip
_CUTTING = frozenset(
    f"stablehlo.{name}" for name in ("dynamic_slice", "dynamic_update_slice", "reshape", "slice")
)
_CHLO_OTHERS = frozenset(
    {
        "chlo.constant",
        "chlo.constant_like",
        "chlo.ragged_dot",
        "chlo.scan",
        "chlo.top_k",
        "chlo._asin_acos_kernel",
    }
)

_SUMS = frozenset({"stablehlo.dot_general", "stablehlo.convolution", "stablehlo.reduce", "stablehlo.scatter"})

BEHIND = "autoshard.behind"
"""On readers of dropped constraints: (operand, sharding) of each, in order. See `put_back`."""

Dims = tuple[ir.Attribute, ...]  # of a sharding, one a dimension


def write_on_makers(module: ir.Operation, entry: str, mesh: str) -> None:
    """Annotate the ops and drop the constraints behind them, in place; `mesh` is the symbol of the one that is planned for.

    Those that ask nothing are dropped: on scalars, and on values that are made anew by each of their readers.
    """
    main = function_named(module, entry)
    each = attributes_of(main, "arg_attrs", len(main.regions[0].blocks[0].arguments))
    said = {number: attributes[SHARDING] for number, attributes in enumerate(each) if SHARDING in attributes}
    writer = _Writer(main, said, mesh)
    for constraint in ops_named(main, frozenset({_CONSTRAINT})):
        writer.confirm(constraint)


@dataclass(frozen=True, slots=True)
class _Writer:
    main: ir.Operation
    said: Mapping[int, ir.Attribute]  # of arguments
    mesh: str

    def confirm(self, constraint: ir.Operation) -> None:
        made, sharding = constraint.operands[0], constraint.attributes["sharding"]
        wanted = self._dims(sharding)
        if wanted is None:
            return
        maker = None if isinstance(made.owner, ir.Block) else made.owner.operation
        says_nothing = not wanted or (_is_made_anew(made) and _is_only_computed_with(constraint.results[0]))
        if maker is None or says_nothing or self._known(made) == wanted:
            is_said = says_nothing or maker is not None
            if is_said and wanted:
                _note_on_readers(constraint)
        elif maker.name == _WHILE:
            number = ir.OpResult(made).result_number
            is_said = self._is_carried_so(maker, number, wanted) and _is_only_read_so(made, sharding)
            if is_said:
                _write_on_loop(maker, number, sharding)
        elif (self._follows(maker, wanted) or _is_summed_with(constraint)) and _is_only_read_so(
            made, sharding
        ):
            maker.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get([sharding], sharding.context)
            is_said = True
        else:
            is_said = False
        if is_said:
            constraint.results[0].replace_all_uses_with(made)
            constraint.erase()

    def _is_carried_so(self, loop: ir.Operation, number: int, wanted: Dims) -> bool:
        """Whether a loop is handed a value split so at the start and after every trip."""
        body = loop.regions[1].blocks[0]
        again = body.operations[len(body.operations) - 1].operands[number]
        is_kept = again == body.arguments[number] or self._known(again) == wanted
        return is_kept and _is_free(loop, number) and self._known(loop.operands[number]) == wanted

    def _dims(self, attribute: ir.Attribute) -> Dims | None:
        """Those of a sharding on the plan's mesh that says nothing else."""
        sharding = sdy.TensorShardingAttr(attribute)
        says_more = len(sharding.unreduced_axes) or len(sharding.replicated_axes)
        is_other = str(sharding.mesh_or_ref) != self.mesh
        return None if says_more or is_other else tuple(sharding.dimension_shardings)

    def _known(self, value: Value) -> Dims | None:
        """What is said of the value where it comes from."""
        owner = value.owner
        if isinstance(owner, ir.Block):
            number, parent = ir.BlockArgument(value).arg_number, owner.owner.operation
            if parent == self.main:
                return self._dims(self.said[number]) if number in self.said else None
            return self._known(parent.operands[number]) if parent.name == _WHILE else None
        if owner.name == _CONSTRAINT:
            return self._dims(owner.attributes["sharding"])
        if SHARDING not in owner.attributes or owner.name.startswith("sdy."):
            return None
        said = sdy.TensorShardingPerValueAttr(owner.attributes[SHARDING]).shardings
        return self._dims(said[ir.OpResult(value).result_number])

    def _follows(self, maker: ir.Operation, wanted: Dims) -> bool:
        """Whether the op makes a result that is split so of operands as they are, without moving any."""
        if SHARDING in maker.attributes or not (_is_elementwise(maker) or maker.name in _CUTTING):
            return False
        return all(self._is_read_as_it_is(maker, value, wanted) for value in maker.operands)

    def _is_read_as_it_is(self, maker: ir.Operation, operand: Value, wanted: Dims) -> bool:
        shape = list(ir.RankedTensorType(operand.type).shape)
        if not shape or _is_made_anew(operand):
            return True
        known, dims = self._known(operand), _dims_of_result(maker, shape)
        result = list(ir.RankedTensorType(maker.results[0].type).shape)
        if known is None or dims is None:
            return False
        for mine, dim, size in zip(known, dims, shape, strict=True):
            if dim is None or (maker.name == _BROADCAST and size != result[dim]):
                continue
            is_cut = size != result[dim]
            if (_is_split(mine) or _is_split(wanted[dim])) if is_cut else mine != wanted[dim]:
                return False
        return True


def put_back(module: ir.Operation) -> None:
    """Dropped constraints before their readers, in place: propagation starts from them, and XLA tells equal ops apart by them."""
    for reader, entries in _taken_notes(module):
        for entry in entries:
            number, sharding = ir.ArrayAttr(entry)
            position = ir.IntegerAttr(number).value
            value = reader.operands[position]
            constraint = ir.Operation.create(
                _CONSTRAINT,
                [value.type],
                [value],
                {"sharding": sharding},
                loc=reader.location,
                ip=ir.InsertionPoint(reader),
            )
            reader.operands[position] = constraint.result


def forget(module: ir.Operation) -> None:
    """Nothing is said of dropped constraints any more, in place: of a module in which they are not written."""
    _taken_notes(module)


def _taken_notes(module: ir.Operation) -> list[tuple[ir.Operation, list[ir.Attribute]]]:
    """What is noted on readers, terminators and what carries data among them; it is gone from there."""
    found: list[tuple[ir.Operation, list[ir.Attribute]]] = []

    def take(view: ir.Operation) -> ir.WalkResult:
        entries = _behind(view.operation)
        if entries:
            found.append((view.operation, entries))
            del view.operation.attributes[BEHIND]
        return ir.WalkResult.ADVANCE

    module.walk(take, ir.WalkOrder.PRE_ORDER)
    return found


def _note_on_readers(constraint: ir.Operation) -> None:
    """What they read behind it, and what itself is behind."""
    number_type = ir.IntegerType.get_signless(64, constraint.context)
    said = [ir.ArrayAttr(entry)[1] for entry in _behind(constraint)] + [constraint.attributes["sharding"]]
    for use in list(constraint.results[0].uses):
        reader, number = use.owner.operation, ir.IntegerAttr.get(number_type, use.operand_number)
        entries = [ir.ArrayAttr.get([number, sharding], constraint.context) for sharding in said]
        reader.attributes[BEHIND] = ir.ArrayAttr.get([*_behind(reader), *entries], constraint.context)


def _behind(op: ir.Operation) -> list[ir.Attribute]:
    return list(ir.ArrayAttr(op.attributes[BEHIND])) if BEHIND in op.attributes else []


def _write_on_loop(loop: ir.Operation, number: int, sharding: ir.Attribute) -> None:
    """Annotate what the loop carries; what is said of a start that is made anew says the same."""
    if SHARDING in loop.attributes:
        said = list(sdy.TensorShardingPerValueAttr(loop.attributes[SHARDING]).shardings)
    else:
        said = [_open(result, sharding) for result in loop.results]
    said[number] = sharding
    loop.attributes[SHARDING] = sdy.TensorShardingPerValueAttr.get(said, sharding.context)
    _drop_start(loop.operands[number])


def _open(value: Value, like: ir.Attribute) -> ir.Attribute:
    """A sharding of the same mesh that says nothing of the value."""
    free = sdy.DimensionShardingAttr.get([], False, context=like.context)
    rank = value.type.rank if isinstance(value.type, ir.RankedTensorType) else 0  # that of a token
    return sdy.TensorShardingAttr.get(
        sdy.TensorShardingAttr(like).mesh_or_ref, [free] * rank, context=like.context
    )


def _is_free(loop: ir.Operation, number: int) -> bool:
    """Whether nothing is said of a result of the loop."""
    if SHARDING not in loop.attributes:
        return True
    return asks_nothing(sdy.TensorShardingPerValueAttr(loop.attributes[SHARDING]).shardings[number])


def _drop_start(start: Value) -> None:
    """Take the annotation off what is handed to one loop, if that is made anew without it."""
    maker = start.owner
    if isinstance(maker, ir.Block) or SHARDING not in maker.attributes or len(list(start.uses)) != 1:
        return
    said = maker.attributes[SHARDING]
    del maker.attributes[SHARDING]
    if not _is_made_anew(start):
        maker.attributes[SHARDING] = said


def _is_summed_with(constraint: ir.Operation) -> bool:
    """Whether a sum over devices meets another in an addition, split alike: XLA may make one of both (`program.additions`)."""
    maker, readers = constraint.operands[0].owner, [use.owner.operation for use in constraint.results[0].uses]
    if (
        isinstance(maker, ir.Block)
        or maker.name not in _SUMS
        or len(maker.results) != 1
        or len(readers) != 1
        or SHARDING in maker.attributes
    ):
        return False
    return readers[0].name == "stablehlo.add" and _is_only_read_so(
        readers[0].results[0], constraint.attributes["sharding"]
    )


def _is_made_anew(value: Value) -> bool:
    """Whether it is a broadcast, or made of constants and scalars only, and nothing is said of it: it is made wherever it is read."""
    owner = value.owner
    if not isinstance(owner, ir.Block) and owner.name == _BROADCAST and SHARDING not in owner.attributes:
        return True
    return _is_made_of_constants(value)


def _is_made_of_constants(value: Value, depth: int = 8) -> bool:
    if not ir.RankedTensorType(value.type).rank:
        return True
    owner = value.owner
    if isinstance(owner, ir.Block) or SHARDING in owner.attributes:
        return False
    is_cheap = depth > 0 and _is_elementwise(owner.operation)
    return owner.name in _CONSTANTS or (
        is_cheap and all(_is_made_of_constants(operand, depth - 1) for operand in owner.operands)
    )


def _is_only_computed_with(value: Value) -> bool:
    """Whether every reader is an elementwise op or a reduction."""
    readers = [use.owner.operation for use in value.uses]
    return all(_is_elementwise(reader) or reader.name == "stablehlo.reduce" for reader in readers)


def _is_only_read_so(value: Value, sharding: ir.Attribute) -> bool:
    users = [use.owner for use in value.uses]
    return all(user.name == _CONSTRAINT and user.attributes["sharding"] == sharding for user in users)


def _is_elementwise(op: ir.Operation) -> bool:
    if len(op.results) != 1 or len(op.regions):
        return False
    return op.name in _ELEMENTWISE or (op.name.startswith("chlo.") and op.name not in _CHLO_OTHERS)


def _is_split(dim: ir.Attribute) -> bool:
    return len(sdy.DimensionShardingAttr(dim).axes) > 0


def _dims_of_result(maker: ir.Operation, shape: Sequence[int]) -> Sequence[int | None] | None:
    """The dimension of the result that each dimension of the operand becomes; None for one of size 1 that is gone."""
    if maker.name == _BROADCAST:
        return list(ir.DenseI64ArrayAttr(maker.attributes["broadcast_dimensions"]))
    if maker.name == _TRANSPOSE:
        order = list(ir.DenseI64ArrayAttr(maker.attributes["permutation"]))
        return [order.index(dim) for dim in range(len(shape))]
    result = list(ir.RankedTensorType(maker.results[0].type).shape)
    if maker.name == "stablehlo.reshape":
        large = [dim for dim, size in enumerate(result) if size != 1]
        if [result[dim] for dim in large] != [size for size in shape if size != 1]:
            return None
        left = iter(large)
        return [None if size == 1 else next(left) for size in shape]
    is_alike = result == list(shape) or (maker.name in _CUTTING and len(result) == len(shape))
    return range(len(shape)) if is_alike else None
