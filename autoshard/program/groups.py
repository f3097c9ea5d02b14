"""What is demanded of one member of a sharding group, demanded of all, so that each may be brought to it.

Unlike Shardy, which warns, demands that contradict each other are refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from autoshard.errors import AutoshardError
from autoshard.mlir.listing import Listing, Op, ShardingGroup
from autoshard.sharding import DimSharding, TensorSharding

_SAME_DEMAND = "ask the same of all members, or take one of them out of the group"


def with_group_demands(listing: Listing) -> Listing:
    """The listing with what is demanded of one member of a group demanded of all.

    Raises:
        AutoshardError: the demands on two members contradict each other, or do not divide an argument.
    """
    demands = dict(_demands(listing))
    shared: dict[int, TensorSharding] = {}
    for group in listing.groups:
        found = _shared_demand(group, demands)
        if found is not None:
            _require_division(group, found, listing, demands)
            shared.update((member.value, found) for member in group.members)
    if not shared:
        return listing
    return replace(
        listing,
        ops=tuple(_with_demands(op, shared, listing) for op in listing.ops),
        data_flows=tuple(
            replace(flow, demand=shared.get(flow.target, flow.demand)) for flow in listing.data_flows
        ),
        arguments=tuple(replace(a, demand=shared.get(a.value, a.demand)) for a in listing.arguments),
    )


def _demands(listing: Listing) -> Iterator[tuple[int, TensorSharding]]:
    """What the user wrote on values; what he wrote on a result of the function is not asked of the value."""
    for argument in listing.arguments:
        if argument.demand is not None:
            yield argument.value, argument.demand
    for flow in listing.data_flows:
        if flow.demand is not None:
            yield flow.target, flow.demand
    for op in listing.ops:
        if op.demand is not None:
            yield from zip(_ranked(op.results, listing), (op.demand, *op.other_demands), strict=False)


def _ranked(values: Sequence[int], listing: Listing) -> list[int]:
    return [value for value in values if (type_ := listing.values[value].type) is not None and type_.rank]


def _with_demands(op: Op, shared: Mapping[int, TensorSharding], listing: Listing) -> Op:
    """The op with the demands of its results' groups; a result that nothing is asked of is fully open."""
    ranked = _ranked(op.results, listing)
    if shared.keys().isdisjoint(ranked):
        return op
    own = dict(zip(ranked, (op.demand, *op.other_demands), strict=False))
    first, *others = (shared.get(value) or own.get(value) or _open(listing, value) for value in ranked)
    return replace(op, demand=first, other_demands=tuple(others))


def _open(listing: Listing, value: int) -> TensorSharding:
    type_ = listing.values[value].type
    assert type_ is not None, "only ranked values are asked for"
    return TensorSharding((DimSharding(is_closed=False),) * type_.rank)


def _shared_demand(group: ShardingGroup, demands: Mapping[int, TensorSharding]) -> TensorSharding | None:
    """What all demands on members come to; None where there is none."""
    found: TensorSharding | None = None
    for member in group.members:
        demand = demands.get(member.value)
        if demand is not None:
            found = demand if found is None else _both(found, demand)
            if found is None:
                raise _contradiction(group, demands)
    return found


def _contradiction(group: ShardingGroup, demands: Mapping[int, TensorSharding]) -> AutoshardError:
    """The error that names two members whose demands no sharding meets; there are two, because `_both` fails pair by pair."""
    demanded = [member for member in group.members if member.value in demands]
    one, other = next(
        pair
        for pair in combinations(demanded, 2)
        if _both(demands[pair[0].value], demands[pair[1].value]) is None
    )
    asked = "".join(f"\n  {demands[member.value]} is asked of {member}" for member in (one, other))
    return AutoshardError(
        f"a sharding group ties values that are to be sharded differently:{asked}", fix=_SAME_DEMAND
    )


def _both(one: TensorSharding, other: TensorSharding) -> TensorSharding | None:
    """The demand that a sharding meets if it meets both; None where none does."""
    dims = [_both_dims(mine, theirs) for mine, theirs in zip(one.dims, other.dims, strict=True)]
    kept = [dim for dim in dims if dim is not None]
    used = [axis for dim in kept for axis in dim.axes]
    replicated = tuple(dict.fromkeys((*one.replicated, *other.replicated)))
    clashes = any(a.overlaps(b) for a, b in combinations(used, 2))
    if len(kept) < len(dims) or clashes or any(a.overlaps(b) for a in used for b in replicated):
        return None
    return TensorSharding(tuple(kept), replicated, one.unreduced)


def _both_dims(one: DimSharding, other: DimSharding) -> DimSharding | None:
    shorter, longer = (one, other) if len(one.axes) <= len(other.axes) else (other, one)
    if longer.axes[: len(shorter.axes)] != shorter.axes or (
        shorter.is_closed and shorter.axes != longer.axes
    ):
        return None
    return shorter if shorter.is_closed else longer


def _require_division(
    group: ShardingGroup, demand: TensorSharding, listing: Listing, demands: Mapping[int, TensorSharding]
) -> None:
    """An argument divides evenly, also where the demand stands on another member."""
    arguments = {argument.value for argument in listing.arguments}
    for member in group.members:
        type_ = listing.values[member.value].type
        if member.value in arguments and type_ is not None and not demand.divides(type_.shape):
            asked = next(other for other in group.members if other.value in demands)
            raise AutoshardError(
                f"{demand} does not divide {type_}, an argument:\n  {member}\n  is grouped with {asked}",
                fix="arguments divide evenly: ask for fewer shards, or take the argument out of the group",
            )
