"""What is demanded of one member of a sharding group, demanded of all, so that each may be brought to it.

Unlike Shardy, which warns, demands that contradict each other are refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

from autoshard.errors import ClashError
from autoshard.mlir.listing import Listing, ShardingGroup
from autoshard.program.demands import Demand, demands_of, with_demands
from autoshard.sharding import DimSharding, TensorSharding

_SAME_DEMAND = "ask the same of all members, or take one of them out of the group"


def with_group_demands(listing: Listing) -> Listing:
    """The listing with what is demanded of one member of a group demanded of all.

    Raises:
        ClashError: the demands on two members contradict each other, or do not divide an argument.
    """
    written = {
        d.value: d for d in demands_of(listing) if d.result is None
    }  # others are not asked of the value
    shared: dict[int, TensorSharding] = {}
    for group in listing.groups:
        found = _shared_demand(group, written)
        if found is not None:
            _require_division(group, found, listing, written)
            _require_own_sums(group, found, listing, written)
            shared.update((member.value, found) for member in group.members)
    if not shared:
        return listing
    return with_demands(listing, {value: d.sharding for value, d in written.items()} | shared)


def _shared_demand(group: ShardingGroup, demands: Mapping[int, Demand]) -> TensorSharding | None:
    """What all demands on members come to; None where there is none."""
    found: TensorSharding | None = None
    for member in group.members:
        if member.value in demands:
            demand = demands[member.value].sharding
            found = demand if found is None else both(found, demand)
            if found is None:
                raise _contradiction(group, demands)
    return found


def _contradiction(group: ShardingGroup, demands: Mapping[int, Demand]) -> ClashError:
    """The error that names two members whose demands no sharding meets; there are two, because `both` fails pair by pair."""
    demanded = [member for member in group.members if member.value in demands]
    one, other = next(
        pair
        for pair in combinations(demanded, 2)
        if both(demands[pair[0].value].sharding, demands[pair[1].value].sharding) is None
    )
    asked = "".join(f"\n  {demands[member.value]}\n    and is {member}" for member in (one, other))
    return ClashError(
        f"a sharding group ties values that are to be sharded differently:{asked}", fix=_SAME_DEMAND
    )


def both(one: TensorSharding, other: TensorSharding) -> TensorSharding | None:
    """The demand that a sharding meets if it meets both; None where none does."""
    dims = [_both_dims(mine, theirs) for mine, theirs in zip(one.dims, other.dims, strict=True)]
    kept = [dim for dim in dims if dim is not None]
    used = [axis for dim in kept for axis in dim.axes]
    replicated = tuple(dict.fromkeys((*one.replicated, *other.replicated)))
    clashes = any(a.overlaps(b) for a, b in combinations(used, 2))
    if (
        one.mesh != other.mesh
        or set(one.unreduced) != set(other.unreduced)
        or len(kept) < len(dims)
        or clashes
        or any(a.overlaps(b) for a in used for b in replicated)
    ):
        return None
    return replace(one, dims=tuple(kept), replicated=replicated)


def _both_dims(one: DimSharding, other: DimSharding) -> DimSharding | None:
    shorter, longer = (one, other) if len(one.axes) <= len(other.axes) else (other, one)
    if longer.axes[: len(shorter.axes)] != shorter.axes or (
        shorter.is_closed and shorter.axes != longer.axes
    ):
        return None
    found = shorter if shorter.is_closed else longer
    asking = [dim for dim in (one, other) if dim.axes or dim.is_closed]
    if not found.axes or len(asking) < 2:
        return found
    return replace(found, priority=min(dim.priority or 0 for dim in asking) or None)


def _require_own_sums(
    group: ShardingGroup, demand: TensorSharding, listing: Listing, demands: Mapping[int, Demand]
) -> None:
    """An argument arrives as a partial sum only where the user says so of itself: its caller has to know."""
    arguments = {argument.value for argument in listing.arguments}
    for member in group.members:
        own = demands.get(member.value)
        if demand.unreduced and member.value in arguments and (own is None or not own.sharding.unreduced):
            asked = "".join(f"\n  {demands[m.value]}" for m in group.members if m.value in demands)
            raise ClashError(
                f"an argument would have to arrive as a partial sum:\n  {member}\n  is grouped with what is demanded here:{asked}",
                fix="demand unreduced of the argument too, or take it out of the group",
            )


def _require_division(
    group: ShardingGroup, demand: TensorSharding, listing: Listing, demands: Mapping[int, Demand]
) -> None:
    """An argument divides evenly, also where the demand stands on another member."""
    arguments = {argument.value for argument in listing.arguments}
    for member in group.members:
        type_ = listing.values[member.value].type
        if member.value in arguments and type_ is not None and not demand.divides(type_.shape):
            asked = "".join(
                f"\n  {demands[m.value]}\n    and is {m}" for m in group.members if m.value in demands
            )
            raise ClashError(
                f"{demand} does not divide {type_}, an argument:\n  {member}\n  is grouped with{asked}",
                fix="arguments divide evenly: ask for fewer shards, or take the argument out of the group",
            )
