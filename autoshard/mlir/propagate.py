"""Shardy's own propagation of given shardings, read back as a sharding for every value of the listing.

Ops carry their number through the passes as an attribute, because Shardy gives every user of a constant a copy of its own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoshard.mlir.carried import constrain_what_loops_are_handed
from autoshard.mlir.confirmed import put_back
from autoshard.mlir.context import Value, ir
from autoshard.mlir.emit import WITH_SHARDING
from autoshard.mlir.isolated import run_isolated
from autoshard.mlir.listing import Listing
from autoshard.mlir.manual import target_demand
from autoshard.mlir.merging import merge_equal
from autoshard.mlir.meshes import all_meshes
from autoshard.mlir.read import Handles
from autoshard.mlir.signature import attributes_of, set_attributes
from autoshard.mlir.tensors import Shardings
from autoshard.mlir.transposed import transpose_after
from autoshard.mlir.walk import SHARDING, Flow, Walked, function_named, walk
from autoshard.sharding import Mesh, TensorSharding, TensorType

_TAG = "autoshard.op"
_FLOW_TAG = "autoshard.flow"
BROADCAST = "stablehlo.broadcast_in_dim"
_CONSTRAINT = "sdy.sharding_constraint"
_PASSES = ",".join(
    (
        "sdy-constant-or-scalar-splitter",
        "sdy-add-data-flow-edges",
        "sdy-apply-sharding-constraints",
        "sdy-sharding-group-import",
        "sdy-user-priority-propagate",
        "func.func(sdy-sink-data-flow-edges)",
    )
)


def propagation(handles: Handles, listing: Listing, *, as_xla: bool = False) -> "Propagation":
    """Through a clone of the module that was listed."""
    walked = walk(handles.walked.module.clone().operation, handles.entry)
    return Propagation(walked, listing, handles.mesh, as_xla=as_xla)


@dataclass(frozen=True, slots=True)
class Propagated:
    """What Shardy makes of the annotations of a module.

    Attributes:
        shardings: of each ranked value, closed; replicated where there is none.
        redirected: values of which an op, by Shardy's passes, reads what a constraint brought another reader. So they do with the
            readers behind a chain of constraints, and with all others of what is carried into a region, where that is the one that it has.
    """

    shardings: dict[int, TensorSharding]
    redirected: frozenset[int]


class Propagation:
    """Through what the walked module is annotated with, which is used up, prepared once for all shardings of arguments.

    `as_xla`: with equal ops merged before (`merging`, `transposed`), what loops carry unchanged handed to them as they ask for it
    (`carried`), and broadcasts that add dimensions of one element, which are reshaped then, taken for reshapes, as XLA folds them:
    Shardy propagates through those first, through broadcasts last.
    """

    def __init__(self, walked: Walked, listing: Listing, mesh: Mesh, *, as_xla: bool = False) -> None:
        self._walked, self._listing, self._mesh = walked, listing, mesh
        self._shardings = Shardings(mesh, all_meshes(walked.module), walked.module.context)
        self._said = attributes_of(walked.main, "arg_attrs", len(listing.arguments))
        _tag(walked)
        name = ir.StringAttr.get("main", walked.module.context)  # the passes look for it
        walked.main.attributes["sym_name"] = name
        self._merged, self._moved = _as_xla_has_it(walked) if as_xla else ({}, {})

    def of(self, demands: Mapping[int, TensorSharding]) -> dict[int, TensorSharding]:
        """The sharding of each ranked value, closed; replicated where there is none.

        `demands` are shardings of arguments by value number, beside those that the module has; a value that Shardy copies for each user
        has the sharding of one copy.

        Raises:
            NativeAbortError: Shardy's passes died on the module.
        """
        return self._shardings_of(self._run(demands))

    def with_redirected(self) -> Propagated:
        """Of the module as XLA has it, and whose readers the passes redirect.

        Raises:
            NativeAbortError: as in `of`.
        """
        before = _behind_constraints(self._walked.module)
        done = self._run({})
        ops = self._listing.ops
        redirected = _behind_constraints(done) - before
        return Propagated(
            self._shardings_of(done), frozenset(ops[reader].operands[number] for reader, number in redirected)
        )

    def _run(self, demands: Mapping[int, TensorSharding]) -> ir.Operation:
        self._demand(demands)
        return run_isolated(self._walked.module, _PASSES).operation

    def _shardings_of(self, done: ir.Operation) -> dict[int, TensorSharding]:
        shardings = Shardings(self._mesh, all_meshes(done), done.context)
        found = _read_back(done, self._walked, self._listing, shardings)
        ops = self._listing.ops
        for op, kept in (*self._merged.items(), *self._moved.items()):
            for mine, its in zip(ops[op].results, ops[kept].results, strict=True):
                if its in found and (op in self._merged or mine not in found):
                    found[mine] = found[its]
        return {
            number: found.get(number, TensorSharding.replicated_closed(value.type.rank))
            for number, value in enumerate(self._listing.values)
            if value.type is not None
        }

    def _demand(self, demands: Mapping[int, TensorSharding]) -> None:
        each = [dict(one) for one in self._said]
        for attributes, argument in zip(each, self._listing.arguments, strict=True):
            if argument.value in demands:
                attributes[SHARDING] = self._shardings.attribute(demands[argument.value])
        set_attributes(self._walked.main, "arg_attrs", each)


def _as_xla_has_it(walked: Walked) -> tuple[dict[int, int], dict[int, int]]:
    """Change the module, in place; which tags took the place of which as equal ops, and as transpositions."""
    put_back(walked.module)
    walked = walk(walked.module, "main")
    moved = transpose_after(walked, _TAG)
    if moved:
        walked = walk(walked.module, "main")
    merged = merge_equal(walked, _TAG)
    _reshape_broadcasts(walked.module)
    constrain_what_loops_are_handed(walked)
    return merged, moved


def _reshape_broadcasts(module: ir.Operation) -> None:
    found: list[ir.Operation] = []

    def note(view: ir.Operation) -> ir.WalkResult:
        op = view.operation
        if op.name == BROADCAST and _is_reshape(op) and _is_reshaped(op):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.walk(note, ir.WalkOrder.PRE_ORDER)
    for op in found:
        kept = {name: op.attributes[name] for name in (_TAG, SHARDING) if name in op.attributes}
        ip = ir.InsertionPoint(op)
        reshape = ir.Operation.create(
            "stablehlo.reshape", [op.result.type], [op.operands[0]], kept, loc=op.location, ip=ip
        )
        op.result.replace_all_uses_with(reshape.result)
        op.erase()


def _is_reshaped(op: ir.Operation) -> bool:
    return all(use.owner.name == "stablehlo.reshape" for use in op.results[0].uses)


def _is_reshape(op: ir.Operation) -> bool:
    types = [ir.RankedTensorType(value.type) for value in (op.operands[0], op.result)]
    dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    return (
        all(type_.has_static_shape for type_ in types)
        and dims == sorted(dims)
        and (math.prod(types[0].shape) == math.prod(types[1].shape))
    )


def _tag(walked: Walked) -> None:
    context = walked.module.context
    number_type = ir.IntegerType.get_signless(64, context)
    for number, op in enumerate(walked.ops):
        op.attributes[_TAG] = ir.IntegerAttr.get(number_type, number)
    for number, owner in enumerate(_flows_by_owner(walked)):
        owner.attributes[_FLOW_TAG] = ir.IntegerAttr.get(number_type, number)


def _behind_constraints(module: ir.Operation) -> set[tuple[int, int]]:
    """(op, operand) of what is read behind a constraint, by the tags of ops."""
    found: set[tuple[int, int]] = set()

    def note(view: ir.Operation) -> ir.WalkResult:
        op = view.operation
        if _TAG in op.attributes and op.name != _CONSTRAINT:
            reader = ir.IntegerAttr(op.attributes[_TAG]).value
            found.update((reader, n) for n, operand in enumerate(op.operands) if _is_constrained(operand))
        return ir.WalkResult.ADVANCE

    module.walk(note, ir.WalkOrder.PRE_ORDER)
    return found


def _is_constrained(value: Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.name == _CONSTRAINT


def _flows_by_owner(walked: Walked) -> dict[ir.Operation, list[Flow]]:
    found: dict[ir.Operation, list[Flow]] = {}
    for flow in walked.flows:
        found.setdefault(flow.owner, []).append(flow)
    return found


def _read_back(
    module: ir.Operation, walked: Walked, listing: Listing, shardings: Shardings
) -> dict[int, TensorSharding]:
    """Shardings by value number of the ops whose tags `walked` gave."""
    main = function_named(module, "main")
    found: dict[int, TensorSharding] = {}
    for number, attributes in enumerate(attributes_of(main, "arg_attrs", len(walked.block.arguments))):
        if SHARDING in attributes:
            found[number] = shardings.read(attributes[SHARDING], walked.values[number].type, "").as_closed()

    flows = list(_flows_by_owner(walked).values())
    known: dict[tuple[ir.Attribute | TensorType | None, ...], tuple[TensorSharding, ...]] = {}

    def note(view: ir.Operation) -> ir.WalkResult:
        op = view.operation
        attributes = op.attributes
        tag = attributes.get(_TAG)
        if tag is not None:
            results = listing.ops[ir.IntegerAttr(tag).value].results
            attribute = attributes.get("sharding" if op.name in WITH_SHARDING else SHARDING)
            if attribute is not None and found.keys().isdisjoint(results):  # of copies the first
                key = (attribute, *(listing.values[value].type for value in results))
                if key not in known:
                    known[key] = _written(op, attribute, shardings)
                found.update(zip(results, known[key], strict=True))
        elif _FLOW_TAG in attributes:
            for flow in flows[ir.IntegerAttr(attributes[_FLOW_TAG]).value]:
                sharding = target_demand(replace(flow, owner=op), shardings)
                if sharding is not None:
                    found[flow.target] = sharding.as_closed()
        return ir.WalkResult.ADVANCE

    main.walk(note, ir.WalkOrder.PRE_ORDER)
    return found


def _written(op: ir.Operation, attribute: ir.Attribute, shardings: Shardings) -> tuple[TensorSharding, ...]:
    types = [result.type for result in op.results]
    is_one = op.name in WITH_SHARDING
    read = [shardings.read(attribute, types[0], "")] if is_one else shardings.read_each(attribute, types, "")
    return tuple(sharding.as_closed() for sharding in read)
