"""Nodes, edges and memory items one after the other -> the flat arrays of a Problem."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autoshard.problem.model import Bools, Ints, Problem, Table


class ProblemBuilder:
    """Collects the parts of a Problem. Tables are interned by identity: pass one object for one table."""

    def __init__(self) -> None:
        self._costs: list[Ints] = []
        self._masks: list[Bools | None] = []
        self._tables: dict[Table, int] = {}
        self._edges: list[tuple[int, int, int]] = []
        self._node_items: list[tuple[int, int, int]] = []
        self._usages: list[Ints] = []
        self._edge_items: list[tuple[int, int, int, int]] = []
        self._usage_index: dict[int, int] = {}
        self._usage_tables: list[Ints] = []
        self._usage_keepalive: list[NDArray[np.int64]] = []

    def add_node(self, cost: ArrayLike, allowed: ArrayLike | None = None) -> int:
        """A node with the cost (ns) of each of its strategies; returns its number."""
        self._costs.append(np.asarray(cost, dtype=np.int64))
        self._masks.append(None if allowed is None else np.asarray(allowed, dtype=np.bool_))
        return len(self._costs) - 1

    def add_edge(self, u: int, v: int, table: Table) -> int:
        """An edge that costs `table.cost[strategy of u, strategy of v]`; returns its number."""
        self._edges.append((u, v, self._tables.setdefault(table, len(self._tables))))
        return len(self._edges) - 1

    def add_node_usage(self, node: int, start: int, end: int, usage: ArrayLike) -> None:
        """Bytes that `node` uses at the time points [start, end), by strategy."""
        self._node_items.append((node, start, end))
        self._usages.append(np.asarray(usage, dtype=np.int64))

    def add_edge_usage(self, edge: int, start: int, end: int, usage_table: NDArray[np.int64]) -> None:
        """Bytes that `edge` uses at the time points [start, end), by pair of strategies."""
        index = self._usage_index.get(id(usage_table))
        if index is None:
            index = len(self._usage_tables)
            self._usage_index[id(usage_table)] = index
            self._usage_keepalive.append(usage_table)  # an id stays unique only while its object lives
            self._usage_tables.append(np.asarray(usage_table, dtype=np.int64))
        self._edge_items.append((edge, start, end, index))

    def build(self, memory_limit: int | None = None) -> Problem:
        edges = np.asarray(self._edges, dtype=np.int32).reshape(-1, 3)
        masks = [
            np.ones(len(cost), dtype=np.bool_) if mask is None else mask
            for cost, mask in zip(self._costs, self._masks, strict=True)
        ]
        return Problem(
            node_start=_offsets(self._costs),
            node_cost=np.concatenate([np.zeros(0, dtype=np.int64), *self._costs]),
            node_allowed=np.concatenate([np.zeros(0, dtype=np.bool_), *masks]),
            tables=tuple(self._tables),
            edge_nodes=np.ascontiguousarray(edges[:, :2]),
            edge_table=np.ascontiguousarray(edges[:, 2]),
            node_item=np.asarray(self._node_items, dtype=np.int64).reshape(-1, 3),
            node_usage=np.concatenate([np.zeros(0, dtype=np.int64), *self._usages]),
            node_usage_start=_offsets(self._usages),
            edge_item=np.asarray(self._edge_items, dtype=np.int64).reshape(-1, 4),
            usage_tables=tuple(self._usage_tables),
            memory_limit=memory_limit,
        )


def _offsets(rows: Sequence[Ints]) -> Ints:
    """[n + 1] where each of n concatenated rows begins."""
    return np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
