"""What a step waits for asynchronous collectives, in the order in which XLA:TPU's latency-hiding scheduler puts a plan's work (`order`).

Of a chain of layers that each gather what the last one made all is waited for; of gathered weights what takes longer than the work in front
of their product; gradients of weights, which only updates wait for, run behind what comes in front of them. A loop is one task of the
computation around it. A product that scatters its sum, or gathers an operand, while it runs takes longer by what it does not cover, and
one pass of those comes apart.

Times are the scheduler's, as `costmodels.scheduled` has them: collectives, and products, which take at least as long as their memory
traffic. Other work counts as nothing: XLA fuses it with what it is made of or read by, mostly on one side of what is sent, and takes
gathers, scatters and sorts for a cycle each.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.assemble import PricedGraph
from autoshard.cost.gathering import passes
from autoshard.cost.graph import Edge, Graph, Node
from autoshard.cost.kernel import local_work
from autoshard.cost.loops import Loop
from autoshard.cost.order import Computation, Task
from autoshard.cost.readback import Chosen, ChosenCollective
from autoshard.program import FlowKind
from autoshard.sharding import total_size
from costmodels import Hardware

_WITH_PRODUCT = frozenset({"all_gather", "reduce_scatter"})  # where permutes send it
_PERMUTES = frozenset({"collective_permute"})
_BROUGHT, _SHARED, _READ, _KERNEL, _MADE, _ORDERS = range(6)
"""Order of what comes at one time of the program: what is sent for a copy, that, what is sent for one read, the kernel, its own."""

_Path = tuple[Loop, ...]
"""The loops around a place, outermost first."""


class Schedule(NamedTuple):
    """Nanoseconds of a step: compute, asynchronous collectives that are made, what of these is waited for, and synchronous ones.

    `waited_percent`: of each edge that sends asynchronously by itself, what of that is waited for, rounded up.
    """

    compute_ns: int
    asynchronous_ns: int
    waited_ns: int
    synchronous_ns: int
    waited_percent: Mapping[int, int]

    @property
    def step_ns(self) -> int:
        return self.compute_ns + self.synchronous_ns + self.waited_ns


def schedule_of(
    priced: PricedGraph, choice: NDArray[np.int64], chosen: Chosen, hardware: Hardware
) -> Schedule:
    """What becomes of the collectives of a choice, at a scheduler's prices; `chosen` is that choice, read back."""
    compute_ns = chosen.compute_ns
    made = [one for one in chosen.collectives if one.collective.emitted]
    asynchronous_ns = synchronous_ns = 0
    for one in made:
        is_asynchronous = _is_asynchronous(one, hardware.asynchronous)
        asynchronous_ns += _whole_ns(one) * one.repeat if is_asynchronous else 0
        synchronous_ns += 0 if is_asynchronous else _whole_ns(one) * one.repeat
    if not asynchronous_ns:
        return Schedule(compute_ns, 0, 0, synchronous_ns, {})
    work_ns = _work_ns(priced, choice, hardware)
    program = _Program(priced.graph, chosen, work_ns, hardware.asynchronous)
    waited_ns, _ = program.run()
    return Schedule(compute_ns, asynchronous_ns, waited_ns, synchronous_ns, program.waited_percent())


def _work_ns(priced: PricedGraph, choice: NDArray[np.int64], hardware: Hardware) -> dict[int, int]:
    """Of each product, by its node."""
    found: dict[int, int] = {}
    known: dict[tuple[int, int], int] = {}
    for number, node in enumerate(priced.graph.nodes):
        if node.space is None or not node.space.shape.is_matmul:
            continue
        strategy = int(choice[number])
        key = id(node.space), strategy
        if key not in known:
            work = local_work(node.space.shape, [node.space.strategies[strategy]], hardware)
            memory_ns = round(float(work.bytes[0]) * 1e9 / hardware.hbm_bytes_per_s)
            product_ns = int(priced.kernel_prices[node.space].compute_ns[strategy])
            known[key] = max(hardware.covered_ns(product_ns), memory_ns)
        found[number] = known[key]
    return found


def _whole_ns(one: ChosenCollective) -> int:
    return one.collective.ns + one.collective.hidden_ns


def _is_asynchronous(one: ChosenCollective, kinds: frozenset[str]) -> bool:
    """By its kinds, but for what is made in front of all else (`cost.relaid`); copies take nothing at these prices."""
    return _kinds(one) <= kinds and not one.collective.waited_ns


def _kinds(one: ChosenCollective) -> frozenset[str]:
    return frozenset(emitted.kind for emitted in one.collective.emitted)


def _change(one: ChosenCollective) -> object:
    """What it does, whoever asks for it."""
    return one.collective.kind, one.collective.axes


def _change_of_value(edge: Edge, moves: Sequence[ChosenCollective]) -> object:
    return edge.provider, tuple(map(_change, moves))


def _is_emitted(moves: Sequence[ChosenCollective]) -> bool:
    """Whether any of it is sent for this read."""
    return any(one.collective.emitted for one in moves)


def _is_with_product(one: ChosenCollective) -> bool:
    """Whether a loop of products sends it by permutes."""
    return one.collective.kind in _WITH_PRODUCT and _kinds(one) == _PERMUTES


@dataclass(slots=True)
class _Body:
    """A computation on the way: by node, the task that reads, and the one behind which its own collectives are over."""

    computation: Computation = field(default_factory=Computation)
    begins: dict[int, int] = field(default_factory=dict[int, int])
    ends: dict[int, int] = field(default_factory=dict[int, int])
    brought: dict[object, int | None] = field(default_factory=dict[object, int | None])
    """By value and change of sharding, what the first reader that asks for it waits for."""
    places: dict[object, int] = field(default_factory=dict[object, int])
    """By the same, the place of the first of all that read it."""
    edges: dict[int, int] = field(default_factory=dict[int, int])
    """By the task that begins an asynchronous collective, the edge that it is for."""
    waited_ns: int = 0  # in loops inside, and of what is sent with products


class _Program:
    """The computations of one choice."""

    def __init__(
        self, graph: Graph, chosen: Chosen, work_ns: Mapping[int, int], asynchronous: frozenset[str]
    ) -> None:
        self._graph, self._work_ns, self._asynchronous = graph, work_ns, asynchronous
        self._sent_ns: dict[int, int] = {}  # by edge, in a step
        self._waits: dict[int, int] = {}
        self._own: dict[int, list[ChosenCollective]] = {}
        moved: dict[int, list[ChosenCollective]] = {}
        for one in chosen.collectives:
            if one.edge >= 0:
                moved.setdefault(one.edge, []).append(one)
            elif one.node >= 0:
                self._own.setdefault(one.node, []).append(one)
        self._times = _times(graph)
        self._paths = _paths(graph, self._times)
        self._nodes: dict[_Path, list[int]] = {}
        for number, path in enumerate(self._paths):
            self._nodes.setdefault(path, []).append(number)
        self._loops: dict[_Path, list[_Path]] = {}
        loops = {path[:length] for path in self._nodes for length in range(1, len(path) + 1)}
        for loop in sorted(loops, key=lambda path: [one.begin for one in path]):
            self._loops.setdefault(loop[:-1], []).append(loop)
        self._reads: dict[_Path, dict[int, list[ChosenCollective]]] = {}
        self._behind: dict[_Path, dict[int, list[ChosenCollective]]] = {}  # of loops
        for number, edge in enumerate(graph.edges):
            self._note(number, edge, moved.get(number, ()))

    def waited_percent(self) -> dict[int, int]:
        """Of edges, of what has run."""
        return {
            edge: -(-100 * self._waits.get(edge, 0) // sent_ns)
            for edge, sent_ns in self._sent_ns.items()
            if sent_ns
        }

    def run(self, path: _Path = ()) -> tuple[int, int]:
        """What one run of the computation inside those loops waits for, in loops inside too, and how long it takes, ns."""
        body = _Body()
        for loop in self._loops.get(path, ()):
            self._add_loop(body, path, loop)
        for node in self._nodes.get(path, ()):
            self._add_node(body, path, node)
        for number, moves in self._behind.get(path, {}).items():
            self._send_behind(body, path, self._graph.edges[number], moves)
        self._read_all(body, path)
        run = body.computation.run()
        for task, ns in run.waits.items():
            if (edge := body.edges.get(task)) is not None:
                self._waits[edge] = self._waits.get(edge, 0) + ns * _runs(path)
        return body.waited_ns + run.waited_ns, run.length_ns

    def _add_loop(self, body: _Body, path: _Path, loop: _Path) -> None:
        """One task, and behind it what is made once of what its trips make."""
        (waited_ns, length_ns), trips = self.run(loop), _runs(loop) // _runs(path)
        body.waited_ns += trips * waited_ns
        number = body.computation.add(Task(_ORDERS * loop[-1].begin + _KERNEL, trips * length_ns))
        for node in self._inside(loop):
            body.begins[node] = number
            body.ends[node] = self._send_own(body, path, node, number)

    def _add_node(self, body: _Body, path: _Path, node: int) -> None:
        number = body.computation.add(Task(self._place(node), self._work_ns.get(node, 0)))
        body.waited_ns += _lengthen(body.computation.tasks[number], self._own.get(node, ()))
        body.begins[node] = number
        body.ends[node] = self._send_own(body, path, node, number)

    def _send_own(self, body: _Body, path: _Path, node: int, task: int) -> int:
        """Of the node's own collectives, those that this computation makes."""
        own = [one for one in self._own.get(node, ()) if path in _places(self._paths[node], one.repeat)]
        sent = self._send(body, path, own, body.computation.tasks[task].place + 1, task)
        return task if sent is None else sent

    def _send_behind(self, body: _Body, path: _Path, edge: Edge, moves: Sequence[ChosenCollective]) -> None:
        """Behind a loop, of what it leaves."""
        before = body.ends.get(edge.provider)
        place = (
            self._place_of_move(edge, path) if before is None else body.computation.tasks[before].place + 1
        )
        sent = self._send(body, path, moves, place, before)
        if sent is not None:
            body.ends[edge.reader] = sent

    def _read_all(self, body: _Body, path: _Path) -> None:
        """What is sent once comes before the first of those that read it, and is there when the others ask for it."""
        reads = [(self._graph.edges[number], moves) for number, moves in self._reads.get(path, {}).items()]
        for edge, moves in reads:
            change, place = _change_of_value(edge, moves), self._place_of_move(edge, path)
            body.places[change] = min(place, body.places.get(change, place))
        for edge, moves in sorted(reads, key=lambda read: not _is_emitted(read[1])):
            self._read(body, path, edge, moves)

    def _read(self, body: _Body, path: _Path, edge: Edge, moves: Sequence[ChosenCollective]) -> None:
        before, reader = body.ends.get(edge.provider), body.begins.get(edge.reader)
        if before == reader:  # both in one loop, which is handed what it never changes as it reads it
            before = None
        if reader is not None and self._paths[edge.reader] == path:
            body.waited_ns += _lengthen(body.computation.tasks[reader], moves)
        change = _change_of_value(edge, moves)
        if moves and not _is_emitted(moves):
            before = body.brought.get(change, before)
        before = self._send(body, path, moves, body.places[change], before)
        body.brought.setdefault(change, before)
        if before is not None and reader is not None:
            body.computation.wait(reader, before)

    def _inside(self, loop: _Path) -> Iterator[int]:
        yield from self._nodes.get(loop, ())
        for inner in self._loops.get(loop, ()):
            yield from self._inside(inner)

    def _note(self, number: int, edge: Edge, moves: Sequence[ChosenCollective]) -> None:
        """In which computations a read orders tasks, and in which it moves what, before a loop or behind it."""
        provider, reader = self._paths[edge.provider], self._paths[edge.reader]
        common = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(provider, reader, strict=False))
        )
        self._reads.setdefault(reader[:common], {}).setdefault(number, [])
        is_handed_back = provider[: len(reader)] == reader and self._graph.nodes[edge.reader].flow >= 0
        in_all_trips = {_change(one) for one in moves if one.is_again}
        for one in moves:
            is_kept_inside = _change(one) in in_all_trips
            runs = edge.trips if is_kept_inside else one.repeat
            for path in () if one.is_again else _places(provider if is_handed_back else reader, runs):
                is_behind = runs > _runs(path) and _runs(path) < _runs(reader)
                into = self._behind if is_behind else self._reads
                into.setdefault(path, {}).setdefault(number, []).append(one)

    def _place(self, node: int) -> int:
        return _ORDERS * self._times[node] + (_SHARED if self._graph.nodes[node].kernel < 0 else _KERNEL)

    def _place_of_move(self, edge: Edge, path: _Path) -> int:
        """Before what reads it, or the loop that does."""
        inside, time = self._paths[edge.reader], self._times[edge.reader]
        if len(inside) > len(path) and inside[: len(path)] == path:
            return _ORDERS * inside[len(path)].begin + _BROUGHT
        if self._graph.nodes[edge.reader].kernel >= 0:
            return _ORDERS * time + _READ
        is_handed_back = self._times[edge.provider] >= time
        return _ORDERS * (edge.begin if is_handed_back else time) + _BROUGHT

    def _send(
        self,
        body: _Body,
        path: _Path,
        moves: Sequence[ChosenCollective],
        place: int,
        before: int | None,
    ) -> int | None:
        """One after the other; what comes last, or what was before where nothing is sent."""
        computation = body.computation
        for one in moves:
            kinds, is_with_product = _kinds(one), _is_with_product(one)
            if not kinds:
                continue
            ns = _pass_ns(one) if is_with_product else _whole_ns(one)
            if _is_asynchronous(one, self._asynchronous):
                kind = min(kinds)
                before = computation.add(Task(place, kind=kind), before)
                if one.edge >= 0 and not is_with_product:
                    body.edges[before] = one.edge
                    self._sent_ns[one.edge] = self._sent_ns.get(one.edge, 0) + ns * _runs(path)
                before = computation.add(Task(place, kind=kind, latency_ns=ns, is_end=True), before)
            else:
                before = computation.add(Task(place, ns), before)
        return before


def _lengthen(product: Task, moves: Sequence[ChosenCollective]) -> int:
    """By what is sent while it runs and takes longer; how much that is."""
    ns = sum(one.collective.ns for one in moves if _is_with_product(one))
    product.ns += ns
    return ns


def _pass_ns(one: ChosenCollective) -> int:
    """Of what is sent with a product, the pass that comes apart: behind the loop of a sum, before that of an operand."""
    devices = total_size(one.collective.axes)
    return _whole_ns(one) // (passes(devices) if one.edge >= 0 else devices + 1)


def _runs(path: _Path) -> int:
    return path[-1].repeat if path else 1


def _places(path: _Path, runs: int) -> list[_Path]:
    """The computations on the way in which something is done so often in all: the innermost that runs so often, else several."""
    found: list[_Path] = []
    for length in range(len(path), -1, -1):
        if 0 < _runs(path[:length]) <= runs:
            found.append(path[:length])
            runs -= _runs(path[:length])
    return found


def _times(graph: Graph) -> list[int]:
    """When nodes come: kernels when they run, what loops and barriers carry when it is there, copies with the first read."""
    begins = {flow.target: flow.begin for flow in graph.program.listing.data_flows}
    ends = {FlowKind.ARGUMENT: -1, FlowKind.RESULT: graph.program.num_times}
    first: dict[int, int] = {}
    for edge in graph.edges:
        reader = graph.nodes[edge.reader]
        time = graph.program.kernels[reader.kernel].time if reader.kernel >= 0 else edge.begin
        first[edge.provider] = min(time, first.get(edge.provider, time))

    def time_of(number: int, node: Node) -> int:
        if node.kernel >= 0:
            return graph.program.kernels[node.kernel].time
        if node.flow >= 0:
            flow = graph.program.flows[node.flow]
            return begins[flow.value] if flow.kind is FlowKind.CARRIED else ends[flow.kind]
        return first.get(number, -1)

    return [time_of(number, node) for number, node in enumerate(graph.nodes)]


def _paths(graph: Graph, times: Sequence[int]) -> list[_Path]:
    """The loops around each node: of a copy those around all of its reads, as often as it is made, or those of the value."""
    loops = graph.loops
    found = [
        tuple(sorted(loops.around_op(time).loops, key=lambda loop: (loop.begin, -loop.end)))
        if time >= 0
        else ()
        for time in times
    ]
    readers: dict[int, list[int]] = {}
    for edge in graph.edges:
        readers.setdefault(edge.provider, []).append(edge.reader)
    for edge in graph.edges:
        if graph.nodes[edge.reader].hub >= 0:
            value = found[edge.provider]
            inside = [found[one] for one in readers.get(edge.reader, ())]
            is_within = bool(value) and any(path[: len(value)] == value for path in inside)
            places = _places(inside[0] if inside else value, edge.repeat)
            found[edge.reader] = value if is_within or not places else places[0]
    return found
