"""Sharding groups that share a member are one, as Shardy's `sdy-sharding-group-import` has it."""

from collections.abc import Iterable

from autoshard.mlir.listing import GroupMember, ShardingGroup

_Joined = tuple[set[int], dict[int, GroupMember]]
"""The ids of a group, and its members by value."""


def joined_groups(memberships: Iterable[GroupMember]) -> tuple[ShardingGroup, ...]:
    """Members that a chain of common values or ids ties, each value once, where it was first named."""
    joined: list[_Joined] = []
    for member in memberships:
        ids, values, apart = {member.group_id}, dict[int, GroupMember](), list[_Joined]()
        for group in joined:
            if member.group_id in group[0] or member.value in group[1]:
                ids, values = ids | group[0], {**values, **group[1]}
            else:
                apart.append(group)
        values.setdefault(member.value, member)
        joined = [*apart, (ids, values)]
    return tuple(
        ShardingGroup(tuple(sorted(values.values(), key=lambda member: member.value))) for _, values in joined
    )
