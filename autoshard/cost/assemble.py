"""From the graph of choices to a `Problem` of plain numbers, and nothing else: the door between compiler and solver.

node cost   kernel: (compute + its own collectives) * repeat, less what sums after a loop spare (`accumulation`); flows and hubs: 0
edge cost   see `edges`
memory      of values and of the copies that reshards make: see `memory`
groups      cost nothing; masks of nodes, and of ties, the edges that come after those of the graph
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from autoshard.cost.accumulation import SumAfter, sums_after
from autoshard.cost.again import GathersAgain
from autoshard.cost.edges import EdgeTables
from autoshard.cost.gathering import Gathered, GatheredOperands
from autoshard.cost.graph import Graph, KernelSpace, edge_ends
from autoshard.cost.kernel import KernelPrices, compute_ns, merges_sum, price_kernel
from autoshard.cost.layouts import Ints
from autoshard.cost.looped import Looped, looped_sums
from autoshard.cost.lowering import CollectivePrices, Lowering
from autoshard.cost.memory import NodeItems
from autoshard.cost.overlap import Hideable, begins, early_ns, hideable
from autoshard.cost.peak import Peak, PeakModel
from autoshard.cost.reshard import Decompose, ReshardPrices
from autoshard.cost.sizes import Sizes
from autoshard.cost.ties import Ties, find_ties, tie_table
from autoshard.overlaps import Overlap
from autoshard.problem import Problem, ProblemBuilder
from autoshard.program import largest_alike
from costmodels import Communication, Hardware


@dataclass(frozen=True, eq=False)
class PricedGraph:
    """A problem and all that is needed to read a solution of it back: node and edge numbers are those of the graph, ties come after."""

    graph: Graph
    problem: Problem
    kernel_prices: dict[KernelSpace, KernelPrices]
    reshards: ReshardPrices
    ties: Ties
    hideable: dict[int, Hideable]  # of an edge's reshard in one run
    gathered: dict[int, Gathered]  # edges whose reshard may run with the product that reads
    sizes: Sizes
    node_items: NodeItems
    sums_after: dict[int, SumAfter]  # of nodes whose sum is made after a loop
    looped: Looped
    again: GathersAgain

    def expected_peak(self, choice: ArrayLike) -> int:
        """Bytes that the program takes once compiled: see `PeakModel.expected`."""
        return self._peaks.expected(choice)

    def stored_peak(self, choice: ArrayLike) -> int:
        """Bytes of the same, whatever the limit: see `PeakModel.stored`."""
        return self._peaks.stored(choice)

    def peak(self, choice: ArrayLike) -> Peak:
        """What the program holds when it holds the most."""
        return self._peaks.held(choice)

    def gathered_again(self, choice: ArrayLike) -> dict[int, int]:
        """Edges that gather what others gather too, and are to do so anew, by the number of the gather: see `PeakModel.gathers_again`."""
        return self._peaks.gathers_again(choice)

    @cached_property
    def _peaks(self) -> PeakModel:
        return PeakModel(self.graph, self.sizes, self.problem, self.node_items, self.looped, self.again)


def assemble(
    graph: Graph,
    hardware: Hardware,
    communication: Communication,
    decompose: Decompose,
    memory_limit: int | None,
    lowering: Lowering = "shardy",
    overlap: Overlap = "none",
    waited_percent: Mapping[int, int] | None = None,
) -> PricedGraph:
    """Price every choice of the graph for the compiler that will carry the plan out.

    Args:
        waited_percent: of edges of which more is known than the assumption has, what of their asynchronous collectives is waited for.

    Raises:
        AutoshardError: there is no sharding that all members of a sharding group can take.
    """
    collectives = CollectivePrices(communication, hardware, lowering, largest_alike(graph.program))
    return assemble_at(graph, collectives, decompose, memory_limit, overlap, waited_percent)


def assemble_at(
    graph: Graph,
    collectives: CollectivePrices,
    decompose: Decompose,
    memory_limit: int | None,
    overlap: Overlap = "none",
    waited_percent: Mapping[int, int] | None = None,
) -> PricedGraph:
    """The same at given prices of collectives."""
    ties = find_ties(graph)
    hardware = collectives.hardware
    reshards = ReshardPrices(graph.mesh, collectives, graph.layouts, decompose)
    _announce(graph, reshards, collectives)
    reshards.resolve()
    prices = {
        space: price_kernel(
            space.shape, space.strategies, hardware, collectives, reshards, graph.layouts, graph.mesh
        )
        for space in graph.spaces.values()
    }
    builder = ProblemBuilder()
    after = sums_after(graph, prices, collectives)
    _add_nodes(graph, prices, after, ties, builder)
    early = early_ns(graph, hardware) if overlap == "async" or collectives.gathers_ahead else {}
    waited = waited_percent or {}
    hides = hideable(graph, hardware, early, waited) if overlap == "async" or waited else {}
    sizes = Sizes(graph, hardware, collectives.lowering)
    begin_of = begins(graph, early, collectives)
    operands = GatheredOperands(graph, collectives, prices, sizes)
    edges = EdgeTables(graph, collectives, reshards, sizes, operands, hides, begin_of, after)
    gathered = edges.add_to(builder)
    for tie in ties.pairs:
        builder.add_edge(tie.first[0], tie.second[0], tie_table(graph, tie))
    looped = looped_sums(prices)
    node_items = NodeItems(graph, sizes, collectives, looped)
    node_items.add_to(builder)
    problem = builder.build(memory_limit)
    return PricedGraph(
        graph,
        problem,
        prices,
        reshards,
        ties,
        hides,
        gathered,
        sizes,
        node_items,
        after,
        looped,
        GathersAgain(graph, sizes, collectives.lowering, gathered, begin_of),
    )


def kernel_work_ns(priced: PricedGraph, hardware: Hardware) -> Ints:
    """What the kernel of every strategy of every node takes on that hardware in a step, without collectives; laid out as `node_cost`."""
    known = {
        space: compute_ns(space.shape, space.strategies, hardware) for space in priced.graph.spaces.values()
    }
    found = np.zeros_like(priced.problem.node_cost)
    for number, node in enumerate(priced.graph.nodes):
        if node.space is not None:
            begin, end = priced.problem.node_start[number : number + 2]
            found[begin:end] = known[node.space] * priced.graph.program.kernels[node.kernel].repeat
    return found


def _announce(graph: Graph, reshards: ReshardPrices, prices: CollectivePrices) -> None:
    seen: set[tuple[tuple[int, ...], int, int]] = set()
    for edge in graph.edges:
        supply, demand = edge_ends(graph, edge)
        key = (edge.type.shape, id(supply), id(demand))
        if key not in seen:
            seen.add(key)
            reshards.want(edge.type.shape, supply, demand)
    for space in graph.spaces.values():
        for number, (type_, produced, settled) in enumerate(
            zip(space.shape.results, space.produced, space.choices.supplies, strict=True)
        ):
            reshards.want_pairs(type_.shape, produced, settled)
            merged = [row for row, one in enumerate(space.strategies) if merges_sum(one, number, prices)]
            addends = (space.strategies[row].addends(number, graph.mesh) for row in merged)
            reshards.want_pairs(type_.shape, graph.layouts[type_.rank].ids_of(addends), settled[merged])


def _add_nodes(
    graph: Graph,
    prices: dict[KernelSpace, KernelPrices],
    after: dict[int, SumAfter],
    ties: Ties,
    builder: ProblemBuilder,
) -> None:
    for number, node in enumerate(graph.nodes):
        allowed = ties.allowed.get(number)
        if node.space is None:
            builder.add_node(np.zeros(node.choices.count, dtype=np.int64), allowed)
        else:
            repeat = graph.program.kernels[node.kernel].repeat
            spared_ns = after[number].spared_ns if number in after else 0
            builder.add_node(prices[node.space].total_ns * repeat - spared_ns, allowed)
