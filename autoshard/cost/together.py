"""What is emitted for sums once the rest of the program is known; their prices are those of each kernel by itself.

XLA makes equal ops of equal operands one: of two kernels that sum the same in the same way only the first sends anything. And it scatters a
sum that is made everywhere where all that reads it is one slice of it, as it does one that settles so. Seen in what libtpu 0.0.51 compiles
for v5e 4x4: means that a variance works out again, gradients of products of which one reader takes a part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoshard.cost.assemble import PricedGraph
from autoshard.cost.lowering import Emitted
from autoshard.cost.merged import Move
from autoshard.problem.model import Ints
from autoshard.program import minor_of_scattered
from autoshard.sharding import is_scatter


def sums_emitted(
    priced: PricedGraph, choice: Ints, moves: Sequence[Move], after_loops: frozenset[int]
) -> Mapping[int, tuple[Emitted, ...]]:
    """By node: what is emitted for the sum of its one result where that is not what it is by itself.

    Args:
        moves: of every edge.
        after_loops: nodes whose sums are made after loops.
    """
    if not priced.reshards.merges_equal:
        return {}
    graph, found = priced.graph, dict[int, tuple[Emitted, ...]]()
    read: dict[int, list[Move]] = {}
    copied = {move.edge.reader: move for move in moves if graph.nodes[move.edge.reader].hub >= 0}
    for move in moves:
        copy = copied.get(move.edge.provider)
        if move.is_made:
            read.setdefault(move.edge.provider, []).append(move)
        elif copy is not None and move.target == copy.origin:  # reads what there was before the copy
            read.setdefault(copy.edge.provider, []).append(replace(move, origin=copy.origin))
    makers = {
        value: number
        for number, node in enumerate(graph.nodes)
        if node.kernel >= 0
        for value in graph.program.kernels[node.kernel].results  # scalars too
    }
    for number, node in enumerate(graph.nodes):
        kernel = graph.program.kernels[node.kernel] if node.kernel >= 0 else None
        if node.space is None or kernel is None or len(kernel.results) != 1 or number in after_loops:
            continue
        mine = node.space.strategies[int(choice[number])]
        if not mine.reduced:
            continue
        first = makers.get(graph.program.listing.first_of(kernel.results[0]), number)
        other = graph.nodes[first].space
        if first != number and other is not None and other.strategies[int(choice[first])] == mine:
            found[number] = ()
            continue
        targets = {move.target if move.target != move.origin else -1 for move in read.get(number, ())}
        is_summed_whole = not graph.sliced.isdisjoint(kernel.results)
        if mine.settled != mine.produced or len(targets) != 1 or -1 in targets or is_summed_whole:
            continue
        type_ = kernel.shape.results[0]
        part = graph.layouts[type_.rank].shardings[targets.pop()]
        if not part.is_foreign and not type_.is_complex and is_scatter(mine.produced[0], part, mine.reduced):
            minor = minor_of_scattered(kernel.shape)
            sent = kernel.shape.sent(0)
            found[number] = priced.reshards.scattered(mine.reduced, mine.produced[0], part, sent, minor)
    return found
