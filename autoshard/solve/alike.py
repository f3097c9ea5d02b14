"""Which nodes of a Problem look alike: colour refinement (Weisfeiler-Leman) with a bounded number of rounds.

Before the first round nodes are alike that have equal masks, costs, usage rows and labels; after r rounds, nodes whose
surroundings up to r edges away agree too: the same tables, seen from the node, to neighbours that were alike before.
Equal tables are what says that strategy k means the same for both. Times of memory items do not count, nor does where
a node stands: without a bound on the rounds the ends of a chain of layers would tell every layer apart.

Sets of neighbours are compared by 64-bit sums. A collision makes classes coarser, but never joins unequal masks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from autoshard.problem import Problem, Table
from autoshard.problem.model import Ints
from autoshard.solve.distinct import distinct

_Hashes = NDArray[np.uint64]


def refinements(problem: Problem, labels: Ints | None = None) -> Iterator[Ints]:
    """After 0, 1, 2, ... rounds: [N] a class number for every node, in the order of the classes' first nodes.

    Ends with the first partition that another round would not change. `labels` [N]: nodes with different ones are
    never alike.
    """
    here, there, view = _half_edges(problem)
    classes = _first_classes(problem, labels)
    while True:
        yield classes
        sums = np.zeros(problem.node_count, dtype=np.uint64)
        np.add.at(sums, here, _mixed(view + _mixed(classes[there].astype(np.uint64))))
        finer = numbered(np.column_stack([classes, sums.view(np.int64)]))
        if finer.max(initial=0) == classes.max(initial=0):
            return
        classes = finer


def _first_classes(problem: Problem, labels: Ints | None) -> Ints:
    """[N] by mask, costs of allowed strategies, usage rows and labels."""
    cost = np.where(problem.node_allowed, problem.node_cost, 0)
    numbers = _Numbers()
    used = np.zeros(problem.node_count, dtype=np.uint64)
    rows = [numbers.of(problem.item_usage(item).tobytes()) for item in range(len(problem.node_item))]
    np.add.at(used, problem.node_item[:, 0], _mixed(np.array(rows, dtype=np.uint64)))
    bounds = zip(problem.node_start[:-1].tolist(), problem.node_start[1:].tolist(), strict=True)
    own = [numbers.of((problem.node_allowed[a:b].tobytes(), cost[a:b].tobytes())) for a, b in bounds]
    told = np.zeros(problem.node_count, dtype=np.int64) if labels is None else labels
    return numbered(np.column_stack([np.array(own, dtype=np.int64), used.view(np.int64), told]))


def _half_edges(problem: Problem) -> tuple[Ints, Ints, _Hashes]:
    """[2 E] each edge from both ends: the node, its neighbour, and the table with the node's strategies as rows."""
    numbers = _Numbers()
    seen = np.array(
        [[numbers.of(_digest(table)), numbers.of(_digest(_transposed(table)))] for table in problem.tables],
        dtype=np.uint64,
    ).reshape(-1, 2)
    u, v = problem.edge_nodes.T.astype(np.int64)
    view = _mixed(seen[problem.edge_table].T.ravel())
    return np.concatenate([u, v]), np.concatenate([v, u]), view


def _transposed(table: Table) -> Table:
    return Table(table.cost.T, None if table.allowed is None else table.allowed.T)


def _digest(table: Table) -> bytes:
    """Of what the table means: its shape, which pairs are allowed, and the costs of those."""
    state = blake2b(repr(table.cost.shape).encode(), digest_size=16)
    if table.allowed is None or table.allowed.all():
        state.update(np.ascontiguousarray(table.cost).data)
    else:
        state.update(np.where(table.allowed, table.cost, 0).tobytes())
        state.update(table.allowed.tobytes())
    return state.digest()


class _Numbers:
    """Equal things get equal numbers, from 0 upwards."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def of(self, thing: Hashable) -> int:
        return self._known.setdefault(thing, len(self._known))


def numbered(rows: Ints) -> Ints:
    """[N] equal numbers for equal rows, numbered as they first appear."""
    return distinct(rows).in_order_of_appearance()


def _mixed(values: _Hashes) -> _Hashes:
    """The finaliser of splitmix64: nearby numbers come out far apart."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
