"""What a hub's choice that says how its value settles changes of the edges to and from it (`cost.sharing`).

The edge to the hub allows only what the hub says, and of its two, of the wide copy and of the narrow one, the one that is made counts. An
edge from the hub costs nothing where the value is read as it settles; and a narrow copy is not for readers that take more.
"""

from dataclasses import dataclass, replace

import numpy as np

from autoshard.cost.graph import Edge, Graph
from autoshard.cost.layouts import Ints
from autoshard.problem import Table
from autoshard.problem.model import Bools


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """[from, to] of an edge."""

    is_moved: Bools  # what it brings there counts
    is_possible: Bools


class ToldPairs:
    """Of the edges of a graph, equal ones once, and so their tables."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._pairs: dict[tuple[int, bytes, bool, bool], Pairs] = {}
        self._tables: dict[tuple[int, int], Table] = {}
        self._copies: dict[tuple[int, int, int], tuple[Ints, Ints]] = {}
        self._keepalive: list[object] = []

    def of_edge(self, edge: Edge, supply: Ints, demand: Ints) -> Pairs | None:
        """None where a hub says nothing, or the edge has no hub."""
        nodes = self._graph.nodes
        to_hub = nodes[edge.reader].sharing
        sharing = to_hub or nodes[edge.provider].sharing
        if sharing is None or sharing.is_plain:
            return None
        other = supply if to_hub is not None else demand
        key = (id(sharing), other.tobytes(), to_hub is not None, edge.is_narrow)
        if key not in self._pairs:
            if to_hub is not None:
                counts = sharing.is_narrow == edge.is_narrow
                moved = np.broadcast_to(counts[None, :], (len(supply), len(demand)))
                found = Pairs(moved, sharing.possible(supply))
            else:
                takes = sharing.takes_copy(demand)
                found = Pairs(takes, ~takes | ~sharing.is_narrow[:, None] | edge.is_narrow)
            self._pairs[key] = found
        return self._pairs[key]

    def table(self, table: Table, pairs: Pairs) -> Table:
        key = (id(table), id(pairs))
        if key not in self._tables:
            possible = pairs.is_possible
            allowed = possible if table.allowed is None else (table.allowed | ~pairs.is_moved) & possible
            self._tables[key] = replace(table, cost=np.where(pairs.is_moved, table.cost, 0), allowed=allowed)
            self._keepalive.append(table)  # an id stays unique only while its object lives
        return self._tables[key]

    def copies(self, whole: Ints, shard: Ints, pairs: Pairs) -> tuple[Ints, Ints]:
        """Bytes of the copy, and of the shards that its gather begins with."""
        key = (id(whole), id(shard), id(pairs))
        if key not in self._copies:
            self._copies[key] = np.where(pairs.is_moved, whole, 0), np.where(pairs.is_moved, shard, 0)
            self._keepalive += [whole, shard]
        return self._copies[key]
