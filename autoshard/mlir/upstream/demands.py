"""Annotations of upstream's sharding dialect as demands in Shardy's.

A `shard` op demands the sharding of the value where it is made; one with `annotate_for_users`, that of its users. A partial sum is the one
that the shardings of the op's operands imply, and halos say how windows are read: neither is a demand.
"""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from autoshard.errors import AutoshardError
from autoshard.mlir.context import Value, ir, new_context
from autoshard.mlir.diagnostics import as_user_error
from autoshard.mlir.locations import Locations
from autoshard.mlir.signature import attributes_of, set_attributes
from autoshard.mlir.upstream.notation import AXES
from autoshard.mlir.upstream.rewrite import as_generic
from autoshard.mlir.walk import SHARDING

_MESHES = frozenset({"mesh.mesh", "shard.grid"})
_SHARDINGS = frozenset({"mesh.sharding", "shard.sharding"})
_SHARDS = frozenset({"mesh.shard", "shard.shard"})
_OF_SHARDING = ("mesh", "grid", "split_axes", "options", "partial_axes", "static_sharded_dims_offsets")
_SPLIT = re.compile(r"\[\s*(?:\[[\d,\s]*\]\s*,?\s*)*\]")
_NUMBERS = re.compile(r"\[([\d,\s]*)\]")
_MESH_NAME = re.compile(r'@([\w$.-]+|"[^"]*")')


def with_demands(data: bytes, name: str) -> bytes:
    """The module as bytecode, its annotations as `sdy.sharding` where values are made and `sdy.sharding_constraint` before users.

    Raises:
        AutoshardError: not MLIR, a mesh of unknown size, shards of unequal size, an axis that the mesh has not, a partial sum for users,
            two demands on one value, or another op of the dialect.
    """
    context = new_context()
    context.allow_unregistered_dialects = True
    text = data.decode()
    with as_user_error(f"{name} is not a StableHLO module that MLIR can read", text=text):
        module = ir.Module.parse(as_generic(text), context)
    _Reader(module.operation, Locations(name)).run()
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return written.getvalue()


@dataclass(frozen=True, slots=True)
class _Mesh:
    name: str
    axes: tuple[tuple[str, int], ...]


@dataclass(slots=True)
class _Reader:
    module: ir.Operation
    locations: Locations
    meshes: dict[str, _Mesh] = field(default_factory=dict[str, _Mesh])
    made: dict[Value, str] = field(default_factory=dict[Value, str])  # demands where values are made

    def run(self) -> None:
        ops: list[ir.Operation] = []

        def note(op: ir.Operation) -> ir.WalkResult:
            if op.name.startswith(("mesh.", "shard.")):
                ops.append(op.operation)
            return ir.WalkResult.ADVANCE

        self.module.walk(note, ir.WalkOrder.PRE_ORDER)
        for op in ops:
            if op.name in _MESHES:
                self._mesh(op)
        for op in ops:
            if op.name in _SHARDS:
                self._shard(op)
            elif op.name not in _SHARDINGS | _MESHES:
                raise self._error(op, f"{op.name} is not supported", "give the module with annotations only")
        for op in reversed(ops):  # users first
            op.erase()
        self._write_demands()

    def _error(self, op: ir.Operation, reason: str, fix: str) -> AutoshardError:
        return AutoshardError(reason, where=self.locations.text(op.location), fix=fix)

    def _mesh(self, op: ir.Operation) -> None:
        name = ir.StringAttr(op.attributes["sym_name"]).value
        sizes = list(ir.DenseI64ArrayAttr(op.attributes["shape"]))
        if any(size < 1 for size in sizes):
            raise self._error(op, f"mesh @{name} has an axis of unknown size", "give every axis a size")
        names = [f"axis{number}" for number in range(len(sizes))]
        if AXES in op.attributes:
            names = [ir.StringAttr(axis).value for axis in ir.ArrayAttr(op.attributes[AXES])]
        if len(names) != len(sizes):
            raise self._error(
                op, f"{AXES} of mesh @{name} names {len(names)} of {len(sizes)} axes", "name each"
            )
        mesh = self.meshes[name] = _Mesh(name, tuple(zip(names, sizes, strict=True)))
        axes = ", ".join(f'"{axis}"={size}' for axis, size in mesh.axes)
        with self.module.context, op.location:
            written = ir.Operation.parse(f'sdy.mesh @"{name}" = <[{axes}]>')
            ir.InsertionPoint(op).insert(written)

    def _shard(self, op: ir.Operation) -> None:
        value, is_for_users = op.operands[0], "annotate_for_users" in op.attributes
        rank = ir.RankedTensorType(value.type).rank
        sharding = self._sharding(op, rank, is_for_users=is_for_users)
        if not rank:
            op.result.replace_all_uses_with(value)
            return
        if is_for_users:
            self._demand_of_returns(op, sharding)
            read = value if self.made.get(value) == sharding else self._constraint(op, value, sharding)
        elif _is_made_here(value):
            if self.made.setdefault(value, sharding) != sharding:
                raise self._error(
                    op,
                    f"a value demanded as {self.made[value]} and as {sharding}",
                    "annotate a value once where it is made",
                )
            read = value
        else:
            read = self._constraint(op, value, sharding)
        op.result.replace_all_uses_with(read)

    def _sharding(self, op: ir.Operation, rank: int, *, is_for_users: bool) -> str:
        """In Shardy's notation, with its mesh."""
        source = op
        if "shard" in op.attributes:
            text = str(op.attributes["shard"])
        else:
            owner = op.operands[1].owner
            if isinstance(owner, ir.Block) or owner.name not in _SHARDINGS:
                raise self._error(
                    op, "a sharding that no mesh.sharding makes", "use a mesh.sharding in the function"
                )
            source = owner.operation
            named = {key: str(source.attributes[key]) for key in _OF_SHARDING if key in source.attributes}
            symbol = named.get("mesh") or named.get("grid", "")
            text = f"{symbol} {named['split_axes']} {_options(named)}"
        mesh_name = _MESH_NAME.search(text)
        split = _SPLIT.search(text)
        mesh = self.meshes.get(mesh_name[1].strip('"')) if mesh_name is not None else None
        if mesh is None or split is None:
            raise self._error(
                source, f"a sharding on no mesh of the module: {text}", "name a mesh that the module has"
            )
        if "offsets" in text:
            raise self._error(
                source, "shards of unequal size (sharded_dims_offsets) are not supported", "split evenly"
            )
        if "partial" in text and is_for_users:
            raise self._error(
                op,
                "a partial sum for users is not supported yet",
                "demand the whole value, or leave the annotation out",
            )
        dims = [[int(n) for n in found.split(",") if n.strip()] for found in _NUMBERS.findall(split[0][1:-1])]
        if len([dim for dim in dims if dim]) and len(dims) > rank:
            raise self._error(
                source,
                f"a sharding of {len(dims)} dimensions on a value of {rank}",
                "write one list a dimension",
            )
        if any(number >= len(mesh.axes) for dim in dims for number in dim):
            raise self._error(
                source, f"split_axes {split[0]} on a mesh of {len(mesh.axes)} axes", "count axes from 0"
            )
        texts = [", ".join(f'"{mesh.axes[number][0]}"' for number in dim) for dim in dims[:rank]]
        texts += [""] * (rank - len(texts))
        return f'<@"{mesh.name}", [{", ".join(f"{{{text}}}" for text in texts)}]>'

    def _constraint(self, op: ir.Operation, value: Value, sharding: str) -> Value:
        attribute = ir.Attribute.parse(f"#sdy.sharding{sharding}", self.module.context)
        return ir.Operation.create(
            "sdy.sharding_constraint",
            [value.type],
            [value],
            {"sharding": attribute},
            loc=op.location,
            ip=ir.InsertionPoint(op),
        ).result

    def _demand_of_returns(self, op: ir.Operation, sharding: str) -> None:
        """What the function returns is a user too, and has a place for its demand."""
        for use in op.result.uses:
            owner = use.owner.operation
            function = owner.parent
            if owner.name == "func.return" and function is not None:
                self._set_in_signature(
                    function.operation, "res_attrs", use.operand_number, len(owner.operands), sharding
                )

    def _set_in_signature(
        self, function: ir.Operation, key: str, index: int, count: int, sharding: str
    ) -> None:
        each = [dict(one) for one in attributes_of(function, key, count)]
        each[index].setdefault(SHARDING, ir.Attribute.parse(f"#sdy.sharding{sharding}", self.module.context))
        set_attributes(function, key, each)

    def _write_demands(self) -> None:
        by_op: dict[ir.Operation, dict[int, str]] = {}
        for value, sharding in self.made.items():
            if isinstance(value, ir.OpResult):
                owner, index = value.owner.operation, value.result_number
            else:
                block = ir.BlockArgument(value).owner
                owner, index = block.owner.operation, ir.BlockArgument(value).arg_number
                if owner.name == "func.func":
                    self._set_in_signature(owner, "arg_attrs", index, len(block.arguments), sharding)
                    continue
            of_owner = by_op.setdefault(owner, {})
            if of_owner.setdefault(index, sharding) != sharding:
                raise self._error(
                    owner,
                    f"what {owner.name} carries is demanded as {of_owner[index]} and as {sharding}",
                    "annotate both alike",
                )
        for op, demands in by_op.items():
            if SHARDING not in op.attributes:
                op.attributes[SHARDING] = self._per_value(op, demands)

    def _per_value(self, op: ir.Operation, demands: Mapping[int, str]) -> ir.Attribute:
        mesh = next(iter(self.meshes))
        each: list[str] = []
        for number, result in enumerate(op.results):
            rank = (
                ir.RankedTensorType(result.type).rank if isinstance(result.type, ir.RankedTensorType) else 0
            )
            each.append(demands.get(number, f'<@"{mesh}", [{", ".join(["{?}"] * rank)}]>'))
        return ir.Attribute.parse(f"#sdy.sharding_per_value<[{', '.join(each)}]>", self.module.context)


def _options(named: Mapping[str, str]) -> str:
    """What a sharding says beside its axes, from either form."""
    said = named.get("options", "")
    if re.search(r"\d", named.get("partial_axes", "").partition(":")[2]):
        said += " partial"
    if re.search(r"\d", named.get("static_sharded_dims_offsets", "").partition(":")[2]):
        said += " offsets"
    return said


def _is_made_here(value: Value) -> bool:
    """Whether the value has a place for its own sharding: an op's result, a function's argument, or what a loop carries."""
    if isinstance(value, ir.OpResult):
        return not value.owner.name.startswith(("mesh.", "shard.", "sdy."))
    return ir.BlockArgument(value).owner.owner.operation.name in ("func.func", "stablehlo.while")
