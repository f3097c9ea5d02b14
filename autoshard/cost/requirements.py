"""Demands as masks over a graph that was built for demands to be met or not (`wanted`): which strategies of which node meet each."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.cost.assemble import PricedGraph
from autoshard.cost.graph import Graph
from autoshard.cost.layouts import Ints
from autoshard.cost.sums_left import held_as
from autoshard.errors import ClashError
from autoshard.problem import Problem
from autoshard.problem.model import Bools
from autoshard.program import RESULT_SITE, Demand
from autoshard.sharding import TensorSharding

Masks = Mapping[int, Bools]
"""[K] strategies that each of some nodes may take; other nodes may take any."""


@dataclass(frozen=True, slots=True, eq=False)
class Requirement:
    """A demand, and the strategies of the node that decides the value which meet it."""

    demand: Demand
    node: int
    mask: Bools  # [K]


def requirement(graph: Graph, demand: Demand) -> Requirement | None:
    """None for a demand on a scalar: nobody shards it."""
    end = decider(graph, demand.value, demand.result)
    if end is None:
        return None
    node, supplies = end
    return Requirement(demand, node, meets(graph, demand.sharding)[supplies])


def meets(graph: Graph, sharding: TensorSharding) -> Bools:
    """[layouts of that rank] which of them are what `sharding` demands."""
    layouts = graph.layouts[sharding.rank].shardings
    return np.asarray([layout.satisfies(sharding) for layout in layouts], dtype=np.bool_)


def joined(masks: Iterable[tuple[int, Bools]]) -> dict[int, Bools]:
    """What all masks of a node allow."""
    found: dict[int, Bools] = {}
    for node, mask in masks:
        found[node] = found[node] & mask if node in found else mask
    return found


def masked(problem: Problem, masks: Masks, memory_limit: int | None) -> Problem:
    """The problem with less to choose from, under another limit."""
    allowed = problem.node_allowed.copy()
    for node, mask in masks.items():
        allowed[problem.node_start[node] : problem.node_start[node + 1]] &= mask
    return replace(problem, node_allowed=allowed, memory_limit=memory_limit)


def bound(priced: PricedGraph, demands: Sequence[Demand]) -> PricedGraph:
    """The same graph with all demands met.

    Raises:
        ClashError: demands on one value that nothing meets together.
    """
    found = [r for demand in demands if (r := requirement(priced.graph, demand)) is not None]
    masks = joined((r.node, r.mask) for r in found)
    for node, mask in masks.items():
        if not (mask & priced.problem.node_mask(node)).any():
            raise _clash([r.demand for r in found if r.node == node])
    return replace(priced, problem=masked(priced.problem, masks, priced.problem.memory_limit))


def _clash(demands: Sequence[Demand]) -> ClashError:
    return ClashError(
        "no sharding is all that is demanded of one value:" + "".join(f"\n  {demand}" for demand in demands),
        fix="drop one of the demands, or let one be met by a reshard: put an sdy.sharding_constraint between",
    )


def decider(graph: Graph, value: int, result: int | None = None) -> tuple[int, Ints] | None:
    """The node that decides a value, or what the function returns as `result`, and the layouts that its strategies leave it with."""
    if result is None:
        end = graph.provider.get(value)
        if end is None:
            return None
        node, number = end
        return node, held_as(graph, value, graph.nodes[node].choices.supplies[number])
    site = (RESULT_SITE, result)
    for number, flow in enumerate(graph.program.flows):
        if any(source.site == site for source in flow.sources):
            return number, graph.nodes[number].choices.supplies[0]  # flows are the first nodes, in order
    return None
