"""What a written module says of its values, read from its text with the bindings alone: nothing of the planner or the writer is asked."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from autoshard.mlir.context import BlockArgument, Value, ir, new_context, sdy

CHANGES = frozenset(
    {
        "sdy.all_gather", "sdy.all_reduce", "sdy.all_slice", "sdy.all_to_all", "sdy.collective_permute", "sdy.reduce_scatter",
        "sdy.replicated_to_unreduced", "sdy.reshard", "sdy.sharded_to_unreduced", "sdy.sharding_constraint",
    }
)  # fmt: skip
"""Ops whose result is their operand in another sharding."""
_COMPUTATIONS = ("sdy.named_computation", "sdy.manual_computation")


@dataclass(frozen=True, slots=True)
class Axis:
    """The part of a mesh axis between two strides: `"y":(2)4` of an axis of 8 goes from 2 to 8."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Mesh:
    sizes: tuple[tuple[str, int], ...]  # axes in order
    device_ids: tuple[int, ...]  # empty: counted up


@dataclass(frozen=True, slots=True)
class Dim:
    axes: tuple[Axis, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class Sharding:
    mesh: Mesh
    dims: tuple[Dim, ...]
    replicated: frozenset[Axis]
    unreduced: frozenset[Axis]


def honours(found: Sharding, asked: Sharding) -> bool:
    """Whether a demand holds: closed dimensions exact, open ones extended only, replicated axes unused, partial sums the same."""
    if not asked.mesh.sizes and not asked.mesh.device_ids:  # on no mesh: replicated
        return all(dim.is_open or not has.axes for dim, has in zip(asked.dims, found.dims, strict=True))
    if found.mesh != asked.mesh:  # the same where nothing is split, unless all of it is to be on one device
        return bool(asked.mesh.sizes and found.mesh.sizes) and not any(
            dim.axes for dim in (*found.dims, *asked.dims)
        )
    used = [axis for dim in found.dims for axis in dim.axes]
    return (
        not any(_overlap(axis, free) for axis in (*used, *found.unreduced) for free in asked.replicated)
        and _pieces(found.unreduced, ()) == _pieces(asked.unreduced, ())
        and all(_dim_holds(has, dim) for has, dim in zip(found.dims, asked.dims, strict=True))
    )


def _dim_holds(found: Dim, asked: Dim) -> bool:
    has, wanted = _pieces(found.axes, asked.axes), _pieces(asked.axes, found.axes)
    return has[: len(wanted)] == wanted and (asked.is_open or len(has) == len(wanted))


def _pieces(axes: Sequence[Axis] | frozenset[Axis], others: Sequence[Axis]) -> list[Axis]:
    """The axes cut at every stride at which one of either is, so that parts of an axis compare."""
    ordered = axes if isinstance(axes, tuple) else sorted(axes, key=lambda axis: (axis.name, axis.begin))
    found: list[Axis] = []
    for axis in ordered:
        strides = {s for o in (*ordered, *others) if o.name == axis.name for s in (o.begin, o.end)}
        inside = sorted(s for s in strides if axis.begin <= s <= axis.end)
        found += [Axis(axis.name, *pair) for pair in pairwise(inside)]
    return found


def _overlap(one: Axis, other: Axis) -> bool:
    return one.name == other.name and one.begin < other.end and other.begin < one.end


class Output:
    """A module and what it says; values are those of the bindings."""

    def __init__(self, module: str | ir.Module) -> None:
        self.module = ir.Module.parse(module, new_context()) if isinstance(module, str) else module
        operations = [view.operation for view in self.module.body.operations]
        self.meshes = {
            ir.StringAttr(op.attributes["sym_name"]).value: _mesh(op.attributes["mesh"])
            for op in operations
            if op.name == "sdy.mesh"
        }
        functions = (op for op in operations if op.name == "func.func")
        self.main = next(op for op in functions if ir.StringAttr(op.attributes["sym_name"]).value == "main")

    def sharding(self, attribute: ir.Attribute) -> Sharding:
        read = sdy.TensorShardingAttr(attribute)
        named = read.mesh_or_ref
        mesh = (
            self.meshes[ir.FlatSymbolRefAttr(named).value]
            if isinstance(named, ir.FlatSymbolRefAttr)
            else _mesh(named)
        )
        dims = map(sdy.DimensionShardingAttr, read.dimension_shardings)
        return Sharding(
            mesh,
            tuple(Dim(tuple(_axis(a, mesh) for a in dim.axes), not dim.is_closed) for dim in dims),
            frozenset(_axis(axis, mesh) for axis in read.replicated_axes),
            frozenset(_axis(axis, mesh) for axis in read.unreduced_axes),
        )

    def asked(self, text: str) -> Sharding:
        """A demand as the user writes it, such as `@mesh, [{"x", ?}, {}]`, on the meshes of this module."""
        return self.sharding(ir.Attribute.parse(f"#sdy.sharding<{text}>", self.module.context))

    def at_boundary(self, key: str) -> list[Sharding | None]:
        """Of main's arguments (`arg_attrs`) or results (`res_attrs`)."""
        each = [ir.DictAttr(one) for one in ir.ArrayAttr(self.main.attributes[key])]
        return [self.sharding(one["sdy.sharding"]) if "sdy.sharding" in one else None for one in each]

    def ops(self, name: str) -> list[ir.Operation]:
        return [op for op in inside(self.main) if op.name == name]

    def of(self, value: Value) -> Sharding | None:
        """What the module says of a value where it is made."""
        if isinstance(value, ir.OpResult):
            return self._of_result(value.owner.operation, value.result_number)
        argument = BlockArgument(value)
        owner, number = argument.owner.owner.operation, argument.arg_number
        if owner.name == "func.func":
            return self.at_boundary("arg_attrs")[number]
        return self._each(owner, "in_shardings" if owner.name in _COMPUTATIONS else "sdy.sharding", number)

    def _of_result(self, op: ir.Operation, number: int) -> Sharding | None:
        if op.name in CHANGES:
            return self.sharding(
                op.attributes["out_sharding" if "out_sharding" in op.attributes else "sharding"]
            )
        return self._each(op, "out_shardings" if op.name in _COMPUTATIONS else "sdy.sharding", number)

    def _each(self, op: ir.Operation, key: str, number: int) -> Sharding | None:
        if key not in op.attributes:
            return None
        return self.sharding(sdy.TensorShardingPerValueAttr(op.attributes[key]).shardings[number])

    def settled(self, value: Value) -> list[Sharding | None]:
        """What a value is made as, and what it is brought to where all that is read of it is one change."""
        found = [self.of(value)]
        readers = [use.owner.operation for use in value.uses]
        while len(readers) == 1 and readers[0].name in CHANGES:
            found.append(self.of(readers[0].result))
            readers = [use.owner.operation for use in readers[0].result.uses]
        return found

    def on_the_way(self, value: Value) -> list[Sharding | None]:
        """What the value is, and was before each change that made it so."""
        found = [self.of(value)]
        while isinstance(value, ir.OpResult) and value.owner.operation.name in CHANGES:
            value = value.owner.operation.operands[0]
            found.append(self.of(value))
        return found


def inside(op: ir.Operation) -> Iterator[ir.Operation]:
    for region in op.regions:
        for block in region.blocks:
            for child in block.operations:
                yield child.operation
                yield from inside(child.operation)


def _mesh(attribute: ir.Attribute) -> Mesh:
    read = sdy.MeshAttr(attribute)
    axes = map(sdy.MeshAxisAttr, read.axes)
    return Mesh(tuple((axis.name, axis.size) for axis in axes), tuple(read.device_ids))


def _axis(attribute: ir.Attribute, mesh: Mesh) -> Axis:
    read = sdy.AxisRefAttr(attribute)
    if read.sub_axis_info is None:
        return Axis(read.name, 1, dict(mesh.sizes)[read.name])
    part = sdy.SubAxisInfoAttr(read.sub_axis_info)
    return Axis(read.name, part.pre_size, part.pre_size * part.size)
