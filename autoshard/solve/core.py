"""What presolve leaves, as flat arrays for the engines, with its own exact pricing.

Nodes, edges, strategies and rows are numbered anew and densely; `graph_nodes` says which node of the Graph is which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, watched
from autoshard.solve.graph import FINITE_BELOW, Graph


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """n nodes, m edges, T memory rows, I items; matrices are row-major in `pool`, shared between edges."""

    graph_nodes: Ints  # [n]
    constant: int
    start: Ints  # [n + 1]
    cost: Ints  # [sum K]
    ends: NDArray[np.int32]  # [m, 2], first < second
    table: Ints  # [m] where the edge's matrix begins in pool
    pool: Ints
    room: Ints  # [T]
    item_owner: Ints  # [I] a node, or n + an edge
    item_begin: Ints  # [I]
    item_end: Ints  # [I]
    item_usage: Ints  # [I] where the item's bytes begin in usage_pool, by strategy or by pair, row-major
    usage_pool: Ints

    @property
    def node_count(self) -> int:
        return len(self.start) - 1

    @property
    def counts(self) -> Ints:
        return np.diff(self.start)

    def matrix(self, edge: int) -> Ints:
        u, v = self.ends[edge].tolist()
        rows, columns = int(self.counts[u]), int(self.counts[v])
        return self.pool[self.table[edge] : self.table[edge] + rows * columns].reshape(rows, columns)

    def pair_count(self) -> int:
        """Entries of all matrices, shared ones counted for every edge."""
        return int((self.counts[self.ends[:, 0]] * self.counts[self.ends[:, 1]]).sum())

    def cost_of(self, choice: Ints) -> int | None:
        """Exact cost of a choice [n] within the core, constant included; None where it is forbidden."""
        u, v = self.ends.T
        edges = self.pool[self.table + choice[u] * self.counts[v] + choice[v]]
        if (edges >= FINITE_BELOW).any():
            return None
        return self.constant + int(self.cost[self.start[:-1] + choice].sum()) + int(edges.sum())

    def item_bytes(self, choice: Ints) -> Ints:
        """[I] bytes of every item."""
        position = np.zeros(len(self.item_owner), dtype=np.int64)
        of_node = self.item_owner < self.node_count
        position[of_node] = choice[self.item_owner[of_node]]
        u, v = self.ends[self.item_owner[~of_node] - self.node_count].T
        position[~of_node] = choice[u] * self.counts[v] + choice[v]
        return self.usage_pool[self.item_usage + position]

    def profile_of(self, choice: Ints) -> Ints:
        """[T] bytes used in every row."""
        amount = self.item_bytes(choice)
        delta = np.zeros(len(self.room) + 1, dtype=np.int64)
        np.add.at(delta, self.item_begin, amount)
        np.subtract.at(delta, self.item_end, amount)
        return np.cumsum(delta[:-1])

    def fits(self, choice: Ints) -> bool:
        return bool((self.profile_of(choice) <= self.room).all())


def flatten(graph: Graph, clock: Clock | None = None) -> Core:
    """The nodes that are left in the graph.

    Raises:
        OutOfTimeError: the clock is over.
    """
    nodes = graph.nodes
    number = {node: index for index, node in enumerate(nodes)}
    edges = [(u, v) for u in nodes for v in graph.adjacent[u] if u < v]
    pool = _Pool()
    table = [pool.put(graph.adjacent[u][v]) for u, v in watched(clock, edges)]
    usages = _Pool()
    items = [
        (index, begin, end, usages.put(amount))
        for index, node in enumerate(watched(clock, nodes))
        for begin, end, amount in graph.node_items[node]
    ]
    items += [
        (len(nodes) + index, begin, end, usages.put(amount))
        for index, (u, v) in enumerate(watched(clock, edges))
        for begin, end, amount in graph.items_between(u, v)
    ]
    item_columns = np.array(items, dtype=np.int64).reshape(-1, 4).T
    counts = [len(graph.cost[node]) for node in nodes]
    return Core(
        graph_nodes=np.array(nodes, dtype=np.int64),
        constant=graph.constant,
        start=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
        cost=np.concatenate([np.zeros(0, dtype=np.int64), *(graph.cost[node] for node in nodes)]),
        ends=np.array([(number[u], number[v]) for u, v in edges], dtype=np.int32).reshape(-1, 2),
        table=np.array(table, dtype=np.int64),
        pool=pool.joined(),
        room=graph.room.copy(),
        item_owner=item_columns[0].copy(),
        item_begin=item_columns[1].copy(),
        item_end=item_columns[2].copy(),
        item_usage=item_columns[3].copy(),
        usage_pool=usages.joined(),
    )


class _Pool:
    """Arrays one behind the other, the same object once."""

    def __init__(self) -> None:
        self._where: dict[int, int] = {}
        self._arrays: list[Ints] = []
        self._size = 0

    def put(self, array: Ints) -> int:
        where = self._where.get(id(array))
        if where is None:
            where = self._where[id(array)] = self._size
            self._arrays.append(array)  # also keeps the id its own
            self._size += array.size
        return where

    def joined(self) -> Ints:
        return np.concatenate([np.zeros(0, dtype=np.int64), *(array.ravel() for array in self._arrays)])
