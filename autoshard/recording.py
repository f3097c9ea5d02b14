"""A choice of the problem, written down as a `Plan`: its shardings, its price and where it came from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import (
    Chosen,
    PricedGraph,
    follow,
    leave_sums,
    local_work,
    read_back,
    schedule_of,
    with_told_copies,
)
from autoshard.hardware import PricedWork, extrapolated, layout_of
from autoshard.loading import Loaded
from autoshard.plans import (
    Baseline,
    EmittedCollective,
    NamedSharding,
    Plan,
    PlannedCollective,
    PlannedMesh,
    PlannedUse,
    PlannedValue,
    Price,
    ScheduledStep,
)
from autoshard.problem import evaluate
from autoshard.program import RESULT_SITE
from autoshard.sharding import TensorSharding, total_size
from autoshard.solve import Solution
from costmodels import Hardware


def plan_of(
    loaded: Loaded,
    priced: PricedGraph,
    solution: Solution,
    hints: Sequence[NDArray[np.int64]],
    baselines: tuple[Baseline, ...],
    laps: dict[str, float],
) -> Plan:
    """What the solver found: its choice, or that with the smallest peak where none fits.

    Args:
        hints: choices that are taken instead where they cost the same.
        baselines: what the plan is compared with.
        laps: seconds that the phases took.
    """
    choice = solution.choice if solution.choice is not None else solution.smallest_peak_choice
    if solution.choice is not None:
        choice = _familiar(priced, solution.choice, hints)
    if choice is None:
        choice = follow(priced, {})
    choice = with_told_copies(priced, choice)
    leave_sums(priced.graph, priced.problem, choice)
    statistics: dict[str, float | int | str] = {
        "nodes": priced.problem.node_count,
        "edges": priced.problem.edge_count,
        "peak_bound_bytes": solution.peak_lower_bound,
        **laps,
        **solution.statistics,
    }
    plan = plan_of_choice(
        loaded,
        priced,
        choice,
        solution.status.name.lower(),
        solution.status.value,
        solution.lower_bound if solution.choice is not None else 0,
        baselines,
        statistics,
    )
    if not plan.fits and (stored := priced.stored_peak(choice)) < plan.price.peak_bytes:
        plan = replace(plan, statistics={**plan.statistics, "stored_peak_bytes": stored})
    if solution.smallest_peak is not None and solution.smallest_peak < plan.smallest_peak_bytes:
        plan = replace(plan, smallest_peak_bytes=int(solution.smallest_peak))
    return plan


def _familiar(
    priced: PricedGraph, choice: NDArray[np.int64], hints: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """A baseline that is as good as the choice, if there is one: it follows propagation, and so needs the fewest constraints."""
    cost = evaluate(priced.problem, choice).cost
    for hint in hints:
        found = evaluate(priced.problem, hint)
        if found.feasible and found.cost == cost:
            return hint
    return choice


def plan_of_choice(
    loaded: Loaded,
    priced: PricedGraph,
    choice: NDArray[np.int64],
    status: str,
    proved: str,
    lower_bound: int,
    baselines: tuple[Baseline, ...],
    statistics: Mapping[str, float | int | str],
) -> Plan:
    """Any choice of the problem, with what is known of it."""
    chosen = read_back(priced, choice)
    price_ = _price_of(loaded, priced, choice, chosen, with_collectives=True)
    arguments, results = _named(loaded, chosen)
    layout, placed = layout_of(loaded.communication, loaded.hardware), loaded.communication.placement
    return Plan(
        module_sha256=loaded.listing.module_hash,
        module_name=loaded.source.name,
        mesh=tuple((axis.name, axis.size) for axis in loaded.mesh.axes),
        mesh_name=loaded.mesh.name,
        hardware=loaded.hardware.name,
        topology=layout.topology or (),
        slices=layout.slices,
        placement=layout.placement or "",
        device_order=() if placed.is_row_major() else tuple(placed.device_order()),
        form=loaded.form,
        lowering=loaded.lowering,
        memory_bytes=loaded.memory_bytes,
        carry=loaded.program.carried_pairs,
        status=status,
        proved=proved,
        price=price_,
        lower_bound_ns=lower_bound,
        smallest_peak_bytes=min(evaluate(priced.problem, choice).peak, price_.peak_bytes),
        arguments=arguments,
        results=results,
        values={
            value: PlannedValue(
                str(v.produced),
                "" if v.settled == v.produced else str(v.settled),
                "" if v.shared is None else str(v.shared),
            )
            for value, v in sorted(chosen.values.items())
        },
        uses=tuple(
            PlannedUse(op, operand, str(s), chosen.again.get((op, operand), 0))
            for (op, operand), s in sorted(chosen.uses.items())
        ),
        cloneable=tuple(sorted(loaded.program.cloneable)),
        overlap=loaded.overlap,
        baselines=baselines,
        other_meshes=tuple(
            PlannedMesh(other.name, tuple((axis.name, axis.size) for axis in other.axes), other.device_ids)
            for other in loaded.mesh.others
        ),
        warnings=(*loaded.listing.warnings, *_extrapolated(loaded.hardware, priced, choice, chosen)),
        statistics=dict(statistics),
        provenance={name: metadata.version(name) for name in ("autoshard", "jaxlib", "ortools", "numpy")},
    )


def _extrapolated(
    hardware: Hardware, priced: PricedGraph, choice: NDArray[np.int64], chosen: Chosen
) -> tuple[str, ...]:
    """What of the price goes beyond the measurements that a profile was fitted to."""
    if hardware.calibration is None:
        return ()
    collectives = (
        PricedWork(c.collective.kind, {"bytes": c.collective.bytes, "devices": total_size(c.collective.axes)})
        for c in chosen.collectives
    )
    return extrapolated(hardware, (*collectives, *_kernels(priced, choice, hardware)))


def _kernels(priced: PricedGraph, choice: NDArray[np.int64], hardware: Hardware) -> Iterator[PricedWork]:
    """The work of every kernel on one device, the costliest first: a product by its sizes, others by their memory traffic."""
    rows = priced.problem.node_start[:-1] + choice
    for number in np.argsort(-priced.problem.node_cost[rows], kind="stable").tolist():
        space = priced.graph.nodes[number].space
        if space is None:
            continue
        work = local_work(space.shape, [space.strategies[int(choice[number])]], hardware)
        if work.matmul is not None:
            m, k, n, _ = (float(size[0]) for size in work.matmul)
            yield PricedWork("matmul", {"m": m, "k": k, "n": n}, work.dtype)
        elif work.bytes[0]:
            yield PricedWork("memory", {"bytes": float(work.bytes[0])})


def baseline(
    loaded: Loaded, priced: PricedGraph, name: str, choice: NDArray[np.int64] | None, note: str
) -> Baseline:
    """A row of what a plan is compared with; without a choice, why there is none."""
    if choice is None:
        return Baseline(name, Price(0, 0, 0, 0), False, note)
    price_ = _price_of(loaded, priced, choice, read_back(priced, choice), with_collectives=False)
    limit = loaded.memory_bytes
    return Baseline(name, price_, limit is None or price_.peak_bytes <= limit, note)


def _price_of(
    loaded: Loaded, priced: PricedGraph, choice: NDArray[np.int64], chosen: Chosen, *, with_collectives: bool
) -> Price:
    cost = evaluate(priced.problem, choice).cost
    assert cost is not None, "the choice is allowed"
    assert cost == chosen.compute_ns + chosen.communication_ns, "the breakdown must add up to the objective"
    ops = loaded.listing.ops
    collectives = tuple(
        PlannedCollective(
            c.collective.kind,
            tuple(str(axis).replace('"', "") for axis in c.collective.axes),
            c.collective.bytes,
            c.collective.ns,
            c.repeat,
            f"{ops[c.op].name} {ops[c.op].location}".strip() if c.op >= 0 else "arguments and results",
            c.collective.hidden_ns,
            tuple(EmittedCollective(e.kind, total_size(e.axes), e.bytes) for e in c.collective.emitted),
        )
        for c in (chosen.collectives if with_collectives else ())
    )
    return Price(
        cost,
        chosen.compute_ns,
        chosen.communication_ns,
        priced.expected_peak(choice),
        collectives,
        scheduled_step(loaded, priced, choice, chosen),
    )


def scheduled_step(
    loaded: Loaded, priced: PricedGraph, choice: NDArray[np.int64], chosen: Chosen
) -> ScheduledStep | None:
    """At the prices of XLA's scheduler, of what XLA emits; None at others."""
    if not loaded.hardware.is_scheduled or loaded.lowering != "xla-tpu":
        return None
    found = schedule_of(priced, choice, chosen, loaded.hardware)
    return ScheduledStep(found.step_ns, found.asynchronous_ns, found.waited_ns)


def _named(loaded: Loaded, chosen: Chosen) -> tuple[tuple[NamedSharding, ...], tuple[NamedSharding, ...]]:
    listing = loaded.listing
    carried_results = {result for result, _ in loaded.program.carried_pairs}
    carried_arguments = {argument for _, argument in loaded.program.carried_pairs}

    def row(value: int, name: str, sharding: TensorSharding | None, is_carried: bool) -> NamedSharding:
        type_ = listing.values[value].type
        if type_ is None:
            return NamedSharding(name, "token", "[]", 0, is_carried)
        sharding = sharding if sharding is not None else TensorSharding.replicated_closed(type_.rank)
        return NamedSharding(name, str(type_), str(sharding), sharding.local_bytes(type_), is_carried)

    def settled(value: int) -> TensorSharding | None:
        found = chosen.values.get(value)
        return None if found is None else found.settled

    arguments = tuple(
        row(
            a.value,
            a.name,
            settled(a.value),
            i in carried_arguments,
        )
        for i, a in enumerate(listing.arguments)
    )
    results = tuple(
        row(r.value, r.name, chosen.uses.get((RESULT_SITE, i), settled(r.value)), i in carried_results)
        for i, r in enumerate(listing.results)
    )
    return arguments, results
