"""Rewrites a module in place into what XLA accepts: constraints for N devices, no Shardy for one.

XLA reads shardings from main's arguments and results, `sdy.sharding_constraint` and
`sdy.manual_computation`; it ignores `sdy.sharding` on any other op and refuses `sdy.reshard`. So a plan in
shardy form is carried over as constraints.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, sdy
from autoshard.mlir.locations import Locations
from autoshard.mlir.pipeline import run_pipeline
from autoshard.xla.module import Program

_COLLECTIVES = (
    "sdy.all_gather",
    "sdy.all_reduce",
    "sdy.all_slice",
    "sdy.all_to_all",
    "sdy.collective_permute",
    "sdy.reduce_scatter",
    "sdy.replicated_to_unreduced",
    "sdy.sharded_to_unreduced",
)
_PASS_THROUGH = (
    *_COLLECTIVES,  # they change where a value is, not what it is
    "sdy.data_flow_edge",
    "sdy.func_data_flow_edge",
    "sdy.propagation_barrier",
    "sdy.reshard",
    "sdy.sharding_constraint",
)


def walk(op: ir.Operation) -> Iterator[ir.Operation]:
    """Every operation inside `op`, outer before inner, in program order."""
    for region in op.regions:
        for block in region.blocks:
            for child in block.operations:
                yield child.operation
                yield from walk(child.operation)


def for_partitions(program: Program, num_devices: int) -> None:
    """Turn `sdy.reshard` and `sdy.sharding` on ops that have results into constraints and set the number of partitions.

    Raises:
        AutoshardError: the module holds explicit sdy collectives, which XLA refuses.
    """
    for op in list(walk(program.module)):
        if op.name in _COLLECTIVES:
            raise AutoshardError(
                f"XLA refuses {op.name}",
                where=Locations(program.name).text(op.location),
                fix="verify the plan as it was before sdy-reshard-to-collectives",
            )
        if op.name == "sdy.sharding_group":
            op.erase()
        elif op.name == "sdy.reshard":
            _replace(op, _constrain(op.operands[0], op.attributes["sharding"], ir.InsertionPoint(op)))
        elif op.name == "sdy.named_computation":
            _inline(op, _shardings(op, "in_shardings"), _shardings(op, "out_shardings"))
        elif "sdy.sharding" in op.attributes and not op.name.startswith(("sdy.", "func.func")) and op.results:
            _constrain_results(op)
    _finish(program, num_devices)


def for_one_device(program: Program) -> None:
    """Drop every trace of Shardy.

    Raises:
        AutoshardError: the module holds manual computations, whose bodies have no meaning on one device.
    """
    for op in list(walk(program.module)):
        if op.name == "sdy.manual_computation":
            raise AutoshardError(
                "a manual computation cannot run on one device",
                where=Locations(program.name).text(op.location),
                fix="compare with a module that holds none",
            )
        if op.name in _PASS_THROUGH:
            _replace(op, op.operands[0])
        elif op.name in ("sdy.mesh", "sdy.sharding_group"):
            op.erase()
        elif op.name == "sdy.named_computation":
            _inline(op)
        elif op.name == "func.func":
            _drop_port_shardings(op)
        elif "sdy.sharding" in op.attributes:
            del op.attributes["sdy.sharding"]
    _finish(program, 1)


def _finish(program: Program, num_partitions: int) -> None:
    module = program.module
    run_pipeline(module, "sdy-remove-propagation-debug-info")  # it refers to shardings that are gone
    with module.context:
        program.main.attributes["sym_name"] = ir.StringAttr.get("main")  # the name that XLA enters by
        i32 = ir.IntegerType.get_signless(32)
        module.attributes["mhlo.num_partitions"] = ir.IntegerAttr.get(i32, num_partitions)
        module.attributes["mhlo.num_replicas"] = ir.IntegerAttr.get(i32, 1)


def _replace(op: Any, value: Any) -> None:
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _constrain(value: Any, sharding: Any, at: Any) -> Any:
    with at, value.location:
        return sdy.ShardingConstraintOp(value, sharding).result


def _constrain_results(op: Any) -> None:
    shardings = _shardings(op, "sdy.sharding")
    del op.attributes["sdy.sharding"]
    for value, sharding in zip(op.results, shardings, strict=True):
        is_scalar = not isinstance(value.type, ir.RankedTensorType) or value.type.rank == 0
        if is_scalar or len(sdy.TensorShardingAttr(sharding).unreduced_axes) > 0:
            continue
        users = [(use.owner, use.operand_number) for use in value.uses]
        constrained = _constrain(value, sharding, ir.InsertionPoint.after(op))
        for user, operand in users:
            user.operation.operands[operand] = constrained


def _inline(op: Any, into: Sequence[Any] = (), out: Sequence[Any] = ()) -> None:
    """Splice the body of a named computation in, with constraints for the shardings of what enters and leaves."""
    before = ir.InsertionPoint(op)
    block = op.regions[0].blocks[0]
    entering = [_constrain(value, into[i], before) if into else value for i, value in enumerate(op.operands)]
    for argument, value in zip(block.arguments, entering, strict=True):
        argument.replace_all_uses_with(value)
    *body, terminator = [child.operation for child in block.operations]
    for child in body:
        child.move_before(op)
    leaving = [
        _constrain(value, out[i], before) if out else value for i, value in enumerate(terminator.operands)
    ]
    for result, value in zip(op.results, leaving, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _shardings(op: Any, key: str) -> Sequence[Any]:
    return sdy.TensorShardingPerValueAttr(op.attributes[key]).shardings


def _drop_port_shardings(function: Any) -> None:
    for key in ("arg_attrs", "res_attrs"):
        if key in function.attributes:
            kept = [
                ir.DictAttr.get(
                    {entry.name: entry.attr for entry in ir.DictAttr(item) if entry.name != "sdy.sharding"},
                    function.context,
                )
                for item in ir.ArrayAttr(function.attributes[key])
            ]
            function.attributes[key] = ir.ArrayAttr.get(kept, function.context)
