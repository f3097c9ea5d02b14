"""A Problem -> the contest's JSON, node by node and edge by edge.

The format has one interval for each node, no usage on edges, and a large number for what is forbidden. So a second item
of a node and an item of an edge become nodes of their own, which cost nothing. The one of a node has a strategy for every
distinct usage, tied to the node by a table that allows the strategies that use it. The one of an edge has a strategy for every
rectangle of pairs that use the same, tied to both ends. Nodes of the original come first, so the first N numbers of
a solution are a choice of the original.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from autoshard.errors import AutoshardError
from autoshard.problem.iopddl.matrices import FORBIDDEN_FROM
from autoshard.problem.model import Bools, Ints, Problem, Table

_SENTINEL = 10**18


def write_iopddl(problem: Problem, path: str | Path, *, name: str = "problem") -> int:
    """Write a `.json` file, or a compressed one if the name ends in `.gz`, whole or not at all; returns its number of nodes.

    Raises:
        AutoshardError: the file cannot be written, or a cost is as large as what the format takes for forbidden.
    """
    _check_costs(problem)
    target = Path(path).resolve()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            temporary = Path(folder) / target.name
            with temporary.open("wb") as raw:
                if target.suffix == ".gz":
                    with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                        _write(problem, cast(BinaryIO, packed), name)
                else:
                    _write(problem, raw, name)
            temporary.replace(target)
    except OSError as error:
        raise AutoshardError(f"cannot be written: {error.strerror or error}", where=str(path)) from None
    return problem.node_count + sum(1 for _ in _extras(problem, _first_items(problem)))


def _check_costs(problem: Problem) -> None:
    too_large = np.flatnonzero(problem.node_allowed & (problem.node_cost >= FORBIDDEN_FROM))
    reason = "costs 10**17 or more, which in the contest's JSON means forbidden"
    if len(too_large):
        node = np.searchsorted(problem.node_start, too_large[0], side="right") - 1
        raise AutoshardError(reason, where=f"node {node}", fix="Scale the costs down.")
    for index, table in enumerate(problem.tables):
        if ((table.cost >= FORBIDDEN_FROM) & _mask(table)).any():
            edge = int((problem.edge_table == index).argmax())
            raise AutoshardError(reason, where=f"edge {edge}", fix="Scale the costs down.")


def _write(problem: Problem, file: BinaryIO, name: str) -> None:
    first = _first_items(problem)
    file.write(f'{{"problem":{{"name":{json.dumps(name)},"nodes":{{"intervals":['.encode())
    _write_rows(file, chain(_intervals(problem, first), ([x.start, x.end] for x in _extras(problem, first))))
    file.write(b'],"costs":[')
    _write_rows(file, chain(_costs(problem), ([0] * len(x.usage) for x in _extras(problem, first))))
    file.write(b'],"usages":[')
    _write_rows(file, chain(_usages(problem, first), (x.usage.tolist() for x in _extras(problem, first))))
    file.write(b']},"edges":{"nodes":[')
    _write_rows(file, chain(map(np.ndarray.tolist, problem.edge_nodes), _tied_nodes(problem, first)))
    file.write(b'],"costs":[')
    _write_rows(file, chain(_matrices(problem), _ties(problem, first)))
    limit = "" if problem.memory_limit is None else f',"usage_limit":{problem.memory_limit}'
    file.write(f"]}}{limit}}}}}\n".encode())


def _write_rows(file: BinaryIO, rows: Iterator[list[int]]) -> None:
    separator = b""
    for row in rows:
        file.write(separator + json.dumps(row, separators=(",", ":")).encode())
        separator = b","


def _first_items(problem: Problem) -> Ints:
    """[N] the first item of every node that lasts; -1 for none. The format has room for one."""
    first = np.full(problem.node_count, -1, dtype=np.int64)
    lasting = np.flatnonzero(problem.node_item[:, 1] < problem.node_item[:, 2])[::-1]
    first[problem.node_item[lasting, 0]] = lasting
    return first


def _intervals(problem: Problem, first: Ints) -> Iterator[list[int]]:
    return ([0, 0] if item < 0 else problem.node_item[item, 1:].tolist() for item in first)


def _usages(problem: Problem, first: Ints) -> Iterator[list[int]]:
    for item, count in zip(first, problem.strategy_counts, strict=True):
        yield [0] * int(count) if item < 0 else problem.item_usage(item).tolist()


def _costs(problem: Problem) -> Iterator[list[int]]:
    for node in range(problem.node_count):
        yield np.where(problem.node_mask(node), problem.node_costs(node), _SENTINEL).tolist()


def _matrices(problem: Problem) -> Iterator[list[int]]:
    for index in problem.edge_table:
        table = problem.tables[index]
        yield np.where(_mask(table), table.cost, _SENTINEL).ravel().tolist()


@dataclass(frozen=True, slots=True, eq=False)
class _Extra:
    """A node that is there for its memory only; a choice of the nodes that it is tied to leaves it one strategy."""

    start: int
    end: int
    usage: Ints  # [strategies]
    ties: tuple[tuple[int, Bools], ...]  # (node, [its strategies, strategies] which go together)


def _extras(problem: Problem, first: Ints) -> Iterator[_Extra]:
    for item, (node, start, end) in enumerate(problem.node_item.tolist()):
        usage = problem.item_usage(item)
        if start < end and item != first[node] and usage.any():
            values = np.unique(usage)
            yield _Extra(start, end, values, ((node, usage[:, None] == values),))
    for edge, start, end, index in problem.edge_item.tolist():
        allowed = _mask(problem.tables[problem.edge_table[edge]])
        usage = np.where(allowed, problem.usage_tables[index], -1)
        if (
            start < end and (usage > 0).any()
        ):  # nor without an allowed pair: then the edge itself rules everything out
            u, v = problem.edge_nodes[edge].tolist()
            by_row, by_column = _rectangles(usage), _rectangles(usage.T)
            ends = (u, v) if len(by_row[0]) <= len(by_column[0]) else (v, u)
            values, *sides = min(by_row, by_column, key=lambda found: len(found[0]))
            yield _Extra(start, end, values, tuple(zip(ends, sides, strict=True)))


def _rectangles(usage: Ints) -> tuple[Ints, Bools, Bools]:
    """([R] bytes, [Ku, R] rows, [Kv, R] columns) of disjoint rectangles that cover the entries >= 0, each of one value.

    Equal rows make one rectangle for every value in them.
    """
    distinct, of_row = np.unique(usage, axis=0, return_inverse=True)
    pairs = [(kind, value) for kind, row in enumerate(distinct) for value in np.unique(row[row >= 0])]
    kinds, values = np.array(pairs, dtype=np.int64).T
    return values, of_row.reshape(-1, 1) == kinds, values == distinct[kinds].T


def _tied_nodes(problem: Problem, first: Ints) -> Iterator[list[int]]:
    for number, extra in enumerate(_extras(problem, first), problem.node_count):
        yield from ([node, number] for node, _ in extra.ties)


def _ties(problem: Problem, first: Ints) -> Iterator[list[int]]:
    for extra in _extras(problem, first):
        for _, together in extra.ties:
            yield np.where(together, 0, _SENTINEL).ravel().tolist()


def _mask(table: Table) -> Bools:
    return np.ones(table.cost.shape, dtype=np.bool_) if table.allowed is None else table.allowed
