"""Sums that a demand is on and whose one reader begins with a slice of them: Shardy's passes merge the all-reduce and the slice.

Where the slice is over all axes of the sum they make a reduce-scatter of both, and behind it whatever more there is to do for the reader;
constraints in between change nothing. So a kernel may leave its sum to its reader, constraints hand it on, and the reader's reshard, from
addends, has the steps of both. What is held, written and recorded stays as it is demanded. Several readers, and one that reads more often
than the sum is made, find it summed.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autoshard.cost.graph import Edge, Graph
from autoshard.cost.layouts import Ints
from autoshard.cost.overlap import value_of
from autoshard.cost.reshard import ReshardPrices
from autoshard.problem import Problem
from autoshard.problem.model import Bools
from autoshard.program import MOVES, Kernel, KernelShape, Program
from autoshard.sharding import FactorKind, TensorSharding
from autoshard.space import Strategy


def sums_left(program: Program, partial: Collection[int] = ()) -> frozenset[int]:
    """The values from what a kernel sums to what the reader reads, where there is a demand on the way.

    Args:
        partial: values that may be written as partial sums.
    """
    readers = _lone_readers(program)
    summing = (kernel for kernel in program.kernels if _sums(kernel))
    return frozenset(value for kernel in summing for value in _way(kernel, readers, partial))


def _sums(kernel: Kernel) -> bool:
    shape, kinds = kernel.shape, [factor.kind for factor in kernel.shape.rule.factors]
    is_one = len(kernel.results) == 1 and shape.results[0].rank > 0
    return is_one and not shape.manual_axes and FactorKind.REDUCTION in kinds


def _lone_readers(program: Program) -> dict[int, tuple[int, Kernel | None]]:
    """Of values with one reader: how often it reads, and the kernel that it is."""
    reads: dict[int, list[tuple[int, Kernel | None]]] = {}
    for kernel in program.kernels:
        for use in kernel.uses:
            reads.setdefault(use.value, []).append((kernel.repeat, kernel))
    for flow in program.flows:
        for source in flow.sources:
            reads.setdefault(source.value, []).append((source.repeat, None))
    return {value: mine[0] for value, mine in reads.items() if len(mine) == 1}


def _way(
    kernel: Kernel, readers: Mapping[int, tuple[int, Kernel | None]], partial: Collection[int]
) -> list[int]:
    """What it makes and what constraints hand on of that; nothing where there is no demand, the last reader's own too if that is one."""
    way, is_demanded, repeat = list[int](), False, kernel.repeat
    while kernel.results[0] not in partial:
        is_demanded |= kernel.shape.demands[0] is not None
        times, reader = readers.get(kernel.results[0], (0, None))
        if times != repeat:
            return way if is_demanded else []
        way.append(kernel.results[0])
        if reader is None or reader.shape.name not in MOVES:
            return way if is_demanded else []
        kernel = reader
    return []


def with_sums_left(
    shape: KernelShape, found: Sequence[Strategy], arriving: Iterable[TensorSharding]
) -> list[Strategy]:
    """The strategies `found`, and after them those that leave their sum to the reader, or hand on such a sum.

    Args:
        arriving: sums that what a constraint reads is left as.
    """
    if shape.name in MOVES:
        left = [
            _handing_on(one, sum_) for sum_ in arriving for one in found if one.settled == (sum_.summed(),)
        ]
    else:
        left = [
            _leaving_its_own(one)
            for one in found
            if one.reduced and one.produced == one.settled and not one.produced[0].unreduced
        ]
    return [*found, *left]


def _leaving_its_own(strategy: Strategy) -> Strategy:
    sum_ = replace(strategy.produced[0], unreduced=strategy.reduced)
    return replace(strategy, produced=(sum_,), settled=(sum_,))


def _handing_on(strategy: Strategy, sum_: TensorSharding) -> Strategy:
    return replace(strategy, operands=(sum_,), produced=(sum_,), settled=(sum_,))


def left_pairs(graph: Graph, reshards: ReshardPrices, edge: Edge, supply: Ints, demand: Ints) -> Bools:
    """[from, to] what a reader may ask of what may be a sum left to it: that, handed on as it is, or what Shardy scatters it on the way
    to, in equal parts.
    """
    layouts = graph.layouts[edge.type.rank]
    is_left, is_taken = (layouts.reduced(ids) != ids for ids in (supply, demand))
    found = np.where(is_left[:, None], supply[:, None] == demand[None, :], ~is_taken[None, :])
    rows, columns = np.flatnonzero(is_left), np.flatnonzero(~is_taken)
    first = reshards.scattered_first(edge.type.shape, supply[rows], demand[columns])
    found[np.ix_(rows, columns)] = (first >= 0) & layouts.divide(edge.type, first.ravel()).reshape(
        first.shape
    )
    return found


def held_as(graph: Graph, value: int, layouts: Ints) -> Ints:
    """Layouts of a value as it is held: a sum that is left to its reader like one that is not."""
    if value not in graph.sums_left:
        return layouts
    type_ = graph.program.listing.values[value].type
    assert type_ is not None, "tensors are summed"
    return graph.layouts[type_.rank].reduced(layouts)


def leaving(graph: Graph, node: int) -> Bools:
    """[K] whether what a node chooses leaves a sum to a reader, or hands one on."""
    choices, number = graph.nodes[node].choices, graph.nodes[node].kernel
    made = next(iter(graph.program.kernels[number].results), -1) if number >= 0 else -1
    if made not in graph.sums_left:
        return np.zeros(choices.count, dtype=np.bool_)
    supplies = choices.supplies[0]
    return np.asarray(held_as(graph, made, supplies) != supplies, dtype=np.bool_)


def leave_sums(graph: Graph, problem: Problem, choice: Ints) -> None:
    """Change `choice` so that every sum is left to its reader where that may be, as Shardy's passes do whatever is chosen."""
    left = [
        (number, edge) for number, edge in enumerate(graph.edges) if value_of(graph, edge) in graph.sums_left
    ]
    handed = {edge.reader: edge.provider for _, edge in left if _hands_on(graph, edge, choice)}
    for number, edge in left:
        if edge.reader in handed:
            continue
        nodes = [edge.provider]
        while nodes[0] in handed:
            nodes.insert(0, handed[nodes[0]])
        rows = _rows_left(graph, nodes, choice)
        allowed = problem.tables[problem.edge_table[number]].allowed
        is_possible = all(problem.node_mask(node)[row] for node, row in zip(nodes, rows, strict=False))
        if rows and is_possible and (allowed is None or allowed[rows[-1], choice[edge.reader]]):
            choice[nodes] = rows


def _hands_on(graph: Graph, edge: Edge, choice: Ints) -> bool:
    """Whether the reader is a constraint on the way of such a sum that changes nothing."""
    provider, reader = graph.nodes[edge.provider], graph.nodes[edge.reader]
    kernel = graph.program.kernels[reader.kernel] if reader.kernel >= 0 else None
    if kernel is None or kernel.shape.name not in MOVES or kernel.results[0] not in graph.sums_left:
        return False
    supply = provider.choices.supplies[edge.result][choice[edge.provider]]
    demand = reader.choices.demands[edge.operand][choice[edge.reader]]
    ends = held_as(graph, value_of(graph, edge), np.asarray([supply, demand]))
    return bool(ends[0] == ends[1])


def _rows_left(graph: Graph, nodes: Sequence[int], choice: Ints) -> list[int]:
    """What the first node chooses to leave the sum that it makes, the others to hand it on; nothing where one has no such choice."""
    rows: list[int] = []
    sum_: TensorSharding | None = None
    for node in nodes:
        space = graph.nodes[node].space
        assert space is not None, "kernels make what is left"
        chosen = space.strategies[choice[node]]
        left = _leaving_its_own(chosen) if sum_ is None else _handing_on(chosen, sum_)
        if left not in space.strategies:
            return []
        rows.append(space.strategies.index(left))
        (sum_,) = left.settled
    return rows
