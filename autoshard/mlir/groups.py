"""The user's sharding groups: values that are to have one sharding, whichever it is."""

from collections.abc import Mapping, Sequence

from autoshard.errors import AutoshardError
from autoshard.mlir.context import Value, ir
from autoshard.mlir.joining import joined_groups
from autoshard.mlir.listing import GroupMember, ShardingGroup
from autoshard.mlir.locations import Locations
from autoshard.mlir.walk import Walked
from autoshard.sharding import TensorType

_SAME_SHAPE = "members of a group have one sharding, and so one shape: take one of them out of the group"


def group_members(
    walked: Walked, types: Sequence[TensorType | None], names: Sequence[str], locations: Locations
) -> tuple[GroupMember, ...]:
    """Who is in which group, one by one as the user wrote it. Scalars, which nobody shards, are left out.

    Raises:
        AutoshardError: members of different shapes, or not all in one manual computation.
    """
    members = tuple(_member(walked, op, names, locations) for op in walked.grouped)
    around = {walked.ids[op.operands[0]]: _manual_computation_around(op) for op in walked.grouped}
    for group in joined_groups(members):
        _require_one_shape(group, types)
        _require_one_place(group, around)
    return tuple(member for member in members if _is_ranked(types[member.value]))


def _member(walked: Walked, op: ir.Operation, names: Sequence[str], locations: Locations) -> GroupMember:
    (value,) = op.operands
    number = walked.ids[value]
    group_id = ir.IntegerAttr(op.attributes["group_id"]).value
    name = names[number] or _defined_by(value, locations)
    return GroupMember(number, name, group_id, locations.text(op.location))


def _defined_by(value: Value, locations: Locations) -> str:
    """`stablehlo.abs (<bytes>:4)`, for a value without a name."""
    name = value.owner.operation.name if isinstance(value, ir.OpResult) else "an argument"
    where = locations.text(value.location)
    return f"{name} ({where})" if where else name


def _require_one_shape(group: ShardingGroup, types: Sequence[TensorType | None]) -> None:
    first = group.members[0]
    for other in group.members[1:]:
        mine, theirs = types[first.value], types[other.value]
        if mine is None or theirs is None or mine.shape != theirs.shape:
            raise AutoshardError(
                f"a sharding group has members of different shapes:\n  {mine} {first}\n  {theirs} {other}",
                fix=_SAME_SHAPE,
            )


def _manual_computation_around(op: ir.Operation) -> tuple[ir.Operation, ...]:
    """The innermost one, or nothing."""
    outer = op.parent
    while outer is not None and outer.name != "sdy.manual_computation":
        outer = outer.operation.parent
    return () if outer is None else (outer.operation,)


def _require_one_place(group: ShardingGroup, around: Mapping[int, tuple[ir.Operation, ...]]) -> None:
    first = group.members[0]
    for other in group.members[1:]:
        if around[first.value] != around[other.value]:
            raise AutoshardError(
                f"a sharding group has members in different manual computations, or in one and outside:\n  {first}\n  {other}",
                fix="a shard and a whole tensor have no sharding in common: take one of them out of the group",
            )


def _is_ranked(type_: TensorType | None) -> bool:
    return type_ is not None and type_.rank > 0
