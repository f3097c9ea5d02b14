"""Priorities level by level, as Shardy's user-priority propagation has them, in masks over one graph.

At level p the dimensions of demands that have priority <= p bind. The others stay whole and their axes off the tensor, as
`user_priority_propagation` has it; nothing uses an axis that only later priorities name. What a level decides is a prefix, dimension by
dimension, of what the next may choose.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.assemble import PricedGraph
from autoshard.cost.graph import Node, Wanted
from autoshard.cost.layouts import Layouts
from autoshard.cost.requirements import Masks, joined, requirement
from autoshard.problem.model import Bools
from autoshard.program import Demand
from autoshard.sharding import AxisRef, DimSharding, TensorSharding


def demand_at(demand: TensorSharding, level: int) -> TensorSharding:
    """What is demanded at a level: dimensions of later priority are whole, and the tensor free of their axes."""
    if demand.is_foreign:
        return demand  # nothing is planned on another mesh
    later = [axis for dim in demand.dims if (dim.priority or 0) > level for axis in dim.axes]
    dims = tuple(DimSharding() if (dim.priority or 0) > level else dim for dim in demand.dims)
    return TensorSharding(dims, (*demand.replicated, *later), demand.unreduced)


def due_at(demand: TensorSharding, level: int) -> TensorSharding:
    """The part of what is demanded at a level that the whole demand asks for too: dimensions of later priority are free."""
    if demand.is_foreign:
        return demand
    free = DimSharding(is_closed=False)
    return replace(demand, dims=tuple(free if (dim.priority or 0) > level else dim for dim in demand.dims))


def wanted_at_levels(demands: Sequence[Demand], levels: Sequence[int]) -> Wanted:
    """For every value with demands, what is demanded at each level, the last first."""
    wanted: dict[int, list[TensorSharding]] = {}
    for level in reversed(levels):
        for demand in demands:
            wanted.setdefault(demand.value, []).append(demand_at(demand.sharding, level))
    return wanted


def later_axes(demands: Sequence[Demand], level: int) -> frozenset[str]:
    """Axes that only priorities after this level name."""
    named: dict[bool, set[str]] = {False: set(), True: set()}
    for demand in (one for one in demands if not one.sharding.is_foreign):
        named[False].update(axis.name for axis in (*demand.sharding.replicated, *demand.sharding.unreduced))
        for dim in demand.sharding.dims:
            named[(dim.priority or 0) > level].update(axis.name for axis in dim.axes)
    return frozenset(named[True] - named[False])


def level_masks(
    priced: PricedGraph, demands: Sequence[Demand], level: int, decided: NDArray[np.int64] | None
) -> dict[int, Bools]:
    """What each node may choose at a level, given the choice of the level before it.

    A node to which the prefix leaves nothing that its demands allow is free of it. So is one of what keeps later demands out, as
    where state is carried from a value with a later demand to one with an earlier.
    """
    due = joined(_demanded(priced, demands, level, due_at))
    hard = joined(_demanded(priced, demands, level, demand_at))
    banned = joined(_without_axes(priced, later_axes(demands, level)))
    for node in {*hard, *banned}:
        hard[node] = _first_that_leaves_some(priced, node, hard, banned, due)
    if decided is None:
        return hard
    for node, mask in joined(_extending(priced, decided)).items():
        both = mask & hard[node] if node in hard else mask
        if (both & priced.problem.node_mask(node)).any():
            hard[node] = both
    return hard


def _first_that_leaves_some(priced: PricedGraph, node: int, hard: Masks, banned: Masks, due: Masks) -> Bools:
    """All demands and bans of a level; else what is due and the bans; else what is due, which the last level's choices meet."""
    possible = priced.problem.node_mask(node)
    bans = banned.get(node, True)
    for mask in (hard.get(node, True) & bans, due.get(node, True) & bans):
        if (mask & possible).any():
            return np.asarray(mask & possible)
    return due.get(node, possible)


def _demanded(
    priced: PricedGraph,
    demands: Sequence[Demand],
    level: int,
    at: Callable[[TensorSharding, int], TensorSharding],
) -> Iterator[tuple[int, Bools]]:
    for demand in demands:
        now = replace(demand, sharding=at(demand.sharding, level))
        found = requirement(priced.graph, now)
        if found is not None:
            yield found.node, found.mask


def _without_axes(priced: PricedGraph, names: frozenset[str]) -> Iterator[tuple[int, Bools]]:
    """Strategies that use none of these axes."""
    if not names:
        return
    masks: dict[int, Bools] = {}
    free = {rank: _free_of(layouts, names) for rank, layouts in priced.graph.layouts.items()}
    for number, node in enumerate(priced.graph.nodes):
        if id(node.choices) not in masks:
            masks[id(node.choices)] = _uses_none(priced, number, node, names, free)
        yield number, masks[id(node.choices)]


def _free_of(layouts: Layouts, names: frozenset[str]) -> Bools:
    return np.asarray(
        [s.is_foreign or _is_free(s.used_axes(), names) for s in layouts.shardings], dtype=np.bool_
    )


def _is_free(axes: Iterator[AxisRef], names: frozenset[str]) -> bool:
    return all(axis.name not in names for axis in axes)


def _uses_none(
    priced: PricedGraph, number: int, node: Node, names: frozenset[str], free: Mapping[int, Bools]
) -> Bools:
    if node.space is None:
        rank = _rank_of(priced, number, node)
        return free[rank][node.choices.supplies[0]]
    return np.asarray(
        [
            _is_free((axis for axes in s.factor_axes for axis in axes), names)
            and all(settled.is_foreign or _is_free(settled.used_axes(), names) for settled in s.settled)
            for s in node.space.strategies
        ],
        dtype=np.bool_,
    )


def _rank_of(priced: PricedGraph, number: int, node: Node) -> int:
    program = priced.graph.program
    if node.flow >= 0:
        return program.flows[node.flow].type.rank
    type_ = program.listing.values[node.hub].type
    assert type_ is not None, f"node {number} shares a ranked value"
    return type_.rank


def _extending(priced: PricedGraph, decided: NDArray[np.int64]) -> Iterator[tuple[int, Bools]]:
    """For every value, the strategies of its node that split it at least as it is split now, in the same order."""
    known: dict[tuple[int, int], Bools] = {}
    graph = priced.graph
    for value, (node, result) in graph.provider.items():
        type_ = graph.program.listing.values[value].type
        assert type_ is not None, "only ranked values have providers"
        supplies = graph.nodes[node].choices.supplies[result]
        key = (type_.rank, int(supplies[decided[node]]))
        if key not in known:
            known[key] = _extensions(graph.layouts[type_.rank], key[1])
        yield node, known[key][supplies]


def _extensions(layouts: Layouts, layout: int) -> Bools:
    decided = layouts.shardings[layout]
    return np.asarray(
        [s.mesh == decided.mesh and s.refines(decided) for s in layouts.shardings], dtype=np.bool_
    )
