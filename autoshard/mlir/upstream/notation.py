"""The notations of upstream MLIR's sharding dialect, and shardings in them.

- LLVM 19: `mesh.mesh`; a sharding is an attribute of `mesh.shard`, `<@mesh, [[0], [1]], partial = sum[1]>`.
- LLVM 20 and 21: `mesh.sharding` makes a value of it, which knows halo sizes too.
- LLVM 22 on: the same, as `shard.grid`, `shard.sharding` and `shard.shard`, without partial sums.

Mesh axes are numbers in the order of the mesh; there are no sub-axes and no order of devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir
from autoshard.mlir.forms import Form
from autoshard.sharding import AxisRef, Mesh, TensorSharding

AXES = "autoshard.axes"
"""Attribute of a written mesh: the names of its axes."""


@dataclass(frozen=True, slots=True)
class Notation:
    dialect: str
    mesh_op: str
    has_sharding_op: bool
    has_partial: bool
    has_halo: bool


NOTATIONS: dict[Form, Notation] = {
    "mesh": Notation("mesh", "mesh.mesh", False, True, False),
    "mesh-20": Notation("mesh", "mesh.mesh", True, True, True),
    "shard": Notation("shard", "shard.grid", True, False, True),
}


@dataclass(frozen=True, slots=True)
class Partial:
    """A value that is the `kind` (sum, max, ...) of what the devices along `axes` hold."""

    kind: str
    axes: tuple[AxisRef, ...]


_KINDS = {
    "stablehlo.add": "sum", "stablehlo.and": "bitwise_and", "stablehlo.maximum": "max", "stablehlo.minimum": "min",
    "stablehlo.multiply": "product", "stablehlo.or": "bitwise_or", "stablehlo.xor": "bitwise_xor",
}  # fmt: skip


def reduction_kind(op: ir.Operation) -> str | None:
    """How the parts of an op's result make the whole; None where upstream has no word for it, as for an argmax."""
    if not len(op.regions):
        return "sum"
    first, *others = (view.operation.name for view in op.regions[0].blocks[0].operations)
    return _KINDS.get(first) if len(others) == 1 else None


def mesh_text(mesh: Mesh, notation: Notation, where: str) -> str:
    """Raises AutoshardError: the mesh has an order of devices."""
    if mesh.device_ids:
        raise AutoshardError(
            f"mesh {mesh.symbol} lists its devices (device_ids), which the {notation.dialect} dialect cannot say",
            where=where,
            fix="write the plan with --form shardy, or number the devices in the order of the mesh",
        )
    shape = "x".join(str(axis.size) for axis in mesh.axes)
    names = ", ".join(f'"{axis.name}"' for axis in mesh.axes)
    return f"{notation.mesh_op} {mesh.symbol}(shape = {shape}) {{{AXES} = [{names}]}}"


def sharding_text(
    sharding: TensorSharding,
    partial: Partial | None,
    halo: Sequence[int],
    mesh: Mesh,
    notation: Notation,
    where: str,
) -> str:
    """The sharding as `mesh.shard` (LLVM 19) or `mesh.sharding` has it.

    Args:
        halo: two sizes for each sharded dimension, before and after; empty where there is none.
        partial, halo: left out where the notation has no place for them.

    Raises:
        AutoshardError: the sharding uses a sub-axis, or is on another mesh.
    """
    if sharding.is_foreign:
        raise AutoshardError(
            f"the plan has a value as {sharding}, not on {mesh.symbol}; in the {notation.dialect} dialect a plan is on one mesh",
            where=where,
            fix="write the plan with --form shardy",
        )
    dims = [_numbers(axes, mesh, sharding, notation, where) for axes in sharding.axes]
    while len(dims) > 1 and not dims[-1]:
        dims.pop()
    split = f"[{', '.join(map(str, dims))}]"
    reduced = (
        ""
        if partial is None or not notation.has_partial
        else f"partial = {partial.kind}{_numbers(partial.axes, mesh, sharding, notation, where)}"
    )
    if not notation.has_sharding_op:
        return f"<{mesh.symbol}, {split}{f', {reduced}' if reduced else ''}>"
    sizes = f" halo_sizes = {list(halo)}" if halo and notation.has_halo else ""
    options = f"{f' {reduced}' if reduced else ''}{sizes}"
    dialect = notation.dialect
    return f"{dialect}.sharding {mesh.symbol} split_axes = {split}{options} : !{dialect}.sharding"


def _numbers(
    axes: Sequence[AxisRef], mesh: Mesh, sharding: TensorSharding, notation: Notation, where: str
) -> list[int]:
    for axis in axes:
        if axis.is_sub_axis:
            raise AutoshardError(
                f"the plan splits a value as {sharding}, and the {notation.dialect} dialect cannot name the sub-axis {axis}",
                where=where,
                fix="write the plan with --form shardy, or make the mesh axis two axes",
            )
    return [mesh.axis_names.index(axis.name) for axis in axes]
