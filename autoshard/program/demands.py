"""The demands of a listing one by one, each as the user wrote it and where: what is kept, ranked by priority, or named in a clash."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.mlir.joining import joined_groups
from autoshard.mlir.listing import GroupMember, Listing, Op
from autoshard.sharding import DimSharding, TensorSharding


@dataclass(frozen=True, slots=True)
class Demand:
    """A sharding that the user wrote on a value, or on what the function returns as result number `result`."""

    value: int
    result: int | None  # of the function
    sharding: TensorSharding
    what: str  # "argument 3 `params['wq']`"
    where: str

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"{self.what} must be {self.sharding}{place}"


@dataclass(frozen=True, slots=True)
class GroupDemand:
    """A sharding group that the user wrote: its members are to have one sharding."""

    group_id: int
    members: tuple[GroupMember, ...]

    def __str__(self) -> str:
        members = ", ".join(f"{m.name} (put there at {m.where})" for m in self.members)
        return f"sharding group {self.group_id} gives one sharding to {members}"


def demands_of(listing: Listing) -> tuple[Demand, ...]:
    """Every demand, in the order of the program: arguments, carried values and ops, results."""
    return (*_of_arguments(listing), *_of_flows(listing), *_of_ops(listing), *_of_results(listing))


def priority_levels(listing: Listing) -> tuple[int, ...]:
    """The priorities of the dimensions that demands say something of, most urgent first; one without a priority has priority 0."""
    dims = (dim for demand in demands_of(listing) for dim in demand.sharding.dims)
    found = {dim.priority or 0 for dim in dims if dim.axes or dim.is_closed}
    return tuple(sorted(found))


def group_demands_of(listing: Listing) -> tuple[GroupDemand, ...]:
    """The groups as the user numbered them, also those that share a member."""
    found: dict[int, list[GroupMember]] = {}
    for member in listing.memberships:
        found.setdefault(member.group_id, []).append(member)
    return tuple(GroupDemand(number, tuple(members)) for number, members in found.items())


def restricted(listing: Listing, demands: Collection[Demand], groups: Collection[GroupDemand]) -> Listing:
    """The listing as if the user had written these demands and groups only; `listing` is as it was read."""
    kept = {group.group_id for group in groups}
    memberships = tuple(member for member in listing.memberships if member.group_id in kept)
    of_results = {d.result: d.sharding for d in demands if d.result is not None}
    return replace(
        with_demands(listing, {d.value: d.sharding for d in demands if d.result is None}),
        results=tuple(replace(r, demand=of_results.get(i)) for i, r in enumerate(listing.results)),
        memberships=memberships,
        groups=joined_groups(memberships),
    )


def with_demands(listing: Listing, demands: Mapping[int, TensorSharding]) -> Listing:
    """The listing with exactly these demands on values; those on what the function returns stay."""
    return replace(
        listing,
        ops=tuple(_with_demands(op, demands, listing) for op in listing.ops),
        data_flows=tuple(replace(flow, demand=demands.get(flow.target)) for flow in listing.data_flows),
        arguments=tuple(replace(a, demand=demands.get(a.value)) for a in listing.arguments),
    )


def _with_demands(op: Op, demands: Mapping[int, TensorSharding], listing: Listing) -> Op:
    """The op with the demands on its results; beside others, a result that nothing is asked of is fully open."""
    ranked = _ranked(op.results, listing)
    if demands.keys().isdisjoint(ranked):
        return replace(op, demand=None, other_demands=()) if ranked and op.demand is not None else op
    first, *others = (demands.get(value) or _open(listing, value) for value in ranked)
    return replace(op, demand=first, other_demands=tuple(others))


def _open(listing: Listing, value: int) -> TensorSharding:
    type_ = listing.values[value].type
    assert type_ is not None, "only ranked values are asked for"
    return TensorSharding((DimSharding(is_closed=False),) * type_.rank)


def _ranked(values: Sequence[int], listing: Listing) -> list[int]:
    return [value for value in values if (type_ := listing.values[value].type) is not None and type_.rank]


def _of_arguments(listing: Listing) -> Iterator[Demand]:
    for number, argument in enumerate(listing.arguments):
        if argument.demand is not None:
            what = f"argument {number} `{argument.name}`"
            yield Demand(argument.value, None, argument.demand, what, argument.location)


def _of_flows(listing: Listing) -> Iterator[Demand]:
    for flow in listing.data_flows:
        if flow.demand is not None:
            yield Demand(flow.target, None, flow.demand, f"a value carried by a {flow.kind}", flow.location)


def _of_ops(listing: Listing) -> Iterator[Demand]:
    for op in listing.ops:
        if op.demand is None:
            continue
        for value, sharding in zip(
            _ranked(op.results, listing), (op.demand, *op.other_demands), strict=False
        ):
            which = f"result {op.results.index(value)}" if len(op.results) > 1 else "the result"
            yield Demand(value, None, sharding, f"{which} of {op.name}", op.location)


def _of_results(listing: Listing) -> Iterator[Demand]:
    for number, result in enumerate(listing.results):
        if result.demand is not None:
            what = f"result {number} `{result.name}` of the function"
            yield Demand(result.value, number, result.demand, what, result.location)
