"""From a program to the graph of choices: nodes choose, edges connect what a provider leaves with what a reader demands.

There is one node per kernel and flow, and one per value with several readers (its hub): the sharding that the value is brought to
once, for all of them, in a copy that lives from the first reader to the last. Without a hub every reader would pay for its own reshard.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autoshard.cost.given import Given
from autoshard.cost.layouts import Ints, LayoutsByRank
from autoshard.cost.loops import Loop, Loops, Place
from autoshard.cost.partial import PartialPlan, plan_partial_sums
from autoshard.program import (
    RESULT_SITE,
    Flow,
    FlowKind,
    FlowSource,
    Kernel,
    KernelShape,
    Program,
    Use,
    demands_of,
)
from autoshard.sharding import PRODUCT, Mesh, TensorSharding, TensorType, is_cut_over_all
from autoshard.space import (
    MOVES,
    Cut,
    Meeting,
    PartialSums,
    ProgramCuts,
    Strategy,
    distinct,
    find_cuts,
    flow_shardings,
    reads_addends,
    strategies,
    strategy_of,
    wanted_shardings,
    wanted_strategies,
    with_addends,
    with_partial_sums,
    with_unreduced,
)


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """What one node may choose: for every strategy the layout it demands of each operand and leaves of each result."""

    demands: tuple[Ints, ...]  # [K] layout numbers, one array an operand
    supplies: tuple[Ints, ...]  # [K], one array a result

    @property
    def count(self) -> int:
        return len((self.supplies or self.demands)[0])


@dataclass(frozen=True, slots=True, eq=False)
class KernelSpace:
    """The strategies that kernels of one shape choose from."""

    shape: KernelShape
    strategies: tuple[Strategy, ...]
    choices: Choices
    produced: tuple[Ints, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    choices: Choices
    space: KernelSpace | None = None  # of a kernel
    kernel: int = -1  # index into program.kernels, or -1
    flow: int = -1  # index into program.flows, or -1
    hub: int = -1  # the value that a hub shares, or -1


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """A read: `result` of node `provider`, demanded as operand `operand` of node `reader`."""

    provider: int
    result: int
    reader: int
    operand: int
    type: TensorType
    travels: TensorType  # what a compiler may send in its place
    repeat: int
    begin: int  # when a copy made for this read exists
    end: int
    sites: tuple[tuple[int, int], ...]
    source: int = (
        -1
    )  # the value, or what the loops that carry it unchanged were handed; -1: of no single reader
    loops: tuple[Loop, ...] = ()  # around the read
    trips: int = (
        0  # of what stays in the loops that the rest is moved out of: gathers from step `first_inside` on
    )
    first_inside: int = 1


Wanted = Mapping[int, Sequence[TensorSharding]]
"""Demands on values, any of which may be met or not."""


@dataclass(slots=True, eq=False)
class Graph:
    program: Program
    mesh: Mesh
    layouts: LayoutsByRank
    loops: Loops
    cuts: ProgramCuts
    given: Given | None = None
    wanted: Wanted | None = None
    partial: PartialPlan = field(default_factory=PartialPlan)
    moved_once: dict[int, TensorSharding] = field(default_factory=dict[int, TensorSharding])
    """Of given shardings: values whose only reader is a reshard, and what to; Shardy merges a sum and its slice to a reduce-scatter."""
    hoists: bool = False  # whether the compiler moves what does not change out of loops
    adds_first: bool = False  # whether the compiler sums once after an addition
    any_order: bool = False  # of the axes of a dimension, because the user wrote one that is not mesh order
    nodes: list[Node] = field(default_factory=list[Node])
    edges: list[Edge] = field(default_factory=list[Edge])
    provider: dict[int, tuple[int, int]] = field(
        default_factory=dict[int, tuple[int, int]]
    )  # value -> node, result
    spaces: dict[object, KernelSpace] = field(default_factory=dict[object, KernelSpace])  # interned


@dataclass(frozen=True, slots=True)
class _Read:
    value: int
    node: int
    operand: int
    repeat: int
    time: int
    end: int  # until when a copy made for this read is needed
    place: Place
    sites: tuple[tuple[int, int], ...]
    source: int = -1  # what loops were handed for the value, where that is what is read
    trips: int = 0  # how often it is read, where that is so


def build_graph(
    program: Program,
    mesh: Mesh,
    given: Given | None = None,
    wanted: Wanted | None = None,
    *,
    keeps_partial_sums: bool = False,
    hoists: bool = False,
    adds_first: bool = False,
) -> Graph:
    """All nodes and edges of a program; kernel nodes come in program order, each after the flows.

    Args:
        given: shardings of values to price as they are: flows get exactly that, kernels the strategy that reads and makes
            exactly that where there is one. None: everything is open.
        wanted: demands that nodes can meet, in place of those that they must meet: choices are those without any demand and those
            that meet one of these. None: what is demanded is met.
        hoists: whether the compiler that carries the plan out moves what does not change in a loop out of it.
        adds_first: whether that compiler sums once, after additions, what is added (`program.additions`).
        keeps_partial_sums: whether the form that carries the plan has partial sums, which are then left partial where that may pay.
    """
    partial = _partial_plan(program, mesh, given) if keeps_partial_sums else PartialPlan()
    graph = Graph(
        program,
        mesh,
        LayoutsByRank(),
        Loops(program.listing),
        find_cuts(program, mesh),
        given,
        wanted,
        partial,
        hoists=hoists,
        adds_first=adds_first,
        any_order=not _in_mesh_order(program, mesh, given),
        moved_once=_moved_once(program, given) if given is not None else {},
    )
    reads: list[_Read] = []
    for index, flow in enumerate(program.flows):
        reads += _add_flow(graph, index, flow)
    for index, kernel in enumerate(program.kernels):
        reads += _add_kernel(graph, index, kernel)
    by_value: dict[int, list[_Read]] = {}
    for read in reads:
        by_value.setdefault(read.value, []).append(_hoisted(graph, read) if hoists else read)
    for value, mine in by_value.items():
        if value in graph.provider:  # a value without one is recomputed for each use
            _connect(graph, value, mine)
    return graph


def _hoisted(graph: Graph, read: _Read) -> _Read:
    """The read where the compiler changes its sharding: before the loops that carry the value unchanged."""
    found = graph.loops.outside(read.value, read.place)
    if found is None:
        return read
    source, place, loop = found
    repeat = max((around.repeat for around in place.loops), default=1)
    return replace(
        read,
        repeat=repeat,
        time=loop.begin,
        end=max(read.end, loop.end),
        place=place,
        source=source,
        trips=read.repeat,
    )


def _moved_once(program: Program, given: Given) -> dict[int, TensorSharding]:
    readers = Counter(use.value for kernel in program.kernels for use in kernel.uses)
    readers.update(source.value for flow in program.flows for source in flow.sources)
    written = {
        use.value: given.values[kernel.results[0]].as_closed()
        for kernel in program.kernels
        if kernel.shape.name in MOVES and kernel.results[0] in given.values
        for use in kernel.uses  # none where what is moved is a constant
        if readers[use.value] == 1
    }
    return written | dict(given.scattered)


def _in_mesh_order(program: Program, mesh: Mesh, given: Given | None) -> bool:
    """Whether every dimension that the user split (and every given one) has its axes in mesh order."""
    written = {demand.sharding for demand in demands_of(program.listing)}
    if given is not None:
        written.update(given.values.values(), given.reads.values())
    lists = {dim.axes for sharding in written for dim in sharding.dims if len(dim.axes) > 1}
    return all(list(axes) == sorted(axes, key=mesh.order) for axes in lists)


def _partial_plan(program: Program, mesh: Mesh, given: Given | None) -> PartialPlan:
    if given is not None:
        return PartialPlan({v: frozenset((s.unreduced,)) for v, s in given.values.items() if s.unreduced})
    demanded: dict[int, list[TensorSharding]] = {}
    for demand in demands_of(program.listing):
        demanded.setdefault(demand.value, []).append(demand.sharding)
    return plan_partial_sums(program, mesh, demanded)


def _add_flow(graph: Graph, index: int, flow: Flow) -> list[_Read]:
    found = _flow_shardings(graph, index, flow)
    layouts = graph.layouts[flow.type.rank]
    supplies = demands = layouts.ids_of(found)
    if flow.crossing is not None:
        demands = layouts.ids_of(map(flow.crossing.handed, found))
    graph.nodes.append(Node(Choices((demands,), (supplies,)), flow=index))
    node = len(graph.nodes) - 1
    if flow.kind is not FlowKind.RESULT:
        graph.provider[flow.value] = (node, 0)
    renamed = graph.program.lifetimes[flow.value].end if flow.is_handed_on else 0
    return [
        _Read(s.value, node, 0, s.repeat, s.time, max(s.time + 1, renamed), _place(graph, s), (s.site,))
        for s in flow.sources
    ]


def _place(graph: Graph, source: FlowSource) -> Place:
    number, position = source.site
    if number == RESULT_SITE:
        return graph.loops.at_end(source.time)
    return graph.loops.around_source(graph.program.listing.data_flows[-1 - number], position)


def _flow_shardings(graph: Graph, index: int, flow: Flow) -> list[TensorSharding]:
    if graph.given is not None and flow.value in graph.given.values:
        mine = graph.given.values[flow.value].as_closed()
        if flow.kind is FlowKind.RESULT and not flow.demands and mine.is_foreign:
            mine = TensorSharding.replicated_closed(mine.rank)
        is_asked_otherwise = flow.kind is FlowKind.RESULT and not all(map(mine.satisfies, flow.demands))
        return [flow.demands[0].as_closed() if is_asked_otherwise else mine]
    cuts = graph.cuts.flows[index]
    if graph.wanted is not None:
        found = wanted_shardings(flow, graph.mesh, graph.wanted.get(flow.value, ()), cuts, graph.any_order)
    else:
        found = flow_shardings(flow, graph.mesh, cuts, graph.any_order)
    if flow.kind is not FlowKind.CARRIED or flow.demands:
        return found
    return with_unreduced(found, graph.partial.of_value(flow.value, graph.mesh))


def _add_kernel(graph: Graph, index: int, kernel: Kernel) -> list[_Read]:
    space = _kernel_space(index, kernel, graph)
    graph.nodes.append(Node(space.choices, space, kernel=index))
    node = len(graph.nodes) - 1
    for result, value in enumerate(kernel.results):
        if kernel.shape.results[result].rank:
            graph.provider[value] = (node, result)
    end = graph.program.lifetimes[kernel.results[0]].end if kernel.is_alias else kernel.time + 1
    place = graph.loops.around_op(kernel.time)
    return [
        _Read(use.value, node, operand, kernel.repeat, kernel.time, end, place, use.sites)
        for operand, use in enumerate(kernel.uses)
    ]


Demands = tuple[tuple[TensorSharding | None, ...], ...]
"""Demands on the results of a kernel, any of which may be met or not."""
Ends = tuple[tuple[TensorSharding, ...], tuple[TensorSharding, ...]]
"""Shardings of the operands of a kernel, and of its results."""


def _kernel_space(index: int, kernel: Kernel, graph: Graph) -> KernelSpace:
    """The strategies of a kernel; those of one shape that are asked for the same share a space."""
    ends = _given_ends(kernel, graph)
    wanted = _wanted_of(kernel, graph.wanted) if graph.wanted is not None else None
    sums = graph.partial.of_kernel(kernel, graph.mesh)
    moved = tuple(map(graph.moved_once.get, kernel.results))
    meeting, met = _meeting(kernel, graph)
    key = (id(kernel.shape), graph.cuts.kernels[index], ends, moved, wanted, sums, met)
    space = graph.spaces.get(key)
    if space is None:
        exact = strategy_of(kernel.shape, *ends, graph.mesh) if ends is not None else None
        if exact is not None:
            found = [_scattered(graph, kernel, exact)]
        else:
            found = _open_strategies(kernel.shape, graph, graph.cuts.kernels[index], wanted, sums)
        if meeting:
            found = with_addends(kernel.shape, found, meeting, graph.mesh)
            found = found if exact is None else _as_compiled(kernel.shape, graph, found, meeting)
        space = graph.spaces[key] = _space_of(kernel.shape, found, graph.layouts)
    return space


def _as_compiled(shape: KernelShape, graph: Graph, found: list[Strategy], meeting: Meeting) -> list[Strategy]:
    """Of an exact strategy, that which reads as addends what its providers leave so, and slices after it has summed."""
    left = {operand: made[0] for operand, made in meeting.arriving.items() if len(made) == 1}
    settled = found[0].settled
    reading = [one for one in found if reads_addends(one)]
    if (
        not reading
        and shape.additions
        and shape.additions[0].is_result
        and any(s.unreduced for s in left.values())
    ):
        open_ = with_addends(shape, strategies(shape, graph.mesh), meeting, graph.mesh)
        reading = [one for one in open_ if reads_addends(one) and one.settled == settled]
    fitting = [
        one
        for one in reading
        if all(not sharding.unreduced or sharding == left.get(i) for i, sharding in enumerate(one.operands))
    ]
    return (
        [max(fitting, key=lambda one: sum(bool(s.unreduced) for s in one.operands))] if fitting else found[:1]
    )


def _meeting(kernel: Kernel, graph: Graph) -> tuple[Meeting, tuple[object, ...]]:
    """What the kernel has to do with addends, and a key for it."""
    program = graph.program
    if not graph.adds_first or not (kernel.shape.additions or program.addends.intersection(kernel.results)):
        return Meeting(), ()
    spaces = {
        operand: graph.nodes[graph.provider[use.value][0]].space
        for operand, use in enumerate(kernel.uses)
        if use.value in program.addends
    }
    leaves = kernel.results[0] in program.addends and kernel.results[0] not in (graph.wanted or {})
    arriving = {
        operand: [strategy.settled[0] for strategy in space.strategies]
        for operand, space in spaces.items()
        if space is not None
    }
    return Meeting(leaves, arriving), (leaves, *((operand, id(space)) for operand, space in spaces.items()))


def _given_ends(kernel: Kernel, graph: Graph) -> Ends | None:
    """What the kernel reads and makes by the given shardings; None where none are given."""
    given = graph.given
    if given is None:
        return None

    def made(value: int, type_: TensorType) -> TensorSharding:
        found = given.values.get(value)
        return TensorSharding.replicated_closed(type_.rank) if found is None else found.as_closed()

    def read(use: Use, type_: TensorType) -> TensorSharding:
        found = next((given.reads[site] for site in use.sites if site in given.reads), None)
        return _settled(graph, use.value, made(use.value, type_)) if found is None else found.as_closed()

    operands = zip(kernel.uses, kernel.shape.operands, strict=True)
    results = zip(kernel.results, kernel.shape.results, strict=True)
    return (
        tuple(read(use, type_) for use, type_ in operands),
        tuple(made(value, type_) for value, type_ in results),
    )


def _open_strategies(
    shape: KernelShape, graph: Graph, cuts: Sequence[Cut], wanted: Demands | None, sums: PartialSums
) -> list[Strategy]:
    if wanted is not None:
        found = wanted_strategies(shape, graph.mesh, wanted, cuts, graph.any_order)
    else:
        found = strategies(shape, graph.mesh, cuts, graph.any_order)
    return _with_partial_sums(shape, found, sums, wanted) if sums else found


def _settled(graph: Graph, value: int, given: TensorSharding) -> TensorSharding:
    """How readers find a value of a given sharding: scattered already, where its node settles so."""
    end = graph.provider.get(value) if value in graph.moved_once else None
    space = graph.nodes[end[0]].space if end is not None else None
    if end is None or space is None or len(space.strategies) != 1:
        return given
    return space.strategies[0].settled[end[1]]


def _scattered(graph: Graph, kernel: Kernel, exact: Strategy) -> Strategy:
    """The strategy with its sum scattered, where the one reader of the result slices it over exactly the summed axes."""
    value = next(iter(kernel.results), -1)
    target = graph.moved_once.get(value) if exact.reduced and len(exact.settled) == 1 else None
    scattered = replace(exact, settled=(target,)) if target is not None else exact
    if not scattered.is_scattered or _is_left_to_addition(graph, kernel, scattered):
        return exact
    return scattered


def _is_left_to_addition(graph: Graph, kernel: Kernel, scattered: Strategy) -> bool:
    """Whether an addition may sum it, which slices what it has summed; what is scattered while its product runs is not added before."""
    type_, whole, part = kernel.shape.results[0], scattered.produced[0], scattered.settled[0]
    in_product = kernel.shape.name == PRODUCT and is_cut_over_all(whole, part, type_.shape, graph.mesh)
    return graph.adds_first and kernel.results[0] in graph.program.addends and not in_product


def _with_partial_sums(
    shape: KernelShape,
    found: list[Strategy],
    sums: PartialSums,
    wanted: Demands | None,
) -> list[Strategy]:
    """Those whose result settles as demanded; where demands may be met or not, those for each of them and for none."""
    if wanted is None:
        return with_partial_sums(shape, found, sums)
    alike = [replace(shape, demands=demands) for demands in ((None,) * len(shape.results), *wanted)]
    each = [s for one in alike for s in with_partial_sums(one, found, sums)]
    return distinct(each)


def _wanted_of(kernel: Kernel, wanted: Wanted) -> Demands:
    """The first demand on each result, the second on each, and so on, the last of a result with fewer again."""
    each = [tuple(wanted.get(value, ())) for value in kernel.results]
    count = max(map(len, each), default=0)
    padded = ((*mine, *(mine[-1:] or (None,)) * (count - len(mine))) for mine in each)
    return tuple(zip(*padded, strict=True))


def _space_of(shape: KernelShape, found: Sequence[Strategy], layouts: LayoutsByRank) -> KernelSpace:
    """Number the shardings of given strategies."""
    demands = tuple(
        layouts[t.rank].ids_of(s.operands[i] for s in found) for i, t in enumerate(shape.operands)
    )
    supplies, produced = (
        tuple(
            layouts[t.rank].ids_of(getattr(s, which)[i] for s in found) for i, t in enumerate(shape.results)
        )
        for which in ("settled", "produced")
    )
    return KernelSpace(shape, tuple(found), Choices(demands, supplies), produced)


def _connect(graph: Graph, value: int, reads: list[_Read]) -> None:
    """Join a value's provider to its readers, through a hub where there are several.

    State that is handed back to itself is not moved.
    """
    provider, result = graph.provider[value]
    reads = [read for read in reads if read.node != provider]
    type_ = graph.program.listing.values[value].type
    assert type_ is not None
    first_inside = 1
    if len(reads) > 1:
        provider, result = _add_hub(graph, value, type_, reads), 0
        first_inside = 0
    for read in reads:
        graph.edges.append(
            Edge(
                provider,
                result,
                read.node,
                read.operand,
                type_,
                graph.program.widths.of_use(value, read.sites),
                read.repeat,
                read.time,
                read.end,
                read.sites,
                value if read.source < 0 else read.source,
                read.place.loops,
                read.trips,
                first_inside,
            )
        )


def _add_hub(graph: Graph, value: int, type_: TensorType, reads: list[_Read]) -> int:
    provider, result = graph.provider[value]
    supply = graph.nodes[provider].choices.supplies[result]
    demands = [graph.nodes[read.node].choices.demands[read.operand] for read in reads]
    ids = _union([supply, *demands])
    graph.nodes.append(Node(Choices((ids,), (ids,)), hub=value))
    hub = len(graph.nodes) - 1
    copy = graph.loops.shared_copy(value, [(read.place, read.end) for read in reads])
    travels = graph.program.widths.of_value(value)
    trips = max(read.trips for read in reads)
    graph.edges.append(
        Edge(provider, result, hub, 0, type_, travels, copy.repeat, copy.begin, copy.end, (), trips=trips)
    )
    return hub


def _union(arrays: Sequence[Ints]) -> Ints:
    """Layout numbers in any of the arrays, in the order of first sight."""
    seen: dict[int, None] = {}
    for array in arrays:
        seen.update(dict.fromkeys(array.tolist()))
    return np.fromiter(seen, dtype=np.int64, count=len(seen))
