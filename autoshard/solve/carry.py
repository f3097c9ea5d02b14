"""Prices and messages of a core, for the smaller one that presolve makes of it: a start, so nothing need be exact.

Rows that are gone leave their price to the next one that stays. Edges that both cores have keep their messages for the
strategies that are left; others start at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.problem.model import Ints
from autoshard.solve.core import Core
from autoshard.solve.graph import Graph
from autoshard.solve.layout import Layout

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """What a search has learned of a core, in names that outlive it."""

    multipliers: dict[int, float]  # by first row
    messages: dict[tuple[int, int], tuple[Floats, Floats]]
    """By nodes of the graph: to the first, to the second."""
    strategies: dict[int, Ints]
    """By node of the graph: which strategies, in rising order, the messages are for."""


def learned(graph: Graph, core: Core, layout: Layout, multipliers: Floats, messages: Floats) -> Prices:
    """What is known of the core, before the graph goes through presolve again."""
    nodes = core.graph_nodes.tolist()
    counts = core.counts.tolist()
    by_edge: dict[tuple[int, int], tuple[Floats, Floats]] = {}
    for (u, v), (to_u, to_v) in zip(core.ends.tolist(), layout.message.tolist(), strict=True):
        pair = messages[to_u : to_u + counts[u]].copy(), messages[to_v : to_v + counts[v]].copy()
        by_edge[nodes[u], nodes[v]] = pair
    prices = dict(zip(graph.rows.tolist(), multipliers.tolist(), strict=True))
    return Prices(prices, by_edge, {node: graph.origin[node] for node in nodes})


def carried(prices: Prices, graph: Graph, core: Core, layout: Layout) -> tuple[Floats, Floats]:
    """(multipliers, messages) to start from in what is left of the graph."""
    multipliers = np.zeros(len(core.room))
    if len(multipliers):
        rows = np.fromiter(prices.multipliers.keys(), dtype=np.int64)
        heirs = np.minimum(np.searchsorted(graph.rows, rows), len(multipliers) - 1)
        np.add.at(multipliers, heirs, np.fromiter(prices.multipliers.values(), dtype=np.float64))
    messages = np.zeros(int(core.counts[core.ends].sum()))
    nodes = core.graph_nodes.tolist()
    places = {
        node: np.searchsorted(prices.strategies[node], graph.origin[node])
        for node in nodes
        if node in prices.strategies
    }
    for (u, v), starts in zip(core.ends.tolist(), layout.message.tolist(), strict=True):
        known = prices.messages.get((nodes[u], nodes[v]))
        if known is not None:
            for node, start, values in zip((nodes[u], nodes[v]), starts, known, strict=True):
                messages[start : start + len(places[node])] = values[places[node]]
    return multipliers, messages
