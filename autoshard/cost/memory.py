"""What a graph's choices hold in memory, as items of a `ProblemBuilder`: bytes by choice, over an interval of program time.

node    every value under its settled sharding over its lifetime, and of one that lies in the memory of a result what it takes beyond a
        part of that for each device, which the result has at least; a partial sum that will be scattered, and a result of the program that
        the matrix unit writes in another layout, while its kernel runs; what a product that scatters its sum is handed
        (`looped`); a renamed value, what its own layout pads beyond the original's; a
        result that is a constant, an argument or returned twice, which is handed over beside the value that it returns
edge    a copy that a reshard makes, as long as it is read; where XLA for TPUs gathers behind compute also the shard of an argument that
        is gathered, copied when the program begins and kept until the gather does

Sizes are those of the hardware's layouts in memory (`Hardware.stored_bytes`).
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import ArrayLike

from autoshard.cost.graph import Edge, Graph, Node
from autoshard.cost.layouts import Ints
from autoshard.cost.looped import LoopedSums
from autoshard.cost.lowering import Lowering
from autoshard.cost.sizes import Sizes
from autoshard.problem import Problem, ProblemBuilder, evaluate, item_usages, peak_of
from autoshard.program import Flow, FlowKind, Lifetime
from autoshard.sharding import TensorType

Item = tuple[int, int, Ints]  # begin, end, bytes of every choice of the node


def add_memory(graph: Graph, sizes: Sizes, builder: ProblemBuilder, lowering: Lowering) -> None:
    """The items of all nodes, for a compiler that repeats elementwise work where that saves memory."""
    for number, begin, end, bytes_ in node_items(graph, sizes, graph.program.lifetimes, lowering):
        builder.add_node_usage(number, begin, end, bytes_)


def node_items(
    graph: Graph, sizes: Sizes, lives: Mapping[int, Lifetime], lowering: Lowering
) -> Iterator[tuple[int, int, int, Ints]]:
    """(node, begin, end, bytes of each of its choices)."""
    looped = LoopedSums(graph, sizes, lives) if lowering == "xla-tpu" else None
    for number, node in enumerate(graph.nodes):
        for item in _items(graph, node, sizes, lives):
            yield number, *item
        for item in looped.items(node) if looped is not None else ():
            yield number, *item


def expected_peak(graph: Graph, sizes: Sizes, problem: Problem, choice: ArrayLike, lowering: Lowering) -> int:
    """Bytes that the program takes at its peak once compiled: what it stores with memory to spare, unless that is beyond the limit.

    Beyond it, the compiler repeats elementwise work until the program fits, and needs at least the peak of the problem.
    """
    chosen = np.asarray(choice, dtype=np.int64)
    items = [
        (begin, end, int(bytes_[chosen[number]]))
        for number, begin, end, bytes_ in node_items(graph, sizes, graph.program.ample_lifetimes, lowering)
    ]
    begin, end, usage = np.asarray(items, dtype=np.int64).reshape(-1, 3).T
    copies = item_usages(problem, chosen)[1]
    ample = peak_of(
        np.concatenate([begin, problem.edge_item[:, 1]]),
        np.concatenate([end, problem.edge_item[:, 2]]),
        np.concatenate([usage, copies]),
    )
    least, limit = evaluate(problem, chosen).peak, problem.memory_limit
    return max(least, ample if limit is None else min(ample, limit))


def copy_bytes(sizes: Sizes, type_: TensorType, supply: Ints, demand: Ints) -> Ints:
    """[from, to] bytes of the copy that a reshard makes; none where the sharding stays."""
    return np.where(supply[:, None] == demand[None, :], 0, sizes.temporary(type_, demand)[None, :])


def shard_bytes(sizes: Sizes, type_: TensorType, supply: Ints, demand: Ints) -> Ints:
    """[from, to] bytes of the shards that a gather begins with; none where the shards do not grow.

    XLA:TPU gathers in steps that run inside the fusions beside them and hand on the shard with what has come, as if they wrote to it. An
    argument must not be written to, so its shard is copied, in front of all else (seen in what libtpu 0.0.51 compiles for v5e of
    GPT-OSS 20B, 44 shards of 2.3 GB in all, and of Qwen2.5 7B).
    """
    held, wanted = sizes.temporary(type_, supply), sizes.temporary(type_, demand)
    return np.where(held[:, None] < wanted[None, :], held[:, None], 0)


def copies_count(graph: Graph, edge: Edge) -> bool:
    """Whether a reshard makes a buffer that is not the reader's own (what is carried has its own lifetime, and so has a copied result)."""
    number = graph.nodes[edge.reader].flow
    flow = graph.program.flows[number] if number >= 0 else None
    if flow is None or flow.kind is not FlowKind.RESULT:
        return flow is None or flow.is_handed_on
    return not _is_copied_result(graph, flow)


def _is_copied_result(graph: Graph, flow: Flow) -> bool:
    return flow.kind is FlowKind.RESULT and flow.sources[0].site[1] in graph.program.copied_results


def _items(graph: Graph, node: Node, sizes: Sizes, lives: Mapping[int, Lifetime]) -> Iterator[Item]:
    if node.flow >= 0:
        flow = graph.program.flows[node.flow]
        if _is_copied_result(graph, flow):
            yield 0, graph.program.num_times, sizes.permanent(flow.type, node.choices.demands[0])
        lifetime = lives.get(flow.value)
        if flow.kind is not FlowKind.RESULT and lifetime is not None and lifetime.is_own_buffer:
            size = sizes.permanent if _is_permanent(graph, flow) else sizes.temporary
            yield lifetime.begin, lifetime.end, size(flow.type, node.choices.supplies[0])
    elif node.space is not None:
        yield from _kernel_items(graph, node, sizes, lives)


def _is_permanent(graph: Graph, flow: Flow) -> bool:
    return flow.kind is FlowKind.ARGUMENT or flow.value in graph.program.returned


def _kernel_items(graph: Graph, node: Node, sizes: Sizes, lives: Mapping[int, Lifetime]) -> Iterator[Item]:
    assert node.space is not None
    program, kernel = graph.program, graph.program.kernels[node.kernel]
    for value, type_, produced, settled in zip(
        kernel.results, kernel.shape.results, node.space.produced, node.choices.supplies, strict=False
    ):
        minor = program.minor_dims.get(value)
        if (produced != settled).any():
            unsettled = sizes.temporary(type_, produced, minor)
            yield kernel.time, kernel.time + 1, np.where(produced != settled, unsettled, 0)
        lifetime = lives.get(value)
        if lifetime is None:
            continue
        smallest, written = sizes.temporary(type_, settled), sizes.temporary(type_, settled, minor)
        if lifetime.is_own_buffer:
            is_result = value in program.returned
            yield lifetime.begin, lifetime.end, sizes.permanent(type_, settled) if is_result else written
            if is_result and (written != smallest).any():
                yield kernel.time, kernel.time + 1, np.where(written != smallest, written, 0)
        elif lifetime.within is not None:
            yield lifetime.begin, lifetime.end, np.maximum(written - _least_bytes(graph, lifetime.within), 0)
        elif kernel.is_alias and (written != smallest).any():
            yield lifetime.begin, lifetime.end, written - smallest


def _least_bytes(graph: Graph, value: int) -> int:
    """On one device under any sharding."""
    type_ = graph.program.listing.values[value].type
    return 0 if type_ is None else type_.num_bytes // graph.mesh.num_devices
