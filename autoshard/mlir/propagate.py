"""Shardy's own propagation of given shardings, read back as a sharding for every value of the listing.

Ops carry their number through the passes as an attribute, because Shardy gives every user of a constant a copy of its own.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from autoshard.mlir.carried import constrain_what_loops_are_handed
from autoshard.mlir.confirmed import put_back
from autoshard.mlir.context import ir
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
from autoshard.sharding import Mesh, TensorSharding

_TAG = "autoshard.op"
_FLOW_TAG = "autoshard.flow"
BROADCAST = "stablehlo.broadcast_in_dim"
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


def propagate(
    handles: Handles, listing: Listing, demands: Mapping[int, TensorSharding], *, as_xla: bool = False
) -> dict[int, TensorSharding]:
    """The sharding that Shardy propagates to each ranked value, closed; replicated where it propagates none.

    `demands` are shardings of arguments by value number, beside those that the module has; a value that Shardy copies for each user
    has the sharding of one copy. `as_xla`: as in `propagated`.

    Raises:
        NativeAbortError: Shardy's passes died on the module.
    """
    walked = walk(handles.walked.module.clone().operation, handles.entry)
    shardings = Shardings(handles.mesh, all_meshes(walked.module), walked.module.context)
    _demand(walked, demands, shardings)
    return propagated(walked, listing, handles.mesh, as_xla=as_xla)


def propagated(
    walked: Walked, listing: Listing, mesh: Mesh, *, as_xla: bool = False
) -> dict[int, TensorSharding]:
    """Propagate what the walked module is annotated with; the module is tagged, and otherwise unchanged.

    `as_xla`: with equal ops merged before (`merging`, `transposed`), what loops carry unchanged handed to them as they ask for it
    (`carried`), and broadcasts that add dimensions of one element, which are reshaped then, taken for reshapes, as XLA folds them:
    Shardy propagates through those first, through broadcasts last.
    """
    _tag(walked)
    walked.main.attributes["sym_name"] = ir.StringAttr.get(
        "main", walked.module.context
    )  # the passes look for it
    given = walk(_as_written(walked.module), "main") if as_xla else walked
    moved = transpose_after(given, _TAG) if as_xla else {}
    given = walk(given.module, "main") if moved else given
    merged = merge_equal(given, _TAG) if as_xla else {}
    if as_xla:
        _reshape_broadcasts(given.module)
        constrain_what_loops_are_handed(walk(given.module, "main"))
    done = run_isolated(given.module, _PASSES).operation
    found = _read_back(done, walked, Shardings(mesh, all_meshes(done), done.context))
    for op, kept in (*merged.items(), *moved.items()):
        for mine, its in zip(walked.ops[op].results, walked.ops[kept].results, strict=True):
            if walked.ids[its] in found and (op in merged or walked.ids[mine] not in found):
                found[walked.ids[mine]] = found[walked.ids[its]]
    return {
        number: found.get(number, TensorSharding.replicated_closed(value.type.rank))
        for number, value in enumerate(listing.values)
        if value.type is not None
    }


def _as_written(module: ir.Operation) -> ir.Operation:
    """A clone with the constraints that were dropped when it was read."""
    clone = module.clone().operation
    put_back(clone)
    return clone


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


def _demand(walked: Walked, demands: Mapping[int, TensorSharding], shardings: Shardings) -> None:
    arguments = walked.block.arguments
    attributes = [dict(one) for one in attributes_of(walked.main, "arg_attrs", len(arguments))]
    for index, argument in enumerate(arguments):
        demand = demands.get(walked.ids[argument])
        if demand is not None:
            attributes[index][SHARDING] = shardings.attribute(demand)
    set_attributes(walked.main, "arg_attrs", attributes)


def _tag(walked: Walked) -> None:
    context = walked.module.context
    number_type = ir.IntegerType.get_signless(64, context)
    for number, op in enumerate(walked.ops):
        op.attributes[_TAG] = ir.IntegerAttr.get(number_type, number)
    for number, owner in enumerate(_flows_by_owner(walked)):
        owner.attributes[_FLOW_TAG] = ir.IntegerAttr.get(number_type, number)


def _flows_by_owner(walked: Walked) -> dict[ir.Operation, list[Flow]]:
    found: dict[ir.Operation, list[Flow]] = {}
    for flow in walked.flows:
        found.setdefault(flow.owner, []).append(flow)
    return found


def _read_back(module: ir.Operation, walked: Walked, shardings: Shardings) -> dict[int, TensorSharding]:
    """Shardings by value number of the ops whose tags `walked` gave."""
    main = function_named(module, "main")
    found: dict[int, TensorSharding] = {}
    for number, attributes in enumerate(attributes_of(main, "arg_attrs", len(walked.block.arguments))):
        if SHARDING in attributes:
            found[number] = shardings.read(attributes[SHARDING], walked.values[number].type, "").as_closed()

    flows = list(_flows_by_owner(walked).values())

    def note(view: ir.Operation) -> ir.WalkResult:
        op = view.operation
        attributes = op.attributes
        tag = attributes.get(_TAG)
        if tag is not None:
            written = _written(op, attributes, shardings)
            results = walked.ops[ir.IntegerAttr(tag).value].results if written is not None else ()
            for value, sharding in zip(results, written or (), strict=True):
                found.setdefault(walked.ids[value], sharding)
        elif _FLOW_TAG in attributes:
            for flow in flows[ir.IntegerAttr(attributes[_FLOW_TAG]).value]:
                sharding = target_demand(replace(flow, owner=op), shardings)
                if sharding is not None:
                    found[flow.target] = sharding.as_closed()
        return ir.WalkResult.ADVANCE

    main.walk(note, ir.WalkOrder.PRE_ORDER)
    return found


def _written(
    op: ir.Operation, attributes: ir.OpAttributeMap, shardings: Shardings
) -> tuple[TensorSharding, ...] | None:
    if op.name in ("sdy.sharding_constraint", "sdy.reshard"):
        return (shardings.read(attributes["sharding"], op.results[0].type, "").as_closed(),)
    attribute = attributes.get(SHARDING)
    if attribute is None:
        return None
    types = [result.type for result in op.results]
    return tuple(s.as_closed() for s in shardings.read_each(attribute, types, ""))
