"""What binds a value's sharding in a plan, and what another one would cost: planned anew as if the user had asked for it.

The value, its op and all others are free to move; what the user demands elsewhere stays. A demand on the value itself is replaced.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoshard.asking import asked_sharding, must_divide
from autoshard.clashes import explain_read
from autoshard.cost import PricedGraph, decider, follow
from autoshard.errors import AutoshardError, ClashError
from autoshard.explanations import Alternative, Changed, Moved, Why
from autoshard.loading import Loaded, ReadModule, analyse
from autoshard.mlir.listing import Listing
from autoshard.naming import Named, find_value
from autoshard.pipeline import plan_loaded, price
from autoshard.plans import Plan, Price, priced_groups
from autoshard.problem import evaluate
from autoshard.program import Demand, demands_of, group_demands_of, restricted
from autoshard.progress import Progress, silent
from autoshard.report.units import bytes_text
from autoshard.sharding import TensorSharding, TensorType, parse_sharding
from autoshard.solve import Clock
from autoshard.space import tensor_shardings

MOST_TRIED = 6
_CLASH_SHARE = 0.3  # of the time, to say what a sharding clashes with


def why_value(
    read: ReadModule,
    found: Plan,
    asked: str,
    *,
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    progress: Progress = silent,
) -> Why:
    """Why a value of a plan is sharded as it is.

    Args:
        asked: what `naming` knows the value by, alone or with a sharding, as in `params=[{"x"}, {}]`.

    Raises:
        AutoshardError: the value is not known or not tensor-like, or the sharding is none of its rank.
    """
    named, equals, rest = _asked(read.as_written, asked)
    type_ = _type(read.as_written, named)
    current = _planned(found, named, read)
    if equals:
        wanted, left_out = [asked_sharding(f"[{rest}", named, type_, read)], 0
    else:
        wanted, left_out = _to_try(read, found, named, type_, current)
    clock = Clock(time_limit_s)
    tried: list[Alternative] = []
    with clock.ended_by_interrupt():
        for number, sharding in enumerate(wanted):
            if clock.interrupted:
                break
            progress(f"planning with {sharding}", number / len(wanted))
            part = clock.part(1 / (len(wanted) - number))
            tried.append(
                _alternative(read, found, named, sharding, part, seed, threads, is_asked=bool(equals))
            )
    if clock.interrupted and not tried:
        raise KeyboardInterrupt  # there is no answer yet
    left_out += len(wanted) - len(tried)
    return Why(
        str(named),
        str(current),
        found.price.compared_ns(is_by_order=found.is_by_order),
        found.price.peak_bytes,
        tuple(_bound_by(read, named)),
        tuple(tried),
        left_out,
        found.is_by_order,
    )


def _asked(listing: Listing, asked: str) -> tuple[Named, str, str]:
    """The value, and what follows `=[` of its sharding."""
    name, equals, rest = asked.partition("=[")
    try:
        return find_value(listing, name.strip()), equals, rest
    except AutoshardError:
        value, is_given, sharding = asked.partition("=")
        if equals or not is_given or not value.strip():
            raise
        named = find_value(listing, value.strip())
    raise AutoshardError(
        f"cannot read the sharding {sharding.strip()!r}",
        where=str(named),
        fix='write one entry a dimension, on the plan\'s mesh, as in VALUE=[{"x"}, {}]',
    )


def _type(listing: Listing, named: Named) -> TensorType:
    type_ = listing.values[named.value].type
    if type_ is None or not type_.rank:
        raise AutoshardError(f"{named} is a scalar or a token: nobody shards it")
    return type_


def _planned(found: Plan, named: Named, read: ReadModule) -> TensorSharding:
    """The sharding that the plan has for the value."""
    if named.result is not None:
        return parse_sharding(found.results[named.result].sharding, read.mesh)
    settled = found.decisions().settled
    if named.value not in settled:
        raise AutoshardError(
            f"{named} has no sharding of its own: it is recomputed for each use",
            fix="ask about a value that reads it",
        )
    return settled[named.value]


def _to_try(
    read: ReadModule, found: Plan, named: Named, type_: TensorType, current: TensorSharding
) -> tuple[list[TensorSharding], int]:
    """The other shardings that the value may take, those first that cost least where all else stays; how many are left out."""
    loaded = analyse(read)
    priced = price(loaded)
    end = decider(priced.graph, named.value, named.result)
    if end is None:
        free = tensor_shardings(type_, read.mesh, None, must_divide(read.as_written, named))
    else:
        numbers = np.unique(end[1][priced.problem.node_mask(end[0])]).tolist()
        free = [priced.graph.layouts[type_.rank].shardings[number] for number in numbers]
    others = [sharding for sharding in dict.fromkeys(free) if sharding != current]
    settled = found.decisions().settled
    node = None if end is None or named.result is None else end
    guesses = [_guess(priced, settled, named, node, sharding) for sharding in others]
    order = sorted(range(len(others)), key=lambda number: (guesses[number], number))
    return [others[number] for number in order[:MOST_TRIED]], max(0, len(others) - MOST_TRIED)


def _guess(
    priced: PricedGraph,
    settled: Mapping[int, TensorSharding],
    named: Named,
    returned: tuple[int, NDArray[np.int64]] | None,
    sharding: TensorSharding,
) -> float:
    """ns of the plan with only this value moved, as far as its readers can follow.

    Args:
        returned: of what the function returns, the node that decides it and the layouts of its strategies.
    """
    given = dict(settled) if returned is not None else {**settled, named.value: sharding}
    try:
        choice = follow(priced, given)
    except AutoshardError:
        return float("inf")
    if returned is not None:
        node, layouts = returned
        choice[node] = int(np.argmax(layouts == priced.graph.layouts[sharding.rank].id_of(sharding)))
    cost = evaluate(priced.problem, choice).cost
    return float("inf") if cost is None else float(cost)


def _alternative(
    read: ReadModule,
    found: Plan,
    named: Named,
    sharding: TensorSharding,
    clock: Clock,
    seed: int,
    threads: int,
    *,
    is_asked: bool,
) -> Alternative:
    asking = _asking(read, named, sharding)
    share = 1 - _CLASH_SHARE if is_asked else 1.0
    try:
        loaded = analyse(asking)
        plan = plan_loaded(
            loaded,
            time_limit_s=share * clock.time_limit_s,
            seed=seed,
            threads=threads,
            starts=[found.decisions().settled],
            whole=clock,
        )
    except ClashError as error:
        note, status = error.reason.splitlines()[0].rstrip(":"), "infeasible"
    else:
        if plan.status in ("optimal", "feasible"):
            return _compared(loaded, found, plan, named, sharding)
        note, status = (
            f"smallest peak found {bytes_text(plan.smallest_peak_bytes)}: {plan.proved}",
            plan.status,
        )
    clash = None
    if is_asked and status == "infeasible":
        seconds = _CLASH_SHARE * clock.time_limit_s
        clash = explain_read(
            asking, time_limit_s=seconds, seed=seed, threads=threads, whole=clock, is_infeasible=True
        )
    return Alternative(str(sharding), note=note, clash=clash)


def _asking(read: ReadModule, named: Named, sharding: TensorSharding) -> ReadModule:
    """The module as if the user had asked for this sharding of the value, instead of what he asked of it if anything."""
    others = [d for d in demands_of(read.as_written) if (d.value, d.result) != (named.value, named.result)]
    demand = Demand(named.value, named.result, sharding, named.text, named.where)
    listing = restricted(read.as_written, [*others, demand], group_demands_of(read.as_written))
    return replace(read, as_written=listing)


def _compared(loaded: Loaded, found: Plan, plan: Plan, named: Named, sharding: TensorSharding) -> Alternative:
    return Alternative(
        str(sharding),
        plan.price.compared_ns(is_by_order=found.is_by_order),
        plan.price.peak_bytes,
        plan.status == "optimal" and not found.is_by_order,
        tuple(_moved(loaded.listing, found, plan, named)),
        tuple(_changed(found.price, plan.price)),
    )


def _moved(listing: Listing, found: Plan, plan: Plan, named: Named) -> Iterator[Moved]:
    """Arguments, carried values, ops' results and what the function returns, of those with a sharding in both plans."""
    made_by = {value: op for op in listing.ops for value in op.results}
    names = {argument.value: argument.name for argument in listing.arguments}
    for value, mine in found.values.items():
        theirs = plan.values.get(value)
        if theirs is None or (value == named.value and named.result is None):
            continue
        before, after = mine.settled or mine.produced, theirs.settled or theirs.produced
        if before != after:
            name = names.get(value) or listing.values[value].name or f"%{value}"
            op = made_by.get(value)
            yield Moved(f"{name} ({op.name})" if op is not None else name, before, after)
    for number, (mine, theirs) in enumerate(zip(found.results, plan.results, strict=True)):
        if mine.sharding != theirs.sharding and number != named.result:
            yield Moved(f"result {number} `{mine.name}`", mine.sharding, theirs.sharding)


def _changed(before: Price, after: Price) -> Iterator[Changed]:
    mine, theirs = priced_groups(before), priced_groups(after)
    for kind, axes in dict.fromkeys((*mine, *theirs)):
        both = [groups.get((kind, axes), []) for groups in (mine, theirs)]
        counts = [sum(c.repeat for c in group) for group in both]
        times = [sum(c.ns * c.repeat for c in group) for group in both]
        if counts[0] != counts[1] or times[0] != times[1]:
            yield Changed(kind, axes, (counts[0], counts[1]), (times[0], times[1]))


def _bound_by(read: ReadModule, named: Named) -> Iterator[str]:
    """What else the value's sharding has to agree with."""
    listing = read.as_written
    demands = demands_of(listing)
    yield from (str(d) for d in demands if (d.value, d.result) == (named.value, named.result))
    if named.result is None:
        for group in group_demands_of(listing):
            members = {member.value for member in group.members}
            if named.value in members and len(members) > 1:
                yield str(group)
                yield from (
                    str(d) for d in demands if d.value in members - {named.value} and d.result is None
                )
        yield from (
            f"it is one value before, in and after a {flow.kind} ({flow.location})"
            for flow in listing.data_flows
            if flow.target == named.value
        )
    for result, argument in read.carried_pairs():
        if named.result == result or (
            named.result is None and listing.arguments[argument].value == named.value
        ):
            name = listing.arguments[argument].name
            yield f"result {result} is carried to argument {argument} `{name}`: they have one sharding"
            yield from (
                str(d)
                for d in demands
                if (d.result == result and named.result is None)
                or (named.result is not None and d.value == listing.arguments[argument].value)
            )
