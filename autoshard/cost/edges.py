"""The edges of a graph as edges of a `ProblemBuilder`: what it costs to bring a value to a reader, and the copies that it takes.

cost    reshard from what the provider leaves to what the reader demands, less what runs behind compute (`overlap`), * repeat; what stays in
        a loop (`loops`) as often as it turns; what a product gathers while it runs at the price of that (`gathering`)
memory  see `memory`

Equal edges have one table, and one of each array of bytes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autoshard.cost.accumulation import SumAfter, kept_on_the_way, not_spared_ns
from autoshard.cost.gathering import Gathered, GatheredOperands
from autoshard.cost.graph import Edge, Graph, edge_ends
from autoshard.cost.layouts import Ints
from autoshard.cost.lowering import CollectivePrices
from autoshard.cost.memory import (
    copies_count,
    copy_bytes,
    hoisted_bytes,
    laid_out_bytes,
    scattered_from,
    selected_bytes,
    shard_bytes,
    sliced_bytes,
)
from autoshard.cost.overlap import NOTHING, Hideable, value_of
from autoshard.cost.relaid import held_until
from autoshard.cost.reshard import ReshardPrices
from autoshard.cost.sizes import Sizes
from autoshard.cost.sums_left import left_pairs
from autoshard.cost.told import Pairs, ToldPairs
from autoshard.problem import ProblemBuilder, Table
from autoshard.problem.model import Bools
from autoshard.program import MinorDims
from autoshard.sharding import TensorType


class _Copies(NamedTuple):
    """[from, to] of what a change of sharding makes."""

    whole: Ints  # bytes of the copy
    shard: Ints  # bytes of the shard that a gather begins with
    are_laid: Bools  # whether the copy is laid out anew behind a gather


class EdgeTables:
    """Of all edges of a graph.

    Args:
        hides: what runs behind compute of an edge's reshard in one run.
        begin_of: of edges whose copies are there before they are read, from when on.
        after: of nodes whose sum is made after a loop.
    """

    def __init__(
        self,
        graph: Graph,
        prices: CollectivePrices,
        reshards: ReshardPrices,
        sizes: Sizes,
        operands: GatheredOperands,
        hides: Mapping[int, Hideable],
        begin_of: Mapping[int, int],
        after: Mapping[int, SumAfter],
    ) -> None:
        self._graph, self._prices, self._reshards, self._sizes = graph, prices, reshards, sizes
        self._operands, self._hides, self._begin_of, self._after = operands, hides, begin_of, after
        self._told = ToldPairs(graph)
        self._last_reads = _last_reads(graph)
        self._tables: dict[tuple[TensorType, bytes, bytes, *tuple[int | Hideable, ...]], Table] = {}
        self._copies: dict[tuple[TensorType, bytes, bytes, TensorType, int, MinorDims | None], _Copies] = {}
        self._moved: dict[
            tuple[TensorType, TensorType, *tuple[int | Hideable | MinorDims | None, ...]],
            tuple[Table, _Copies],
        ] = {}
        self._looped: dict[tuple[int, int], tuple[Table, Ints]] = {}
        self._parts: dict[
            tuple[int, int, bool], tuple[Ints | Bools, Ints, Ints]
        ] = {}  # by identity, with both arrays
        self._sums: dict[tuple[int, TensorType, int, int], tuple[Table, Table]] = {}

    def add_to(self, builder: ProblemBuilder) -> dict[int, Gathered]:
        """Returns the edges whose reshard a product may carry out while it runs."""
        gathered: dict[int, Gathered] = {}
        for index, edge in enumerate(self._graph.edges):
            supply, demand = edge_ends(self._graph, edge)
            table, copies = self._of_change(index, edge, supply, demand)
            pairs = self._told.of_edge(edge, supply, demand)
            in_product = self._in_product(edge, pairs)
            if in_product is not None:
                gathered[index] = in_product
                table, whole = self._in_loop(table, copies.whole, in_product, edge.repeat)
                copies = copies._replace(whole=whole)
            table = self._around_loops(table, edge, supply, demand)
            if value_of(self._graph, edge) in self._graph.sums_left:
                table = self._of_sum(table, edge, supply, demand)
            if pairs is not None:
                whole, shard = self._told.copies(copies.whole, copies.shard, pairs)
                table, copies = self._told.table(table, pairs), copies._replace(whole=whole, shard=shard)
            number = builder.add_edge(edge.provider, edge.reader, table)
            for item in self._operands.memory(edge, in_product) if in_product is not None else ():
                builder.add_edge_usage(number, *item)
            for item in self._memory(index, edge, copies, pairs):
                builder.add_edge_usage(number, *item)
        return gathered

    def _of_change(self, index: int, edge: Edge, supply: Ints, demand: Ints) -> tuple[Table, _Copies]:
        """Of the change of sharding by itself."""
        hidden = self._hides.get(index, NOTHING)
        sent = self._prices.sent(edge.type, edge.travels)
        widening = self._prices.widening(edge.type, sent)
        more = max(edge.trips - edge.repeat, 0)
        minor = self._graph.program.weights_of_heads.get(value_of(self._graph, edge))
        quick = (edge.travels, sent, widening, id(supply), id(demand), edge.repeat, hidden, more, minor)
        if quick not in self._moved:
            ends = supply.tobytes(), demand.tobytes()
            priced = (sent, *ends, widening, edge.repeat, hidden, more)
            if priced not in self._tables:
                cost = self._exposed_ns(sent, widening, supply, demand, hidden) * edge.repeat
                if more:
                    inside = self._reshards.ns(sent, supply, demand, only_inside=True, widening=widening)
                    cost += inside * more
                possible = self._reshards.possible(edge.type.rank, supply, demand)
                self._tables[priced] = Table(cost, possible)
            key = (self._sizes.narrowed(edge.type, edge.travels), *ends, sent, widening, minor)
            if key not in self._copies:
                sized = (self._sizes, key[0], supply, demand)
                are_laid = self._reshards.are_laid_out(sent, supply, demand, widening)
                self._copies[key] = _Copies(copy_bytes(*sized, minor), shard_bytes(*sized), are_laid)
            self._moved[quick] = self._tables[priced], self._copies[key]
        return self._moved[quick]

    def _exposed_ns(
        self, type_: TensorType, widening: int, supply: Ints, demand: Ints, hidden: Hideable
    ) -> Ints:
        """[from, to] ns of one run that the step waits for."""
        whole = self._reshards.ns(type_, supply, demand, widening=widening)
        if hidden == NOTHING:
            return whole
        asynchronous = self._reshards.ns(type_, supply, demand, hidden.kinds, widening=widening)
        return whole - hidden.hidden_ns(asynchronous)

    def _in_product(self, edge: Edge, pairs: Pairs | None) -> Gathered | None:
        """What the product that reads may gather, where it reads what is moved."""
        found = self._operands.of_edge(edge, value_of(self._graph, edge), self._reshards)
        if found is None or pairs is None or not (found.is_looped & ~pairs.is_moved).any():
            return found
        return replace(found, is_looped=found.is_looped & pairs.is_moved)

    def _in_loop(self, table: Table, whole: Ints, gathered: Gathered, repeat: int) -> tuple[Table, Ints]:
        """With what a product gathers while it runs at the price of that, and without a copy."""
        key = id(table), id(gathered)
        if key not in self._looped:
            cost = np.where(gathered.is_looped, gathered.exposed_ns * repeat, table.cost)
            self._looped[key] = replace(table, cost=cost), np.where(gathered.is_looped, 0, whole)
        return self._looped[key]

    def _around_loops(self, table: Table, edge: Edge, supply: Ints, demand: Ints) -> Table:
        """With what sums that are made after loops cost where they are not spared, and allow on the way there."""
        if edge.provider in self._after:
            again_ns = not_spared_ns(self._graph, edge, self._after[edge.provider], supply, demand)
            table = replace(table, cost=table.cost + again_ns)
        is_kept = (
            kept_on_the_way(self._graph, edge, supply, demand) if self._prices.sums_after_loops else None
        )
        if is_kept is None:
            return table
        return _within(table, is_kept)

    def _of_sum(self, table: Table, edge: Edge, supply: Ints, demand: Ints) -> Table:
        """With what may be asked of a sum that may be left to its reader."""
        key = id(table), edge.type, id(supply), id(demand)
        if key not in self._sums:
            allowed = left_pairs(self._graph, self._reshards, edge, supply, demand)
            self._sums[key] = (
                table,
                _within(table, allowed),
            )  # the former stays alive, so that its id is its own
        return self._sums[key][1]

    def _memory(
        self, index: int, edge: Edge, copies: _Copies, pairs: Pairs | None
    ) -> Iterator[tuple[int, int, Ints]]:
        """(begin, end, [from, to] bytes)."""
        graph, sizes, prices = self._graph, self._sizes, self._prices
        whole, shard, are_laid = copies
        value, begin = value_of(graph, edge), self._begin_of.get(index, edge.begin)
        do_count = copies_count(graph, edge)
        if do_count and whole.any():
            yield begin, edge.end, whole
        yield from hoisted_bytes(graph, edge, sizes, value)
        yield from selected_bytes(graph, edge, sizes, value)
        last_read = self._last_reads.get(index, edge.begin - 1)
        for since, until, cut in sliced_bytes(graph, edge, sizes, value, last_read):
            yield since, until, _where_moved(cut, pairs)
        yield from laid_out_bytes(graph, edge, sizes)
        if (in_rows := scattered_from(graph, edge, sizes, value, whole)) is not None and in_rows.any():
            yield edge.begin, edge.end, in_rows
        if prices.lowering == "xla-tpu" and value in graph.program.pieces:
            pieces = sizes.pieces(edge.type, graph.program.pieces[value], *edge_ends(graph, edge))
            yield edge.begin, edge.end, _where_moved(pieces, pairs)
        laid = self._picked(are_laid, whole, are=True)
        if do_count and laid.any():
            yield edge.begin, edge.begin + 1, laid
        if begin and prices.gathers_ahead and value in graph.program.made_at_start:
            if laid.any() and edge.type.num_elements < prices.apart_below:  # gathered in front of all else
                yield 0, begin, laid
                shard = self._picked(laid, shard, are=False)
            if shard.any():
                yield 0, held_until(graph.program, value, begin), shard

    def _picked(self, where: Ints | Bools, bytes_: Ints, *, are: bool) -> Ints:
        """The bytes where those are, or are not, above zero; of the same arrays once."""
        key = id(where), id(bytes_), are
        if key not in self._parts:
            self._parts[key] = where, bytes_, np.where((where > 0) == are, bytes_, 0)
        return self._parts[key][-1]


def _within(table: Table, allowed: Bools) -> Table:
    """The table of these pairs alone."""
    return replace(table, allowed=allowed if table.allowed is None else table.allowed & allowed)


def _where_moved(bytes_: Ints, pairs: Pairs | None) -> Ints:
    """Without those of readers that take the value itself, where others share a copy."""
    return bytes_ if pairs is None else np.where(pairs.is_moved, bytes_, 0)


def _last_reads(graph: Graph) -> dict[int, int]:
    """By edge, when another reader of the same hub had what it reads; without edges that are the first."""
    reads: dict[int, list[int]] = {}
    for index, edge in enumerate(graph.edges):
        if graph.nodes[edge.provider].hub >= 0:
            reads.setdefault(edge.provider, []).append(index)
    found: dict[int, int] = {}
    for mine in reads.values():
        times = sorted({graph.edges[index].begin for index in mine})
        before = dict(pairwise(reversed(times)))
        found.update({index: before[time] for index in mine if (time := graph.edges[index].begin) in before})
    return found
