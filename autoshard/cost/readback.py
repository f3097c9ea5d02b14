"""From a choice of strategies back to shardings, uses and the priced collectives behind the objective."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.accumulation import is_kept
from autoshard.cost.assemble import PricedGraph
from autoshard.cost.given import SHARED_SITE
from autoshard.cost.graph import Edge, KernelSpace
from autoshard.cost.kernel import inner_sums
from autoshard.cost.loops import made_inside
from autoshard.cost.lowering import Emitted
from autoshard.cost.merged import Move, element_bits, emitted_once
from autoshard.cost.overlap import NOTHING, hide, value_of
from autoshard.cost.reshard import Collective
from autoshard.cost.sums_left import held_as
from autoshard.cost.together import sums_emitted
from autoshard.program import Kernel, LinearWay
from autoshard.sharding import AxisRef, TensorMapping, TensorSharding, TensorType, tensor_sharding
from autoshard.space import Strategy


@dataclass(frozen=True, slots=True)
class ChosenValue:
    produced: TensorSharding
    settled: TensorSharding
    shared: TensorSharding | None


@dataclass(frozen=True, slots=True)
class ChosenCollective:
    collective: Collective
    repeat: int
    op: int  # of the listing; -1: a flow
    node: int = -1  # of the graph whose own collective it is, or -1
    edge: int = -1  # of the graph that it is a reshard on, or -1
    is_again: bool = False  # what is made in the other trips of a loop, beside what is made in one (`loops`)


@dataclass(frozen=True, slots=True)
class Chosen:
    """A solution in the terms of the program."""

    values: dict[int, ChosenValue]
    uses: dict[tuple[int, int], TensorSharding]
    again: dict[tuple[int, int], int]  # uses that gather anew, by the number of the gather
    collectives: tuple[ChosenCollective, ...]
    compute_ns: int
    communication_ns: int


def read_back(priced: PricedGraph, choice: NDArray[np.int64]) -> Chosen:
    """What a choice of one strategy a node means."""
    values = _values(priced, choice)
    uses: dict[tuple[int, int], TensorSharding] = {}
    collectives: list[ChosenCollective] = []
    compute = 0
    program = priced.graph.program
    moves = _moves(priced, choice)
    kept = _kept_as_summed(priced, choice)
    sums = sums_emitted(priced, choice, moves, kept)
    within = _Within(priced)
    for number, node in enumerate(priced.graph.nodes):
        if node.space is None:
            continue
        kernel = program.kernels[node.kernel]
        prices = priced.kernel_prices[node.space]
        strategy = int(choice[number])
        compute += int(prices.compute_ns[strategy]) * kernel.repeat
        after = priced.sums_after[number].collectives[strategy] if number in kept else ()
        collectives += [
            ChosenCollective(_emitted_as(c, sums.get(number)), kernel.repeat, op, node=number)
            for c, op in zip(
                prices.collectives[strategy], _own_ops(kernel, node.space, strategy), strict=False
            )
            if not (after and c.kind == "all_reduce")
        ]
        collectives += [
            ChosenCollective(c, priced.sums_after[number].runs, kernel.ops[-1], node=number) for c in after
        ]
        _inner_values(priced, number, strategy, within, values)
        _free_reads(priced, number, strategy, within, uses)
    in_products = edges_in_products(priced, choice)
    again = priced.gathered_again(choice)
    moves = [
        replace(
            move, is_made=move.is_made and move.number not in in_products, again=again.get(move.number, 0)
        )
        if move.number in in_products or move.number in again
        else move
        for move in moves
    ]
    for move, emitted in zip(moves, emitted_once(priced.reshards, moves), strict=True):
        index, edge, target = move.number, move.edge, move.target
        steps = priced.reshards.collectives(edge.type, move.origin, target, edge.travels)
        steps = [replace(step, emitted=sent) for step, sent in zip(steps, emitted, strict=True)]
        ops = _moving_ops(priced, edge)
        stays = made_inside([step.kind for step in steps]) if edge.trips > edge.repeat else ()
        collectives += [
            ChosenCollective(
                steps[number],
                edge.trips - edge.repeat,
                ops[min(number, len(ops) - 1)],
                edge=index,
                is_again=True,
            )
            for number in np.flatnonzero(stays)
        ]
        if index in in_products:
            provider, reader = int(choice[edge.provider]), int(choice[edge.reader])
            steps = [priced.gathered[index].collective(provider, reader, step) for step in steps]
        else:
            steps = hide(steps, priced.hideable.get(index, NOTHING))
        collectives += [
            ChosenCollective(step, edge.repeat, ops[min(number, len(ops) - 1)], edge=index)
            for number, step in enumerate(steps)
        ]
        read = held_as(priced.graph, value_of(priced.graph, edge), np.asarray([target]))[0]
        sharding = priced.graph.layouts[edge.type.rank].shardings[read]
        uses.update(
            (site, sharding) for site in edge.sites if site[0] < 0 or not _is_recomputed(priced, site[0])
        )
    _unmoved_sources(priced, choice, uses)
    communication = sum(c.collective.ns * c.repeat for c in collectives)
    anew = {
        site: number for edge, number in again.items() for site in priced.graph.edges[edge].sites if number
    }
    return Chosen(values, uses, anew, tuple(collectives), compute, communication)


def _emitted_as(collective: Collective, sum_: tuple[Emitted, ...] | None) -> Collective:
    is_sum = sum_ is not None and collective.kind in ("all_reduce", "reduce_scatter")
    return replace(collective, emitted=sum_) if is_sum else collective


def _moves(priced: PricedGraph, choice: NDArray[np.int64]) -> list[Move]:
    """Of every edge that counts; a reader of a shared copy that takes the value as it settles does not read the copy, nor widens it."""
    nodes = priced.graph.nodes
    moves = [
        Move(number, edge, *chosen_ends(priced, edge, choice))
        for number, edge in enumerate(priced.graph.edges)
        if _is_copy(priced, edge, choice)
    ]
    settled = {move.edge.reader: move.origin for move in moves if nodes[move.edge.reader].hub >= 0}
    takes_copy = [settled.get(move.edge.provider) != move.target for move in moves]
    taken: dict[int, TensorType] = {}  # of what copies: the widest that a reader takes
    for move, takes in zip(moves, takes_copy, strict=True):
        if takes:
            known = taken.setdefault(move.edge.provider, move.edge.travels)
            taken[move.edge.provider] = max(known, move.edge.travels, key=element_bits)
    return [
        Move(
            move.number,
            move.edge,
            move.target if _is_spared(priced, move, choice) else move.origin,
            move.target,
            takes and (move.edge.reader not in settled or move.edge.reader in taken),
            taken.get(move.edge.reader) if move.edge.reader in settled else None,
        )
        for move, takes in zip(moves, takes_copy, strict=True)
    ]


def _is_copy(priced: PricedGraph, edge: Edge, choice: NDArray[np.int64]) -> bool:
    """Whether it is not the edge of the one of two shared copies that is not made."""
    sharing = priced.graph.nodes[edge.reader].sharing
    return sharing is None or bool(sharing.is_narrow[choice[edge.reader]]) == edge.is_narrow


def _is_spared(priced: PricedGraph, move: Move, choice: NDArray[np.int64]) -> bool:
    """Whether what a hub's reader asks for is known to be the value as it settles."""
    sharing = priced.graph.nodes[move.edge.provider].sharing
    return sharing is not None and bool(sharing.settled[choice[move.edge.provider]] == move.target)


def _kept_as_summed(priced: PricedGraph, choice: NDArray[np.int64]) -> frozenset[int]:
    """The nodes whose sum is made after the loop where it settles as it is summed."""
    not_kept = {
        edge.provider
        for edge in priced.graph.edges
        if edge.provider in priced.sums_after
        and not is_kept(priced.graph, edge, *map(np.atleast_1d, chosen_ends(priced, edge, choice)))
    }
    return frozenset(priced.sums_after.keys() - not_kept)


def _own_ops(kernel: Kernel, space: KernelSpace, strategy: int) -> Iterator[int]:
    """The ops that a kernel's own collectives are for: first the additions that it sums inside, then the root."""
    chosen = space.strategies[strategy]
    yield from (kernel.added[number].op for number in inner_sums(space.shape, chosen))
    yield from repeat(kernel.ops[-1])


def edges_in_products(priced: PricedGraph, choice: NDArray[np.int64]) -> frozenset[int]:
    """Edges whose reshard runs with the product that reads."""
    edges = priced.graph.edges
    return frozenset(
        index
        for index, gathered in priced.gathered.items()
        if gathered.is_looped[choice[edges[index].provider], choice[edges[index].reader]]
    )


def chosen_ends(priced: PricedGraph, edge: Edge, choice: NDArray[np.int64]) -> tuple[int, int]:
    """The layouts that an edge goes from and to."""
    nodes = priced.graph.nodes
    return (
        int(nodes[edge.provider].choices.supplies[edge.result][choice[edge.provider]]),
        int(nodes[edge.reader].choices.demands[edge.operand][choice[edge.reader]]),
    )


def _moving_ops(priced: PricedGraph, edge: Edge) -> tuple[int, ...]:
    """The ops that ask for the steps of a reshard: those that were written for it, else the reader."""
    given, hub = priced.graph.given, priced.graph.nodes[edge.reader].hub
    sites = edge.sites if hub < 0 else ((hub, SHARED_SITE),)
    written = [given.moves[site] for site in sites if site in given.moves] if given is not None else []
    return written[0] if written else (_reader_op(priced, edge),)


def _reader_op(priced: PricedGraph, edge: Edge) -> int:
    node = priced.graph.nodes[edge.reader]
    if node.kernel >= 0:
        return priced.graph.program.kernels[node.kernel].ops[-1]
    return edge.begin if node.hub >= 0 and edge.begin < len(priced.graph.program.listing.ops) else -1


def _values(priced: PricedGraph, choice: NDArray[np.int64]) -> dict[int, ChosenValue]:
    graph = priced.graph
    hubs = {node.hub: number for number, node in enumerate(graph.nodes) if node.hub >= 0}
    values: dict[int, ChosenValue] = {}
    for value, (number, result) in graph.provider.items():
        node = graph.nodes[number]
        type_ = graph.program.listing.values[value].type
        assert type_ is not None
        shardings = graph.layouts[type_.rank].shardings
        strategy = int(choice[number])
        ends = [node.choices.supplies[result][strategy]] * 2
        if node.space is not None:
            ends[0] = node.space.produced[result][strategy]
        produced, settled = held_as(graph, value, np.asarray(ends)).tolist()
        shared = None
        if value in hubs:
            hub = int(graph.nodes[hubs[value]].choices.supplies[0][choice[hubs[value]]])
            shared = shardings[hub] if hub != settled else None
        values[value] = ChosenValue(shardings[produced], shardings[settled], shared)
    return values


class _Within:
    """How kernels split what they read and make inside, those of equal spaces once."""

    def __init__(self, priced: PricedGraph) -> None:
        self._nodes, self._mesh = priced.graph.nodes, priced.graph.mesh
        self._known: dict[tuple[KernelSpace, int, TensorMapping], TensorSharding | None] = {}

    def sharding(self, number: int, strategy: int, mapping: TensorMapping) -> TensorSharding | None:
        space = self._nodes[number].space
        assert space is not None
        key = space, strategy, mapping
        if key not in self._known:
            axes = space.strategies[strategy].factor_axes
            self._known[key] = tensor_sharding(space.shape.rule, mapping, axes, self._mesh)
        return self._known[key]


def _inner_values(
    priced: PricedGraph, number: int, strategy: int, within: _Within, values: dict[int, ChosenValue]
) -> None:
    """Values that never leave a kernel follow its factors."""
    graph = priced.graph
    kernel = graph.program.kernels[graph.nodes[number].kernel]
    chosen = _strategy(priced, number, strategy)
    passing = _passing(kernel, chosen)
    for value, mapping in kernel.inner:
        sharding = within.sharding(number, strategy, mapping)
        if sharding is not None and passing is not None and value in passing.way.inner:
            sharding = replace(sharding, unreduced=passing.axes)
        if sharding is not None and value not in graph.program.cloneable:
            made, left = _within_addition(kernel, chosen, value, sharding)
            values[value] = ChosenValue(made, left, None)


def _within_addition(
    kernel: Kernel, chosen: Strategy, value: int, sharding: TensorSharding
) -> tuple[TensorSharding, TensorSharding]:
    """How a value inside a kernel is made and left: addends on the way to the addition that is summed, which leaves the sum."""
    for number in chosen.added:
        added, addition = kernel.added[number], kernel.shape.additions[number]
        partial = replace(sharding, unreduced=chosen.operands[addition.operands[0]].unreduced)
        if value in added.inner:
            return partial, partial
        if value == added.value:
            return partial, sharding
    return sharding, sharding


def _free_reads(
    priced: PricedGraph,
    number: int,
    strategy: int,
    within: _Within,
    uses: dict[tuple[int, int], TensorSharding],
) -> None:
    """What the kernel demands of values that are recomputed for it."""
    graph = priced.graph
    kernel = graph.program.kernels[graph.nodes[number].kernel]
    chosen = _strategy(priced, number, strategy)
    passing = _passing(kernel, chosen)
    for op, operand, mapping in kernel.free_reads:
        sharding = within.sharding(number, strategy, mapping)
        if sharding is not None and passing is not None and (op, operand) in passing.way.free_reads:
            sharding = replace(sharding, unreduced=passing.axes)
        if sharding is not None and not _is_recomputed(priced, op):
            uses[op, operand] = sharding


def _unmoved_sources(
    priced: PricedGraph, choice: NDArray[np.int64], uses: dict[tuple[int, int], TensorSharding]
) -> None:
    """A flow takes a recomputed value as the flow is sharded, and so what it hands back to itself, beside any copy for other readers."""
    graph = priced.graph
    shared = {node.hub for node in graph.nodes}
    for number, node in enumerate(graph.nodes):
        if node.flow < 0:
            continue
        flow = graph.program.flows[node.flow]
        for source in flow.sources:
            is_handed_back = source.value in shared and graph.provider[source.value][0] == number
            if is_handed_back or source.value in graph.program.cloneable:
                layout = int(node.choices.demands[0][choice[number]])
                uses[source.site] = graph.layouts[flow.type.rank].shardings[layout]


@dataclass(frozen=True, slots=True)
class _Passing:
    """Partial sums over these axes pass through a kernel this way."""

    way: LinearWay
    axes: tuple[AxisRef, ...]


def _passing(kernel: Kernel, chosen: Strategy) -> _Passing | None:
    arriving = tuple(i for i, sharding in enumerate(chosen.operands) if sharding.unreduced)
    way = next((way for way in kernel.ways if way.operands == arriving and not chosen.added), None)
    return None if way is None else _Passing(way, chosen.operands[arriving[0]].unreduced)


def _strategy(priced: PricedGraph, number: int, strategy: int) -> Strategy:
    space = priced.graph.nodes[number].space
    assert space is not None
    return space.strategies[strategy]


def _is_recomputed(priced: PricedGraph, op: int) -> bool:
    """Whether the op is cloned for each use, so that its own operands follow from the use."""
    program = priced.graph.program
    results = program.listing.ops[op].results
    return bool(results) and all(value in program.cloneable for value in results)
