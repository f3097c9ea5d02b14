"""The parts of a contest document, in whatever order they come -> a Problem, with the node or edge of what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoshard.errors import AutoshardError
from autoshard.problem.iopddl.matrices import FORBIDDEN_FROM, Matrices, read_matrices
from autoshard.problem.iopddl.rows import Rows, read_rows
from autoshard.problem.iopddl.source import Source
from autoshard.problem.iopddl.walk import Walk
from autoshard.problem.model import Bools, Ints, Problem, Table
from autoshard.problem.validate import validate


@dataclass(slots=True, eq=False)
class _Document:
    """What the text holds; None where a part has not come yet."""

    intervals: Rows | None = None
    costs: Rows | None = None
    usages: Rows | None = None
    ends: Rows | None = None
    matrices: Matrices | None = None
    limit: int | None = None


def read_iopddl(path: str | Path, *, block: int | None = None) -> Problem:
    """Read a `.json` or `.json.gz` file in windows of about `block` bytes; equal matrices share one table.

    Raises:
        AutoshardError: the file is missing, cut off or no JSON, lacks a part, or its problem is malformed.
    """
    try:
        with Source(Path(path)) if block is None else Source(Path(path), block) as source:
            document = _read_document(Walk(source))
        problem = _problem(document)
        validate(problem)
    except AutoshardError as error:
        where = f"{path}: {error.where}" if error.where else str(path)
        raise AutoshardError(error.reason, where=where, fix=error.fix) from None
    return problem


def _read_document(walk: Walk) -> _Document:
    document = _Document()
    if not walk.peek():
        raise AutoshardError("is empty")
    found = False
    for key in walk.members("the document"):
        if key == "problem":
            _read_problem(walk, document)
            found = True
        else:
            walk.skip()
    walk.end()
    if not found:
        raise AutoshardError('is no IOPDDL problem: it has no "problem"')
    return document


def _read_problem(walk: Walk, document: _Document) -> None:
    for key in walk.members("problem"):
        if key == "nodes":
            _read_nodes(walk, document)
        elif key == "edges":
            _read_edges(walk, document)
        elif key == "usage_limit":
            document.limit = walk.whole_or_null("usage_limit")
        else:
            walk.skip()
    for part, what in ((document.costs, "nodes"), (document.ends, "edges")):
        if part is None:
            raise AutoshardError(f'is no IOPDDL problem: it has no "{what}"', where="problem")


def _read_nodes(walk: Walk, document: _Document) -> None:
    for key in walk.members("nodes"):
        if key == "intervals":
            document.intervals = read_rows(walk, "intervals", lambda node: f"node {node}, interval")
        elif key == "costs":
            document.costs = read_rows(walk, "costs", lambda node: f"node {node}, costs")
        elif key == "usages":
            document.usages = read_rows(walk, "usages", lambda node: f"node {node}, usages")
        else:
            walk.skip()
    for name in ("intervals", "costs", "usages"):
        if getattr(document, name) is None:
            raise AutoshardError(f'has no "{name}"', where="nodes")


def _read_edges(walk: Walk, document: _Document) -> None:
    for key in walk.members("edges"):
        if key == "nodes":
            document.ends = read_rows(walk, "nodes", lambda edge: f"edge {edge}, nodes")
        elif key == "costs":
            document.matrices = read_matrices(walk, "costs", lambda edge: f"edge {edge}, costs")
        else:
            walk.skip()
    for name, part in (("nodes", document.ends), ("costs", document.matrices)):
        if part is None:
            raise AutoshardError(f'has no "{name}"', where="edges")


def _problem(document: _Document) -> Problem:
    intervals, costs, usages = document.intervals, document.costs, document.usages
    assert intervals is not None and costs is not None and usages is not None
    assert document.ends is not None and document.matrices is not None
    _check_nodes(intervals, costs, usages)
    allowed = costs.values < FORBIDDEN_FROM
    costs.values[~allowed] = 0
    used = _used(intervals, usages)
    ends = _edge_nodes(document.ends, document.matrices, len(costs.lengths))
    tables, edge_table = _tables(document.matrices, ends, costs.lengths)
    rows = np.repeat(used, usages.lengths)
    return Problem(
        node_start=costs.start,
        node_cost=costs.values,
        node_allowed=allowed,
        tables=tables,
        edge_nodes=ends.astype(np.int32),
        edge_table=edge_table,
        node_item=np.column_stack([np.flatnonzero(used), intervals.values.reshape(-1, 2)[used]]),
        node_usage=usages.values[rows],
        node_usage_start=np.concatenate([[0], np.cumsum(usages.lengths[used])]).astype(np.int64),
        edge_item=np.zeros((0, 4), dtype=np.int64),
        usage_tables=(),
        memory_limit=document.limit,
    )


def _check_nodes(intervals: Rows, costs: Rows, usages: Rows) -> None:
    counts = [len(part.lengths) for part in (intervals, costs, usages)]
    if min(counts) < max(counts):
        have = f"the file has {counts[0]} intervals, {counts[1]} lists of costs and {counts[2]} of usages"
        raise AutoshardError(have, where=f"node {min(counts)}")
    _refuse(intervals.lengths != 2, "node", lambda node: f"{intervals.lengths[node]} numbers for an interval")
    _refuse(costs.lengths == 0, "node", lambda _: "has no strategies")
    _refuse(
        costs.lengths != usages.lengths,
        "node",
        lambda node: f"{costs.lengths[node]} costs but {usages.lengths[node]} usages",
    )
    pairs = intervals.values.reshape(-1, 2)
    _refuse(
        pairs[:, 0] > pairs[:, 1],
        "node",
        lambda node: f"its interval {pairs[node].tolist()} ends before it starts",
    )
    negative = np.searchsorted(usages.start, np.flatnonzero(usages.values < 0), side="right") - 1
    if len(negative):
        raise AutoshardError("has a negative usage", where=f"node {negative[0]}")


def _used(intervals: Rows, usages: Rows) -> Bools:
    """[N] which nodes use memory at all: an interval that is not empty, and bytes."""
    pairs = intervals.values.reshape(-1, 2)
    if not len(pairs):
        return np.zeros(0, dtype=np.bool_)
    return (pairs[:, 0] < pairs[:, 1]) & (np.maximum.reduceat(usages.values, usages.start[:-1]) > 0)


def _edge_nodes(ends: Rows, matrices: Matrices, node_count: int) -> Ints:
    """[E, 2]"""
    counts = len(ends.lengths), len(matrices.of_edge)
    if counts[0] != counts[1]:
        have = f"the file has {counts[0]} pairs of nodes but {counts[1]} lists of costs"
        raise AutoshardError(have, where=f"edge {min(counts)}")
    _refuse(ends.lengths != 2, "edge", lambda edge: f"joins {ends.lengths[edge]} nodes, not 2")
    pairs = ends.values.reshape(-1, 2)
    outside = (pairs < 0) | (pairs >= node_count)
    _refuse(
        outside[:, 0] | outside[:, 1],
        "edge",
        lambda edge: f"ends at node {pairs[edge][outside[edge]][0]}, which does not exist",
    )
    return pairs


def _tables(
    matrices: Matrices, ends: Ints, strategies: Ints
) -> tuple[tuple[Table, ...], np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """(distinct matrices in the shapes in which edges use them, which of them every edge has)"""
    shapes = strategies[ends]
    entries = matrices.length[matrices.of_edge]
    _refuse(
        entries != shapes[:, 0] * shapes[:, 1],
        "edge",
        lambda edge: f"{entries[edge]} costs for {shapes[edge, 0]} x {shapes[edge, 1]} strategies",
    )
    more_than_rows = int(strategies.max(initial=0)) + 1
    used, edge_table = np.unique(matrices.of_edge * more_than_rows + shapes[:, 0], return_inverse=True)
    return tuple(_shaped(matrices, used, more_than_rows)), edge_table.astype(np.int32)


def _shaped(matrices: Matrices, used: Ints, more_than_rows: int) -> Iterator[Table]:
    for key in used.tolist():
        index, rows = divmod(key, more_than_rows)
        cost, allowed = matrices.entries(index)
        yield Table(cost.reshape(rows, -1), None if allowed is None else allowed.reshape(rows, -1))


def _refuse(bad: Bools, what: str, reason: Callable[[int], str]) -> None:
    """The first node or edge that is bad, as an error."""
    if bad.any():
        first = int(bad.argmax())
        raise AutoshardError(reason(first), where=f"{what} {first}")
