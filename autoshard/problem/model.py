"""The waist between compiler and solver: what to choose, what it costs, what memory it takes; plain numbers.

Every node takes exactly one of its strategies. With x_i the strategy of node i, a choice x costs

    sum_i node_cost[i, x_i] + sum_{e = (u, v)} cost_e[x_u, x_v]        (nanoseconds)

and at time point t it uses the bytes of all items whose half-open interval [start, end) holds t: a node
item usage[x_i], an edge item usage[x_u, x_v] (the copy that a reshard makes). That sum may not exceed
`memory_limit` at any time point. A forbidden strategy or pair is a mask, never a large number.

Nothing here knows of programs, meshes or shardings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Costs of the pairs of strategies of two nodes, shared by every edge that has the same ones."""

    cost: Ints  # [Ku, Kv] ns; the value of a forbidden entry means nothing
    allowed: Bools | None = None  # [Ku, Kv]; None: every pair


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """N nodes with K_i strategies each, E edges, I node items, J edge items; `ProblemBuilder` makes one."""

    node_start: Ints  # [N + 1]; the strategies of node i are rows node_start[i]:node_start[i + 1]
    node_cost: Ints  # [sum K] ns
    node_allowed: Bools  # [sum K]
    tables: tuple[Table, ...]
    edge_nodes: NDArray[np.int32]  # [E, 2] (u, v), u != v; parallel edges add up
    edge_table: NDArray[np.int32]  # [E] index into tables, rows are strategies of u
    node_item: Ints  # [I, 3] (node, start, end)
    node_usage: Ints  # usage of every item, concatenated, bytes
    node_usage_start: Ints  # [I + 1]; item i has rows node_usage_start[i]:node_usage_start[i + 1]
    edge_item: Ints  # [J, 4] (edge, start, end, index into usage_tables)
    usage_tables: tuple[Ints, ...]  # [Ku, Kv] bytes
    memory_limit: int | None  # bytes at every time point; None: no limit

    @property
    def node_count(self) -> int:
        return len(self.node_start) - 1

    @property
    def edge_count(self) -> int:
        return len(self.edge_nodes)

    @property
    def strategy_counts(self) -> Ints:
        """[N] strategies of every node."""
        return np.diff(self.node_start)

    def node_costs(self, node: int) -> Ints:
        return self.node_cost[self.node_start[node] : self.node_start[node + 1]]

    def node_mask(self, node: int) -> Bools:
        return self.node_allowed[self.node_start[node] : self.node_start[node + 1]]

    def item_usage(self, item: int) -> Ints:
        return self.node_usage[self.node_usage_start[item] : self.node_usage_start[item + 1]]
