"""Where the time of a plan goes: every collective with the read or the op that needs it, every kind of kernel with its roofline.

The entries add up to the plan's communication and compute.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import (
    Chosen,
    ChosenCollective,
    PricedGraph,
    chosen_ends,
    is_part_of_readers,
    local_work,
    read_back,
)
from autoshard.program import FlowKind
from autoshard.sharding import TensorSharding, TensorType
from autoshard.space import Strategy
from costmodels import Hardware


@dataclass(frozen=True, slots=True)
class ExplainedCollective:
    """One collective; `bytes` as in `plans.PlannedCollective`, `ns` of one run."""

    kind: str
    axes: tuple[str, ...]
    bytes: int
    ns: int
    repeat: int
    op: str
    location: str
    why: str


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Kernels of one shape under one strategy; `flops`, `bytes` and `ns` are of one run on one device."""

    op: str
    work: str  # b x m x k x n of a product, the local result of other kernels
    count: int  # runs in a step
    flops: int
    bytes: int
    bound: str  # "matrix", "vector", "memory", "overhead" or "nothing"
    ns: int

    @property
    def total_ns(self) -> int:
        return self.ns * self.count

    @property
    def intensity(self) -> float:
        """FLOP a byte of memory traffic."""
        return self.flops / self.bytes if self.bytes else float("inf")


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Costliest first."""

    collectives: tuple[ExplainedCollective, ...]
    kernels: tuple[KernelGroup, ...]

    @property
    def communication_ns(self) -> int:
        return sum(c.ns * c.repeat for c in self.collectives)

    @property
    def compute_ns(self) -> int:
        return sum(group.total_ns for group in self.kernels)


def break_down(priced: PricedGraph, choice: NDArray[np.int64], hardware: Hardware) -> Breakdown:
    """What a choice of one strategy a node pays for."""
    chosen = read_back(priced, choice)
    return Breakdown(_collectives(priced, choice, chosen), _kernels(priced, choice, hardware))


def _collectives(
    priced: PricedGraph, choice: NDArray[np.int64], chosen: Chosen
) -> tuple[ExplainedCollective, ...]:
    ops = priced.graph.program.listing.ops
    found = [
        ExplainedCollective(
            c.collective.kind,
            tuple(str(axis).replace('"', "") for axis in c.collective.axes),
            c.collective.bytes,
            c.collective.ns,
            c.repeat,
            _short(ops[c.op].name) if c.op >= 0 else "",
            ops[c.op].location if c.op >= 0 else "",
            _why(priced, choice, c),
        )
        for c in chosen.collectives
    ]
    return tuple(sorted(found, key=lambda c: -c.ns * c.repeat))


def _why(priced: PricedGraph, choice: NDArray[np.int64], c: ChosenCollective) -> str:
    if c.edge >= 0:
        return _why_on_edge(priced, choice, c.edge)
    space = priced.graph.nodes[c.node].space
    assert space is not None, "only kernels have collectives of their own"
    name, strategy = _short(space.shape.name), space.strategies[int(choice[c.node])]
    user = space.shape.collective
    if user is not None and c.collective.kind == user.kind and c.collective.axes in user.groups:
        return f"the user wrote {name}"
    axes = ",".join(str(axis).replace('"', "") for axis in c.collective.axes)
    if c.collective.axes == strategy.reduced and c.collective.kind in ("all_reduce", "reduce_scatter"):
        kept = ", each device keeps its part" if c.collective.kind == "reduce_scatter" else ""
        return f"what {name} sums over is split over {axes}: partial sums are added{kept}"
    if strategy.added and c.collective.kind == "all_reduce":
        return f"what is added is partial over {axes}: added up before it is summed, once"
    if c.collective.kind == "halo_exchange":
        return f"{name} needs rows of other devices: the dimension that it shifts or slides over is split over {axes}"
    made, kept = _differing(strategy.produced, strategy.settled)
    return f"{name} makes {made}, kept as {kept}"


def _differing(before: Sequence[TensorSharding], after: Sequence[TensorSharding]) -> tuple[str, str]:
    pairs = [(str(a), str(b)) for a, b in zip(before, after, strict=True) if a != b]
    return " and ".join(a for a, _ in pairs), " and ".join(b for _, b in pairs)


def _why_on_edge(priced: PricedGraph, choice: NDArray[np.int64], index: int) -> str:
    graph = priced.graph
    edge = graph.edges[index]
    layouts = graph.layouts[edge.type.rank].shardings
    origin, target = (str(layouts[layout]) for layout in chosen_ends(priced, edge, choice))
    reader = graph.nodes[edge.reader]
    if reader.hub >= 0:
        return f"{_maker(priced, edge.provider)} is {origin}, brought to {target} once for its readers"
    if reader.flow >= 0:
        flow = graph.program.flows[reader.flow]
        verb = {FlowKind.RESULT: "returned", FlowKind.ARGUMENT: "fed back", FlowKind.CARRIED: "carried"}[
            flow.kind
        ]
        return f"{_maker(priced, edge.provider)} is {origin}, {verb} as {target}"
    operands = sorted({operand for op, operand in edge.sites if op >= 0})
    which = f" as operand {operands[0]}" if len(operands) == 1 else ""
    return f"{_maker(priced, edge.provider)} is {origin}, read{which} as {target}"


def _maker(priced: PricedGraph, number: int) -> str:
    """The op, argument or copy that a value comes from."""
    graph = priced.graph
    node = graph.nodes[number]
    if node.hub >= 0:
        return f"the shared copy of {_value_name(priced, node.hub)}"
    if node.flow >= 0:
        flow = graph.program.flows[node.flow]
        return flow.name or _value_name(priced, flow.value)
    return f"the result of {_short(graph.program.kernels[node.kernel].shape.name)}"


def _value_name(priced: PricedGraph, value: int) -> str:
    listing = priced.graph.program.listing
    if listing.values[value].name:
        return listing.values[value].name
    provider = priced.graph.provider.get(value)
    is_kernel = provider is not None and priced.graph.nodes[provider[0]].kernel >= 0
    return _maker(priced, provider[0]) if provider is not None and is_kernel else f"value {value}"


def _kernels(priced: PricedGraph, choice: NDArray[np.int64], hardware: Hardware) -> tuple[KernelGroup, ...]:
    runs: dict[tuple[int, int], int] = {}
    spaces = {id(node.space): node.space for node in priced.graph.nodes if node.space is not None}
    for number, node in enumerate(priced.graph.nodes):
        if node.space is not None:
            key = (id(node.space), int(choice[number]))
            runs[key] = runs.get(key, 0) + priced.graph.program.kernels[node.kernel].repeat
    found: list[KernelGroup] = []
    for (space_id, strategy), count in runs.items():
        space = spaces[space_id]
        work = local_work(space.shape, [space.strategies[strategy]], hardware)
        line = work.roofline(hardware)
        if is_part_of_readers(space.shape):
            line = replace(line, overhead_ns=0.0)
        found.append(
            KernelGroup(
                _short(space.shape.name),
                _work_text(space.strategies[strategy], space.shape.results, work.matmul),
                count,
                round(float(work.flops[0])),
                round(float(work.bytes[0])),
                str(line.bound[0]),
                int(priced.kernel_prices[space].compute_ns[strategy]),
            )
        )
    return tuple(sorted((group for group in found if group.ns), key=lambda group: -group.total_ns))


def _work_text(
    strategy: Strategy, results: Sequence[TensorType], matmul: tuple[NDArray[np.float64], ...] | None
) -> str:
    if matmul is not None:
        m, k, n, batch = (int(size[0]) for size in matmul)
        return f"{f'{batch} x ' if batch > 1 else ''}[{m}, {k}] by [{k}, {n}]"
    local = [
        TensorType(sharding.local_shape(type_.shape), type_.dtype)
        for sharding, type_ in zip(strategy.produced, results, strict=True)
    ]
    return ", ".join(str(type_).removeprefix("tensor<").removesuffix(">") for type_ in local)


def _short(name: str) -> str:
    return name.removeprefix("stablehlo.")
