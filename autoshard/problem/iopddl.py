"""A Problem <-> the JSON of the ASPLOS/EuroSys 2025 contest on intra-operator parallelism (google/iopddl).

    {"problem": {"nodes": {"intervals": [[start, end], ...], "costs": [[...], ...], "usages": [[...], ...]},
                 "edges": {"nodes": [[u, v], ...], "costs": [[row-major matrix], ...]}, "usage_limit": bytes}}

The format has one interval for each node, no usage on edges, and a large number for what is forbidden. So
on writing, a second item of a node and an item of an edge become nodes of their own: a copy of the node's
strategies tied to it by a diagonal table, or the allowed pairs of the edge tied to both ends. Nodes of the
original come first, so the first N numbers of a solution are a choice of the original. Reading makes masks of
large numbers.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from autoshard.errors import AutoshardError
from autoshard.problem.builder import ProblemBuilder
from autoshard.problem.model import Bools, Ints, Problem, Table
from autoshard.problem.validate import validate

_FORBIDDEN_FROM = 10**17  # costs end at 3e12 in the contest's instances, sentinels are 10**18
_SENTINEL = 10**18


def read_iopddl(path: str | Path) -> Problem:
    """Read a `.json` or `.json.gz` file.

    Raises:
        AutoshardError: the file is missing, cut off or no JSON, lacks a part, or its problem is malformed.
    """
    source = Path(path)
    try:
        raw = source.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        content = json.loads(text)
    except OSError as error:
        raise AutoshardError(f"cannot be read: {error}", where=str(source)) from error
    except (EOFError, ValueError) as error:
        raise AutoshardError(f"is no JSON: {error}", where=str(source)) from error
    try:
        problem = problem_from_json(content)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise AutoshardError(f"is no IOPDDL problem: {error!r}", where=str(source)) from error
    validate(problem)
    return problem


def write_iopddl(problem: Problem, path: str | Path, *, name: str = "problem") -> None:
    """Write a `.json` file, or a compressed one if the name ends in `.gz`."""
    text = json.dumps({"problem": problem_to_json(problem, name)}, separators=(",", ":")).encode()
    target = Path(path)
    target.write_bytes(gzip.compress(text, mtime=0) if target.suffix == ".gz" else text)


def problem_from_json(content: dict[str, Any]) -> Problem:
    """The Problem of a parsed JSON document; equal matrices share one table."""
    body = content["problem"]
    nodes, edges = body["nodes"], body["edges"]
    builder = ProblemBuilder()
    for node, (costs, usages) in enumerate(zip(nodes["costs"], nodes["usages"], strict=True)):
        cost, allowed = _split_sentinels(costs)
        if len(usages) != len(cost):
            raise AutoshardError(f"{len(cost)} costs but {len(usages)} usages", where=f"node {node}")
        builder.add_node(cost, allowed)
    for node, ((start, end), usages) in enumerate(zip(nodes["intervals"], nodes["usages"], strict=True)):
        if start != end and any(usages):
            builder.add_node_usage(node, start, end, usages)
    interned: dict[tuple[int, bytes], Table] = {}
    for edge, ((u, v), costs) in enumerate(zip(edges["nodes"], edges["costs"], strict=True)):
        if not 0 <= min(u, v) <= max(u, v) < len(nodes["costs"]):
            raise AutoshardError("ends at a node that does not exist", where=f"edge {edge}")
        rows, columns = len(nodes["costs"][u]), len(nodes["costs"][v])
        if len(costs) != rows * columns:
            raise AutoshardError(
                f"{len(costs)} costs for {rows} x {columns} strategies", where=f"edge {edge}"
            )
        matrix = np.asarray(costs, dtype=np.int64)
        key = (rows, matrix.tobytes())
        if key not in interned:
            cost, allowed = _split_sentinels(matrix.reshape(rows, columns))
            interned[key] = Table(cost, None if allowed.all() else allowed)
        builder.add_edge(u, v, interned[key])
    return builder.build(body.get("usage_limit"))


def problem_to_json(problem: Problem, name: str) -> dict[str, Any]:
    """The document's "problem" part: contest nodes and edges, extra nodes for further items at the end."""
    costs = [_with_sentinels(problem.node_costs(i), problem.node_mask(i)) for i in range(problem.node_count)]
    intervals = [[0, 0] for _ in costs]
    usages = [[0] * len(row) for row in costs]
    ends: list[list[int]] = problem.edge_nodes.tolist()
    tables = [_with_sentinels(table.cost.ravel(), _mask_of(table).ravel()) for table in problem.tables]
    matrices = [tables[index] for index in problem.edge_table]

    def tie(node: int, to: Ints) -> None:
        """Bind the last node, one strategy for each entry of `to`, to those strategies of `node`."""
        ends.append([node, len(costs) - 1])
        same = np.arange(problem.strategy_counts[node])[:, None] == to[None, :]
        matrices.append(np.where(same, 0, _SENTINEL).ravel().tolist())

    for item, (node, start, end) in enumerate(problem.node_item.tolist()):
        usage = problem.item_usage(item)
        if intervals[node] == [0, 0]:
            intervals[node], usages[node] = [start, end], usage.tolist()
            continue
        costs.append([0] * len(usage))
        intervals.append([start, end])
        usages.append(usage.tolist())
        tie(node, np.arange(len(usage)))
    for edge, start, end, index in problem.edge_item.tolist():
        pairs = np.nonzero(_mask_of(problem.tables[problem.edge_table[edge]]))
        costs.append([0] * len(pairs[0]))
        intervals.append([start, end])
        usages.append(problem.usage_tables[index][pairs].tolist())
        for node, side in zip(problem.edge_nodes[edge].tolist(), pairs, strict=True):
            tie(node, cast(Ints, side))
    document: dict[str, Any] = {
        "name": name,
        "nodes": {"intervals": intervals, "costs": costs, "usages": usages},
        "edges": {"nodes": ends, "costs": matrices},
    }
    if problem.memory_limit is not None:
        document["usage_limit"] = problem.memory_limit
    return document


def _split_sentinels(values: Any) -> tuple[Ints, Bools]:
    numbers = np.asarray(values)
    if numbers.dtype.kind not in "iu":
        raise ValueError(f"costs that are no whole numbers: {str(values)[:60]}")
    allowed = numbers < _FORBIDDEN_FROM
    return np.where(allowed, numbers, 0).astype(np.int64), allowed


def _with_sentinels(cost: Ints, allowed: Bools) -> list[int]:
    return np.where(allowed, cost, _SENTINEL).tolist()


def _mask_of(table: Table) -> Bools:
    return np.ones(table.cost.shape, dtype=np.bool_) if table.allowed is None else table.allowed
