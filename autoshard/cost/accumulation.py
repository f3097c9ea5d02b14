"""What sums cost that a compiler makes after the loop that adds them up (`program.accumulation`).

A kernel pays for such a sum as often as it is made after the loop where its result settles as it is summed; the edge to the reader
pays for all other trips where the reader asks for another sharding, as each trip's sum is then made in the loop. Kernels that keep its
elements on the way to the addition hand on the sharding that they were given: what asks for another one, the first of them does.
"""

from collections.abc import Mapping

from autoshard.cost.graph import Edge, Graph, KernelSpace
from autoshard.cost.kernel import KernelPrices
from autoshard.cost.layouts import Ints
from autoshard.cost.lowering import CollectivePrices
from autoshard.problem.model import Bools


def spared_ns(
    graph: Graph, prices: Mapping[KernelSpace, KernelPrices], collectives: CollectivePrices
) -> dict[int, Ints]:
    """By node, [K]: what a step does not pay for, since the sum is not made in each trip."""
    found: dict[int, Ints] = {}
    program = graph.program
    changed = _changed_on_the_way(graph) if collectives.sums_after_loops else frozenset[int]()
    for number, node in enumerate(graph.nodes if collectives.sums_after_loops else ()):
        kernel = program.kernels[node.kernel] if node.kernel >= 0 else None
        if kernel is None or node.space is None or len(kernel.results) != 1:
            continue
        runs = program.sums_after_loops.get(kernel.results[0], kernel.repeat)
        is_spared = runs < kernel.repeat and kernel.results[0] not in changed
        if is_spared and prices[node.space].whole_sum_ns.any():
            found[number] = prices[node.space].whole_sum_ns * (kernel.repeat - runs)
    return found


def not_spared_ns(spared: Ints, supply: Ints, demand: Ints) -> Ints:
    """[from, to] of what is not spared after all, as the reader's sharding is another one."""
    return spared[:, None] * (supply[:, None] != demand[None, :])


def kept_on_the_way(graph: Graph, edge: Edge, supply: Ints, demand: Ints) -> Bools | None:
    """[from, to] whether the reader takes as it is what came to its provider as such a sum; None: any pair may do."""
    is_open = graph.given is None and graph.wanted is None and not graph.program.listing.groups
    if not is_open or not _hands_on(graph, edge) or _is_bound(graph, graph.nodes[edge.reader].kernel):
        return None
    return supply[:, None] == demand[None, :]


def _is_bound(graph: Graph, kernel: int) -> bool:
    """Whether the user asks something of what a kernel reads or makes, so that its reads may have to differ from what there is."""
    if kernel < 0:
        return True
    mine = graph.program.kernels[kernel]
    asked = {flow.value for flow in graph.program.flows if flow.demands}
    return any(demand is not None for demand in mine.shape.demands) or any(
        u.value in asked for u in mine.uses
    )


def _hands_on(graph: Graph, edge: Edge) -> bool:
    """Whether the provider keeps the elements of a sum that a loop adds up, for a reader that does or adds it up."""
    node, after = graph.nodes[edge.provider], graph.program.sums_after_loops
    kernel = graph.program.kernels[node.kernel] if node.kernel >= 0 else None
    return (
        kernel is not None
        and after.keys() >= set(kernel.results)
        and len(kernel.uses) == 1
        and kernel.uses[0].value in after
    )


def _changed_on_the_way(graph: Graph) -> frozenset[int]:
    """Of given shardings: sums that are brought to another one after the first kernel that keeps their elements."""
    if graph.given is None:
        return frozenset()
    found: set[int] = set()
    for edge in reversed(graph.edges):  # readers come after what they read
        supply = graph.nodes[edge.provider].choices.supplies[edge.result]
        demand = graph.nodes[edge.reader].choices.demands[edge.operand]
        kernel = graph.program.kernels[graph.nodes[edge.provider].kernel]
        if _hands_on(graph, edge) and (kernel.results[0] in found or (supply != demand[:1]).any()):
            found.add(kernel.uses[0].value)
    return frozenset(found)
