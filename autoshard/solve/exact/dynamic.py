"""Exact dynamic programming over a core without memory rows, as long as the tables stay small.

Bucket elimination [1]: nodes leave in the order of the smallest table that they leave behind; the table of a node
is the sum of all factors that hold it, minimised over its strategies. Going back, each node takes its best strategy
given those chosen already. Time and memory are exponential in the width of the order, so a symbolic run first says
how large the tables would be. A node with one strategy is in no table.

[1] R. Dechter, Bucket elimination: a unifying framework for reasoning, Artificial Intelligence 113, 1999.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, check
from autoshard.solve.core import Core
from autoshard.solve.graph import FINITE_BELOW, ContradictionError, clamped_sum

_LARGEST_TABLE = 8_000_000  # entries of a table before its node is minimised out
_MOST_ENTRIES = 40_000_000  # of all tables together


@dataclass(frozen=True, slots=True, eq=False)
class Factor:
    scope: tuple[int, ...]  # nodes in rising order, one axis each
    values: Ints


def elimination_order(core: Core, clock: Clock | None = None) -> list[int] | None:
    """An order whose tables stay within the caps, or None.

    Raises:
        OutOfTimeError: the clock is over.
    """
    counts = core.counts.tolist()
    neighbours: list[set[int]] = [set() for _ in counts]
    for u, v in core.ends.tolist():
        if counts[u] > 1 and counts[v] > 1:
            neighbours[u].add(v)
            neighbours[v].add(u)

    def table_size(node: int) -> int:
        return counts[node] * prod(counts[other] for other in neighbours[node])

    heap = [(table_size(node), node) for node in range(len(counts))]
    heapify(heap)
    order: list[int] = []
    gone: set[int] = set()
    entries = 0
    while heap:
        check(clock)
        size, node = heappop(heap)
        if node in gone or size != table_size(node):
            continue
        entries += size // counts[node]
        if size > _LARGEST_TABLE or entries > _MOST_ENTRIES:
            return None
        order.append(node)
        gone.add(node)
        for other in neighbours[node]:
            neighbours[other] |= neighbours[node]
            neighbours[other] -= {node, other}
        for other in neighbours[node]:
            heappush(heap, (table_size(other), other))
    return order


def eliminate_all(core: Core, order: list[int], clock: Clock | None = None) -> Ints:
    """The cheapest choice [n] of the core, memory rows left aside.

    Raises:
        ContradictionError: every choice is forbidden.
        OutOfTimeError: the clock is over.
    """
    buckets: list[list[Factor]] = [[] for _ in order]
    position = np.argsort(order).tolist() if order else []

    def place(scope: tuple[int, ...], values: Ints) -> None:
        kept = tuple(node for node, size in zip(scope, values.shape, strict=True) if size > 1)
        if kept:
            buckets[min(position[node] for node in kept)].append(Factor(kept, values.squeeze()))
        elif int(values.item()) >= FINITE_BELOW:
            raise ContradictionError("every choice has a forbidden pair")

    for node in order:
        place((node,), core.cost[core.start[node] : core.start[node + 1]])
    for edge, (u, v) in enumerate(core.ends.tolist()):
        place((u, v), core.matrix(edge))
    for node, bucket in zip(order, buckets, strict=True):
        check(clock)
        if bucket:
            rest = _minimised(bucket, node)
            place(rest.scope, rest.values)
    choice = np.zeros(core.node_count, dtype=np.int64)
    for node, bucket in zip(reversed(order), reversed(buckets), strict=True):
        choice[node] = _best_given(bucket, node, choice)
    return choice


def _minimised(bucket: list[Factor], node: int) -> Factor:
    scope = tuple(sorted({other for factor in bucket for other in factor.scope}))
    total: Ints | None = None
    for factor in sorted(bucket, key=lambda factor: factor.values.size):
        values = _spread(factor, scope)
        total = values if total is None else clamped_sum(total, values)
    assert total is not None
    return Factor(tuple(other for other in scope if other != node), total.min(axis=scope.index(node)))


def _spread(factor: Factor, scope: tuple[int, ...]) -> Ints:
    """The values with an axis for every node of the wider scope, of length one where they do not depend on it."""
    shape = iter(factor.values.shape)
    return factor.values.reshape([next(shape) if node in factor.scope else 1 for node in scope])


def _best_given(bucket: list[Factor], node: int, choice: Ints) -> int:
    total: Ints | int = 0  # of one strategy where there is no bucket
    for factor in bucket:
        at = tuple(slice(None) if other == node else int(choice[other]) for other in factor.scope)
        total = np.minimum(total + factor.values[at], 2 * FINITE_BELOW)
    return int(np.argmin(total))
