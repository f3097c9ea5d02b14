"""From what a plan decides back to the choice of the problem that decides it."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.assemble import PricedGraph
from autoshard.cost.follow import decide_hubs
from autoshard.cost.graph import Node
from autoshard.cost.sums_left import leave_sums
from autoshard.mlir.decisions import Decisions
from autoshard.program import RESULT_SITE, FlowKind
from autoshard.sharding import TensorSharding


def recall(priced: PricedGraph, decisions: Decisions) -> NDArray[np.int64] | None:
    """The cheapest choice that `read_back` would say this of; None where a node has no strategy for it."""
    choice = np.zeros(len(priced.graph.nodes), dtype=np.int64)
    hubs: dict[int, NDArray[np.bool_]] = {}
    for number, node in enumerate(priced.graph.nodes):
        possible = priced.problem.node_mask(number).copy()
        for ids, rank, sharding in _decided(priced, node, decisions):
            possible &= ids == priced.graph.layouts[rank].id_of(sharding.as_closed())
        if not possible.any():
            return None
        if node.hub >= 0:
            hubs[number] = possible
        costs = priced.problem.node_costs(number)
        choice[number] = min(np.flatnonzero(possible).tolist(), key=lambda row: int(costs[row]))
    decide_hubs(priced, choice, hubs)
    leave_sums(priced.graph, priced.problem, choice)
    return choice


def _decided(
    priced: PricedGraph, node: Node, decisions: Decisions
) -> Iterator[tuple[NDArray[np.int64], int, TensorSharding]]:
    """Layouts [K] of a node's strategies, their rank, and the one that the plan has in their place."""
    program = priced.graph.program
    if node.hub >= 0:
        found = decisions.shared.get(node.hub, decisions.settled.get(node.hub))
        if found is not None:
            yield node.choices.supplies[0], found.rank, found
    elif node.flow >= 0:
        flow = program.flows[node.flow]
        found = decisions.settled.get(flow.value)
        if flow.kind is FlowKind.RESULT:
            sites = [s.site for s in flow.sources if s.site[0] == RESULT_SITE]
            found = next((decisions.uses[site] for site in sites if site in decisions.uses), found)
        if found is not None:
            yield node.choices.supplies[0], found.rank, found
    else:
        yield from _of_kernel(node, priced, decisions)


def _of_kernel(
    node: Node, priced: PricedGraph, decisions: Decisions
) -> Iterator[tuple[NDArray[np.int64], int, TensorSharding]]:
    kernel, space = priced.graph.program.kernels[node.kernel], node.space
    assert space is not None
    for operand, use in enumerate(kernel.uses):
        for site in use.sites:
            if site in decisions.uses:
                yield node.choices.demands[operand], decisions.uses[site].rank, decisions.uses[site]
    for result, value in enumerate(kernel.results):
        for ids, made in ((space.produced, decisions.produced), (node.choices.supplies, decisions.settled)):
            if value in made and value in priced.graph.provider:
                yield ids[result], made[value].rank, made[value]
