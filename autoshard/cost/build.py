"""From a program to its graph: flows and kernels become nodes, reads become edges, values with several readers get hubs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.cost.given import Given
from autoshard.cost.graph import Choices, Edge, Graph, Node, Wanted
from autoshard.cost.layouts import LayoutsByRank
from autoshard.cost.loops import Loop, Loops, Place
from autoshard.cost.partial import PartialPlan, plan_partial_sums
from autoshard.cost.sharing import Sharing, find_sharing
from autoshard.cost.spaces import kernel_space
from autoshard.cost.sums_left import sums_left
from autoshard.program import (
    MOVES,
    RESULT_SITE,
    Flow,
    FlowKind,
    FlowSource,
    Kernel,
    Program,
    demands_of,
    gathered_as,
    sliced_values,
)
from autoshard.sharding import Mesh, TensorSharding, TensorType, dtype_bits
from autoshard.space import (
    find_cuts,
    flow_shardings,
    wanted_shardings,
    with_unreduced,
)


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
    inside: tuple[Loop, ...] = ()  # the loops around the read then


def build_graph(
    program: Program,
    mesh: Mesh,
    given: Given | None = None,
    wanted: Wanted | None = None,
    *,
    keeps_partial_sums: bool = False,
    hoists: bool = False,
    adds_first: bool = False,
    merges_slices: bool = False,
) -> Graph:
    """All nodes and edges of a program; kernel nodes come in program order, each after the flows.

    Args:
        given: shardings of values to price as they are: flows get exactly that, kernels the strategy that reads and makes
            exactly that where there is one. None: everything is open.
        wanted: demands that nodes can meet, in place of those that they must meet: choices are those without any demand and those
            that meet one of these. None: what is demanded is met.
        hoists: whether the compiler that carries the plan out moves what does not change in a loop out of it.
        adds_first: whether that compiler sums once, after additions, what is added (`program.additions`).
        merges_slices: whether that compiler makes a reduce-scatter of a sum and a slice behind it (`cost.sums_left`).
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
        sums_left=sums_left(program, partial.kept) if merges_slices and given is None else frozenset(),
        sliced=sliced_values(program.listing) if adds_first else frozenset(),
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
    known_as = gathered_as(program)
    for value, mine in by_value.items():
        if value in graph.provider:  # a value without one is recomputed for each use
            _connect(graph, value, mine, known_as.get(value, value))
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
        inside=read.place.loops,
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
    space = kernel_space(index, kernel, graph)
    graph.nodes.append(Node(space.choices, space, kernel=index))
    node = len(graph.nodes) - 1
    for result, value in enumerate(kernel.results):
        if kernel.shape.results[result].rank:
            graph.provider[value] = (node, result)
    end = kernel.time + 1
    if kernel.is_alias:  # what runs early may be gone by then
        end = max(end, graph.program.lifetimes[kernel.results[0]].end)
    place = graph.loops.around_op(kernel.time)
    return [
        _Read(use.value, node, operand, kernel.repeat, kernel.time, end, place, use.sites)
        for operand, use in enumerate(kernel.uses)
    ]


def _connect(graph: Graph, value: int, reads: list[_Read], known_as: int) -> None:
    """Join a value's provider to its readers, through a hub where there are several; `known_as`: what is brought to them in its place.

    State that is handed back to itself is not moved.
    """
    provider, result = graph.provider[value]
    reads = [read for read in reads if read.node != provider]
    listing = graph.program.listing
    type_ = listing.values[value].type
    assert type_ is not None
    taken = [graph.program.widths.of_use(value, read.sites) for read in reads]
    widest = max((dtype_bits(one.dtype) for one in taken), default=0)
    are_narrow = [dtype_bits(one.dtype) < widest for one in taken]
    if len(reads) > 1:
        provider, result = _add_hub(graph, value, type_, reads, are_narrow), 0
    for read, travels, is_narrow in zip(reads, taken, are_narrow, strict=True):
        graph.edges.append(
            Edge(
                provider,
                result,
                read.node,
                read.operand,
                type_,
                travels,
                read.repeat,
                read.time,
                read.end,
                read.sites,
                listing.first_of(known_as if read.source < 0 else read.source),
                read.place.loops,
                read.trips,
                (listing.first_of(value), read.inside),
                is_narrow,
            )
        )


def _add_hub(
    graph: Graph, value: int, type_: TensorType, reads: list[_Read], are_narrow: Sequence[bool]
) -> int:
    sharing = _sharing(graph, value, type_, reads, are_narrow)
    ids = sharing.copies
    graph.nodes.append(Node(Choices((ids,), (ids,)), hub=value, sharing=sharing))
    hub = len(graph.nodes) - 1
    travels = graph.program.widths.of_value(value)
    graph.edges.append(_to_hub(graph, value, type_, hub, reads, travels, is_narrow=False))
    if sharing.is_narrow.any():
        mine = [read for read, is_one in zip(reads, are_narrow, strict=True) if is_one]
        sites = tuple(site for read in mine for site in read.sites)
        travels = graph.program.widths.of_use(value, sites)
        graph.edges.append(_to_hub(graph, value, type_, hub, mine, travels, is_narrow=True))
    return hub


def _to_hub(
    graph: Graph,
    value: int,
    type_: TensorType,
    hub: int,
    reads: Sequence[_Read],
    travels: TensorType,
    *,
    is_narrow: bool,
) -> Edge:
    """The edge of a copy that these readers share."""
    provider, result = graph.provider[value]
    places = [(replace(read.place, time=read.time), read.end) for read in reads]
    copy = graph.loops.shared_copy(value, places)
    first, around = graph.program.listing.first_of(value), list({read.place.loops for read in reads})
    bodies = {read.inside for read in reads}
    return Edge(
        provider,
        result,
        hub,
        0,
        type_,
        travels,
        copy.repeat,
        copy.begin,
        copy.end,
        (),
        first if len(around) == 1 else -1,
        around[0],
        trips=max(read.trips for read in reads),
        inside=(first, reads[0].inside if len(bodies) == 1 else ()),
        is_narrow=is_narrow,
    )


def _sharing(
    graph: Graph, value: int, type_: TensorType, reads: Sequence[_Read], are_narrow: Sequence[bool]
) -> Sharing:
    provider, result = graph.provider[value]
    supply = graph.nodes[provider].choices.supplies[result]
    demands = [graph.nodes[read.node].choices.demands[read.operand] for read in reads]
    shared = graph.given.shared.get(value) if graph.given is not None else None
    copy = None if shared is None else graph.layouts[type_.rank].id_of(shared.as_closed())
    if value in graph.program.sums_after_loops:  # which are handed on as they settle
        demands, are_narrow = [np.concatenate(demands)], [False]
    key = (type_.rank, supply.tobytes(), tuple(each.tobytes() for each in demands), tuple(are_narrow), copy)
    if key not in graph.sharings:
        shardings = graph.layouts[type_.rank].shardings
        graph.sharings[key] = find_sharing(supply, demands, are_narrow, shardings, graph.mesh, copy)
    return graph.sharings[key]
