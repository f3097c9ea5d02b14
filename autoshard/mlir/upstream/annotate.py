"""A planned module (shardings on ops, `sdy.reshard` at changes) annotated in upstream's dialect instead.

Every ranked value gets a `shard` op where it is made, its partial sum included, and one for its users; every change of sharding, and every
window that reaches into other parts (its halo sizes), is one more for those users, from the value as it is made: upstream gives no
meaning to a chain of them. Priorities, groups and rules are gone.
The module is printed in generic form, because upstream does not know StableHLO, with the sharding ops in upstream's own.
"""

import re
from collections.abc import Iterator, Sequence

from autoshard.errors import AutoshardError
from autoshard.mlir.context import Value, ir
from autoshard.mlir.locations import Locations
from autoshard.mlir.meshes import all_meshes
from autoshard.mlir.signature import attributes_of, set_attributes
from autoshard.mlir.tensors import Shardings
from autoshard.mlir.upstream.notation import Notation, Partial, mesh_text, sharding_text
from autoshard.mlir.walk import SHARDING, Walked, body_of
from autoshard.sharding import Mesh, TensorSharding

PARTIAL, HALO = "partial", "halo"
_CHANGES = frozenset({"sdy.reshard", "sdy.sharding_constraint", "sdy.propagation_barrier"})
_SHARD, _TEXT = "autoshard.shard", "autoshard.text"  # stand for ops that the bindings do not know
_SHARD_LINE = re.compile(
    r'"autoshard\.shard"\((%\S+)\) \{(for_users, )?to = "([^"]*)"\} : \(.*\) -> (tensor<.*?>)(?= loc\(|$)',
    re.MULTILINE,
)
_TEXT_LINE = re.compile(r'"autoshard\.text"\(\) \{text = "([^"]*)"\} : \(\) -> \(\)')


def annotated_text(
    walked: Walked,
    partials: Sequence[Partial],
    mesh: Mesh,
    notation: Notation,
    file: str,
    *,
    with_locations: bool,
) -> str:
    """The module as text for upstream's mlir-opt; the walked module is consumed.

    Args:
        partials: those that the `PARTIAL` attributes of ops number: how the devices' parts of a result make the whole, before the sum that
            the op's sharding implies. `HALO` attributes hold, for each operand of an op, what `sharding_text` takes as its halo.

    Raises:
        AutoshardError: sub-axes, an order of devices, ops on one device or manual computations.
    """
    context = walked.module.context
    was_allowed = context.allow_unregistered_dialects
    context.allow_unregistered_dialects = True
    try:
        annotator = _Annotator(walked, partials, mesh, notation, file)
        annotator.run()
        text = str(walked.module.get_asm(print_generic_op_form=True, enable_debug_info=with_locations))
    finally:
        context.allow_unregistered_dialects = was_allowed
    return _TEXT_LINE.sub(lambda m: _plain(m[1]), _SHARD_LINE.sub(annotator.shard_line, text))


def _plain(printed: str) -> str:
    return printed.replace("\\22", '"').replace("\\\\", "\\")


class _Annotator:
    def __init__(
        self,
        walked: Walked,
        partials: Sequence[Partial],
        mesh: Mesh,
        notation: Notation,
        file: str,
    ) -> None:
        self._walked, self._partials, self._mesh, self._notation = walked, partials, mesh, notation
        self._shardings = Shardings(mesh, all_meshes(walked.module), walked.module.context)
        self._locations = Locations(file)
        self._file = file
        self._symbols: dict[str, str] = {}  # of shardings that are values, by their text
        self._made: dict[Value, tuple[Value, TensorSharding]] = {}
        # a value for its users -> as annotated where it is made, and how they read it

    def run(self) -> None:
        header = mesh_text(self._mesh, self._notation, self._file)
        ops: list[ir.Operation] = []

        def note(op: ir.Operation) -> ir.WalkResult:
            ops.append(op.operation)
            return ir.WalkResult.ADVANCE

        self._walked.main.walk(note, ir.WalkOrder.PRE_ORDER)
        for op in ops:
            self._refuse(op)
        for value, sharding in list(self._shardings_of_values()):
            self._annotate(value, sharding)
        for op in self._walked.ops:
            if op.name in _CHANGES:
                self._change(op)
            elif HALO in op.attributes and self._notation.has_halo:
                self._widen(op)
        self._clean()
        self._insert_text(header, ir.InsertionPoint.at_block_begin(body_of(self._walked.module)))
        for text, symbol in reversed(self._symbols.items()):
            self._insert_text(f"{symbol} = {text}", ir.InsertionPoint.at_block_begin(self._walked.block))

    def shard_line(self, found: re.Match[str]) -> str:
        users = " annotate_for_users" if found[2] else ""
        return f"{self._notation.dialect}.shard {found[1]} to {_plain(found[3])}{users} : {found[4]}"

    def _refuse(self, op: ir.Operation) -> None:
        reason = ""
        if op.name == "sdy.manual_computation":
            reason = "a manual computation (shard_map) already runs on single devices"
        elif SHARDING in op.attributes and self._shardings.device_of(op.attributes[SHARDING], ""):
            reason = f"{op.name} is to run on one device alone"
        if reason:
            raise AutoshardError(
                f"{reason}, which the {self._notation.dialect} dialect cannot say",
                where=self._locations.text(op.location) or self._file,
                fix="write the plan with --form shardy",
            )

    def _shardings_of_values(self) -> Iterator[tuple[Value, TensorSharding]]:
        """Ranked values that ops make or blocks begin with, in program order."""
        walked, known = self._walked, dict[int, TensorSharding]()
        arguments = attributes_of(walked.main, "arg_attrs", len(walked.block.arguments))
        for argument, attributes in zip(walked.block.arguments, arguments, strict=True):
            if SHARDING in attributes:
                known[walked.ids[argument]] = self._shardings.read(attributes[SHARDING], argument.type, "")
        for op in walked.ops:
            if SHARDING in op.attributes and op.name not in _CHANGES:
                types = [result.type for result in op.results]
                each = self._shardings.read_each(op.attributes[SHARDING], types, "")
                known.update(zip(map(walked.ids.__getitem__, op.results), each, strict=True))
        for flow in walked.flows:
            attribute = flow.owner.attributes.get(flow.sharding_attribute)
            if attribute is not None:
                type_ = walked.values[flow.target].type
                known[flow.target] = self._shardings.read_at(attribute, flow.index, type_, "")
        for value, number in walked.ids.items():
            if number in known and known[number].rank:
                yield value, known[number]

    def _annotate(self, value: Value, sharding: TensorSharding) -> None:
        is_result = isinstance(value, ir.OpResult)
        owner = value.owner.operation if is_result else None
        number = owner.attributes.get(PARTIAL) if owner is not None else None
        partial = self._partials[ir.IntegerAttr(number).value] if number is not None else None
        at = (
            ir.InsertionPoint.after(owner)
            if owner is not None
            else ir.InsertionPoint.at_block_begin(ir.BlockArgument(value).owner)
        )
        made = self._shard(value, sharding, at, partial=partial)
        read = self._shard(made.result, sharding, ir.InsertionPoint.after(made), for_users=True)
        value.replace_all_uses_except(read.result, [made])
        self._made[read.result] = made.result, sharding

    def _change(self, op: ir.Operation) -> None:
        made, _ = self._made[op.operands[0]]
        attribute = op.attributes.get("sharding")
        sharding = (
            self._shardings.read(attribute, op.result.type, "")
            if attribute is not None
            else self._shardings.read_at(op.attributes[SHARDING], 0, op.result.type, "")
        )
        read = self._shard(made, sharding, ir.InsertionPoint(op), for_users=True)
        op.result.replace_all_uses_with(read.result)
        self._made[read.result] = made, sharding
        op.erase()

    def _widen(self, op: ir.Operation) -> None:
        """Let the op read operands with the rows before and after their parts that its windows need."""
        for position, halo in enumerate(ir.ArrayAttr(op.attributes[HALO])):
            sizes = list(ir.DenseI64ArrayAttr(halo))
            if sizes:
                made, sharding = self._made[op.operands[position]]
                read = self._shard(made, sharding, ir.InsertionPoint(op), halo=sizes, for_users=True)
                op.operands[position] = read.result
                self._made[read.result] = made, sharding

    def _shard(
        self,
        value: Value,
        sharding: TensorSharding,
        at: ir.InsertionPoint,
        *,
        partial: Partial | None = None,
        halo: Sequence[int] = (),
        for_users: bool = False,
    ) -> ir.Operation:
        where = self._locations.text(value.location) or self._file
        text = sharding_text(sharding, partial, halo, self._mesh, self._notation, where)
        if self._notation.has_sharding_op:
            text = self._symbols.setdefault(text, f"%sharding_{len(self._symbols)}")
        context = self._walked.module.context
        attributes: dict[str, ir.Attribute] = {"to": ir.StringAttr.get(text, context)}
        if for_users:
            attributes["for_users"] = ir.UnitAttr.get(context)
        return ir.Operation.create(_SHARD, [value.type], [value], attributes, loc=value.location, ip=at)

    def _insert_text(self, text: str, at: ir.InsertionPoint) -> None:
        context = self._walked.module.context
        ir.Operation.create(
            _TEXT,
            attributes={"text": ir.StringAttr.get(text, context)},
            loc=ir.Location.unknown(context),
            ip=at,
        )

    def _clean(self) -> None:
        """Take off what is sdy's, and annotations that nobody reads."""
        walked = self._walked
        for view in list(body_of(walked.module).operations):
            if view.operation.name == "sdy.mesh":
                view.operation.erase()
        for op in walked.grouped:
            op.erase()
        unread = [read.owner for read in self._made if not list(read.uses)]
        for op in unread:
            if not isinstance(op, ir.Block):
                op.operation.erase()
        for key, count in (
            ("arg_attrs", len(walked.block.arguments)),
            ("res_attrs", len(walked.terminator.operands)),
        ):
            each = [dict(one) for one in attributes_of(walked.main, key, count)]
            for attributes in each:
                attributes.pop(SHARDING, None)
            set_attributes(walked.main, key, each)

        def note(op: ir.Operation) -> ir.WalkResult:
            for name in (SHARDING, "sdy.sharding_rule", PARTIAL, HALO):
                if name in op.attributes:
                    del op.attributes[name]
            return ir.WalkResult.ADVANCE

        walked.module.walk(note, ir.WalkOrder.PRE_ORDER)
