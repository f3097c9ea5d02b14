"""Every read of a value from memory: by a kernel, a loop or branch, or the end of the program, and the sharding that it demands.

A kernel demands what the factors of its root op give; the recorded uses must say the same, and a use by an op that is recomputed
must be among what its clones need.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from autoshard.check.boundaries import result_sharding
from autoshard.check.loops import Loop, Part, Where
from autoshard.check.manual import before_edge
from autoshard.check.partial import clone_operand_axes
from autoshard.check.parts import Parts, axis_refs, joined, parts_of, pieces, project, tensor_sharding
from autoshard.check.planned import Planned, Site, site_value
from autoshard.check.report import Finding, of_offenders
from autoshard.check.rules import Run, rule_of
from autoshard.program import RESULT_SITE, Flow, FlowKind, FlowSource, Kernel, Use
from autoshard.sharding import Mesh, TensorSharding, TensorType


@dataclass(frozen=True, slots=True)
class Read:
    sharding: TensorSharding
    travels: TensorType  # what a compiler may send for it
    repeat: int
    time: int
    end: int  # half-open: until when a copy made for it is read
    op: int  # that needs it; -1: arguments and results
    where: Where
    needs_copy: bool  # whether a reshard for it makes a buffer that nothing else accounts for
    source: int = -1  # the value, or what the loops that carry it unchanged were handed
    trips: int = 0  # how often it is read in those loops
    inside: Where = field(default_factory=dict[Loop, Part])  # where it is read in them
    again: int = 0  # above 0: brought to its sharding anew, whatever others before ask for


@dataclass(frozen=True, slots=True)
class KernelRead:
    kernel: Kernel
    run: Run  # of its root
    shardings: tuple[TensorSharding, ...]  # of each use


@dataclass(frozen=True, slots=True)
class Reads:
    kernels: tuple[KernelRead, ...]
    of_value: dict[int, list[Read]]


def find_reads(planned: Planned, runs: Mapping[int, Run], lowering: str) -> tuple[Reads, Finding]:
    """All reads, and whether they agree with the recorded uses. Kernels whose root is not in `runs` are left out."""
    clones = _clone_reads(planned)
    loops = planned.loops
    kernels: list[KernelRead] = []
    of_value: dict[int, list[Read]] = {}
    offenders: list[str] = []
    for kernel in planned.program.kernels:
        run = runs.get(kernel.ops[-1])
        if run is None:
            continue
        found = KernelRead(kernel, run, tuple(_demands(planned, kernel, run, clones)))
        kernels.append(found)
        for use, sharding, travels in zip(kernel.uses, found.shardings, kernel.shape.travels, strict=True):
            of_value.setdefault(use.value, []).append(
                Read(
                    sharding,
                    travels,
                    kernel.repeat,
                    kernel.time,
                    _copy_end(planned, kernel),
                    kernel.ops[-1],
                    loops.around_op(kernel.time),
                    True,
                    again=planned.again.get(use.sites[0], 0),
                )
            )
            offenders += _use_errors(planned, use, sharding, clones)
    for value, read in _flow_reads(planned):
        of_value.setdefault(value, []).append(read)
    if lowering == "xla-tpu":
        for value, mine in of_value.items():
            of_value[value] = [_before_loops(planned, value, read) for read in mine]
    count = sum(len(found.kernel.uses) for found in kernels)
    what = "reads of a kernel follow from how it runs"
    return Reads(tuple(kernels), of_value), of_offenders("reads", offenders, count, what)


def _before_loops(planned: Planned, value: int, read: Read) -> Read:
    """The read as XLA carries it out: what loops do not change is brought to its sharding before them."""
    source, where, loop = planned.loops.before(value, read.where)
    if loop is None:
        return read
    repeat = max([1, *(other.repeat for other in where)])
    return replace(
        read,
        repeat=repeat,
        time=loop.begin,
        end=max(read.end, loop.end),
        where=where,
        source=source,
        trips=read.repeat,
        inside=read.where,
    )


def _copy_end(planned: Planned, kernel: Kernel) -> int:
    """A kernel without a buffer of its own hands its operands on to its readers."""
    end = planned.program.lifetimes[kernel.results[0]].end if kernel.is_alias else 0
    return max(end, kernel.time + 1)


def _demands(
    planned: Planned, kernel: Kernel, run: Run, clones: Mapping[Site, set[TensorSharding]]
) -> Iterator[TensorSharding]:
    """The splits that follow from how the kernel runs; whether an operand is partial, only the plan says."""
    for mapping, use in zip(kernel.shape.rule.operands, kernel.uses, strict=True):
        there = planned.read(*use.sites[0]) if run.is_off_mesh else None
        if there is not None:
            yield there
            continue
        sharding = tensor_sharding(mapping, run.factors, planned.mesh)
        recorded = (_recorded(planned, site, clones) for site in use.sites)
        partial = next((s.unreduced for found in recorded for s in found if s.dims == sharding.dims), ())
        yield replace(sharding, unreduced=partial)


def _recorded(
    planned: Planned, site: Site, clones: Mapping[Site, set[TensorSharding]]
) -> set[TensorSharding]:
    """What the plan says of a read; several things where copies of a recomputed op read differently."""
    if planned.is_recomputed[site[0]]:
        return clones.get(site, set())
    read = planned.read(*site)
    return {read} if read is not None else set()


def _use_errors(
    planned: Planned, use: Use, sharding: TensorSharding, clones: Mapping[Site, set[TensorSharding]]
) -> Iterator[str]:
    for op, operand in use.sites:
        recorded = _recorded(planned, (op, operand), clones)
        if sharding not in recorded:
            found = ", ".join(sorted(map(str, recorded))) or "no sharding"
            yield f"{planned.where(op)}: operand {operand} is read as {found}, its kernel needs {sharding}"


def _flow_reads(planned: Planned) -> Iterator[tuple[int, Read]]:
    """What loops, branches and the caller are handed; state that is handed back to itself is not read."""
    for flow in planned.program.flows:
        is_result = flow.kind is FlowKind.RESULT
        for source in flow.sources:
            if source.value == flow.value and not is_result:
                continue
            sharding = (
                result_sharding(planned, source.site[1]) if is_result else _taken(planned, source, flow)
            )
            if sharding is not None and source.value not in planned.program.cloneable:
                yield source.value, _flow_read(planned, source, sharding, flow)


def _taken(planned: Planned, source: FlowSource, flow: Flow) -> TensorSharding:
    """How a flow that is no result takes what it is handed."""
    found = planned.settled[flow.value]
    return found if source.site[0] == RESULT_SITE else before_edge(planned, -1 - source.site[0], found)


def _flow_read(planned: Planned, source: FlowSource, sharding: TensorSharding, flow: Flow) -> Read:
    number, position = -1 - source.site[0], source.site[1]
    where: Where = {}
    end = source.time + 1
    needs_copy = flow.kind is FlowKind.RESULT and position not in planned.program.copied_results
    if source.site[0] != RESULT_SITE:
        where = planned.loops.around_source(planned.listing.data_flows[number], position)
        if flow.is_handed_on:  # what is handed over keeps its buffer
            end, needs_copy = max(end, planned.program.lifetimes[flow.value].end), True
    travels = planned.program.widths.of_use(source.value, (source.site,))
    return Read(sharding, travels, source.repeat, source.time, end, -1, where, needs_copy)


def _clone_reads(planned: Planned) -> dict[Site, set[TensorSharding]]:
    """What the clones of recomputed ops need of their operands, from what is demanded of the clones."""
    wanted: dict[int, set[TensorSharding]] = {}
    for site, sharding in planned.uses.items():
        value = site_value(planned.listing, site) if site[0] < 0 else None
        if value is not None:
            wanted.setdefault(value, set()).add(sharding)
    found: dict[Site, set[TensorSharding]] = {}
    for number in range(len(planned.listing.ops) - 1, -1, -1):
        op = planned.listing.ops[number]
        for operand, value in enumerate(op.operands):
            if not planned.is_ranked(value):
                continue
            if planned.is_recomputed[number]:
                demands = _of_clone(planned, number, operand, wanted.get(op.results[0], set()))
                found[number, operand] = demands
            else:
                read = planned.read(number, operand)
                demands = {read} if read is not None else set[TensorSharding]()
            if value in planned.program.cloneable:
                wanted.setdefault(value, set()).update(demands)
    return found


def _of_clone(
    planned: Planned, number: int, operand: int, demands: set[TensorSharding]
) -> set[TensorSharding]:
    op = planned.listing.ops[number]
    rule = rule_of(planned, op)
    whole = ((),) * len(rule.factors)  # what is wanted on another mesh is made whole, then moved there
    projected = (
        (whole if sharding.is_foreign else project(rule, [(rule.results[0], sharding)]), sharding)
        for sharding in demands
    )
    return {
        replace(
            tensor_sharding(rule.operands[operand], factors, planned.mesh),
            unreduced=clone_operand_axes(planned, op, operand, sharding),
        )
        for factors, sharding in projected
        if not isinstance(factors, str)
    }


def summed_parts(planned: Planned, read: KernelRead) -> Parts:
    """Axes over which the kernel adds its results up, in mesh order: of split reduction factors, and not left partial."""
    mesh = planned.mesh
    made = (planned.produced[value] for value in read.kernel.results if value in planned.produced)
    left = [part for sharding in made for part in parts_of(sharding.unreduced)]
    parts = read.run.summed
    return _in_order(tuple(pieces(parts, left) - pieces(left, parts)), mesh)


def _in_order(parts: Parts, mesh: Mesh) -> Parts:
    return joined(sorted(parts, key=lambda part: (mesh.axis_names.index(part[0]), part[1])))


def addends_of(planned: Planned, read: KernelRead, value: int) -> TensorSharding:
    """How the kernel makes a result that it adds up."""
    made = planned.produced[value]
    parts = _in_order((*parts_of(made.unreduced), *summed_parts(planned, read)), planned.mesh)
    return replace(made, unreduced=axis_refs(parts, planned.mesh))
