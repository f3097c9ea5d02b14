"""Memory again, now that fewer strategies are left: rows that cannot bind go, certain bytes leave the room, and a
strategy or pair that alone needs more than the room is forbidden."""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, watched
from autoshard.solve.graph import FINITE_BELOW, FORBIDDEN, ContradictionError, Graph, Item, positions
from autoshard.solve.rows import RangeMinimum, binding_rows, onto_rows


def tighten_memory(graph: Graph, clock: Clock | None = None) -> list[int]:
    """Nodes whose memory or strategies changed."""
    if not len(graph.room):
        return []
    owners: list[tuple[int, int]] = [(n, n) for n, items in enumerate(graph.node_items) for _ in items]
    owners += [edge for edge, items in graph.edge_items.items() for _ in items]
    items = [item for of_node in graph.node_items for item in of_node]
    items += [item for of_edge in graph.edge_items.values() for item in of_edge]
    owned = watched(clock, zip(owners, items, strict=True))
    ranges = np.array([_range(graph, owner, item) for owner, item in owned], dtype=np.int64)
    low, high = ranges.reshape(-1, 2).T
    begin, end = (np.array([item[side] for item in items], dtype=np.int64) for side in (0, 1))
    rows, graph.room = binding_rows(begin, end, low, high, graph.room)
    graph.rows = graph.rows[rows]
    if (graph.room < 0).any():
        raise ContradictionError("what is certain to be used exceeds the memory limit")
    begin, end = onto_rows(rows, begin, end)
    before = (graph.node_items, graph.edge_items)
    lowered: dict[tuple[int, int], Ints] = {}  # by identity: what several items share stays one array
    graph.node_items, graph.edge_items = [[] for _ in graph.cost], {}
    for index in np.flatnonzero((begin < end) & (high > low)).tolist():
        (u, v), usage, least = owners[index], items[index][2], int(low[index])
        if least:
            key = (id(usage), least)
            if key not in lowered:
                lowered[key] = np.maximum(usage - least, 0)
            usage = lowered[key]
        item = (int(begin[index]), int(end[index]), usage)
        if u == v:
            graph.node_items[u].append(item)
        else:
            graph.edge_items.setdefault((u, v), []).append(item)
    return sorted(_lost_items(graph, *before) | _forbid_too_large(graph))


def _range(graph: Graph, owner: tuple[int, int], item: Item) -> tuple[int, int]:
    u, v = owner
    usage = item[2]
    if u != v:
        usage = usage[graph.adjacent[u][v] < FINITE_BELOW]
    return (int(usage.min()), int(usage.max())) if usage.size else (0, 0)


def _lost_items(
    graph: Graph, node_items: list[list[Item]], edge_items: dict[tuple[int, int], list[Item]]
) -> set[int]:
    lost = {node for node, items in enumerate(node_items) if len(items) != len(graph.node_items[node])}
    for edge, items in edge_items.items():
        if len(items) != len(graph.edge_items.get(edge, [])):
            lost.update(edge)
    return lost


def _forbid_too_large(graph: Graph) -> set[int]:
    if not len(graph.room):
        return set()
    touched: set[int] = set()
    room = RangeMinimum(graph.room)
    for node in graph.nodes:
        possible = np.ones(len(graph.cost[node]), dtype=np.bool_)
        for begin, end, usage in graph.node_items[node]:
            possible &= usage <= room.over(begin, end)
        if not possible.all():
            graph.keep_strategies(node, np.flatnonzero(possible), positions(possible))
            touched.update([node, *graph.adjacent[node]])
    for (u, v), items in graph.edge_items.items():
        matrix = graph.adjacent[u][v]
        too_large = np.zeros(matrix.shape, dtype=np.bool_)
        for begin, end, usage in items:
            too_large |= usage > room.over(begin, end)
        if (too_large & (matrix < FINITE_BELOW)).any():
            graph.set_matrix(u, v, _forbid(matrix, too_large))
            touched.update([u, v])
    return touched


def _forbid(matrix: Ints, where: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Ints:
    return np.where(where, FORBIDDEN, matrix)
