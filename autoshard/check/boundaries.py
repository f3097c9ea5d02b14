"""Where shardings are fixed from outside: arguments, results, carried state, data flow, manual axes, demands and sharding groups."""

from collections.abc import Iterator
from dataclasses import replace

from autoshard.check.manual import before_edge, manual_axes
from autoshard.check.parts import parts_of
from autoshard.check.planned import Planned
from autoshard.check.report import Finding, of_offenders
from autoshard.plans import NamedSharding, Plan
from autoshard.program import RESULT_SITE
from autoshard.sharding import DimSharding, TensorSharding


def boundaries(planned: Planned, plan: Plan) -> list[Finding]:
    return [
        _interface(planned, plan),
        _division(planned),
        _carried(planned),
        _data_flow(planned),
        manual_axes(planned),
        _demands(planned, plan.lowering),
        _groups(planned),
    ]


def result_sharding(planned: Planned, index: int) -> TensorSharding | None:
    """How result `index` is returned."""
    return planned.uses.get((RESULT_SITE, index), planned.found(planned.listing.results[index].value))


def _interface(planned: Planned, plan: Plan) -> Finding:
    """The rows of arguments and results say what the shardings of their values say."""
    listing = planned.listing
    wanted = [(a.name, a.value, planned.settled.get(a.value)) for a in listing.arguments]
    wanted += [(r.name, r.value, result_sharding(planned, i)) for i, r in enumerate(listing.results)]
    rows = [*plan.arguments, *plan.results]
    offenders = (
        [] if len(rows) == len(wanted) else [f"{len(rows)} rows for {len(wanted)} arguments and results"]
    )
    for row, (name, value, sharding) in zip(rows, wanted, strict=False):
        offenders += [f"{name}: {reason}" for reason in _row_errors(planned, row, name, value, sharding)]
    return of_offenders(
        "interface", offenders, len(wanted), "rows of arguments and results agree with the values"
    )


def _row_errors(
    planned: Planned, row: NamedSharding, name: str, value: int, sharding: TensorSharding | None
) -> Iterator[str]:
    type_ = planned.listing.values[value].type
    if row.name != name:
        yield f"the row is called {row.name}"
    if type_ is None:
        return
    sharding = sharding if sharding is not None else TensorSharding.replicated_closed(type_.rank)
    if row.sharding != str(sharding):
        yield f"the row says {row.sharding}, the value is {sharding}"
    if row.bytes != sharding.local_bytes(type_):
        yield f"the row says {row.bytes} bytes, {sharding} of {type_} has {sharding.local_bytes(type_)}"


def _division(planned: Planned) -> Finding:
    listing = planned.listing
    ends = [(a.name, a.value, planned.settled.get(a.value)) for a in listing.arguments]
    ends += [(r.name, r.value, result_sharding(planned, i)) for i, r in enumerate(listing.results)]
    offenders = [
        f"{name}: {sharding} does not divide {planned.type_of(value)}"
        for name, value, sharding in ends
        if sharding is not None and not sharding.divides(planned.type_of(value).shape)
    ]
    return of_offenders("division", offenders, len(ends), "arguments and results divide evenly")


def _carried(planned: Planned) -> Finding:
    listing, offenders = planned.listing, list[str]()
    for result, argument in planned.program.carried_pairs:
        value = listing.arguments[argument].value
        given, returned = planned.settled.get(value), result_sharding(planned, result)
        if planned.is_ranked(value) and given != returned:
            names = f"{listing.results[result].name} -> {listing.arguments[argument].name}"
            offenders.append(f"{names}: returned as {returned}, taken as {given}")
    pairs = len(planned.program.carried_pairs)
    return of_offenders("carried state", offenders, pairs, "carried pairs have one sharding on both ends")


def _data_flow(planned: Planned) -> Finding:
    offenders: list[str] = []
    count = 0
    for number, flow in enumerate(planned.listing.data_flows):
        if not planned.is_ranked(flow.target):
            continue
        for position, source in enumerate(flow.sources):
            count += 1
            site = (-1 - number, position)
            given = planned.uses.get(site, planned.found(source.value))
            taken = before_edge(planned, number, planned.settled[flow.target])
            if given != taken:
                where = f"{flow.kind} {flow.location} value {flow.target} source {position}"
                offenders.append(f"{where}: handed on as {given}, carried as {taken}")
    return of_offenders("data flow", offenders, count, "what loops and branches carry has one sharding")


def _demands(planned: Planned, lowering: str) -> Finding:
    offenders: list[str] = []
    count = 0
    for where, value, sharding, demand in _demanded(planned):
        if not planned.is_ranked(value):
            continue  # nobody shards a scalar
        count += 1
        if sharding is not None and lowering == "xla-tpu":
            sharding = replace(sharding, unreduced=())  # what is left to an addition XLA sums all the same
        reason = "no sharding" if sharding is None else unmet(sharding, demand)
        if reason is not None:
            offenders.append(f"{where}: {sharding} does not meet {demand}: {reason}")
    return of_offenders("demands", offenders, count, "the user's own shardings are kept")


def _groups(planned: Planned) -> Finding:
    groups = planned.listing.groups
    offenders = [
        f"{first} is {planned.settled.get(first.value)}, {other} is {planned.settled.get(other.value)}"
        for first, *others in (group.members for group in groups)
        for other in others
        if planned.settled.get(first.value) != planned.settled.get(other.value)
    ]
    count = sum(len(group.members) for group in groups)
    return of_offenders("sharding groups", offenders, count, "members of a group have one sharding")


def _demanded(planned: Planned) -> Iterator[tuple[str, int, TensorSharding | None, TensorSharding]]:
    """Where a demand stands, on which value, and what the plan makes of it."""
    listing = planned.listing
    for argument in listing.arguments:
        if argument.demand is not None:
            yield (
                f"argument {argument.name}",
                argument.value,
                planned.settled.get(argument.value),
                argument.demand,
            )
    for index, result in enumerate(listing.results):
        if result.demand is not None:
            yield f"result {result.name}", result.value, result_sharding(planned, index), result.demand
    for flow in listing.data_flows:
        if flow.demand is not None:
            where = f"{flow.kind} {flow.location}"
            yield where, flow.target, planned.settled.get(flow.target), flow.demand
    for number, op in enumerate(listing.ops):
        if op.demand is not None:
            ranked = filter(planned.is_ranked, op.results)
            for value, demand in zip(ranked, (op.demand, *op.other_demands), strict=False):
                yield planned.where(number), value, planned.settled.get(value), demand


def unmet(sharding: TensorSharding, demand: TensorSharding) -> str | None:
    """Why a sharding is not one that the demand allows: closed exact, open extended, replicated axes unused, unreduced exact.

    On another mesh it is exactly as demanded.
    """
    if sharding.mesh != demand.mesh:
        return "it is on another mesh"
    for number, (mine, wanted) in enumerate(zip(sharding.dims, demand.dims, strict=True)):
        if sharding.mesh and mine.axes != wanted.axes:
            return f"dimension {number}, of another mesh than the plan's"
        if not _extends(mine, wanted):
            return f"dimension {number}"
    if parts_of(sharding.unreduced) != parts_of(demand.unreduced):
        return "the axes that it is a partial sum over"
    banned = parts_of(demand.replicated)
    used = [part for dim in sharding.dims for part in parts_of(dim.axes)]
    for name, begin, end in used:
        if any(name == other and begin < stop and start < end for other, start, stop in banned):
            return f'"{name}" is to be replicated'
    return None


def _extends(mine: DimSharding, wanted: DimSharding) -> bool:
    """Whether the wanted axes come first (`"x":(1)2` may grow to `"x"`), and nothing after them where closed."""
    have, want = parts_of(mine.axes), parts_of(wanted.axes)
    if wanted.is_closed or not want:
        return have == want or not wanted.is_closed
    if len(have) < len(want) or have[: len(want) - 1] != want[:-1]:
        return False
    (name, begin, end), (other, start, stop) = have[len(want) - 1], want[-1]
    return name == other and begin == start and end % stop == 0 and end >= stop
