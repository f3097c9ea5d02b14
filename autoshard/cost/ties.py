"""Sharding groups in the graph of choices: which strategies of members leave their values with one sharding.

A chain of ties holds the members of each group together: node masks rule out strategies whose sharding some other member cannot
take, and a table for each tie allows only equal shardings. Nothing here costs anything.
"""

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np

from autoshard.cost.graph import Graph
from autoshard.cost.layouts import Ints
from autoshard.errors import ClashError
from autoshard.mlir.listing import ShardingGroup
from autoshard.problem.model import Bools, Table

End = tuple[int, int]
"""Node and result that provide a value."""


@dataclass(frozen=True, slots=True)
class Tie:
    """Result `first[1]` of node `first[0]` and result `second[1]` of node `second[0]` have the same layout; the first is earlier."""

    first: End
    second: End


@dataclass(frozen=True, slots=True, eq=False)
class Ties:
    pairs: tuple[Tie, ...]
    allowed: dict[int, Bools]
    """Node -> [K] strategies that every group can follow; other nodes may choose any."""

    def before(self, node: int) -> list[tuple[int, End]]:
        """The results of a node that are tied to an earlier node, and to what."""
        return [(tie.second[1], tie.first) for tie in self.pairs if tie.second[0] == node]


def find_ties(graph: Graph) -> Ties:
    """The ties of all groups; none where the shardings are given, which are priced as they are.

    Raises:
        ClashError: there is no sharding that all members of a group can take.
    """
    if graph.given is not None:
        return Ties((), {})
    groups = graph.program.listing.groups
    ends = [sorted(graph.provider[member.value] for member in group.members) for group in groups]
    allowed = _consistent(graph, groups, ends)
    pairs = tuple(
        Tie(first, second) for mine in ends for first, second in pairwise(mine) if first[0] != second[0]
    )
    return Ties(pairs, allowed)


def tie_table(graph: Graph, tie: Tie) -> Table:
    """Costs nothing where both nodes leave the value with one layout, and allows nothing else."""
    first, second = supply_of(graph, tie.first), supply_of(graph, tie.second)
    return Table(np.zeros((len(first), len(second)), dtype=np.int64), first[:, None] == second[None, :])


def supply_of(graph: Graph, end: End) -> Ints:
    """[K] layout numbers that a node leaves a value with."""
    return graph.nodes[end[0]].choices.supplies[end[1]]


def _consistent(graph: Graph, groups: tuple[ShardingGroup, ...], ends: list[list[End]]) -> dict[int, Bools]:
    """Strategies of each node whose layouts every member of its groups has too, to a fixed point."""
    allowed = {node: np.ones(graph.nodes[node].choices.count, np.bool_) for mine in ends for node, _ in mine}
    changes = True
    while changes:
        changes = False
        for group, mine in zip(groups, ends, strict=True):
            common = reduce(np.intersect1d, (supply_of(graph, end)[allowed[end[0]]] for end in mine))
            for end in mine:
                kept = allowed[end[0]] & np.isin(supply_of(graph, end), common) & _agrees(graph, end, mine)
                changes |= bool((kept != allowed[end[0]]).any())
                allowed[end[0]] = kept
                if not kept.any():
                    raise _nothing_in_common(group)
    return allowed


def _agrees(graph: Graph, end: End, group: list[End]) -> Bools:
    """[K] whether the node leaves all its results in the group with the same layout."""
    mine = supply_of(graph, end)
    others = [supply_of(graph, other) for other in group if other[0] == end[0]]
    return np.logical_and.reduce([mine == other for other in others])


def _nothing_in_common(group: ShardingGroup) -> ClashError:
    members = "".join(f"\n  {member}" for member in group.members)
    return ClashError(
        f"a sharding group ties values that no one sharding suits:{members}",
        fix="take a value out of the group whose op leaves it no choice, or put its sdy.sharding_constraint there instead",
    )
