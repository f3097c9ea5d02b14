"""The reductions, in order, to a fixpoint: a queue of nodes whose surroundings changed, no rescans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush

from autoshard.solve.clock import Clock, check
from autoshard.solve.graph import Graph
from autoshard.solve.presolve.binding import tighten_memory
from autoshard.solve.presolve.consistency import drop_unsupported, fix_single
from autoshard.solve.presolve.dominance import drop_dominated
from autoshard.solve.presolve.elimination import eliminate
from autoshard.solve.presolve.functional import contract_functional
from autoshard.solve.presolve.separable import move_minima

Reduction = Callable[[Graph, int], list[int]]
REDUCTIONS: tuple[Reduction, ...] = (
    drop_unsupported,
    fix_single,
    move_minima,
    contract_functional,
    drop_dominated,
    eliminate,
)


def presolve(
    graph: Graph,
    clock: Clock | None = None,
    reductions: Sequence[Reduction] = REDUCTIONS,
    *,
    tighten: bool = True,
) -> None:
    """Reduce the graph in place as far as the reductions go.

    Raises:
        ContradictionError: no choice is valid.
        OutOfTimeError: the clock is over; what was done until then is done.
    """
    queue = _Queue(graph)
    queue.add(graph.nodes)
    while queue:
        _drain(graph, queue, clock, reductions)
        if tighten:
            queue.add(tighten_memory(graph, clock))


class _Queue:
    """Nodes to look at, each once, those with few neighbours first: a hub waits until all is quiet around it."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._heap: list[tuple[int, int, int]] = []
        self._waiting: set[int] = set()
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            if node not in self._waiting and len(self._graph.cost[node]):
                self._waiting.add(node)
                self._count += 1
                heappush(self._heap, (len(self._graph.adjacent[node]).bit_length(), self._count, node))

    def take(self) -> int:
        node = heappop(self._heap)[2]
        self._waiting.discard(node)
        return node


def _drain(graph: Graph, queue: _Queue, clock: Clock | None, reductions: Sequence[Reduction]) -> None:
    while queue:
        node = queue.take()
        for reduction in reductions:
            if not len(graph.cost[node]):
                break
            check(clock)
            queue.add(reduction(graph, node))
