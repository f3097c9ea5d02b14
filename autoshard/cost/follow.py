"""The choice that comes closest to shardings given from outside: a propagation's, a person's, or none at all.

Nodes are decided in program order: a flow takes its given sharding, a kernel the cheapest strategy that leaves its given result,
counting the reshards from what is already decided; then every hub takes what is cheapest for its readers. The first member of a
sharding group decides for the others.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.assemble import PricedGraph
from autoshard.cost.graph import Node
from autoshard.cost.sums_left import leave_sums, leaving
from autoshard.cost.ties import supply_of
from autoshard.errors import AutoshardError
from autoshard.program import FlowKind
from autoshard.sharding import TensorSharding, is_scatter


def follow(
    priced: PricedGraph, given: Mapping[int, TensorSharding], *, splits_work: bool = True
) -> NDArray[np.int64]:
    """One strategy for every node. A value that is not in `given` is wanted fully replicated.

    `splits_work`: whether a kernel may be split where that is cheaper, though what it reads and makes is whole; where not, only what
    cannot run whole is.

    Raises:
        AutoshardError: an op with results in several sharding groups cannot follow what their first members took.
    """
    graph, problem = priced.graph, priced.problem
    choice = np.zeros(len(graph.nodes), dtype=np.int64)
    incoming = _incoming(priced)
    for number, node in enumerate(graph.nodes):
        if node.hub >= 0:
            continue
        cost = problem.node_costs(number).astype(np.float64)
        cost[~_can_follow(priced, number, choice) | leaving(graph, number)] = np.inf
        if node.space is not None:
            for provider, result, operand, edge in incoming.get(number, ()):
                cost = cost + _read_cost(priced, choice, provider, result, number, operand, edge)
        wanted = _wanted(priced, node, given)
        if wanted is not None:
            settling = cost + _settling_cost(priced, number, wanted)
            cost = settling if np.isfinite(settling).any() else cost
        if not splits_work and node.space is not None:
            whole = np.where([any(s.factor_axes) for s in node.space.strategies], np.inf, cost)
            cost = whole if np.isfinite(whole).any() else cost
        cost = _without_detours(priced, choice, number, incoming.get(number, ()), cost)
        choice[number] = int(np.argmin(cost))
    decide_hubs(priced, choice)
    leave_sums(graph, problem, choice)
    return choice


def _settling_cost(priced: PricedGraph, number: int, wanted: int) -> NDArray[np.float64]:
    """[K] ns to bring the first result of a node to the wanted layout: none where it settles so, that of the sum where it leaves addends of
    such a sum, else infinite.
    """
    graph, node = priced.graph, priced.graph.nodes[number]
    if not node.choices.supplies:
        return np.full(node.choices.count, np.inf)
    supplies = node.choices.supplies[0]
    cost = np.where(supplies == wanted, 0.0, np.inf)
    if node.space is None or not graph.adds_first:
        return cost
    type_, repeat = node.space.shape.results[0], graph.program.kernels[node.kernel].repeat
    shardings = graph.layouts[type_.rank].shardings
    summed_ns = priced.reshards.ns(type_, supplies, np.asarray([wanted]))[:, 0]
    for row, supply in enumerate(supplies.tolist()):
        if shardings[supply].unreduced and _sums_to(shardings[supply], shardings[wanted]):
            cost[row] = summed_ns[row] * repeat
    return cost


def _sums_to(left: TensorSharding, wanted: TensorSharding) -> bool:
    summed = left.summed()
    return summed == wanted or is_scatter(summed, wanted, left.unreduced)


def _can_follow(priced: PricedGraph, number: int, choice: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[K] strategies by which members of sharding groups get what those decided before them have."""
    graph = priced.graph
    allowed = priced.problem.node_mask(number).copy()
    for result, other in priced.ties.before(number) if number in priced.ties.allowed else ():
        allowed &= supply_of(graph, (number, result)) == supply_of(graph, other)[choice[other[0]]]
    if not allowed.any():
        raise AutoshardError("the first members of its sharding groups leave an op nothing to follow")
    return allowed


Incoming = dict[
    int, list[tuple[int, int, int, int]]
]  # reader -> (provider, result, operand, edge), hubs looked through


def _incoming(priced: PricedGraph) -> Incoming:
    graph = priced.graph
    incoming: Incoming = {}
    for number, edge in enumerate(graph.edges):
        if graph.nodes[edge.reader].hub < 0:
            hub = graph.nodes[edge.provider].hub
            provider, result = graph.provider[hub] if hub >= 0 else (edge.provider, edge.result)
            incoming.setdefault(edge.reader, []).append((provider, result, edge.operand, number))
    return incoming


def _read_cost(
    priced: PricedGraph,
    choice: NDArray[np.int64],
    provider: int,
    result: int,
    reader: int,
    operand: int,
    edge: int,
) -> NDArray[np.float64]:
    """[K of reader] ns to bring the provider's sharding to each demand, infinite where that is not possible."""
    nodes = priced.graph.nodes
    read = priced.graph.edges[edge]
    supply = nodes[provider].choices.supplies[result][[choice[provider]]]
    demands = nodes[reader].choices.demands[operand]
    cost = (priced.reshards.ns(read.type, supply, demands)[0] * read.repeat).astype(np.float64)
    possible = priced.reshards.possible(read.type.rank, supply, demands)
    return cost if possible is None else np.where(possible[0], cost, np.inf)


def _without_detours(
    priced: PricedGraph,
    choice: NDArray[np.int64],
    number: int,
    reads: Sequence[tuple[int, int, int, int]],
    cost: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The costs, infinite where a kernel with one operand would read that neither as it is nor as its result is wanted.

    A partitioner moves what is read or what is made. In between it may be cheaper, as an exchange and a gather along one dimension are than
    a gather along two, but nobody has asked for that.
    """
    node = priced.graph.nodes[number]
    if node.space is None or len(reads) != 1 or node.space.shape.is_matmul or not node.choices.supplies:
        return cost
    provider, result, operand, _ = reads[0]
    supply = int(priced.graph.nodes[provider].choices.supplies[result][choice[provider]])
    is_moved = node.choices.demands[operand] != supply
    direct = np.where(
        is_moved & (np.asarray(node.space.produced[0]) != node.choices.supplies[0]), np.inf, cost
    )
    return direct if np.isfinite(direct).any() else cost


def _wanted(priced: PricedGraph, node: Node, given: Mapping[int, TensorSharding]) -> int | None:
    graph = priced.graph
    if node.flow >= 0:
        flow = graph.program.flows[node.flow]
        value, type_ = flow.value, flow.type
        if flow.kind is FlowKind.RESULT and value not in given:
            return None
    else:
        kernel = graph.program.kernels[node.kernel]
        if not kernel.results:
            return None
        value, type_ = kernel.results[0], kernel.shape.results[0]
    sharding = given.get(value, TensorSharding.replicated_closed(type_.rank))
    closed = sharding.as_closed()
    is_whole = graph.adds_first and node.flow < 0
    return graph.layouts[type_.rank].id_of(closed.summed() if is_whole else closed)


def decide_hubs(
    priced: PricedGraph, choice: NDArray[np.int64], among: Mapping[int, NDArray[np.bool_]] | None = None
) -> None:
    """Change `choice` so that every value with several readers is brought once to what is cheapest for them.

    Args:
        among: of hubs, the choices that they have; all, of those that are not there.
    """
    graph, problem = priced.graph, priced.problem
    costs: dict[int, NDArray[np.float64]] = {}
    for number, edge in enumerate(graph.edges):
        found = problem.tables[problem.edge_table[number]]
        table = found.cost if found.allowed is None else np.where(found.allowed, found.cost, np.inf)
        if graph.nodes[edge.reader].hub >= 0:
            costs[edge.reader] = costs.get(edge.reader, 0) + table[choice[edge.provider]]
        elif graph.nodes[edge.provider].hub >= 0:
            costs[edge.provider] = costs.get(edge.provider, 0) + table[:, choice[edge.reader]]
    for hub, cost in costs.items():
        if among is not None and hub in among:
            cost = np.where(among[hub], cost, np.inf)
        choice[hub] = int(np.argmin(cost))  # on a tie the provider's own sharding, which comes first


def with_told_copies(priced: PricedGraph, choice: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same choice, every copy that is shared as narrow as those who read it allow."""
    chosen = choice.copy()
    hubs = ((number, node.sharing) for number, node in enumerate(priced.graph.nodes))
    decide_hubs(
        priced,
        chosen,
        {number: one.copies == one.copies[choice[number]] for number, one in hubs if one is not None},
    )
    return chosen
