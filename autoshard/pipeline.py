"""The floors called in order: module in, plan out; an annotated module in, its price out."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import costmodels
from autoshard.breakdown import Breakdown, break_down
from autoshard.check import CheckReport, Subject, check
from autoshard.cost import (
    Chosen,
    Lowering,
    PricedGraph,
    Wanted,
    assemble,
    bound,
    build_graph,
    follow,
    read_back,
    wanted_at_levels,
)
from autoshard.errors import AutoshardError
from autoshard.hardware import extrapolated, load_hardware, place_mesh
from autoshard.mlir import passes
from autoshard.mlir.emit import WITH_SHARDING
from autoshard.mlir.forms import Form, form_named
from autoshard.mlir.linearity import zero_values
from autoshard.mlir.listing import Listing, Op
from autoshard.mlir.read import Handles, read
from autoshard.mlir.source import SourceModule, load, resolve_mesh, warnings_of_meshes
from autoshard.mlir.write import Constraints, write
from autoshard.plans import (
    Baseline,
    NamedSharding,
    Plan,
    PlannedCollective,
    PlannedMesh,
    PlannedUse,
    PlannedValue,
    Price,
    require_same_module,
)
from autoshard.priorities import solve_by_levels
from autoshard.problem import Problem, evaluate
from autoshard.program import (
    RESULT_SITE,
    Program,
    batch_arguments,
    build_program,
    demands_of,
    priority_levels,
    refuse_unsound,
    with_group_demands,
    without_unreduced,
)
from autoshard.sharding import DimSharding, Mesh, TensorSharding, factor_axes_of, total_size
from autoshard.solve import Solution, solve
from autoshard.xla import VerifyReport, verify
from costmodels import Communication, Hardware
from costmodels.figures import Torus

MEMORY_MARGIN = 0.07
"""Part of a chip's usable memory that the default budget leaves free: XLA:TPU needed up to 11 % more than predicted for a plan (gptoss_20b
forward on v5e 4x4: 15.6 GB predicted, 17.3 GB needed), and v5e really offers 16.9 GB where its data sheet says 16."""

WITHIN_LEVELS = "The choice is proved to be the cheapest one within what the more urgent priorities decided."
Progress = Callable[[str, float | None], None]
MeshAxes = Sequence[tuple[str, int]]
Carry = Literal["auto", "none"] | Sequence[tuple[int, int]]
BaselineChoice = tuple[str, NDArray[np.int64] | None, str]
"""A name, its choice where there is one, and what it is or why there is none."""


@dataclass(frozen=True, slots=True)
class Request:
    """Where and how a module is to run; what `plan` and `cost` take besides the module itself."""

    mesh: MeshAxes | None = None
    hardware: str | Path = "tpu-v5e"
    topology: tuple[int, ...] | None = None
    memory_bytes: int | Literal["chip"] | None = "chip"
    carry: Carry = "auto"
    form: Form = "xla"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A module read for a request, with everything that writing the plan needs."""

    source: SourceModule
    listing: Listing  # with the demands on members of sharding groups spread to all members
    as_written: Listing
    handles: Handles
    program: Program
    mesh: Mesh
    hardware: Hardware
    communication: Communication
    memory_bytes: int | None
    form: Form

    @property
    def lowering(self) -> Lowering:
        """How the compiler that the form is for carries collectives out on this hardware."""
        return lowering_of(self.form, self.hardware)


def _silent(phase: str, fraction: float | None) -> None:
    pass


def lowering_of(form: Form, hardware: Hardware) -> Lowering:
    """How the compiler that a form is for carries collectives out on this hardware."""
    return "xla-tpu" if form == "xla" and isinstance(hardware.topology, Torus) else "shardy"


@dataclass(frozen=True, slots=True)
class ReadModule:
    """A module read and its mesh placed on the hardware, before its demands are looked at together."""

    source: SourceModule
    as_written: Listing
    handles: Handles
    mesh: Mesh
    hardware: Hardware
    communication: Communication
    memory_bytes: int | None
    carry: Sequence[tuple[int, int]] | None  # None: the donated arguments
    form: Form

    def carried_pairs(self) -> Sequence[tuple[int, int]]:
        """(result, argument) of state that is fed to the next step."""
        if self.carry is not None:
            return self.carry
        found = ((a.aliased_result, i) for i, a in enumerate(self.as_written.arguments))
        return [(result, argument) for result, argument in found if result is not None]


def load_module(
    module: str | bytes | Path | SourceModule, request: Request, progress: Progress = _silent
) -> Loaded:
    """Read a module, place its mesh on the hardware, and analyse it.

    Raises:
        ClashError: demands that contradict each other.
        AutoshardError: the module, mesh, hardware, topology or carried pairs are not usable as asked.
    """
    found = read_module(module, request, progress)
    progress("analysing the program", None)
    return analyse(found)


def read_module(
    module: str | bytes | Path | SourceModule, request: Request, progress: Progress = _silent
) -> ReadModule:
    """Raises AutoshardError: the module, mesh, hardware or topology are not usable as asked."""
    hardware = load_hardware(request.hardware)
    progress("reading the module", None)
    source = module if isinstance(module, SourceModule) else load(module)
    mesh = resolve_mesh(source, list(request.mesh) if request.mesh is not None else None)
    communication = place_mesh(hardware, [(axis.name, axis.size) for axis in mesh.axes], request.topology)
    as_written, handles = read(source, mesh)
    about_meshes = warnings_of_meshes(source, mesh, is_asked=request.mesh is not None)
    as_written = replace(as_written, warnings=(*about_meshes, *as_written.warnings))
    refuse_unsound(as_written)
    if not keeps_partial_sums(request.form):
        as_written = without_unreduced(as_written)
    carry = None if request.carry == "auto" else () if request.carry == "none" else request.carry
    chip_budget = int(hardware.usable_hbm_bytes * (1 - MEMORY_MARGIN))
    memory = chip_budget if request.memory_bytes == "chip" else request.memory_bytes
    return ReadModule(source, as_written, handles, mesh, hardware, communication, memory, carry, request.form)


def analyse(read: ReadModule) -> Loaded:
    """Raises ClashError: demands that contradict each other; AutoshardError: carried pairs that cannot be."""
    listing = with_group_demands(read.as_written)
    refuse_unsound(listing)
    return loaded_with(read, listing, build_program(listing, read.carry))


def loaded_with(read: ReadModule, listing: Listing, program: Program) -> Loaded:
    """What was read, with a program made of it."""
    return Loaded(
        read.source,
        listing,
        read.as_written,
        read.handles,
        program,
        read.mesh,
        read.hardware,
        read.communication,
        read.memory_bytes,
        read.form,
    )


def plan_loaded(
    loaded: Loaded,
    *,
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    starts: Sequence[Mapping[int, TensorSharding]] = (),
    progress: Progress = _silent,
) -> Plan:
    """The best plan found within the time limit, with its bound; `status` says what was proved.

    Args:
        starts: shardings of values to start from, besides the baselines.
    """
    clock = _Clock()
    demands, levels = demands_of(loaded.listing), priority_levels(loaded.listing)
    open_ = price_for_planning(loaded, progress)
    priced = bound(open_, demands) if len(levels) > 1 else open_
    clock.lap("build_s")
    progress("propagating data parallelism", None)
    baselines = baseline_choices(loaded, priced)
    clock.lap("baselines_s")
    followed = [_followed("", priced, given, "") for given in starts]
    hints = [choice for _, choice, _ in (*baselines, *followed) if choice is not None]
    progress("solving", None)

    def solved(problem: Problem, share: float, starts: Sequence[NDArray[np.int64]]) -> Solution:
        return solve(
            problem,
            time_limit_s=time_limit_s * share,
            seed=seed,
            threads=threads,
            hints=starts,
            progress=progress,
        )

    if len(levels) > 1:
        leveled = solve_by_levels(open_, demands, levels, hints, solved)
        solution, by_level = leveled.solution, leveled.levels
    else:
        solution, by_level = solved(priced.problem, 1.0, hints), ()
    clock.lap("solve_s")
    rows = tuple(_baseline(loaded, priced, *baseline) for baseline in baselines)
    familiar = () if by_level else hints  # baselines do not extend what the levels decided
    found = _plan_of(loaded, priced, solution, familiar, rows, clock.laps)
    is_within = bool(by_level) and not by_level[-1].note and found.status == "optimal"
    return replace(found, levels=by_level, proved=WITHIN_LEVELS if is_within else found.proved)


@dataclass(frozen=True, slots=True)
class AsWritten:
    """The shardings that a module already has, as a choice of the problem."""

    loaded: Loaded
    priced: PricedGraph
    choice: NDArray[np.int64]

    def plan(self) -> Plan:
        """Their price."""
        proved = "priced as it is; nothing was searched"
        return _plan_of_choice(self.loaded, self.priced, self.choice, "feasible", proved, 0, (), {})

    def breakdown(self) -> Breakdown:
        """Where the time goes."""
        return break_down(self.priced, self.choice, self.loaded.hardware)


def cost_loaded(loaded: Loaded, progress: Progress = _silent) -> Plan:
    """The price of the shardings that the module already has, completed by Shardy's propagation."""
    return price_as_written(loaded, progress).plan()


def price_as_written(loaded: Loaded, progress: Progress = _silent) -> AsWritten:
    """What `cost_loaded` prices, ready to be explained too."""
    progress("propagating", None)
    given = _propagated(loaded, {})
    given |= {
        demand.value: demand.sharding
        for demand in demands_of(loaded.listing)
        if demand.result is None and demand.sharding.is_foreign  # on which propagation is silent
    }
    progress("pricing", None)
    listing = _without_followed_demands(loaded.listing, given)
    loaded = replace(loaded, listing=listing, program=build_program(listing, loaded.program.carried_pairs))
    graph = build_graph(
        loaded.program, loaded.mesh, given, keeps_partial_sums=keeps_partial_sums(loaded.form)
    )
    priced = assemble(
        graph,
        loaded.hardware,
        loaded.communication,
        passes.decompose_reshards,
        loaded.memory_bytes,
        lowering=loaded.lowering,
    )
    return AsWritten(loaded, priced, follow(priced, given))


def price(loaded: Loaded, wanted: Wanted | None = None) -> PricedGraph:
    """The problem behind a plan, in which demands are met; with `wanted`, one in which those may be met or not."""
    return assemble(
        build_graph(
            loaded.program, loaded.mesh, wanted=wanted, keeps_partial_sums=keeps_partial_sums(loaded.form)
        ),
        loaded.hardware,
        loaded.communication,
        passes.decompose_reshards,
        loaded.memory_bytes,
        lowering=loaded.lowering,
    )


def price_for_planning(loaded: Loaded, progress: Progress = _silent) -> PricedGraph:
    """The problem that a plan solves.

    Raises:
        AutoshardError: there is no sharding that all members of a sharding group can take.
    """
    progress("pricing", None)
    levels = priority_levels(loaded.listing)
    wanted = wanted_at_levels(demands_of(loaded.listing), levels) if len(levels) > 1 else None
    return price(loaded, wanted)


def baseline_choices(loaded: Loaded, priced: PricedGraph) -> list[BaselineChoice]:
    """The plans to compare with, as choices of the problem; the solver of `plan_loaded` starts from those that there are."""
    return [_replicated(priced), _data_parallel(loaded, priced)]


def write_planned(
    loaded: Loaded, found: Plan, form: Form | None = None, constraints: Constraints = "minimal"
) -> str:
    """The module with the plan in it, as text; `form` None is the one that the plan was made for."""
    form = form if form is not None else form_named(found.form)
    decisions = found.decisions()
    if decisions.has_partial_sums and not keeps_partial_sums(form):
        raise AutoshardError(
            f"the plan leaves partial sums unreduced, and the {form} form cannot say so",
            fix=f"plan for that form: --form {form}",
        )
    return write(
        loaded.source,
        loaded.handles,
        loaded.listing,
        decisions,
        form,
        constraints=constraints,
        carry=found.carry,
    )


def check_plan(
    module: str | bytes | Path,
    found: Plan,
    hardware: str | Path | None = None,
    *,
    deep: bool = False,
    progress: Progress = _silent,
) -> CheckReport:
    """Check a plan against its module, independently of what made it.

    Args:
        hardware: chip profile; None takes the one that the plan names.
        deep: also compare with the collectives that Shardy's own passes make of the written module.

    Raises:
        AutoshardError: the module cannot be read, or the plan is for another one.
    """
    loaded = analyse(read_planned(module, found, hardware, progress))
    emitted = None
    if deep:
        progress("running Shardy's passes", None)
        written = write_planned(loaded, found, "shardy")
        emitted = passes.collectives(load(written.encode()), loaded.mesh)
    progress("checking", None)
    return check(Subject(loaded.program, loaded.hardware, loaded.communication), found, emitted)


def read_planned(
    module: str | bytes | Path, found: Plan, hardware: str | Path | None = None, progress: Progress = _silent
) -> ReadModule:
    """The module of a plan, read as it was for the plan; `hardware` None takes the profile that the plan names.

    Raises:
        AutoshardError: the module cannot be read, or the plan is for another one.
    """
    if hardware is None and found.hardware not in costmodels.names():
        raise AutoshardError(
            f"the plan is for {found.hardware!r}, which is no built-in profile, and a plan keeps the name only",
            where="the plan",
            fix="name the profile's file: --hardware FILE.toml",
        )
    source = load(module)
    require_same_module(found, source.sha256, "the plan")
    return read_module(
        source,
        Request(
            found.mesh,
            hardware or found.hardware,
            _asked_topology(found, load_hardware(hardware or found.hardware)),
            found.memory_bytes,
            found.carry,
            form_named(found.form),
        ),
        progress,
    )


def verify_modules(
    planned: str | bytes | Path,
    against: str | bytes | Path,
    devices: int,
    seed: int = 0,
    carry: Carry = "auto",
    progress: Progress = _silent,
) -> VerifyReport:
    """Run the planned module on `devices` CPU devices and the original on one, and compare."""
    progress("compiling and running", None)
    pairs = None if carry == "auto" else () if carry == "none" else carry
    return verify(load(planned), load(against), devices, seed, pairs)


def keeps_partial_sums(form: Form) -> bool:
    """Whether a form can say that a value is a partial sum."""
    return form in ("shardy", "shardy-collectives")


def constraints_named(name: str) -> Constraints:
    assert name in ("minimal", "all")
    return "minimal" if name == "minimal" else "all"


def _without_followed_demands(listing: Listing, given: Mapping[int, TensorSharding]) -> Listing:
    """Ops that are annotated with what their rule makes of their operands fuse as if they were not."""

    def follows(op: Op) -> bool:
        if op.rule is None:
            return False
        mappings = (*op.rule.operands, *op.rule.results)
        values = (*op.operands, *op.results)
        pairs = [(m, given[v]) for m, v in zip(mappings, values, strict=True) if v in given]
        mapped, shardings = [m for m, _ in pairs], [s for _, s in pairs]
        return factor_axes_of(op.rule, mapped, shardings, listing.mesh) is not None

    consistent, zeros = list(map(follows, listing.ops)), zero_values(listing)
    split = {v for op, is_one in zip(listing.ops, consistent, strict=True) if not is_one for v in op.operands}
    ops = tuple(
        replace(op, demand=None, other_demands=())
        if op.demand is not None
        and (not op.demand.unreduced or zeros.issuperset(op.results))
        and op.name not in WITH_SHARDING
        and is_one
        and not split.intersection(op.results)
        else op
        for op, is_one in zip(listing.ops, consistent, strict=True)
    )
    return replace(listing, ops=ops)


def _propagated(loaded: Loaded, demands: Mapping[int, TensorSharding]) -> dict[int, TensorSharding]:
    """Shardy's propagation of the module's shardings and these, partial sums in the forms that have them only."""
    given = passes.propagate(loaded.handles, loaded.listing, demands)
    if keeps_partial_sums(loaded.form):
        return dict(given)
    return {value: replace(sharding, unreduced=()) for value, sharding in given.items()}


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 3)
        self._last = now


def _replicated(priced: PricedGraph) -> BaselineChoice:
    return _followed("fully replicated", priced, {}, "")


def _data_parallel(loaded: Loaded, priced: PricedGraph) -> BaselineChoice:
    """Batch arguments split over as many axes as divide them, everything else as Shardy propagates it."""
    name = "data parallel"
    batch = batch_arguments(loaded.program)
    if not batch:
        return name, None, "no argument holds a batch dimension that the program's work follows"
    size = batch[0].type.shape[0]
    axes = [loaded.mesh.axis(axis.name) for axis in loaded.mesh.axes if axis.size > 1]
    while axes and size % total_size(axes):
        axes.pop()
    demands = {
        flow.value: TensorSharding((DimSharding(tuple(axes)), *[DimSharding()] * (flow.type.rank - 1)))
        for flow in batch
    }
    try:
        given = _propagated(loaded, demands)
    except AutoshardError as error:
        return name, None, f"Shardy's propagation failed: {error.reason}"
    note = f"{', '.join(flow.name for flow in batch[:3])}{', ...' if len(batch) > 3 else ''} over {','.join(a.name for a in axes)}"
    return _followed(name, priced, given, note)


def _followed(
    name: str, priced: PricedGraph, given: Mapping[int, TensorSharding], note: str
) -> BaselineChoice:
    try:
        return name, follow(priced, given), note
    except AutoshardError as error:
        return name, None, error.reason


def _baseline(
    loaded: Loaded, priced: PricedGraph, name: str, choice: NDArray[np.int64] | None, note: str
) -> Baseline:
    if choice is None:
        return Baseline(name, Price(0, 0, 0, 0), False, note)
    price_ = _price_of(loaded, priced, choice, read_back(priced, choice), with_collectives=False)
    limit = loaded.memory_bytes
    return Baseline(name, price_, limit is None or price_.peak_bytes <= limit, note)


def _plan_of(
    loaded: Loaded,
    priced: PricedGraph,
    solution: Solution,
    hints: Sequence[NDArray[np.int64]],
    baselines: tuple[Baseline, ...],
    laps: dict[str, float],
) -> Plan:
    choice = solution.choice if solution.choice is not None else solution.smallest_peak_choice
    if solution.choice is not None:
        choice = _familiar(priced, solution.choice, hints)
    if choice is None:
        choice = follow(priced, {})
    statistics: dict[str, float | int | str] = {
        "nodes": priced.problem.node_count,
        "edges": priced.problem.edge_count,
        "peak_bound_bytes": solution.peak_lower_bound,
        **laps,
        **solution.statistics,
    }
    plan = _plan_of_choice(
        loaded,
        priced,
        choice,
        solution.status.name.lower(),
        solution.status.value,
        solution.lower_bound if solution.choice is not None else 0,
        baselines,
        statistics,
    )
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


def _plan_of_choice(
    loaded: Loaded,
    priced: PricedGraph,
    choice: NDArray[np.int64],
    status: str,
    proved: str,
    lower_bound: int,
    baselines: tuple[Baseline, ...],
    statistics: Mapping[str, float | int | str],
) -> Plan:
    chosen = read_back(priced, choice)
    price_ = _price_of(loaded, priced, choice, chosen, with_collectives=True)
    arguments, results = _named(loaded, chosen)
    return Plan(
        module_sha256=loaded.listing.module_hash,
        mesh=tuple((axis.name, axis.size) for axis in loaded.mesh.axes),
        mesh_name=loaded.mesh.name,
        hardware=loaded.hardware.name,
        topology=_topology(loaded.communication, loaded.hardware),
        form=loaded.form,
        lowering=loaded.lowering,
        memory_bytes=loaded.memory_bytes,
        carry=loaded.program.carried_pairs,
        status=status,
        proved=proved,
        price=price_,
        lower_bound_ns=lower_bound,
        smallest_peak_bytes=price_.peak_bytes,
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
        uses=tuple(PlannedUse(op, operand, str(s)) for (op, operand), s in sorted(chosen.uses.items())),
        cloneable=tuple(sorted(loaded.program.cloneable)),
        baselines=baselines,
        other_meshes=tuple(
            PlannedMesh(other.name, tuple((axis.name, axis.size) for axis in other.axes), other.device_ids)
            for other in loaded.mesh.others
        ),
        warnings=(*loaded.listing.warnings, *_extrapolated(loaded.hardware, chosen)),
        statistics=dict(statistics),
        provenance={name: metadata.version(name) for name in ("autoshard", "jaxlib", "ortools", "numpy")},
    )


def _extrapolated(hardware: Hardware, chosen: Chosen) -> tuple[str, ...]:
    """What of the price goes beyond the measurements that a profile was fitted to."""
    found = [c.collective for c in chosen.collectives]
    return extrapolated(hardware, [(c.kind, c.bytes, total_size(c.axes)) for c in found])


def _topology(communication: Communication, hardware: Hardware) -> tuple[int, ...]:
    """The physical shape in chips; its first dimension (slices or nodes) is left out where there is one."""
    slices, *shape = communication.placement.shape
    if hardware.chip.devices_per_chip > 1:
        shape = shape[:-1]
    return tuple(shape) if slices == 1 and shape else (slices, *shape)


def _asked_topology(found: Plan, hardware: Hardware) -> tuple[int, ...] | None:
    """What to ask for to get the plan's topology again; None where it is the mesh's default, which may be of several slices."""
    try:
        default = place_mesh(hardware, found.mesh, None)
    except AutoshardError:
        return found.topology
    return None if _topology(default, hardware) == found.topology else found.topology


def _price_of(
    loaded: Loaded, priced: PricedGraph, choice: NDArray[np.int64], chosen: Chosen, *, with_collectives: bool
) -> Price:
    evaluation = evaluate(priced.problem, choice)
    cost = evaluation.cost
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
        )
        for c in (chosen.collectives if with_collectives else ())
    )
    return Price(cost, chosen.compute_ns, chosen.communication_ns, evaluation.peak, collectives)


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
