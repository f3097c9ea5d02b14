"""The one walk over an inlined module: which op has which index, which value which id.

Readers, writers and every clone of the module agree on these numbers because all of them come from here. Bodies of loops and
branches are walked in place; the regions of reducers, sorts and scatters are not. Data-flow ops are not numbered: the values that
flow through them are, once for the result and all the block arguments that stand for it. Nor are sharding groups, which only say something
of a value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autoshard.mlir.context import Value, ir

SHARDING = "sdy.sharding"
GROUP = "sdy.sharding_group"
MANUAL = "manual_computation"
COMPUTATIONS = frozenset({"named_computation", MANUAL})
"""Kinds of flows and scopes whose owner has in_shardings and out_shardings."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A block that is walked: main's (0), a loop's condition or body, a branch, a named or manual computation."""

    parent: int
    kind: str  # "main", "cond", "body", "branch", "named_computation" or "manual_computation"
    owner: ir.Operation


@dataclass(frozen=True, slots=True)
class FlowSource:
    value: int
    user: ir.Operation  # the data-flow op or the terminator that hands the value on
    operand: int
    time: int
    scope: int  # that of the user


@dataclass(frozen=True, slots=True)
class Flow:
    kind: str
    owner: ir.Operation
    index: int  # which of the owner's results, or of a computation's arguments
    is_argument: bool  # of a named or manual computation
    target: int
    sources: tuple[FlowSource, ...]
    begin: int
    end: int
    scope: int  # that of the owner
    body: int = -1  # of a loop, the time when its body begins, behind its condition

    @property
    def type(self) -> ir.Type:
        """That of the target."""
        if self.is_argument:
            return self.owner.regions[0].blocks[0].arguments[self.index].type
        return self.owner.results[self.index].type

    @property
    def sharding_attribute(self) -> str:
        """The owner's attribute that holds the target's sharding, at `index`."""
        if self.kind not in COMPUTATIONS:
            return SHARDING
        return "in_shardings" if self.is_argument else "out_shardings"


@dataclass(frozen=True, slots=True)
class Handoff:
    """A point between op `time` - 1 and op `time` where an op or terminator hands values on (or the function returns them)."""

    user: ir.Operation
    time: int
    scope: int


@dataclass(frozen=True, slots=True)
class Walked:
    module: ir.Operation  # what the bindings hand out of a module dies with it, so this is held here
    main: ir.Operation
    ops: list[ir.Operation] = field(default_factory=list[ir.Operation])
    op_scopes: list[int] = field(default_factory=list[int])
    values: list[Value] = field(default_factory=list[Value])  # result or block argument that defines each id
    ids: dict[Value, int] = field(default_factory=dict[Value, int])
    flows: list[Flow] = field(default_factory=list[Flow])
    scopes: list[Scope] = field(default_factory=list[Scope])
    handoffs: list[Handoff] = field(default_factory=list[Handoff])  # in program order
    grouped: list[ir.Operation] = field(default_factory=list[ir.Operation])  # sdy.sharding_group

    @property
    def block(self) -> ir.Block:
        return self.main.regions[0].blocks[0]

    @property
    def terminator(self) -> ir.Operation:
        operations = self.block.operations
        return operations[len(operations) - 1].operation


def body_of(module: ir.Operation) -> ir.Block:
    return module.regions[0].blocks[0]


def function_named(module: ir.Operation, name: str) -> ir.Operation:
    operations = (op.operation for op in body_of(module).operations)
    return next(
        op
        for op in operations
        if op.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == name
    )


def ops_named(module: ir.Operation, names: frozenset[str]) -> list[ir.Operation]:
    """The ops of these names wherever they stand, in program order."""
    found: list[ir.Operation] = []

    def note(op: ir.Operation) -> ir.WalkResult:
        if op.name in names:
            found.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.walk(note, ir.WalkOrder.PRE_ORDER)
    return found


def walk(module: ir.Operation, entry: str) -> Walked:
    walked = Walked(module, function_named(module, entry))
    for argument in walked.block.arguments:
        _number(walked, argument)
    _scope(walked, walked.block, Scope(0, "main", walked.main))
    return walked


def _number(walked: Walked, value: Value, *same: Value) -> int:
    """A new id for a value and for those that always carry what it carries."""
    number = len(walked.values)
    walked.values.append(value)
    walked.ids[value] = number
    for other in same:
        walked.ids[other] = number
    return number


def _scope(walked: Walked, block: ir.Block, scope: Scope) -> Handoff:
    """Number a block's ops as a scope of its own; returns the handoff at its end."""
    me = len(walked.scopes)
    walked.scopes.append(scope)
    return _handoff(walked, _block(walked, block, me), me)


def _handoff(walked: Walked, user: ir.Operation, scope: int) -> Handoff:
    handoff = Handoff(user, len(walked.ops), scope)
    walked.handoffs.append(handoff)
    return handoff


def _block(walked: Walked, block: ir.Block, me: int) -> ir.Operation:
    """Number a block's ops; returns its terminator."""
    ops, op_scopes, values, ids = walked.ops, walked.op_scopes, walked.values, walked.ids
    op: ir.Operation | None = None
    for view in block.operations:
        op = view.operation
        note = _UNNUMBERED.get(op.name)
        if note is not None:
            note(walked, op, me)
            continue
        ops.append(op)
        op_scopes.append(me)
        for result in op.results:
            ids[result] = len(values)
            values.append(result)
    assert op is not None, "blocks end in a terminator"
    ops.pop()
    op_scopes.pop()
    return op


def _source(walked: Walked, handoff: Handoff, operand: int) -> FlowSource:
    value = walked.ids[handoff.user.operands[operand]]
    return FlowSource(value, handoff.user, operand, handoff.time, handoff.scope)


def _while(walked: Walked, op: ir.Operation, scope: int) -> None:
    condition, body = (region.blocks[0] for region in op.regions)
    targets = [
        _number(walked, *same) for same in zip(op.results, condition.arguments, body.arguments, strict=True)
    ]
    start = _handoff(walked, op, scope)
    inside = _scope(walked, condition, Scope(scope, "cond", op))
    back = _scope(walked, body, Scope(scope, "body", op))
    for i, target in enumerate(targets):
        sources = (_source(walked, start, i), _source(walked, back, i))
        flow = Flow("while", op, i, False, target, sources, start.time, back.time, scope, inside.time)
        walked.flows.append(flow)


def _case(walked: Walked, op: ir.Operation, scope: int) -> None:
    targets = [_number(walked, result) for result in op.results]
    ends = [_scope(walked, region.blocks[0], Scope(scope, "branch", op)) for region in op.regions]
    end = len(walked.ops)
    for i, target in enumerate(targets):
        sources = tuple(_source(walked, handoff, i) for handoff in ends)
        walked.flows.append(Flow("case", op, i, False, target, sources, end, end, scope))


def _barrier(walked: Walked, op: ir.Operation, scope: int) -> None:
    here = _handoff(walked, op, scope)
    for i, result in enumerate(op.results):
        source, target = _source(walked, here, i), _number(walked, result)
        walked.flows.append(
            Flow("optimization_barrier", op, i, False, target, (source,), here.time, here.time, scope)
        )


def _computation(walked: Walked, op: ir.Operation, scope: int) -> None:
    kind = op.name.removeprefix("sdy.")
    block = op.regions[0].blocks[0]
    start = _handoff(walked, op, scope)
    for i, argument in enumerate(block.arguments):
        source, target = _source(walked, start, i), _number(walked, argument)
        walked.flows.append(Flow(kind, op, i, True, target, (source,), start.time, start.time, scope))
    targets = [_number(walked, result) for result in op.results]
    end = _scope(walked, block, Scope(scope, kind, op))
    for i, target in enumerate(targets):
        source = _source(walked, end, i)
        walked.flows.append(Flow(kind, op, i, False, target, (source,), end.time, end.time, scope))


def _group(walked: Walked, op: ir.Operation, scope: int) -> None:
    walked.grouped.append(op)


_UNNUMBERED: dict[str, Callable[[Walked, ir.Operation, int], None]] = {
    "stablehlo.while": _while,
    "stablehlo.case": _case,
    "stablehlo.if": _case,
    "stablehlo.optimization_barrier": _barrier,
    "sdy.named_computation": _computation,
    "sdy.manual_computation": _computation,
    GROUP: _group,
}


def scope_chain(scopes: Sequence[Scope], scope: int) -> list[int]:
    """The scope and those around it, innermost first, main last."""
    chain = [scope]
    while chain[-1] != 0:
        chain.append(scopes[chain[-1]].parent)
    return chain
