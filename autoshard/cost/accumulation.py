"""What sums cost that a compiler makes after the loop that adds them up (`program.accumulation`).

A kernel pays for such a sum as often as it is made after the loop where its result settles as it is summed; the edge to the reader
pays for all other trips where the reader asks for another sharding, as each trip's sum is then made in the loop. Kernels that keep its
elements on the way to the addition hand on the sharding that they were given: what asks for another one, the first of them does.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from autoshard.cost.graph import Edge, Graph, KernelSpace
from autoshard.cost.kernel import KernelPrices
from autoshard.cost.layouts import Ints
from autoshard.cost.lowering import CollectivePrices
from autoshard.cost.reshard import Collective
from autoshard.problem.model import Bools


@dataclass(frozen=True, slots=True, eq=False)
class SumAfter:
    """What a node's sum is that is made after the loop."""

    spared_ns: Ints  # [K] that a step does not pay, since it is not made in each trip
    collectives: tuple[tuple[Collective, ...], ...]  # [K] made after the loop
    runs: int  # of those


def sums_after(
    graph: Graph, prices: Mapping[KernelSpace, KernelPrices], collectives: CollectivePrices
) -> dict[int, SumAfter]:
    """By node."""
    found: dict[int, SumAfter] = {}
    program = graph.program
    changed = _changed_on_the_way(graph) if collectives.sums_after_loops else frozenset[int]()
    for number, node in enumerate(graph.nodes if collectives.sums_after_loops else ()):
        kernel = program.kernels[node.kernel] if node.kernel >= 0 else None
        if kernel is None or node.space is None or len(kernel.results) != 1:
            continue
        if kernel.shape.collective is not None and not kernel.shape.collective.is_sum:
            continue
        total = program.sums_after_loops.get(kernel.results[0])
        whole_ns = prices[node.space].whole_sum_ns
        if total is None or total.runs >= kernel.repeat or kernel.results[0] in changed or not whole_ns.any():
            continue
        share = Fraction(total.bytes, kernel.shape.results[0].num_bytes)
        after = tuple(
            tuple(_of_totals(one, share, collectives) for one in mine if ns and one.kind == "all_reduce")
            for mine, ns in zip(prices[node.space].collectives, whole_ns, strict=True)
        )
        after_ns = np.asarray([sum(one.ns for one in mine) for mine in after], dtype=np.int64)
        found[number] = SumAfter(whole_ns * kernel.repeat - after_ns * total.runs, after, total.runs)
    return found


def _of_totals(sum_: Collective, share: Fraction, prices: CollectivePrices) -> Collective:
    """The same sum, of what there is so many times the bytes of."""
    bytes_ = math.ceil(sum_.bytes * share)
    emitted = prices.emitted("all_reduce", bytes_, sum_.axes)
    return replace(sum_, bytes=bytes_, ns=prices.ns_of_one("all_reduce", bytes_, sum_.axes), emitted=emitted)


def not_spared_ns(graph: Graph, edge: Edge, sum_: SumAfter, supply: Ints, demand: Ints) -> Ints:
    """[from, to] of what is not spared after all, as the reader asks for another sharding or cuts what is split."""
    return sum_.spared_ns[:, None] * ~is_kept(graph, edge, supply, demand)


def kept_on_the_way(graph: Graph, edge: Edge, supply: Ints, demand: Ints) -> Bools | None:
    """[from, to] whether the reader takes as it is what came to its provider as such a sum; None: any pair may do."""
    if graph.given is not None or not _hands_on(graph, edge):
        return None
    return is_kept(graph, edge, supply, demand)


def is_kept(graph: Graph, edge: Edge, supply: Ints, demand: Ints) -> Bools:
    """[from, to] whether such a sum is read as it was made; a slice cuts only what each device has all of."""
    same = supply[:, None] == demand[None, :]
    cut = _cut_dims(graph, graph.nodes[edge.reader].kernel)
    if not cut:
        return same
    is_whole = (graph.layouts[edge.type.rank].divisors()[demand][:, cut] == 1).all(axis=1)
    return same & is_whole[None, :]


def _cut_dims(graph: Graph, kernel: int) -> list[int]:
    """The dimensions that a kernel which reads a sum on the way to its addition takes a part of."""
    mine = graph.program.kernels[kernel] if kernel >= 0 else None
    if mine is None or mine.uses[0].value not in graph.program.sums_after_loops:
        return []
    return sorted({window.dim for window in mine.shape.windows})


def _hands_on(graph: Graph, edge: Edge) -> bool:
    """Whether the provider keeps the elements of a sum that a loop adds up, for a reader that does or adds it up; as a hub does."""
    node, after = graph.nodes[edge.provider], graph.program.sums_after_loops
    if node.hub >= 0:
        return node.hub in after
    kernel = graph.program.kernels[node.kernel] if node.kernel >= 0 else None
    return (
        kernel is not None
        and after.keys() >= set(kernel.results)
        and len(kernel.uses) == 1
        and kernel.uses[0].value in after
    )


def _changed_on_the_way(graph: Graph) -> frozenset[int]:
    """Of given shardings: sums that are brought to another one, or cut where they are split, after the first kernel or hub."""
    if graph.given is None:
        return frozenset()
    found: set[int] = set()
    for edge in reversed(graph.edges):  # readers come after what they read
        if not _hands_on(graph, edge):
            continue
        node = graph.nodes[edge.provider]
        supply = node.choices.supplies[edge.result]
        demand = graph.nodes[edge.reader].choices.demands[edge.operand]
        made = node.hub if node.hub >= 0 else graph.program.kernels[node.kernel].results[0]
        if made in found or not is_kept(graph, edge, supply, demand[:1]).all():
            found.add(made if node.hub >= 0 else graph.program.kernels[node.kernel].uses[0].value)
    return frozenset(found)
