"""A Problem as a graph that presolve can take apart, and the log that puts a choice together again.

Inside the solver a forbidden pair is `FORBIDDEN` in its matrix (the totals of a valid Problem stay below 2**60, so
three of them can be added before clamping) and a forbidden strategy is gone. Parallel edges are one. Memory is a
row per time point that may bind, with the bytes still free there (`room`); an item of a node or of an edge uses
rows [begin, end). Matrices are interned by content and never changed in place, so that what is computed for one
(`Memo`) holds for all edges that share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from autoshard.problem.model import Bools, Ints

FORBIDDEN = 2**61
FINITE_BELOW = 2**60
_MOST_KEPT_BYTES = 2 << 30  # of what a memo has computed
_INTERN_UP_TO = 4096  # entries; larger matrices rarely repeat and cost more to compare

Item = tuple[int, int, Ints]  # rows [begin, end), bytes by strategy or by pair
T = TypeVar("T")


class ContradictionError(Exception):
    """No choice satisfies the masks and the memory rows: a proof, not an error of the user."""


class Undo(Protocol):
    """One step of presolve, in both directions; a choice is [N] over all nodes, modified in place."""

    def project(self, choice: Ints) -> None:
        """From a choice before the step to one after it, as good as possible."""
        ...

    def expand(self, choice: Ints) -> None:
        """From a choice after the step to one before it, of the same cost."""
        ...


class Memo:
    """Results by the identity of interned arrays; an entry keeps its arrays alive, so an id is never reused while it is known.

    Of large problems the entries that were not asked for the longest are forgotten.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[tuple[int, ...], bytes], Ints] = {}
        self._results: dict[tuple[object, ...], tuple[object, tuple[Ints, ...], int]] = {}  # the latest last
        self._kept_bytes = 0

    def intern(self, array: Ints) -> Ints:
        """An array of the same content, the same object for every equal one."""
        if array.size > _INTERN_UP_TO:
            return array
        return self._arrays.setdefault((array.shape, array.tobytes()), array)

    def call(self, function: Callable[..., T], *arrays: Ints) -> T:
        """function(*arrays), computed once for these very arrays."""
        key = (function, *map(id, arrays))
        found = self._results.pop(key, None)
        if found is None:
            result = function(*arrays)
            found = (result, arrays, _array_bytes(result))
            self._kept_bytes += found[2]
            while self._kept_bytes > _MOST_KEPT_BYTES and self._results:
                self._kept_bytes -= self._results.pop(next(iter(self._results)))[2]
        self._results[key] = found
        return found[0]  # type: ignore[return-value]  # stored under this function


def _array_bytes(result: object) -> int:
    if isinstance(result, np.ndarray):
        return result.nbytes
    parts = result if isinstance(result, tuple) else getattr(result, "__dict__", {}).values()
    return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))


@dataclass(slots=True)
class Graph:
    """Nodes keep their numbers for life; a node that is gone has an empty cost row."""

    cost: list[Ints]
    adjacent: list[dict[int, Ints]]  # adjacent[u][v] is [Ku, Kv], adjacent[v][u] its transpose
    node_items: list[list[Item]]
    edge_items: dict[tuple[int, int], list[Item]]  # (u, v) with u < v, bytes [Ku, Kv]
    room: Ints  # [rows] bytes free beyond what is certain to be used
    rows: Ints  # [rows] which row each of them was at first
    origin: list[Ints]  # by node, which strategy each of those left was at first
    constant: int = 0  # ns
    log: list[Undo] = field(default_factory=list[Undo])
    memo: Memo = field(default_factory=Memo)

    @property
    def nodes(self) -> list[int]:
        return [node for node, cost in enumerate(self.cost) if len(cost)]

    def size(self) -> str:
        nodes = self.nodes
        edges = sum(len(self.adjacent[node]) for node in nodes) // 2
        return f"{len(nodes)} nodes, {edges} edges, {sum(len(self.cost[n]) for n in nodes)} strategies"

    def pair_count(self) -> int:
        """Entries of all matrices, shared ones counted for every edge."""
        return sum(matrix.size for near in self.adjacent for matrix in near.values()) // 2

    def items_between(self, u: int, v: int) -> list[Item]:
        """Items of the edge, bytes [Ku, Kv] in this order."""
        if u < v:
            return self.edge_items.get((u, v), [])
        return self._transposed_items(self.edge_items.get((v, u), []))

    def add_items_between(self, u: int, v: int, items: list[Item]) -> None:
        if not items:
            return
        if u > v:
            u, v, items = v, u, self._transposed_items(items)
        self.edge_items.setdefault((u, v), []).extend(items)

    def _transposed_items(self, items: list[Item]) -> list[Item]:
        return [(begin, end, self.memo.call(_transposed, usage)) for begin, end, usage in items]

    def rows_of_items(self, items: list[Item], rows: Ints) -> list[Item]:
        """Of items of an edge, those rows; what several share stays one array."""
        taken = self.memo.intern(rows)
        return [(begin, end, self.memo.call(rows_of, usage, taken)) for begin, end, usage in items]

    def set_matrix(self, u: int, v: int, matrix: Ints) -> None:
        matrix = self.memo.intern(matrix)
        self.adjacent[u][v] = matrix
        self.adjacent[v][u] = self.memo.call(_transposed, matrix)

    def add_matrix(self, u: int, v: int, matrix: Ints) -> None:
        """Add an edge, or add to the one that is there."""
        present = self.adjacent[u].get(v)
        self.set_matrix(u, v, matrix if present is None else self.memo.call(clamped_sum, present, matrix))

    def remove_edge(self, u: int, v: int) -> None:
        del self.adjacent[u][v], self.adjacent[v][u]
        self.edge_items.pop((min(u, v), max(u, v)), None)

    def remove_node(self, node: int) -> None:
        for other in list(self.adjacent[node]):
            self.remove_edge(node, other)
        self.cost[node] = self.cost[node][:0]
        self.node_items[node] = []

    def keep_strategies(self, node: int, keep: Ints, instead: Ints) -> None:
        """Drop the strategies not in `keep`; `instead` [K] gives a position in `keep` for each, -1 for none.

        Raises:
            ContradictionError: none is left.
        """
        if not len(keep):
            raise ContradictionError(f"node {node} has no strategy left")
        self.log.append(Kept(node, keep, instead))
        self.cost[node] = self.cost[node][keep]
        self.origin[node] = self.origin[node][keep]
        self.node_items[node] = [(begin, end, usage[keep]) for begin, end, usage in self.node_items[node]]
        for other, matrix in list(self.adjacent[node].items()):
            self.set_matrix(node, other, self.memo.call(rows_of, matrix, self.memo.intern(keep)))
            if (min(node, other), max(node, other)) in self.edge_items:
                self._keep_edge_items(node, other, keep)

    def _keep_edge_items(self, node: int, other: int, keep: Ints) -> None:
        items = self.rows_of_items(self.items_between(node, other), keep)
        del self.edge_items[min(node, other), max(node, other)]
        self.add_items_between(node, other, items)

    def use_memory(self, begin: int, end: int, amount: int) -> None:
        """Bytes that are certain to be used.

        Raises:
            ContradictionError: more than there is room for.
        """
        if not amount:
            return
        self.room[begin:end] -= amount
        if (self.room[begin:end] < 0).any():
            raise ContradictionError("what is certain to be used exceeds the memory limit")

    def expand(self, choice: Ints) -> Ints:
        """A choice for what is left -> one for all nodes of the Problem; both are [N]."""
        full = choice.copy()
        for step in reversed(self.log):
            step.expand(full)
        return full

    def project(self, choice: Ints) -> Ints:
        """A choice of the Problem -> one for what is left, as close as possible; both are [N]."""
        reduced = choice.copy()
        for step in self.log:
            step.project(reduced)
        return reduced


@dataclass(frozen=True, slots=True)
class Kept:
    """The node lost strategies."""

    node: int
    keep: Ints
    instead: Ints

    def project(self, choice: Ints) -> None:
        choice[self.node] = max(self.instead[choice[self.node]], 0)

    def expand(self, choice: Ints) -> None:
        choice[self.node] = self.keep[choice[self.node]]


def positions(keep: Bools) -> Ints:
    """[K] where each kept strategy stands among the kept ones, -1 for the others."""
    return np.where(keep, np.cumsum(keep) - 1, -1)


def clamped_sum(a: Ints, b: Ints) -> Ints:
    return np.where((a >= FINITE_BELOW) | (b >= FINITE_BELOW), FORBIDDEN, a + b)


def clamped(a: Ints) -> Ints:
    return np.where(a >= FINITE_BELOW, FORBIDDEN, a)


def _transposed(matrix: Ints) -> Ints:
    return np.ascontiguousarray(matrix.T)


def rows_of(matrix: Ints, keep: Ints) -> Ints:
    return matrix[keep]
