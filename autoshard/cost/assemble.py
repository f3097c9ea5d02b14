"""From the graph of choices to a `Problem` of plain numbers, and nothing else: the door between compiler and solver.

node cost   kernel: (compute + its own collectives) * repeat, less what sums after a loop spare (`accumulation`); flows and hubs: 0
edge cost   reshard from what the provider leaves to what the reader demands, less what runs behind compute (`overlap`), * repeat;
            what stays in a loop (`loops`) as often as it turns
memory      of values and of the copies that reshards make: see `memory`
groups      cost nothing; masks of nodes, and of ties, the edges that come after those of the graph
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from autoshard.cost.accumulation import SumAfter, kept_on_the_way, not_spared_ns, sums_after
from autoshard.cost.again import GathersAgain
from autoshard.cost.gathering import Gathered, GatheredOperands
from autoshard.cost.graph import Edge, Graph, KernelSpace
from autoshard.cost.kernel import KernelPrices, compute_ns, price_kernel
from autoshard.cost.layouts import Ints
from autoshard.cost.looped import Looped, looped_sums
from autoshard.cost.lowering import CollectivePrices, Lowering
from autoshard.cost.memory import (
    NodeItems,
    copies_count,
    copy_bytes,
    hoisted_bytes,
    scattered_from,
    shard_bytes,
)
from autoshard.cost.overlap import NOTHING, Hideable, begins, early_ns, hideable, value_of
from autoshard.cost.peak import Peak, PeakModel
from autoshard.cost.relaid import held_ahead
from autoshard.cost.reshard import Decompose, ReshardPrices
from autoshard.cost.sizes import Sizes
from autoshard.cost.ties import Ties, find_ties, tie_table
from autoshard.cost.told import ToldPairs
from autoshard.overlaps import Overlap
from autoshard.problem import Problem, ProblemBuilder, Table
from autoshard.problem.model import Bools
from autoshard.program import largest_alike
from autoshard.sharding import TensorType
from costmodels import Communication, Hardware


@dataclass(frozen=True, slots=True, eq=False)
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
        return self._peaks().expected(choice)

    def stored_peak(self, choice: ArrayLike) -> int:
        """Bytes of the same, whatever the limit: see `PeakModel.stored`."""
        return self._peaks().stored(choice)

    def peak(self, choice: ArrayLike) -> Peak:
        """What the program holds when it holds the most."""
        return self._peaks().held(choice)

    def gathered_again(self, choice: ArrayLike) -> dict[int, int]:
        """Edges that gather what others gather too, and are to do so anew, by the number of the gather: see `PeakModel.gathers_again`."""
        return self._peaks().gathers_again(choice)

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
    _announce(graph, reshards)
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
    gathered = _add_edges(graph, collectives, reshards, sizes, operands, hides, begin_of, after, builder)
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


def _announce(graph: Graph, reshards: ReshardPrices) -> None:
    seen: set[tuple[int, int, int]] = set()
    for edge in graph.edges:
        supply, demand = _ends(graph, edge)
        key = (edge.type.rank, id(supply), id(demand))
        if key not in seen:
            seen.add(key)
            reshards.want(edge.type.rank, supply, demand)
    for space in graph.spaces.values():
        for type_, produced, settled in zip(
            space.shape.results, space.produced, space.choices.supplies, strict=True
        ):
            reshards.want_pairs(type_.rank, produced, settled)


def _ends(graph: Graph, edge: Edge) -> tuple[Ints, Ints]:
    return (
        graph.nodes[edge.provider].choices.supplies[edge.result],
        graph.nodes[edge.reader].choices.demands[edge.operand],
    )


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


def _add_edges(
    graph: Graph,
    prices: CollectivePrices,
    reshards: ReshardPrices,
    sizes: Sizes,
    operands: GatheredOperands,
    hides: dict[int, Hideable],
    begin_of: dict[int, int],
    after: dict[int, SumAfter],
    builder: ProblemBuilder,
) -> dict[int, Gathered]:
    """Returns the edges whose reshard a product may carry out while it runs."""
    tables: dict[tuple[TensorType, bytes, bytes, *tuple[int | Hideable, ...]], Table] = {}
    copies: dict[tuple[TensorType, bytes, bytes, TensorType, int], tuple[Ints, Ints, Bools]] = {}
    by_identity: dict[
        tuple[TensorType, TensorType, *tuple[int | Hideable, ...]], tuple[Table, tuple[Ints, Ints, Bools]]
    ] = {}
    gathered: dict[int, Gathered] = {}
    looped: dict[tuple[int, int], tuple[Table, Ints]] = {}
    told = ToldPairs(graph)
    for index, edge in enumerate(graph.edges):
        supply, demand = _ends(graph, edge)
        hidden = hides.get(index, NOTHING)
        sent = prices.sent(edge.type, edge.travels)
        widening = prices.widening(edge.type, sent)
        more = max(edge.trips - edge.repeat, 0)
        quick = (edge.travels, sent, widening, id(supply), id(demand), edge.repeat, hidden, more)
        found = by_identity.get(quick)
        if found is None:
            ends = supply.tobytes(), demand.tobytes()
            key = (sizes.narrowed(edge.type, edge.travels), *ends, sent, widening)
            priced = (sent, *ends, widening, edge.repeat, hidden, more)
            if priced not in tables:
                cost = _exposed_ns(reshards, sent, widening, supply, demand, hidden) * edge.repeat
                if more:
                    inside = reshards.matrix(sent, only_inside=True, widening=widening)
                    cost += inside[np.ix_(supply, demand)] * more
                tables[priced] = Table(cost, reshards.possible(edge.type.rank, supply, demand))
            if key not in copies:
                sized = (sizes, key[0], supply, demand)
                are_laid = reshards.are_laid_out(sent, widening)[np.ix_(supply, demand)]
                copies[key] = copy_bytes(*sized), shard_bytes(*sized), are_laid
            found = by_identity[quick] = (tables[priced], copies[key])
        table, (whole, shard, are_laid) = found
        value = value_of(graph, edge)
        pairs = told.of_edge(edge, supply, demand)
        in_product = operands.of_edge(edge, value, reshards)
        if in_product is not None and pairs is not None and (in_product.is_looped & ~pairs.is_moved).any():
            in_product = replace(in_product, is_looped=in_product.is_looped & pairs.is_moved)
        if in_product is not None:
            gathered[index] = in_product
            if (id(table), id(in_product)) not in looped:
                cost = np.where(in_product.is_looped, in_product.exposed_ns * edge.repeat, table.cost)
                copied = np.where(in_product.is_looped, 0, whole)
                looped[id(table), id(in_product)] = replace(table, cost=cost), copied
            table, whole = looped[id(table), id(in_product)]
        if edge.provider in after:
            again_ns = not_spared_ns(graph, edge, after[edge.provider], supply, demand)
            table = replace(table, cost=table.cost + again_ns)
        if prices.sums_after_loops and (is_kept := kept_on_the_way(graph, edge, supply, demand)) is not None:
            table = replace(table, allowed=is_kept if table.allowed is None else table.allowed & is_kept)
        if pairs is not None:
            table, (whole, shard) = told.table(table, pairs), told.copies(whole, shard, pairs)
        number = builder.add_edge(edge.provider, edge.reader, table)
        for item in operands.memory(edge, in_product) if in_product is not None else ():
            builder.add_edge_usage(number, *item)
        begin = begin_of.get(index, edge.begin)
        if copies_count(graph, edge) and whole.any():
            builder.add_edge_usage(number, begin, edge.end, whole)
        for hoisted in hoisted_bytes(graph, edge, sizes, value):
            builder.add_edge_usage(number, *hoisted)
        if (in_rows := scattered_from(graph, edge, sizes, value, whole)) is not None and in_rows.any():
            builder.add_edge_usage(number, edge.begin, edge.end, in_rows)
        if prices.lowering == "xla-tpu" and value in graph.program.pieces:
            pieces = sizes.pieces(edge.type, graph.program.pieces[value], supply, demand)
            pieces = pieces if pairs is None else np.where(pairs.is_moved, pieces, 0)
            builder.add_edge_usage(number, edge.begin, edge.end, pieces)
        is_laid = are_laid & (whole > 0)
        if is_laid.any() and copies_count(graph, edge):
            builder.add_edge_usage(number, edge.begin, edge.begin + 1, np.where(is_laid, whole, 0))
        if begin and prices.gathers_ahead and value in graph.program.made_at_start:
            is_apart = is_laid & (edge.type.num_elements < prices.apart_below)
            for held in held_ahead(graph.program, value, begin, is_apart, whole, shard):
                builder.add_edge_usage(number, *held)
    return gathered


def _exposed_ns(
    reshards: ReshardPrices,
    type_: TensorType,
    widening: int,
    supply: Ints,
    demand: Ints,
    hidden: Hideable,
) -> Ints:
    """[from, to] ns of one run that the step waits for."""
    pairs = np.ix_(supply, demand)
    whole = reshards.matrix(type_, widening=widening)[pairs]
    if hidden == NOTHING:
        return whole
    asynchronous = reshards.matrix(type_, hidden.kinds, widening=widening)[pairs]
    return whole - hidden.hidden_ns(asynchronous)
