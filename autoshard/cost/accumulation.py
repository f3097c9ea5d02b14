"""What sums cost that a compiler makes after the loop that adds them up (`program.accumulation`).

A kernel pays for such a sum as often as it is made after the loop where its result settles as it is summed; the edge to the reader
pays for all other trips where the reader asks for another sharding, as each trip's sum is then made in the loop.
"""

from collections.abc import Mapping

from autoshard.cost.graph import Graph, KernelSpace
from autoshard.cost.kernel import KernelPrices
from autoshard.cost.layouts import Ints
from autoshard.cost.lowering import CollectivePrices


def spared_ns(
    graph: Graph, prices: Mapping[KernelSpace, KernelPrices], collectives: CollectivePrices
) -> dict[int, Ints]:
    """By node, [K]: what a step does not pay for, since the sum is not made in each trip."""
    found: dict[int, Ints] = {}
    program = graph.program
    for number, node in enumerate(graph.nodes if collectives.sums_after_loops else ()):
        kernel = program.kernels[node.kernel] if node.kernel >= 0 else None
        if kernel is None or node.space is None or len(kernel.results) != 1:
            continue
        runs = program.sums_after_loops.get(kernel.results[0], kernel.repeat)
        if runs < kernel.repeat and prices[node.space].whole_sum_ns.any():
            found[number] = prices[node.space].whole_sum_ns * (kernel.repeat - runs)
    return found


def not_spared_ns(spared: Ints, supply: Ints, demand: Ints) -> Ints:
    """[from, to] of what is not spared after all, as the reader's sharding is another one."""
    return spared[:, None] * (supply[:, None] != demand[None, :])
