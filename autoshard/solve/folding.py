"""A Problem with repeated parts -> a smaller one in which nodes that are alike take the same strategy.

Every choice of the folded problem is one of the original with the same cost, the same bytes at every time point and the
same validity: node costs and edge tables are added up, an edge within a class is the diagonal of its table, memory items
go to the class. The folded optimum is the best choice that treats like alike, so it is no bound for the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from autoshard.problem import Problem, ProblemBuilder, Table
from autoshard.problem.model import Bools, Ints
from autoshard.solve.alike import numbered, refinements
from autoshard.solve.distinct import distinct
from autoshard.solve.intervals import Parts, merged

_Entry = TypeVar("_Entry", np.int64, np.bool_)
_MOST_LEFT = 2 / 3  # of the nodes, for a fold to be worth it


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """`problem` has C nodes, one for each class of alike nodes of the original."""

    problem: Problem
    classes: Ints  # [N] the folded node of every original node

    def expand(self, choice: Ints) -> Ints:
        """A choice [C] of the folded problem -> the choice [N] of the same cost and the same memory."""
        return choice[self.classes]

    def restrict(self, choice: Ints) -> Ints:
        """A choice [N] -> for every class the strategy [C] that most of its nodes have, among those that it may
        take; the first of several."""
        start = self.problem.node_start
        votes = np.bincount(start[self.classes] + choice, minlength=int(start[-1]))
        votes[~self.problem.node_allowed] = -1
        owner = np.repeat(np.arange(self.problem.node_count), self.problem.strategy_counts)
        return np.lexsort((-votes, owner))[start[:-1]] - start[:-1]


def fold(problem: Problem, labels: Ints | None = None, *, rounds: int = 4) -> Folded | None:
    """Fold nodes whose surroundings up to `rounds` edges away are alike; None where too few are.

    `labels` [N]: nodes with different ones are never alike.
    """
    *_, classes = islice(refinements(problem, labels), rounds + 1)
    if not _worth_folding(problem, classes):
        return None
    folded = fold_classes(problem, classes)
    return folded if _worth_folding(problem, folded.classes) else None


def _worth_folding(problem: Problem, classes: Ints) -> bool:
    return 0 < classes.max(initial=-1) + 1 <= _MOST_LEFT * problem.node_count


def fold_classes(problem: Problem, classes: Ints) -> Folded:
    """Fold the nodes of equal class [N], which have equal masks. Nodes that could not, with one strategy for each
    class, have any, by themselves or with those of another class, stay apart."""
    while True:
        folded = Folded(_contracted(problem, classes), classes)
        impossible = _impossible(folded.problem)[classes]
        apart = np.arange(problem.node_count) + folded.problem.node_count
        finer = numbered(np.where(impossible, apart, classes)[:, None])
        if finer.max(initial=0) == classes.max(initial=0):
            return folded
        classes = finer


def _impossible(folded: Problem) -> Bools:
    """[C] whether the node, or one of its edges, allows nothing."""
    bad = np.ones(folded.node_count, dtype=np.bool_)
    bad[np.searchsorted(folded.node_start, np.flatnonzero(folded.node_allowed), side="right") - 1] = False
    for (u, v), index in zip(folded.edge_nodes.tolist(), folded.edge_table.tolist(), strict=True):
        allowed = folded.tables[index].allowed
        if allowed is not None and not allowed[np.ix_(folded.node_mask(u), folded.node_mask(v))].any():
            bad[[u, v]] = True
    return bad


class _Edges:
    """The edges of the original, sorted into those within a class and those between two, the lower class first."""

    def __init__(self, problem: Problem, classes: Ints) -> None:
        ends = classes[problem.edge_nodes]
        self.inner = ends[:, 0] == ends[:, 1]
        self.turned = ends[:, 0] > ends[:, 1]
        pairs = distinct(np.sort(ends[~self.inner], axis=1))
        self.pairs = pairs.rows  # [P, 2] the folded edges
        self.owner = ends[:, 0].copy()  # [E] a class, or a folded edge
        self.owner[~self.inner] = pairs.number


def _contracted(problem: Problem, classes: Ints) -> Problem:
    builder = ProblemBuilder()
    edges = _Edges(problem, classes)
    _add_nodes(problem, classes, edges, builder)
    _add_edges(problem, edges, builder)
    _add_usage(problem, classes, edges, builder)
    return builder.build(problem.memory_limit)


def _add_nodes(problem: Problem, classes: Ints, edges: _Edges, builder: ProblemBuilder) -> None:
    sizes = problem.strategy_counts[np.unique(classes, return_index=True)[1]]
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    row = np.repeat(start[classes] - problem.node_start[:-1], problem.strategy_counts)
    row += np.arange(len(problem.node_cost))
    cost = np.zeros(start[-1], dtype=np.int64)
    allowed = np.ones(start[-1], dtype=np.bool_)
    np.add.at(cost, row, np.where(problem.node_allowed, problem.node_cost, 0))
    np.logical_and.at(allowed, row, problem.node_allowed)
    within = distinct(np.column_stack([edges.owner, problem.edge_table.astype(np.int64)])[edges.inner])
    for (owner, index), count in zip(within.rows.tolist(), within.counts.tolist(), strict=True):
        table, rows = problem.tables[index], slice(start[owner], start[owner + 1])
        if table.allowed is not None:
            allowed[rows] &= table.allowed.diagonal()
        cost[rows] += count * _finite(table).diagonal()
    for begin, end in pairwise(start.tolist()):
        builder.add_node(cost[begin:end], allowed[begin:end])


def _add_edges(problem: Problem, edges: _Edges, builder: ProblemBuilder) -> None:
    """Edge p of the folded problem is `edges.pairs[p]`."""
    between = distinct(
        np.column_stack([edges.owner, problem.edge_table, edges.turned]).astype(np.int64)[~edges.inner]
    )
    parts: list[list[tuple[int, int, int]]] = [[] for _ in edges.pairs]
    for (owner, index, turned), count in zip(between.rows.tolist(), between.counts.tolist(), strict=True):
        parts[owner].append((index, turned, count))
    sums: dict[tuple[tuple[int, int, int], ...], Table] = {}
    for (u, v), summands in zip(edges.pairs.tolist(), parts, strict=True):
        key = tuple(summands)
        if key not in sums:
            sums[key] = _sum_of_tables(
                [(problem.tables[index], turned, count) for index, turned, count in key]
            )
        builder.add_edge(u, v, sums[key])


def _sum_of_tables(parts: list[tuple[Table, int, int]]) -> Table:
    """Of (table, whether it is transposed, how often)."""
    if len(parts) == 1 and parts[0][1:] == (0, 1):
        return parts[0][0]
    cost = sum(count * _turned(_finite(table), turned) for table, turned, count in parts)
    masks = [_turned(table.allowed, turned) for table, turned, _ in parts if table.allowed is not None]
    return Table(np.asarray(cost), np.logical_and.reduce(masks) if masks else None)


def _add_usage(problem: Problem, classes: Ints, edges: _Edges, builder: ProblemBuilder) -> None:
    usages = _Usages()
    item = problem.node_item
    rows = [usages.number(problem.item_usage(index)) for index in range(len(item))]
    of_nodes = np.column_stack([classes[item[:, 0]], item[:, 1:], np.array(rows, dtype=np.int64)])
    tables = problem.usage_tables
    forms = np.array(
        [[usages.number(form) for form in (table, table.T, table.diagonal())] for table in tables],
        dtype=np.int64,
    ).reshape(-1, 3)
    edge, begin, end, table = problem.edge_item.T
    form = np.where(edges.inner[edge], 2, edges.turned[edge])
    of_edges = np.column_stack([edges.owner[edge], begin, end, forms[table, form]])
    inner = edges.inner[edge]
    for owner, begin, end, parts in merged(np.concatenate([of_nodes, of_edges[inner]])):
        builder.add_node_usage(owner, begin, end, usages.total(parts))
    for owner, begin, end, parts in merged(of_edges[~inner]):
        builder.add_edge_usage(owner, begin, end, usages.total(parts))


class _Usages:
    """Usage rows and tables, numbered by content, and their sums, each computed once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[tuple[int, ...], bytes], int] = {}
        self._arrays: list[Ints] = []
        self._sums: dict[Parts, Ints] = {}

    def number(self, usage: Ints) -> int:
        number = self._numbers.setdefault((usage.shape, usage.tobytes()), len(self._arrays))
        if number == len(self._arrays):
            self._arrays.append(usage)
        return number

    def total(self, parts: Parts) -> Ints:
        """Of (number, how often)."""
        if parts not in self._sums:
            self._sums[parts] = np.asarray(sum(count * self._arrays[number] for number, count in parts))
        return self._sums[parts]


def _finite(table: Table) -> Ints:
    return table.cost if table.allowed is None else np.where(table.allowed, table.cost, 0)


def _turned(matrix: NDArray[_Entry], turned: int) -> NDArray[_Entry]:
    return matrix.T if turned else matrix
