"""The strategies that a kernel chooses from: all there are, those that meet demands, or the one that given shardings say."""

from collections.abc import Sequence
from dataclasses import replace

from autoshard.cost.graph import Choices, Graph, KernelSpace, Wanted
from autoshard.cost.layouts import LayoutsByRank
from autoshard.cost.sums_left import with_sums_left
from autoshard.program import (
    MOVES,
    Kernel,
    KernelShape,
    Use,
)
from autoshard.sharding import CONVOLUTION, PRODUCT, TensorSharding, TensorType, is_cut_over_all
from autoshard.space import (
    Cut,
    Meeting,
    PartialSums,
    Strategy,
    distinct,
    partitioned,
    reads_addends,
    strategies,
    strategy_of,
    wanted_strategies,
    with_addends,
    with_partial_sums,
)

Demands = tuple[tuple[TensorSharding | None, ...], ...]
"""Demands on the results of a kernel, any of which may be met or not."""


Ends = tuple[tuple[TensorSharding, ...], tuple[TensorSharding, ...]]
"""Shardings of the operands of a kernel, and of its results."""


def kernel_space(index: int, kernel: Kernel, graph: Graph) -> KernelSpace:
    """The strategies of a kernel; those of one shape that are asked for the same share a space."""
    ends = _given_ends(kernel, graph)
    wanted = _wanted_of(kernel, graph.wanted) if graph.wanted is not None else None
    sums = graph.partial.of_kernel(kernel, graph.mesh)
    moved = tuple(map(graph.moved_once.get, kernel.results))
    meeting, met = _meeting(kernel, graph)
    left = _left(kernel, graph)
    is_sliced = not graph.sliced.isdisjoint(kernel.results)
    key = (id(kernel.shape), graph.cuts.kernels[index], ends, moved, wanted, sums, met, is_sliced, left)
    space = graph.spaces.get(key)
    if space is None:
        exact = _exact(kernel.shape, ends, graph) if ends is not None else None
        if exact is not None:
            found = [_scattered(graph, kernel, exact)]
        else:
            found = _open_strategies(kernel.shape, graph, graph.cuts.kernels[index], wanted, sums)
            if ends is not None and kernel.shape.name == CONVOLUTION:
                found = [replace(one, is_open=True) for one in found]
            if is_sliced:
                found = [one for one in found if not one.is_scattered] or found
        if meeting:
            found = with_addends(kernel.shape, found, meeting, graph.mesh)
            found = found if exact is None else _as_compiled(kernel.shape, graph, found, meeting)
        if left is not None:
            found = with_sums_left(kernel.shape, found, left)
        space = graph.spaces[key] = _space_of(kernel.shape, found, graph.layouts)
    return space


def _exact(shape: KernelShape, ends: Ends, graph: Graph) -> Strategy | None:
    """What reads and makes exactly that; else what XLA's partitioner makes of it."""
    found = strategy_of(shape, *ends, graph.mesh)
    return partitioned(shape, *ends, graph.mesh) if found is None and graph.adds_first else found


def _as_compiled(shape: KernelShape, graph: Graph, found: list[Strategy], meeting: Meeting) -> list[Strategy]:
    """Of an exact strategy, that which reads as addends what its providers leave so, and slices after it has summed."""
    left = {operand: made[0] for operand, made in meeting.arriving.items() if len(made) == 1}
    settled = found[0].settled
    reading = [one for one in found if reads_addends(one)]
    if (
        not reading
        and shape.additions
        and shape.additions[0].is_result
        and any(s.unreduced for s in left.values())
    ):
        open_ = with_addends(shape, strategies(shape, graph.mesh), meeting, graph.mesh)
        reading = [one for one in open_ if reads_addends(one) and one.settled == settled]
    fitting = [
        one
        for one in reading
        if all(not sharding.unreduced or sharding == left.get(i) for i, sharding in enumerate(one.operands))
    ]
    return (
        [max(fitting, key=lambda one: sum(bool(s.unreduced) for s in one.operands))] if fitting else found[:1]
    )


def _meeting(kernel: Kernel, graph: Graph) -> tuple[Meeting, tuple[object, ...]]:
    """What the kernel has to do with addends, and a key for it."""
    program = graph.program
    if not graph.adds_first or not (kernel.shape.additions or program.addends.intersection(kernel.results)):
        return Meeting(), ()
    spaces = {
        operand: graph.nodes[graph.provider[use.value][0]].space
        for operand, use in enumerate(kernel.uses)
        if use.value in program.addends
    }
    leaves = kernel.results[0] in program.addends and kernel.results[0] not in (graph.wanted or {})
    arriving = {
        operand: [strategy.settled[0] for strategy in space.strategies]
        for operand, space in spaces.items()
        if space is not None
    }
    return Meeting(leaves, arriving), (leaves, *((operand, id(space)) for operand, space in spaces.items()))


def _left(kernel: Kernel, graph: Graph) -> tuple[TensorSharding, ...] | None:
    """The sums that a constraint may hand on; None of kernels that may leave none."""
    if not kernel.results or kernel.results[0] not in graph.sums_left:
        return None
    uses = kernel.uses if kernel.shape.name in MOVES else ()
    providers = [graph.nodes[graph.provider[use.value][0]] for use in uses if use.value in graph.sums_left]
    found = (one.settled[0] for node in providers if node.space is not None for one in node.space.strategies)
    return tuple(dict.fromkeys(sharding for sharding in found if sharding.unreduced))


def _given_ends(kernel: Kernel, graph: Graph) -> Ends | None:
    """What the kernel reads and makes by the given shardings; None where none are given."""
    given = graph.given
    if given is None:
        return None

    def made(value: int, type_: TensorType) -> TensorSharding:
        found = given.values.get(value)
        return TensorSharding.replicated_closed(type_.rank) if found is None else found.as_closed()

    def read(use: Use, type_: TensorType) -> TensorSharding:
        found = next((given.reads[site] for site in use.sites if site in given.reads), None)
        return _settled(graph, use.value, made(use.value, type_)) if found is None else found.as_closed()

    operands = zip(kernel.uses, kernel.shape.operands, strict=True)
    results = zip(kernel.results, kernel.shape.results, strict=True)
    return (
        tuple(read(use, type_) for use, type_ in operands),
        tuple(made(value, type_) for value, type_ in results),
    )


def _open_strategies(
    shape: KernelShape, graph: Graph, cuts: Sequence[Cut], wanted: Demands | None, sums: PartialSums
) -> list[Strategy]:
    if wanted is not None:
        found = wanted_strategies(shape, graph.mesh, wanted, cuts, graph.any_order)
    else:
        found = strategies(shape, graph.mesh, cuts, graph.any_order)
    return _with_partial_sums(shape, found, sums, wanted) if sums else found


def _settled(graph: Graph, value: int, given: TensorSharding) -> TensorSharding:
    """How readers find a value of a given sharding: scattered already, where its node settles so."""
    end = graph.provider.get(value) if value in graph.moved_once else None
    space = graph.nodes[end[0]].space if end is not None else None
    if end is None or space is None or len(space.strategies) != 1:
        return given
    return space.strategies[0].settled[end[1]]


def _scattered(graph: Graph, kernel: Kernel, exact: Strategy) -> Strategy:
    """The strategy with its sum scattered, where the one reader of the result slices it over exactly the summed axes."""
    value = next(iter(kernel.results), -1)
    target = graph.moved_once.get(value) if exact.reduced and len(exact.settled) == 1 else None
    scattered = replace(exact, settled=(target,)) if target is not None else exact
    return scattered if scattered.is_scattered and not _is_constrained(graph, kernel, scattered) else exact


def _is_constrained(graph: Graph, kernel: Kernel, scattered: Strategy) -> bool:
    """Whether XLA sums it whole first: for an addition that slices what it has summed, for slices, or as a sum that it could scatter while
    its product runs is whole as it is made.
    """
    type_, whole, part = kernel.shape.results[0], scattered.produced[0], scattered.settled[0]
    in_product = kernel.shape.name == PRODUCT and is_cut_over_all(whole, part, type_.shape, graph.mesh)
    value = kernel.results[0]
    return graph.adds_first and (in_product or value in graph.program.addends or value in graph.sliced)


def _with_partial_sums(
    shape: KernelShape,
    found: list[Strategy],
    sums: PartialSums,
    wanted: Demands | None,
) -> list[Strategy]:
    """Those whose result settles as demanded; where demands may be met or not, those for each of them and for none."""
    if wanted is None:
        return with_partial_sums(shape, found, sums)
    alike = [replace(shape, demands=demands) for demands in ((None,) * len(shape.results), *wanted)]
    each = [s for one in alike for s in with_partial_sums(one, found, sums)]
    return distinct(each)


def _wanted_of(kernel: Kernel, wanted: Wanted) -> Demands:
    """The first demand on each result, the second on each, and so on, the last of a result with fewer again."""
    each = [tuple(wanted.get(value, ())) for value in kernel.results]
    count = max(map(len, each), default=0)
    padded = ((*mine, *(mine[-1:] or (None,)) * (count - len(mine))) for mine in each)
    return tuple(zip(*padded, strict=True))


def _space_of(shape: KernelShape, found: Sequence[Strategy], layouts: LayoutsByRank) -> KernelSpace:
    """Number the shardings of given strategies."""
    demands = tuple(
        layouts[t.rank].ids_of(s.operands[i] for s in found) for i, t in enumerate(shape.operands)
    )
    supplies, produced = (
        tuple(
            layouts[t.rank].ids_of(getattr(s, which)[i] for s in found) for i, t in enumerate(shape.results)
        )
        for which in ("settled", "produced")
    )
    return KernelSpace(shape, tuple(found), Choices(demands, supplies), produced)
