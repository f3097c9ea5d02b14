"""The user's sharding groups: values that are to have one sharding, whichever it is.

A value in two groups joins them, as Shardy's `sdy-sharding-group-import` has it.
"""

from collections.abc import Iterable, Iterator, Sequence

from autoshard.errors import AutoshardError
from autoshard.mlir.context import Value, ir
from autoshard.mlir.listing import GroupMember, ShardingGroup
from autoshard.mlir.locations import Locations
from autoshard.mlir.walk import GROUP, Walked
from autoshard.sharding import TensorType

_SAME_SHAPE = "members of a group have one sharding, and so one shape: take one of them out of the group"


def sharding_groups(
    walked: Walked, types: Sequence[TensorType | None], names: Sequence[str], locations: Locations
) -> tuple[ShardingGroup, ...]:
    """The groups of the module, those that share a member as one, in program order. Scalars, which nobody shards, are left out.

    Raises:
        AutoshardError: members of different shapes.
    """
    members = [_member(walked, op, names, locations) for op in walked.grouped]
    groups = [ShardingGroup(tuple(same)) for same in _joined(members)]
    for group in groups:
        _require_one_shape(group, types)
    return tuple(group for group in groups if _is_ranked(types[group.members[0].value]))


def _member(
    walked: Walked, op: ir.Operation, names: Sequence[str], locations: Locations
) -> tuple[int, GroupMember]:
    """The id of the group, and the value that the op puts there."""
    (value,) = op.operands
    number = walked.ids[value]
    group_id = ir.IntegerAttr(op.attributes["group_id"]).value
    where = f"{GROUP} group_id={group_id} at {locations.text(op.location)}"
    return group_id, GroupMember(number, names[number] or _defined_by(value, locations), where)


def _defined_by(value: Value, locations: Locations) -> str:
    """`stablehlo.abs (<bytes>:4)`, for a value without a name."""
    name = value.owner.operation.name if isinstance(value, ir.OpResult) else "an argument"
    where = locations.text(value.location)
    return f"{name} ({where})" if where else name


def _joined(members: Iterable[tuple[int, GroupMember]]) -> Iterator[list[GroupMember]]:
    """Members that a chain of common values or ids ties, each value once, where it was first named."""
    joined: list[tuple[set[int], dict[int, GroupMember]]] = []
    for group_id, member in members:
        ids, values, apart = (
            {group_id},
            dict[int, GroupMember](),
            list[tuple[set[int], dict[int, GroupMember]]](),
        )
        for group in joined:
            if group_id in group[0] or member.value in group[1]:
                ids, values = ids | group[0], {**values, **group[1]}
            else:
                apart.append(group)
        values.setdefault(member.value, member)
        joined = [*apart, (ids, values)]
    yield from (sorted(values.values(), key=lambda member: member.value) for _, values in joined)


def _require_one_shape(group: ShardingGroup, types: Sequence[TensorType | None]) -> None:
    first = group.members[0]
    for other in group.members[1:]:
        mine, theirs = types[first.value], types[other.value]
        if mine is None or theirs is None or mine.shape != theirs.shape:
            raise AutoshardError(
                f"a sharding group has members of different shapes:\n  {mine} {first}\n  {theirs} {other}",
                fix=_SAME_SHAPE,
            )


def _is_ranked(type_: TensorType | None) -> bool:
    return type_ is not None and type_.rank > 0
