"""What a graph's choices hold in memory, as items of a `ProblemBuilder`: bytes by choice, over an interval of program time.

node    every value under its settled sharding over its lifetime, and of one that lies in the memory of a result what it takes beyond a
        part of that for each device, which the result has at least; a partial sum that will be scattered by itself, and a result of the
        program that the matrix unit writes in another layout, while its kernel runs; what a product makes beside the sum of it over
        devices, and what one takes that scatters its sum in a loop (`looped`); what training steps store of few images (`strips`), and
        Fourier transforms of products (`Program.transforms`); a renamed value, what its own layout pads beyond the original's; a result
        that is a constant, an argument or returned twice, which is handed over beside the value that it returns
edge    a copy that a reshard makes, as long as it is read (`peak` counts one that equal values share once); what an update reads, copied
        into the layout of its gradient; casts of a stack that loops step through; the pieces of what is made in pieces, where slices of it
        are read; what is worked out whole, where parts of it are taken; where XLA for TPUs gathers behind
        compute also the shard that is gathered of an argument, or of what is made of one alone, there when the program begins and kept
        until the gather does

Sizes are those of the hardware's layouts in memory (`Hardware.stored_bytes`).
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.graph import Edge, Graph, Node, edge_ends
from autoshard.cost.layouts import Ints
from autoshard.cost.looped import Looped, LoopedSums
from autoshard.cost.lowering import CollectivePrices
from autoshard.cost.relaid import passes
from autoshard.cost.sizes import Item, Sizes
from autoshard.cost.strips import strip_items
from autoshard.problem import ProblemBuilder
from autoshard.problem.model import Bools
from autoshard.program import Flow, FlowKind, Lifetime, Lives, MinorDims, Program, lies_as_read
from autoshard.sharding import TensorSharding, TensorType


class NodeItems:
    """The items of all nodes of a graph, by how long values live.

    Args:
        looped: strategies that scatter their sum in a loop with the product.
    """

    def __init__(self, graph: Graph, sizes: Sizes, prices: CollectivePrices, looped: Looped) -> None:
        self._graph, self._sizes, self._prices, self._looped = graph, sizes, prices, looped
        self._sums = LoopedSums(graph, sizes, looped) if prices.lowering == "xla-tpu" else None

    def while_living(self, lives: Lives) -> Iterator[tuple[int, Item]]:
        """(number of the node, item), by node."""
        graph, sizes = self._graph, self._sizes
        for number, node in enumerate(graph.nodes):
            items = [_items(graph, node, sizes, lives.of_values, self._looped)]
            if self._prices.gathers_ahead:
                items.append(_gathered_as_made(graph, node, sizes, self._prices.apart_below))
            if self._sums is not None:
                items += [self._sums.items(node, lives), strip_items(graph, node, sizes, lives.of_values)]
            if number == 0:
                items.append(_generated(graph, node, sizes))
            for item in chain(*items):
                yield number, item

    def add_to(self, builder: ProblemBuilder) -> None:
        """Those of a compiler that is short of memory, which repeats elementwise work where that saves some."""
        for number, item in self.while_living(Lives(self._graph.program.lifetimes, is_least=True)):
            builder.add_node_usage(number, item.begin, item.end, item.bytes)


def _generated(graph: Graph, node: Node, sizes: Sizes) -> Iterator[Item]:
    """The same whatever is chosen for the node."""
    for whole in graph.program.generated:
        replicated = TensorSharding.replicated_closed(whole.type.rank)
        ids = np.full(node.choices.count, graph.layouts[whole.type.rank].id_of(replicated), dtype=np.int64)
        bytes_ = sizes.temporary(whole.type, ids)
        yield Item(whole.begin, whole.end, bytes_, note="made of constants alone")


def copy_bytes(sizes: Sizes, type_: TensorType, supply: Ints, demand: Ints, minor: MinorDims | None) -> Ints:
    """[from, to] bytes of the copy that a reshard makes; none where the sharding stays."""
    return np.where(supply[:, None] == demand[None, :], 0, sizes.resharded(type_, demand, minor)[None, :])


def shard_bytes(sizes: Sizes, type_: TensorType, supply: Ints, demand: Ints) -> Ints:
    """[from, to] bytes of the shards that a gather begins with; none where the shards do not grow.

    XLA:TPU gathers in steps that run inside the fusions beside them and hand on the shard with what has come, as if they wrote to it. An
    argument must not be written to, so its shard is copied, in front of all else (seen in what libtpu 0.0.51 compiles for v5e of
    GPT-OSS 20B, 44 shards of 2.3 GB in all, and of Qwen2.5 7B); the shard of its cast is made there (`Program.made_at_start`).
    """
    held, wanted = sizes.temporary(type_, supply), sizes.temporary(type_, demand)
    return np.where(held[:, None] < wanted[None, :], held[:, None], 0)


def scattered_from(graph: Graph, edge: Edge, sizes: Sizes, value: int, moved: Ints) -> Ints | None:
    """[from, to] bytes of the copy in rows of what a scatter adds; None of other reads.

    What is moved for it (where `moved` has bytes) is there in the smallest layout, else as it is made.
    """
    node, program = graph.nodes[edge.reader], graph.program
    if node.space is None:
        return None
    kernel = program.kernels[node.kernel]
    updates = program.scattered_updates.get(kernel.time)
    if updates is None or edge.operand != updates.operand:
        return None
    table, layouts = kernel.results[0], node.choices.demands[edge.operand]
    added, type_ = sizes.held(value, edge.type), sizes.held(table, kernel.shape.results[0])
    smallest, written = (sizes.temporary(added, layouts, minor) for minor in (None, updates.written))
    stored = np.where(moved > 0, smallest[None, :], written[None, :])
    made = np.asarray(node.space.produced[0])
    rows = program.scattered_rows[table].dims
    return sizes.updates(
        (added, layouts, updates.dims),
        (type_, made, rows),
        stored,
        is_last=updates.is_last,
        is_alone=(moved == 0) & updates.is_alone,
        has_gaps=updates.has_gaps,
    )


def hoisted_bytes(graph: Graph, edge: Edge, sizes: Sizes, value: int) -> Iterator[tuple[int, int, Ints]]:
    """(begin, end, [from, to] bytes) of the casts of a stack of which loops take slices, where it stays as it is for them.

    Where it is gathered, the copy is of the casts. All of its readers have them: it counts once, where the stack is left.
    """
    provider, reader = graph.nodes[edge.provider], graph.nodes[edge.reader]
    if value not in graph.program.hoisted_casts or provider.hub >= 0 or (reader.hub >= 0 and edge.is_narrow):
        return
    supply, demand = edge_ends(graph, edge)
    stays = supply[:, None] == demand[None, :]
    for whole in graph.program.hoisted_casts[value]:
        yield whole.begin, whole.end, np.where(stays, sizes.temporary(whole.type, demand)[None, :], 0)


def selected_bytes(graph: Graph, edge: Edge, sizes: Sizes, value: int) -> Iterator[tuple[int, int, Ints]]:
    """(begin, end, [from, to] bytes) of a selection that a reader takes in another sharding.

    XLA selects by a comparison what a scatter writes into zeros, element by element where it is read. What is cut for readers it scatters
    first, whole as it is (a loss that gives logits of 151936 words back to 32768 rows on v5e 4x4: 19.9 GB on every device).
    """
    if value in graph.program.selected:
        supply, demand = edge_ends(graph, edge)
        stays = supply[:, None] == demand[None, :]
        yield edge.begin, edge.begin + 1, np.where(stays, 0, sizes.temporary(edge.type, supply)[:, None])


def sliced_bytes(
    graph: Graph, edge: Edge, sizes: Sizes, value: int, last_read: int
) -> Iterator[tuple[int, int, Ints]]:
    """(begin, end, [from, to] bytes) of what is worked out whole, of which a reader takes a part (`Program.sliced`).

    Args:
        last_read: when another one of several readers had it, the latest before this one; right before this one where there is none.
    """
    sliced = graph.program.sliced.get(value)
    is_shared = graph.nodes[edge.provider].hub >= 0
    if sliced is None or not (is_shared or sliced.is_long):
        return
    supply, demand = edge_ends(graph, edge)
    are_slices = graph.layouts[edge.type.rank].are_slices(supply, demand)
    if are_slices.any():
        begin, type_ = (last_read + 1, edge.type) if is_shared else (edge.begin, sliced.type)
        yield begin, edge.begin + 1, np.where(are_slices, sizes.temporary(type_, supply)[:, None], 0)


def laid_out_bytes(graph: Graph, edge: Edge, sizes: Sizes) -> Iterator[tuple[int, int, Ints]]:
    """(begin, end, [from, to] bytes) of arguments that an update reads, or what is made of them, copied into the layout of a gradient."""
    node = graph.nodes[edge.reader]
    if node.space is None:
        return
    place = graph.program.kernels[node.kernel].time, edge.operand
    for copy in graph.program.laid_out.get(place, ()):
        supply, demand = edge_ends(graph, edge)
        yield (
            0,
            copy.end,
            np.broadcast_to(sizes.temporary(copy.type, demand, copy.dims), (len(supply), len(demand))),
        )


def copies_count(graph: Graph, edge: Edge) -> bool:
    """Whether a reshard makes a buffer that is not the reader's own (what is carried has its own lifetime, and so has a copied result)."""
    number = graph.nodes[edge.reader].flow
    flow = graph.program.flows[number] if number >= 0 else None
    if flow is None or flow.kind is not FlowKind.RESULT:
        return flow is None or flow.is_handed_on
    return not _is_copied_result(graph, flow)


def _is_copied_result(graph: Graph, flow: Flow) -> bool:
    return flow.kind is FlowKind.RESULT and flow.sources[0].site[1] in graph.program.copied_results


def _items(
    graph: Graph, node: Node, sizes: Sizes, lives: Mapping[int, Lifetime], looped: Looped
) -> Iterator[Item]:
    if node.flow >= 0:
        flow = graph.program.flows[node.flow]
        if _is_copied_result(graph, flow):
            yield Item(
                0,
                graph.program.num_times,
                sizes.permanent(flow.type, node.choices.demands[0]),
                is_handed_over=True,
                note="copied to be returned",
            )
        lifetime = lives.get(flow.value)
        if flow.kind is not FlowKind.RESULT and lifetime is not None and lifetime.is_own_buffer:
            is_permanent, supply = _is_permanent(graph, flow), node.choices.supplies[0]
            dims, held = graph.program.indexed.get(flow.value), sizes.held(flow.value, flow.type)
            bytes_ = (
                sizes.permanent(flow.type, supply) if is_permanent else sizes.temporary(held, supply, dims)
            )
            yield Item(lifetime.begin, lifetime.end, bytes_, is_permanent, value=flow.value)
        if flow.kind is FlowKind.ARGUMENT and flow.value in graph.program.row_copies:
            copy, supply = graph.program.row_copies[flow.value], node.choices.supplies[0]
            shapes = graph.layouts[flow.type.rank].local_shapes(flow.type, supply)
            (rows, whole) = (side[..., list(copy.dims[1])] for side in (shapes, np.asarray(flow.type.shape)))
            is_split = copy.is_of_whole & (rows < whole).any(axis=1)
            slices = np.full(len(supply), copy.slices, dtype=np.int64)
            in_rows = np.where(is_split, 0, sizes.copied(flow.type, supply, copy.dims, slices=slices))
            yield Item(copy.begin, copy.end, in_rows, note="copied into rows of whole slices")
    elif node.space is not None:
        yield from _kernel_items(graph, node, sizes, lives, looped)


def _is_permanent(graph: Graph, flow: Flow) -> bool:
    return flow.kind is FlowKind.ARGUMENT or flow.value in graph.program.returned


class _Made(NamedTuple):
    """A value that a kernel makes, in layouts of every choice."""

    value: int
    type: TensorType
    produced: Ints
    settled: Ints
    is_moved: Bools  # from the one to the other, once it is whole
    is_made: Bools  # False where a later scatter makes it with its own


def _made_by(graph: Graph, node: Node, looped: Looped) -> Iterator[_Made]:
    assert node.space is not None
    kernel = graph.program.kernels[node.kernel]
    for value, type_, produced, settled in zip(
        kernel.results, kernel.shape.results, node.space.produced, node.choices.supplies, strict=False
    ):
        layouts = graph.layouts[type_.rank]
        is_moved = layouts.reduced(produced) != layouts.reduced(settled)
        if node.space in looped:
            is_moved &= ~looped[node.space]
        yield _Made(value, type_, produced, settled, is_moved, _is_made(graph, value, type_, settled))


def _kernel_items(
    graph: Graph, node: Node, sizes: Sizes, lives: Mapping[int, Lifetime], looped: Looped
) -> Iterator[Item]:
    program, kernel = graph.program, graph.program.kernels[node.kernel]
    if kernel.time in program.gathered:
        yield from _gathered(graph, node, sizes)
    if (copy := program.image_copies.get(kernel.time)) is not None:
        copied = sizes.temporary(copy.type, node.choices.demands[0], copy.dims)
        yield Item(kernel.time, copy.end, copied, note="images as a convolution reads them")
    for made in _made_by(graph, node, looped):
        if made.is_moved.any():
            unsettled = sizes.temporary(made.type, made.produced, program.minor_dims.get(made.value))
            moved = np.where(made.is_moved, unsettled, 0)
            yield Item(kernel.time, kernel.time + 1, moved, note="before it is moved")
        lifetime = lives.get(made.value)
        if lifetime is not None:
            yield from _beside_value(program, node, made, sizes, lifetime)
            yield from _value_items(graph, node, made, sizes, lives, lifetime)


def _beside_value(
    program: Program, node: Node, made: _Made, sizes: Sizes, lifetime: Lifetime
) -> Iterator[Item]:
    """What is there for a value, whether it has a buffer of its own or not."""
    kernel = program.kernels[node.kernel]
    if made.value in program.scattered_rows:
        one = program.scattered_rows[made.value]
        slices = np.full(len(made.settled), one.slices, dtype=np.int64)
        if one.operand >= 0:
            added, layouts = kernel.shape.operands[one.operand], node.choices.demands[one.operand]
            slices = sizes.counted(added, layouts, one.along)
        in_rows = sizes.copied(made.type, made.settled, one.dims, slices=slices)
        note = "scattered in rows of whole slices"
        yield Item(kernel.time, one.end, np.where(made.is_made, in_rows, 0), note=note)
    if (transform := program.transforms.get(made.value)) is not None:
        whole = sizes.temporary(transform.whole, made.produced)
        note = "products of a Fourier transform"
        yield Item(kernel.time, kernel.time + 1, whole * transform.halves // 2, note=note)
        yield Item(lifetime.begin, lifetime.end, whole * transform.kept // 2, note=note)
    for whole in program.wholes.get(made.value, ()):
        if not (whole.is_value and lifetime.is_own_buffer):
            bytes_ = sizes.whole(whole, made.settled)
            yield Item(whole.begin, whole.end, bytes_, note="stored for its readers")


def _value_items(
    graph: Graph,
    node: Node,
    made: _Made,
    sizes: Sizes,
    lives: Mapping[int, Lifetime],
    lifetime: Lifetime,
) -> Iterator[Item]:
    """The value itself, as far as it has memory, and what it is before it is as it is stored."""
    program, kernel = graph.program, graph.program.kernels[node.kernel]
    value, minor, now = made.value, program.minor_dims.get(made.value), (kernel.time, kernel.time + 1)
    held = sizes.held(value, made.type)
    smallest, written = sizes.temporary(held, made.settled), sizes.temporary(held, made.settled, minor)
    stored = sizes.where_replaced(value, made.type, made.settled, written)
    is_stored = lifetime.is_own_buffer or lifetime.within is not None
    if is_stored and (sum_ := program.scattered_sums.get(value)) is not None:
        assert node.space is not None
        are_summed = np.asarray([bool(one.reduced) for one in node.space.strategies]) & made.is_made
        before, summed = (sizes.temporary(one, made.produced, minor) for one in (held, sum_.type))
        in_part, in_whole = (before, 2 * before - summed) if sum_.is_turned else (summed, before)
        beside = np.where(made.is_moved, in_part, in_whole)
        yield Item(*now, np.where(are_summed, beside, 0), note="before it is summed")
        stored = np.where(are_summed, sizes.temporary(sum_.type, made.settled, minor), stored)
    if is_stored and program.packed.get(value) is not None:
        both = np.where(sizes.are_packed(made.type, made.settled, minor), written, 0)
        yield Item(*now, both, note="as wide as it is compared")
    if lifetime.is_own_buffer:
        is_result = value in program.returned
        bytes_ = sizes.permanent(made.type, made.settled) if is_result else stored
        yield Item(lifetime.begin, lifetime.end, np.where(made.is_made, bytes_, 0), is_result, value=value)
        if is_result and (written != smallest).any():
            padded = np.where(written != smallest, written, 0)
            yield Item(*now, padded, note="as the matrix unit writes it")
    elif lifetime.within is not None:
        excess = np.maximum(stored - _least_bytes(graph, lifetime.within), 0)
        beyond = np.where(made.is_made, excess, 0)
        yield Item(lifetime.begin, lifetime.end, beyond, note="beyond the result in whose memory it lies")
    elif kernel.is_alias and value not in program.as_made:
        least = sizes.unpadded(held, made.settled) if value in program.padding_names else smallest
        if (written != least).any() and not lies_as_read(value, program, lives):
            yield Item(lifetime.begin, lifetime.end, written - least, note="padding of another layout")


def _gathered_as_made(graph: Graph, node: Node, sizes: Sizes, apart_below: int) -> Iterator[Item]:
    """What is there from the start of the program until the kernel gathers it that makes it, of arguments alone (`cost.relaid`)."""
    if node.space is None:
        return
    kernel = graph.program.kernels[node.kernel]
    if graph.program.made_at_start.keys().isdisjoint(kernel.results):
        return
    for type_, produced, settled in zip(
        kernel.shape.results, node.space.produced, node.choices.supplies, strict=False
    ):
        parts = graph.layouts[type_.rank].divisors()
        part, whole = (sizes.temporary(type_, layouts) for layouts in (produced, settled))
        is_apart = (passes(parts[produced], parts[settled]) > 0) & (type_.num_elements < apart_below)
        bytes_ = np.where(part < whole, np.where(is_apart, whole, part), 0)
        yield Item(0, kernel.time, bytes_, note="made in front of all else")


def _gathered(graph: Graph, node: Node, sizes: Sizes) -> Iterator[Item]:
    """The copy of a table in rows that a gather reads, as wide as rows are added up where they are split, else as they are stored; and
    what it makes, as long as that lies in such rows, beside what is made of them.
    """
    assert node.space is not None
    kernel = graph.program.kernels[node.kernel]
    one, note = graph.program.gathered[kernel.time], "in rows of whole slices"
    layouts, table, made = node.choices.demands[0], kernel.shape.operands[0], kernel.shape.results[0]
    held = sizes.held(kernel.results[0], made)
    if one.is_copied:
        in_rows, end = sizes.copied_table(table, layouts, held, one.table), kernel.time + 1
        yield Item(one.begin, end, in_rows, note=f"copied {note}", value=kernel.uses[0].value)
    if one.rows is not None:
        produced, minor = np.asarray(node.space.produced[0]), graph.program.minor_dims.get(kernel.results[0])
        rows, own = (sizes.temporary(held, produced, dims) for dims in (one.rows, minor))
        are_read = sizes.reads_rows(TensorType(table.shape, held.dtype), layouts, one.table)
        in_rows = np.where(are_read, rows, 0)
        beside = np.where(are_read & (rows > own), rows - own, in_rows)
        yield Item(kernel.time, one.end, beside, note=f"gathered {note}", value=kernel.results[0])
        yield Item(one.worked, one.end, in_rows, note=f"worked on {note}")


def _is_made(graph: Graph, value: int, type_: TensorType, settled: Ints) -> NDArray[np.bool_]:
    """Where no later scatter makes it with its own: all values but those, and these where they are left as addends."""
    is_addend = graph.layouts[type_.rank].reduced(settled) != settled
    return is_addend | (value not in graph.program.merged_scatters)


def _least_bytes(graph: Graph, value: int) -> int:
    """On one device under any sharding."""
    type_ = graph.program.listing.values[value].type
    return 0 if type_ is None else type_.num_bytes // graph.mesh.num_devices
