"""Function calls and composites replaced by the ops that they stand for, so that every op runs where it is listed.

Callees are expanded bottom-up and cloned once a call; functions that other attributes name (a custom call's called_computations) stay.
"""

from collections.abc import Sequence

from autoshard.errors import AutoshardError
from autoshard.mlir.context import Value, func, ir, sdy
from autoshard.mlir.pipeline import run_pipeline
from autoshard.mlir.walk import body_of

_SHARDING = "sdy.sharding"
_CALLS = frozenset({"func.call", "stablehlo.composite"})


def inline_calls(module: ir.Operation, entry: str) -> None:
    """Expand every call that `entry` reaches, in place.

    Raises:
        AutoshardError: a function that calls itself, or has branches between blocks.
    """
    calls = _by_function(module, _CALLS)
    composites = [op for found in calls.values() for op in found if op.name == "stablehlo.composite"]
    if composites:
        for op in composites:
            _constrain_results(op)
        run_pipeline(module, "func.func(stablehlo-legalize-composite-to-call)")
        calls = _by_function(module, _CALLS)
    if not any(calls.values()):
        return
    functions = {
        _symbol(op.operation): op.operation
        for op in body_of(module).operations
        if isinstance(op, func.FuncOp)
    }
    for name in _callees_first(entry, calls):
        for call in calls[name]:
            callee = functions[_callee(call)]
            if len(callee.regions[0].blocks):
                _splice(call, callee)
    run_pipeline(module, "symbol-dce")


def _constrain_results(composite: ir.Operation) -> None:
    """Its own shardings as constraints: the call that it becomes has none."""
    if _SHARDING not in composite.attributes:
        return
    demands = sdy.TensorShardingPerValueAttr(composite.attributes[_SHARDING]).shardings
    after = ir.InsertionPoint.after(composite)
    for result, demand in zip(composite.results, demands, strict=True):
        users = [(use.owner, use.operand_number) for use in result.uses]
        with composite.location, after:
            kept = ir.Operation.create(
                "sdy.sharding_constraint", [result.type], [result], {"sharding": demand}
            ).result
        for user, position in users:
            user.operands[position] = kept


def _symbol(function: ir.Operation) -> str:
    return ir.StringAttr(function.attributes["sym_name"]).value


def _callee(call: ir.Operation) -> str:
    return ir.FlatSymbolRefAttr(call.attributes["callee"]).value


def _by_function(module: ir.Operation, names: frozenset[str]) -> dict[str, list[ir.Operation]]:
    """The ops of these names in each function, at any depth."""
    found: dict[str, list[ir.Operation]] = {}
    for function in body_of(module).operations:
        if isinstance(function, func.FuncOp):
            ops = found.setdefault(_symbol(function.operation), [])

            def note(op: ir.Operation, ops: list[ir.Operation] = ops) -> ir.WalkResult:
                if op.name in names:
                    ops.append(op.operation)
                return ir.WalkResult.ADVANCE

            function.operation.walk(note, ir.WalkOrder.PRE_ORDER)
    return found


def _callees_first(entry: str, calls: dict[str, list[ir.Operation]]) -> list[str]:
    """Functions that `entry` reaches, each after all that it calls."""
    order: list[str] = []
    path: list[str] = []

    def visit(name: str) -> None:
        if name in path:
            cycle = " -> ".join(f"@{n}" for n in [*path[path.index(name) :], name])
            raise AutoshardError(
                f"recursive function calls: {cycle}", fix="unroll the recursion, or use stablehlo.while"
            )
        if name in done:
            return
        path.append(name)
        for callee in dict.fromkeys(map(_callee, calls[name])):
            visit(callee)
        path.pop()
        done.add(name)
        order.append(name)

    done: set[str] = set()
    visit(entry)
    return order


def _splice(call: ir.Operation, callee: ir.Operation) -> None:
    if len(callee.regions[0].blocks) > 1:
        raise AutoshardError(
            f"function @{_symbol(callee)} has branches between blocks", fix="use stablehlo.while and case"
        )
    body = callee.clone()
    block = body.regions[0].blocks[0]
    demands = _shardings(callee, "arg_attrs", len(block.arguments))
    before = ir.InsertionPoint(call)
    for argument, value, demand in zip(block.arguments, call.operands, demands, strict=True):
        argument.replace_all_uses_with(_constrained(value, demand, before))
    operations = [op.operation for op in block.operations]
    for op in operations[:-1]:
        op.move_before(call)
    for result, value, demand in zip(
        call.results, operations[-1].operands, _result_shardings(call, callee), strict=True
    ):
        result.replace_all_uses_with(_constrained(value, demand, before))
    call.erase()
    body.erase()


def _shardings(function: ir.Operation, attributes: str, count: int) -> Sequence[ir.Attribute | None]:
    if attributes not in function.attributes:
        return (None,) * count
    each = (ir.DictAttr(attribute) for attribute in ir.ArrayAttr(function.attributes[attributes]))
    return [next((named.attr for named in one if named.name == _SHARDING), None) for one in each]


def _result_shardings(call: ir.Operation, callee: ir.Operation) -> Sequence[ir.Attribute | None]:
    if _SHARDING in call.attributes:
        return list(sdy.TensorShardingPerValueAttr(call.attributes[_SHARDING]).shardings)
    return _shardings(callee, "res_attrs", len(call.results))


def _constrained(value: Value, demand: ir.Attribute | None, at: ir.InsertionPoint) -> Value:
    """The value, or a sharding_constraint of it where the callee's signature demands a sharding."""
    if demand is None:
        return value
    owner = at.ref_operation
    assert owner is not None
    with owner.location, at:
        return ir.Operation.create(
            "sdy.sharding_constraint", [value.type], [value], {"sharding": demand}
        ).result
