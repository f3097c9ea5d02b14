"""Ops of the input that say in another way what a demand says, written as that demand; those that cannot be are refused.

Collectives of sdy that only move data are reshards to their `out_sharding`. So are all-reduces and reduce-scatters of what a contraction or
a reduction makes, for the sum that they spell out is the one that the sharding of the op implies, and of what is unreduced. Data-flow
edges, which Shardy's propagation adds for itself, hand their sharding to the op that they belong to.
"""

import re

from autoshard.errors import AutoshardError
from autoshard.mlir.context import Value, ir
from autoshard.mlir.facts import RULE
from autoshard.mlir.locations import Locations
from autoshard.mlir.pipeline import run_pipeline
from autoshard.mlir.signature import attributes_of, set_attributes
from autoshard.mlir.walk import SHARDING, ops_named

_MOVES = frozenset(
    {"sdy.all_gather", "sdy.all_slice", "sdy.all_to_all", "sdy.collective_permute"}
    | {"sdy.replicated_to_unreduced", "sdy.sharded_to_unreduced"}
)
_SUMS = frozenset({"sdy.all_reduce", "sdy.reduce_scatter"})
_SHARDED_BY = ("out_sharding", "sharding", SHARDING)
_SUMMED_AXES = ("reduction_axes", "reduce_scatter_axes")
_UNREDUCED = re.compile(r"unreduced=\{([^}]*)\}")
_AXIS = re.compile(r'"[^"]*"(?::\(\d+\)\d+)?')
_EDGES = frozenset({"sdy.data_flow_edge", "sdy.func_data_flow_edge"})
_SUMMING = frozenset(
    {
        "chlo.ragged_dot", "stablehlo.convolution", "stablehlo.dot", "stablehlo.dot_general", "stablehlo.gather", "stablehlo.reduce",
        "stablehlo.scatter",
    }
)  # fmt: skip
"""Ops whose rules have reduction factors: Shardy sums what they make on devices that split such a factor."""


def refuse_unwritable(module: ir.Operation, file: str) -> None:
    """Raises AutoshardError at the first op that `rewrite` cannot express."""
    locations = Locations(file)
    for op in ops_named(module, _SUMS):
        is_partial = _is_summed(op.operands[0]) or _is_unreduced(op) or _sums_over_nothing(op)
        if not is_partial:
            raise AutoshardError(
                f"{op.name} of a value that is no partial sum: it has no unreduced axes, and its op sums nothing",
                where=locations.text(op.location),
                fix="give the module as it was before sdy-insert-explicit-reshards, or write sdy.reshard",
            )


def rewrite(module: ir.Operation) -> None:
    """Express the ops as demands, in place, and drop what Shardy noted of another propagation: it would no longer be true."""
    run_pipeline(module, "sdy-remove-propagation-debug-info")
    for op in ops_named(module, _MOVES | _SUMS):
        _as_reshard(op)
    for op in ops_named(module, frozenset({"sdy.constant"})):
        _as_constant(op)
    for op in ops_named(module, _EDGES):
        if _is_function_argument(op.operands[0]):
            _as_demand_on_argument(op)
    if ops_named(module, _EDGES):
        run_pipeline(module, "func.func(sdy-sink-data-flow-edges,sdy-sink-func-data-flow-edges)")


def _as_reshard(op: ir.Operation) -> None:
    with op.location, ir.InsertionPoint(op):
        reshard = ir.Operation.create(
            "sdy.reshard", [op.result.type], [op.operands[0]], {"sharding": op.attributes["out_sharding"]}
        )
    op.result.replace_all_uses_with(reshard.result)
    op.erase()


def _as_constant(op: ir.Operation) -> None:
    """StableHLO's constant, which is recomputed for each use and which every reader of the output knows; Shardy makes its own of those."""
    attributes = {name: op.attributes[name] for name in op.attributes}
    with op.location, ir.InsertionPoint(op):
        constant = ir.Operation.create("stablehlo.constant", [op.result.type], [], attributes)
    op.result.replace_all_uses_with(constant.result)
    op.erase()


def _sums_over_nothing(op: ir.Operation) -> bool:
    return str(op.attributes.get("reduction_axes", "")).endswith("{}>")


def _as_demand_on_argument(edge: ir.Operation) -> None:
    """The edge of an argument hands its sharding to the argument, which may have one of its own, and is gone."""
    argument = ir.BlockArgument(edge.operands[0])
    function = argument.owner.owner.operation
    each = [dict(one) for one in attributes_of(function, "arg_attrs", len(argument.owner.arguments))]
    if "sharding" in edge.attributes:
        each[argument.arg_number].setdefault(SHARDING, edge.attributes["sharding"])
        set_attributes(function, "arg_attrs", each)
    edge.result.replace_all_uses_with(argument)
    edge.erase()


def _is_summed(value: Value) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and (
        owner.name in _SUMMING or "reduction={" in str(owner.attributes.get(RULE, ""))
    )


def _is_unreduced(collective: ir.Operation) -> bool:
    """Whether the module says of what the collective adds up that it is a partial sum over these axes."""
    value = collective.operands[0]
    if isinstance(value.owner, ir.Block):
        owner, number = value.owner.owner.operation, ir.BlockArgument(value).arg_number
        is_argument = owner.name == "func.func"
        said = attributes_of(owner, "arg_attrs", number + 1)[number].get(SHARDING, "") if is_argument else ""
    else:
        attributes = value.owner.operation.attributes
        said = next((attributes[key] for key in _SHARDED_BY if key in attributes), "")
    summed = next(str(collective.attributes[key]) for key in _SUMMED_AXES if key in collective.attributes)
    unreduced = _UNREDUCED.search(str(said))
    return unreduced is not None and set(_AXIS.findall(summed)) <= set(_AXIS.findall(unreduced[1]))


def _is_function_argument(value: Value) -> bool:
    owner = value.owner
    return isinstance(owner, ir.Block) and owner.owner.operation.name == "func.func"
