"""What a program holds when it holds the most: the predicted peak, and all that is in it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from autoshard.cost.again import GathersAgain
from autoshard.cost.graph import Graph
from autoshard.cost.layouts import Ints
from autoshard.cost.looped import Looped
from autoshard.cost.memory import NodeItems
from autoshard.cost.sizes import Item, Sizes
from autoshard.problem import Problem, evaluate, item_usages
from autoshard.program import Deferring, Lifetime, Lives, gather_kernels
from autoshard.sharding import TensorType


class Held(NamedTuple):
    """A buffer on one device, of a node of the graph or of the copy that is made on an edge (the other is -1), over program time."""

    node: int
    edge: int
    begin: int
    end: int  # half-open
    bytes: int
    is_handed_over: bool
    note: str
    value: int  # what is in it, -1 where that is not known


@dataclass(frozen=True, slots=True)
class Peak:
    """`held`: what is there then, the largest first. What is in vector memory is not, but counts where the plan does not fit.

    gaps: of the heap, beyond those that are usual.
    rest: what the compiler stores besides while there is room, or of a plan that does not fit, what vector memory would hold.
    """

    bytes: int
    held: tuple[Held, ...]
    gap_bytes: int = 0
    rest_bytes: int = 0


class _NodeItems:
    """What nodes hold while values live in one way, whatever is chosen."""

    def __init__(self, items: Iterable[tuple[int, Item]]) -> None:
        self.items = list(items)
        found = [item for _, item in self.items]
        self._node = np.asarray([number for number, _ in self.items], dtype=np.int64)
        self._bytes = np.concatenate([np.zeros(0, dtype=np.int64), *(item.bytes for item in found)])
        self._start = np.cumsum([0, *(len(item.bytes) for item in found)], dtype=np.int64)[:-1]
        rows = [(item.begin, item.end, 0, item.is_handed_over, item.value) for item in found]
        self._columns = np.asarray(rows, dtype=np.int64).reshape(-1, 5)
        shared: defaultdict[tuple[int, TensorType], list[int]] = defaultdict(list)
        for number, item in enumerate(found):
            if item.shared is not None:
                shared[item.shared.value, item.shared.type].append(number)
        self._shared = [numbers for numbers in shared.values() if len(numbers) > 1]

    def columns(self, chosen: Ints) -> Ints:
        """[item, (begin, end, bytes, whether it is handed over, value or -1)]."""
        found = self._columns.copy()
        found[:, 2] = self._bytes[self._start + chosen[self._node]]
        for numbers in self._shared:
            alike: defaultdict[bytes, list[int]] = defaultdict(list)
            for number in numbers:
                shared = self.items[number][1].shared
                if shared is not None and found[number, 2]:
                    alike[shared.layouts[chosen[self._node[number]]].tobytes()].append(number)
            for rows in alike.values():
                _hold_once(found, rows)
        return found


def _hold_once(columns: Ints, rows: list[int]) -> None:
    """Take from later ones of those rows, in place, the time for which others have the same."""
    until = 0
    for row in sorted(rows, key=lambda row: (columns[row, 0], -columns[row, 1])):
        begin, end = columns[row, :2].tolist()
        columns[row, 0] = max(begin, until)
        columns[row, 2] *= end > until
        until = max(until, end)
        columns[row, 1] = max(end, columns[row, 0])


class PeakModel:
    """Of all choices of a graph; what does not depend on them is worked out once."""

    def __init__(
        self,
        graph: Graph,
        sizes: Sizes,
        problem: Problem,
        node_items: NodeItems,
        looped: Looped,
        again: GathersAgain,
    ) -> None:
        self._graph, self._sizes, self._problem = graph, sizes, problem
        self._node_items, self._looped, self._again = node_items, looped, again
        self._deferring = Deferring(graph.program)
        self._offloading = sizes.offloading()
        self._least = Lives(graph.program.lifetimes, is_least=True)
        self._lives: dict[tuple[int, frozenset[int], frozenset[tuple[int, bool]], frozenset[int]], Lives] = {}
        self._living: dict[int, _NodeItems] = {}  # by the identity of lives, which are kept
        gathers = {kernel.time: kernel.results[0] for kernel in gather_kernels(graph.program)}
        times = [kernel.time for kernel in graph.program.kernels]
        self._waiting = [
            number
            for number, node in enumerate(graph.nodes)
            if node.space is not None and times[node.kernel] in self._deferring.waiting
        ]
        self._gathers = [
            (number, node.space, gathers[times[node.kernel]])
            for number, node in enumerate(graph.nodes)
            if node.space is not None and times[node.kernel] in gathers
        ]

    def expected(self, choice: ArrayLike) -> int:
        """Bytes that the program takes at its peak once compiled: what it stores with memory to spare, unless that is beyond the limit.

        Close to what the hardware has, results lend their memory; beyond the limit, the compiler repeats elementwise work until the
        program fits. What it keeps in vector memory counts in the peak of the problem, which has to be within the limit, and does
        not here.
        """
        chosen = np.asarray(choice, dtype=np.int64)
        if (needed := self._beyond_limit(chosen)) is not None:
            return needed
        return self._within_limit(self._taken(chosen, self._gathered_apart(chosen))[0])

    def stored(self, choice: ArrayLike) -> int:
        """The same whatever the limit: without what the compiler keeps in vector memory, and without the work that it repeats to fit."""
        chosen = np.asarray(choice, dtype=np.int64)
        return self._taken(chosen, self._gathered_apart(chosen))[0]

    def gathers_again(self, choice: ArrayLike) -> dict[int, int]:
        """Edges of which several gather the same, by the number of the gather, where these are to be made anew, as what they make does not
        fit in between; else none.
        """
        chosen = np.asarray(choice, dtype=np.int64)
        if not self._numbers(chosen):
            return {}
        return self._held_between(chosen, self._gathered_apart(chosen))[2]

    def _numbers(self, chosen: Ints) -> dict[int, int]:
        """None of a module that is written already: it has its barriers where it has them."""
        can_repeat = self._problem.memory_limit is not None and self._graph.given is None
        return self._again.numbers(chosen) if can_repeat else {}

    def held(self, choice: ArrayLike) -> Peak:
        """All that is in `expected`."""
        chosen = np.asarray(choice, dtype=np.int64)
        apart = self._gathered_apart(chosen)
        stored, lives, again = self._taken(chosen, apart)
        needed, capped = self._beyond_limit(chosen), self._within_limit(stored)
        expected = capped if needed is None else needed
        lives = lives if capped == stored else self._least
        columns = self._columns(chosen, lives, held_between=not again)
        found = self._sizes.occupancy(columns, self._offloading.in_main_memory(apart))
        items = self._named(chosen, lives, columns, held_between=not again)
        there = (item for item, is_held in zip(items, found.held.tolist(), strict=True) if is_held)
        return Peak(
            expected,
            tuple(sorted((item for item in there if item.bytes), key=lambda item: -item.bytes)),
            found.gap_bytes,
            expected - found.peak_bytes,
        )

    def _beyond_limit(self, chosen: Ints) -> int | None:
        """What the program needs, vector memory included, where that is more than there is."""
        needed, limit = evaluate(self._problem, chosen).peak, self._problem.memory_limit
        return needed if limit is not None and needed > limit else None

    def _within_limit(self, stored: int) -> int:
        limit = self._problem.memory_limit
        return stored if limit is None else min(stored, limit)

    def _taken(self, chosen: Ints, apart: frozenset[int]) -> tuple[int, Lives, dict[int, int]]:
        """The most of what is stored, the lives of values then, and what is gathered again."""
        most, lives, again = self._held_between(chosen, apart)
        if again:
            most, lives = max(self._stored(chosen, apart, held_between=False), key=lambda one: one[0])
        return most, lives, again

    def _held_between(self, chosen: Ints, apart: frozenset[int]) -> tuple[int, Lives, dict[int, int]]:
        """The same where what several readers gather stays between them, and what is to be gathered again as that does not fit."""
        most, lives = max(self._stored(chosen, apart, held_between=True), key=lambda one: one[0])
        return most, lives, self._numbers(chosen) if self._within_limit(most) < most else {}

    def _stored(
        self, chosen: Ints, apart: frozenset[int], *, held_between: bool
    ) -> Iterator[tuple[int, Lives]]:
        """Bytes at the peak of what is stored where memory is short and where there is some to spare, with the lives of values then.

        Args:
            apart: what SparseCores gather.
            held_between: whether what several readers gather stays from one to the next.
        """
        program, scattered, summed = self._graph.program, self._scattered(chosen), self._summed(chosen)
        in_main_memory = self._offloading.in_main_memory(apart)

        def lives(of_values: Mapping[int, Lifetime]) -> Lives:
            key = id(of_values), apart, frozenset(scattered.items()), summed
            if key not in self._lives:
                of_apart = self._offloading.lives(of_values, apart)
                self._lives[key] = self._deferring.lives(of_apart, scattered, summed)
            return self._lives[key]

        def peak(lives: Lives) -> int:
            items = self._columns(chosen, lives, held_between=held_between)
            return self._sizes.occupancy(items, in_main_memory).peak_bytes

        ample = lives(program.ample_lifetimes)
        yield peak(self._least), self._least
        spared = peak(ample)
        if self._sizes.are_short(spared):
            lent = lives(program.lent_lifetimes)
            yield peak(lent), lent
        else:
            yield spared, ample

    def _scattered(self, chosen: Ints) -> dict[int, bool]:
        """Values whose sum a loop scatters, and whether the parts are updated as they are made."""
        found: dict[int, bool] = {}
        for node, choice in zip(self._graph.nodes, chosen.tolist(), strict=True):
            if node.space is not None and node.space in self._looped and self._looped[node.space][choice]:
                layouts = node.choices.supplies[0][[choice]]
                type_ = node.space.shape.results[0]
                value = self._graph.program.kernels[node.kernel].results[0]
                is_turned = self._deferring.is_turned(value)
                (is_as_made,) = self._sizes.are_updated_as_made(type_, layouts, is_turned=is_turned).tolist()
                found[value] = is_as_made
        return found

    def _summed(self, chosen: Ints) -> frozenset[int]:
        """Of products that wait for what they are added to, the values that are summed where they are made."""
        found = set[int]()
        for number in self._waiting:
            node = self._graph.nodes[number]
            assert node.space is not None
            strategy = node.space.strategies[int(chosen[number])]
            if not set(strategy.reduced) <= set(strategy.produced[0].unreduced):
                found.add(self._graph.program.kernels[node.kernel].results[0])
        return frozenset(found)

    def _gathered_apart(self, chosen: Ints) -> frozenset[int]:
        """What SparseCores gather."""
        found = set[int]()
        for number, space, result in self._gathers:
            choice = [int(chosen[number])]
            table = space.shape.operands[0], self._graph.nodes[number].choices.demands[0][choice]
            made = space.shape.results[0], np.asarray(space.produced[0])[choice]
            if self._sizes.are_gathered_apart(table, made, self._copied(number, *table)).all():
                found.add(result)
        return frozenset(found)

    def _copied(self, node: int, table: TensorType, layouts: Ints) -> Ints:
        """Bytes of the copy of a table in rows that a gather reads; 0 where it reads the table."""
        kernel = self._graph.program.kernels[self._graph.nodes[node].kernel]
        one = self._graph.program.gathered.get(kernel.time)
        if one is None or not one.is_copied:
            return np.zeros(len(layouts), dtype=np.int64)
        made = self._sizes.held(kernel.results[0], kernel.shape.results[0])
        return self._sizes.copied_table(table, np.asarray(layouts), made, one.table)

    def _of_nodes(self, lives: Lives) -> _NodeItems:
        if id(lives) not in self._living:
            self._living[id(lives)] = _NodeItems(self._node_items.while_living(lives))
        return self._living[id(lives)]

    def _columns(self, chosen: Ints, lives: Lives, *, held_between: bool) -> Ints:
        """[item, (begin, end, bytes, whether it is handed over, value or -1)] of nodes, of edges, and of what is held between readers."""
        edges = self._problem.edge_item
        copied = np.zeros((len(edges), 5), dtype=np.int64)
        copied[:, :2], copied[:, 2], copied[:, 4] = edges[:, 1:3], item_usages(self._problem, chosen)[1], -1
        for alike in self._again.copied_alike(chosen):
            mine = np.asarray(
                [row for number in alike for row in self._copy_of(number, copied)], dtype=np.int64
            )
            if not len(mine):
                continue
            begin, end, bytes_ = copied[mine, 0].min(), copied[mine, 1].max(), copied[mine, 2].max()
            copied[mine, 2] = 0
            copied[mine[0], :3] = begin, end, bytes_
        between = self._again.held_between(chosen) if held_between else ()
        rows = [(begin, end, bytes_, 0, -1) for _, begin, end, bytes_ in between]
        held = np.asarray(rows, dtype=np.int64).reshape(-1, 5)
        return np.concatenate([self._of_nodes(lives).columns(chosen), copied, held])

    def _copy_of(self, edge: int, copied: Ints) -> Ints:
        """The item of an edge's copy, the largest and of these the one that is there for longest, where it has one."""
        rows = np.flatnonzero(self._problem.edge_item[:, 0] == edge)
        rows = rows[copied[rows, 2] > 0]
        order = np.lexsort((copied[rows, 1] - copied[rows, 0], copied[rows, 2]))
        return rows[order[-1:]]

    def _named(self, chosen: Ints, lives: Lives, columns: Ints, *, held_between: bool) -> list[Held]:
        """The items of these columns."""
        between = self._again.held_between(chosen) if held_between else ()
        names = [(number, -1, item.note) for number, item in self._of_nodes(lives).items]
        names += [(-1, edge, "") for edge in self._problem.edge_item[:, 0].tolist()]
        names += [(-1, edge, "gathered once for several readers") for edge, *_ in between]
        return [
            Held(node, edge, begin, end, bytes_, bool(is_fixed), note, value)
            for (node, edge, note), (begin, end, bytes_, is_fixed, value) in zip(
                names, columns.tolist(), strict=True
            )
        ]
