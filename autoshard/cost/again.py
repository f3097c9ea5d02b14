"""Gathers that readers of one value, or of equal ones, ask for each by itself, where no copy is shared.

A plan pays for each of them, and holds nothing from one to the next. XLA makes one gather of them, whose result stays from the first
reader to the last: cheaper, and memory that the plan may not have. Where it does not fit, all but the first are written behind an
`optimization_barrier`, so that they are gathered again (`mlir.emit`; libtpu 0.0.52: Llama 3.2 1B learns preferences on v5e 4x4, 226 gathers
instead of 113, 16.0 GB instead of 17.2, which did not fit).
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np

from autoshard.cost.gathering import Gathered
from autoshard.cost.graph import Edge, Graph
from autoshard.cost.layouts import Ints
from autoshard.cost.lowering import Lowering
from autoshard.cost.memory import copies_count
from autoshard.cost.overlap import value_of
from autoshard.cost.sizes import Sizes
from autoshard.sharding import TensorType, is_gathered


class GathersAgain:
    """Of all choices of a graph.

    Args:
        copied_from: of edges whose copies are there before they are read, from when on.
    """

    def __init__(
        self,
        graph: Graph,
        sizes: Sizes,
        lowering: Lowering,
        gathered: Mapping[int, Gathered],
        copied_from: Mapping[int, int],
    ) -> None:
        self._graph, self._sizes, self._gathered, self._copied_from = graph, sizes, gathered, copied_from
        self._readers: dict[int, list[int]] = {}
        copies: dict[tuple[int, TensorType], list[int]] = {}  # that readers share, by the value that is first
        nodes = graph.nodes
        if lowering == "xla-tpu":
            for number, edge in enumerate(graph.edges):
                is_shared = nodes[edge.reader].hub >= 0 and edge.source >= 0
                if is_shared and not edge.loops and not edge.is_narrow:
                    copies.setdefault((edge.source, edge.travels), []).append(number)
                is_of_op = nodes[edge.reader].kernel >= 0 and nodes[edge.provider].hub >= 0
                if is_of_op and not edge.loops and edge.trips <= edge.repeat and copies_count(graph, edge):
                    self._readers.setdefault(edge.provider, []).append(number)
        self._alike = [numbers for numbers in copies.values() if len(numbers) > 1]
        self._into = {edge.reader: edge for edge in graph.edges if edge.reader in self._readers}

    def numbers(self, choice: Ints) -> dict[int, int]:
        """Edges of gathers that may be made anew, by the number of the gather, from 0; readers with nothing between them share one."""
        found: dict[int, int] = {}
        for group in self._groups(choice):
            number, end, mine = 0, self._graph.edges[group[0]].end, dict[int, int]()
            for one in group:
                number += end < self._begin(one)
                mine[one], end = number, max(end, self._graph.edges[one].end)
            found |= mine if number else {}
        return found

    def _groups(self, choice: Ints) -> Iterator[tuple[int, ...]]:
        """Edges that gather one value, or equal ones, to one sharding, two or more, in the order of the program."""
        found: dict[tuple[int, int, int, int], list[int]] = {}
        for hub, numbers in self._readers.items():
            copy = int(self._graph.nodes[hub].choices.supplies[0][choice[hub]])
            if copy != self._held(self._into[hub], choice):
                continue
            for number in numbers:
                edge = self._graph.edges[number]
                target = self._target(edge, choice)
                if target != copy and not self._is_looped(number, choice):
                    found.setdefault((edge.source, edge.type.rank, copy, target), []).append(number)
        for (_, rank, copy, target), mine in found.items():
            shardings = self._graph.layouts[rank].shardings
            if len(mine) > 1 and is_gathered(shardings[copy], shardings[target]):
                yield tuple(sorted(mine, key=lambda number: self._graph.edges[number].begin))

    def copied_alike(self, choice: Ints) -> Iterator[tuple[int, ...]]:
        """Edges, two or more, that make the same of equal values for the readers of each: one copy, from the first to the last."""
        for numbers in self._alike:
            found: dict[tuple[int, int], list[int]] = {}
            for number in numbers:
                edge = self._graph.edges[number]
                found.setdefault((self._held(edge, choice), self._target(edge, choice)), []).append(number)
            yield from (tuple(mine) for mine in found.values() if len(mine) > 1)

    def held_between(self, choice: Ints) -> Iterator[tuple[int, int, int, int]]:
        """(edge, begin, end, bytes) of what stays from one reader to the next where XLA gathers once for all."""
        for group in self._groups(choice):
            edges = [self._graph.edges[number] for number in group]
            bytes_ = max(self._bytes(edge, choice) for edge in edges)
            end = edges[0].end
            for one, other in pairwise(group):
                if end < self._begin(other):
                    yield one, end, self._begin(other), bytes_
                end = max(end, self._graph.edges[other].end)

    def _begin(self, number: int) -> int:
        return self._copied_from.get(number, self._graph.edges[number].begin)

    def _held(self, edge: Edge, choice: Ints) -> int:
        return int(self._graph.nodes[edge.provider].choices.supplies[edge.result][choice[edge.provider]])

    def _target(self, edge: Edge, choice: Ints) -> int:
        return int(self._graph.nodes[edge.reader].choices.demands[edge.operand][choice[edge.reader]])

    def _bytes(self, edge: Edge, choice: Ints) -> int:
        type_, target = self._sizes.narrowed(edge.type, edge.travels), self._target(edge, choice)
        minor = self._graph.program.weights_of_heads.get(value_of(self._graph, edge))
        return int(self._sizes.resharded(type_, np.asarray([target]), minor)[0])

    def _is_looped(self, number: int, choice: Ints) -> bool:
        """Whether the product that reads gathers while it runs."""
        if number not in self._gathered:
            return False
        edge = self._graph.edges[number]
        return bool(self._gathered[number].is_looped[choice[edge.provider], choice[edge.reader]])
