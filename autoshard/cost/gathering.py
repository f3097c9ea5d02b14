"""What an operand costs that is gathered while its product runs (`sharding.scattering`).

The loop passes every part on n + 1 times, one hop each, half of them each way round, and

    exposed = min(one pass + max(0, n / 2 passes - product), a gather before the product)
    hidden  = the other passes

(by a scheduler's times without the one pass, as of sums that are scattered so).

XLA makes that loop where the product takes longer than one pass at the peak rate, as for sums that are scattered so, unless a constraint
stands on the whole operand or another product beside reads it too, transposed or not: it is gathered once for both then. Where gathers
run behind compute anyway (v5e) the constraint stays: with such loops Llama-3 8B forward waits for 57 ms instead of 17, and GPT-OSS 20B,
whose experts are cut along a batch dimension, for 2226 instead of 3.

The operand never lies in memory whole: of its parts a loop both ways round has four, two on their way. Where it is cut along what the
product sums over, the loop adds into a second result; else it makes two parts of the result at a time, apart from it. Elementwise work on
the other operand is done for the loop, and it may be laid out anew (`sharding.scattering`). The result is stored
(`program.LoopedResults`); made column by column, it lies so on some chips (`Hardware.lays_looped_columns`). Seen of products on v5p 2x2x4,
v6e 4x4 and v5e 4x4 (libtpu 0.0.52), bytes as counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autoshard.cost.graph import Edge, Graph, KernelSpace, Node
from autoshard.cost.kernel import KernelPrices
from autoshard.cost.layouts import Ints
from autoshard.cost.lowering import CollectivePrices, Emitted
from autoshard.cost.reshard import Collective, ReshardPrices
from autoshard.cost.sizes import Sizes
from autoshard.problem.model import Bools
from autoshard.program import KernelShape, LoopedResults, product_reads, repeated_values
from autoshard.sharding import (
    ONE_WAY,
    PRODUCT,
    AxisRef,
    FactorKind,
    Mesh,
    TensorSharding,
    TensorType,
    batch_dims,
    cut_in_groups,
    cuts_rows,
    is_cut_over_all,
    is_split_over_all,
    is_whole,
    may_loop,
    total_size,
)


@dataclass(frozen=True, slots=True)
class Operand:
    """What a product may gather: how it is held and read, and the sharding of the product's result."""

    type: TensorType
    batch_dims: frozenset[int]
    held: TensorSharding
    read: TensorSharding
    made: TensorSharding


def is_gathered_in_product(
    operand: Operand, flops: int, dtype: str, prices: CollectivePrices, mesh: Mesh
) -> bool:
    """Whether the constraint on the whole operand is left out, of a product of so many FLOPs on all devices together."""
    is_whole_read = is_cut_over_all(operand.read, operand.held, operand.type.shape, mesh)
    is_batch = any(operand.held.axes[dim] for dim in operand.batch_dims)
    if prices.hardware.gathers_behind_compute or is_batch or not is_whole_read:
        return False
    return is_looped_unconstrained(operand, flops, dtype, prices, mesh)


def is_looped_unconstrained(
    operand: Operand, flops: int, dtype: str, prices: CollectivePrices, mesh: Mesh
) -> bool:
    """Whether XLA makes a loop where no constraint is on the whole operand."""
    axes = _passed_over(operand, mesh)
    if prices.lowering != "xla-tpu" or not axes:
        return False
    part = operand.held.local_bytes(operand.type)
    return prices.outlasts_pass(flops / mesh.num_devices, dtype, part, axes)


def _passed_over(operand: Operand, mesh: Mesh) -> tuple[AxisRef, ...]:
    """The axes over which parts may be passed on: all, or those of groups that share how the rest is split; else none."""
    if not is_split_over_all(operand.made, mesh):
        return ()
    if is_cut_over_all(operand.read, operand.held, operand.type.shape, mesh):
        return _axes(operand.held)
    axes = cut_in_groups(operand.read, operand.held, operand.type.shape, mesh)
    is_mixed = any(0 < sum(one in axes for one in dim) < len(dim) for dim in operand.made.axes)
    return () if is_mixed else axes


def passes(devices: int) -> int:
    """How often each of so many devices passes a part on: groups of 4 one way round, without a pass ahead."""
    return devices - 1 if devices == ONE_WAY else devices + 1


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Of one read: [strategy of the provider, of the reader] whether it is gathered in its product, and ns that wait then."""

    is_looped: Bools
    exposed_ns: Ints
    passes_ns: Ints
    passed_bytes: Ints
    axes: dict[int, tuple[AxisRef, ...]]  # by strategy of the provider
    devices: Ints  # [strategy of the provider] among which parts are passed on, 1 where none are

    def collective(self, provider: int, reader: int, alone: Collective) -> Collective:
        """In the place of a gather of its own."""
        ns, all_ns = int(self.exposed_ns[provider, reader]), int(self.passes_ns[provider, reader])
        emitted = Emitted("collective_permute", self.axes[provider], int(self.passed_bytes[provider, reader]))
        return Collective(alone.kind, alone.axes, alone.bytes, ns, max(all_ns - ns, 0), emitted=(emitted,))


class GatheredOperands:
    """Reads of a graph that products gather while they run."""

    def __init__(
        self,
        graph: Graph,
        prices: CollectivePrices,
        kernel_prices: dict[KernelSpace, KernelPrices],
        sizes: Sizes,
    ) -> None:
        self._graph, self._prices, self._kernel_prices, self._sizes = graph, prices, kernel_prices, sizes
        self._reads = product_reads(graph.program)
        self._product_nodes = {
            graph.program.kernels[node.kernel].ops[-1]: node
            for node in graph.nodes
            if node.space is not None and node.space.shape.is_matmul
        }
        self._repeated, self._looped = repeated_values(graph.program), LoopedResults(graph.program)
        self._known: dict[tuple[int, int, TensorType, TensorType, bytes], Gathered | None] = {}

    def of_edge(self, edge: Edge, value: int, reshards: ReshardPrices) -> Gathered | None:
        """None where no choice gathers so."""
        space = self._product(edge, value)
        if space is None:
            return None
        supplies = self._graph.nodes[edge.provider].choices.supplies[edge.result]
        key = (id(space), edge.operand, edge.type, edge.travels, supplies.tobytes())
        if key not in self._known:
            self._known[key] = self._find(edge, space, reshards)
        return self._known[key]

    def _find(self, edge: Edge, space: KernelSpace, reshards: ReshardPrices) -> Gathered | None:
        graph, node = self._graph, self._graph.nodes[edge.reader]
        layouts = graph.layouts[edge.type.rank].shardings
        supplies = graph.nodes[edge.provider].choices.supplies[edge.result]
        demands = node.choices.demands[edge.operand]
        made = [strategy.produced[0] for strategy in space.strategies]
        is_given = graph.given is not None
        reads = np.asarray(
            [
                is_split_over_all(one, graph.mesh) and (is_given or is_whole(layouts[d]))
                for one, d in zip(made, demands, strict=True)
            ]
        )
        if not reads.any():
            return None
        first = int(np.argmax(reads))
        flops = graph.program.listing.ops[graph.program.kernels[node.kernel].ops[-1]].flops
        is_looping = is_looped_unconstrained if is_given else is_gathered_in_product
        operands = {
            supply: Operand(
                edge.type,
                batch_dims(space.shape.rule, edge.operand),
                layouts[supply],
                layouts[demands[first]],
                made[first],
            )
            for supply in set(supplies.tolist())
        }
        dtype = space.shape.operands[0].dtype
        pays = {
            supply: is_looping(one, flops, dtype, self._prices, graph.mesh)
            for supply, one in operands.items()
        }
        is_looped = np.asarray([pays[supply] for supply in supplies.tolist()])[:, None] & reads[None, :]
        if not is_looped.any():
            return None
        sent = self._prices.sent(edge.type, edge.travels)
        axes = {
            p: _passed_over(operands[supplies[p]], graph.mesh)
            for p in np.flatnonzero(is_looped.any(axis=1)).tolist()
        }
        parts = np.asarray(
            [layouts[supply].local_bytes(sent) for supply in supplies.tolist()], dtype=np.int64
        )
        pass_ns = [
            self._prices.ns_of_one("collective_permute", int(part), axes[p]) if p in axes else 0
            for p, part in enumerate(parts)
        ]
        one_pass = np.asarray(pass_ns, dtype=np.int64)[:, None]
        devices = np.asarray([total_size(axes.get(p, ())) for p in range(len(parts))], dtype=np.int64)
        count = np.asarray([passes(one) for one in devices.tolist()], dtype=np.int64)[:, None]
        hardware = self._prices.hardware
        product_ns = self._kernel_prices[space].compute_ns.tolist()
        covered_ns = np.asarray([hardware.covered_ns(ns) for ns in product_ns])[None, :]
        before_ns = reshards.ns(sent, supplies, demands, widening=self._prices.widening(edge.type, sent))
        ahead_ns = 0 if hardware.is_scheduled else one_pass
        exposed = np.minimum(ahead_ns + np.maximum(count // 2 * one_pass - covered_ns, 0), before_ns)
        shape = is_looped.shape
        return Gathered(
            is_looped,
            exposed,
            np.broadcast_to(count * one_pass, shape),
            np.broadcast_to(count * parts[:, None], shape),
            axes,
            devices,
        )

    def memory(self, edge: Edge, gathered: Gathered) -> Iterator[tuple[int, int, Ints]]:
        """Begin, end and bytes [provider, reader] of what the loop takes in place of the whole operand."""
        graph, node = self._graph, self._graph.nodes[edge.reader]
        assert node.space is not None
        kernel, shape, choices = graph.program.kernels[node.kernel], node.space.shape, node.choices
        layouts = graph.layouts[edge.type.rank].shardings
        supplies = graph.nodes[edge.provider].choices.supplies[edge.result]
        read = layouts[choices.demands[edge.operand][int(np.argmax(gathered.is_looped.any(axis=0)))]]
        cuts = [_cut_factors(shape, edge.operand, layouts[s], read) for s in supplies]
        summed = np.asarray([_are_summed(shape, cut) for cut in cuts])
        devices = gathered.devices[:, None]
        ways = np.where(devices == ONE_WAY, 1, 2)
        parts = 2 * ways * self._sizes.temporary(edge.travels, supplies)[:, None]
        results = self._sizes.temporary(shape.results[0], node.space.produced[0])[None, :]
        for number, use in enumerate(kernel.uses):
            if number == edge.operand:
                continue
            others = self._sizes.temporary(shape.travels[number], choices.demands[number])[None, :]
            if (repeated := self._repeated.get(use.value)) is not None:
                begin = repeated.stored_from(graph.program.lifetimes, kernel.time)
                yield begin, kernel.time + 1, np.where(gathered.is_looped, others, 0)
            is_turned = gathered.is_looped & self._cut_rows(shape, number, cuts, gathered.devices)[:, None]
            yield kernel.time, kernel.time + 1, np.where(is_turned, others, 0)
        working = parts + np.where(summed[:, None], results, ways * results // devices)
        yield kernel.time, kernel.time + 1, np.where(gathered.is_looped, working, 0)
        if (stored := self._looped.stored(kernel)) is not None:
            yield *stored, np.where(gathered.is_looped, results, 0)
        if self._prices.hardware.lays_looped_columns:
            in_columns = np.asarray([shape.rule.results[0][-1:] == (cut,) for cut in cuts])[:, None]
            for time in sorted(self._looped.copied(kernel)):
                yield time, time + 1, np.where(gathered.is_looped & in_columns, results, 0)

    def _cut_rows(self, shape: KernelShape, other: int, cuts: list[tuple[int, ...]], devices: Ints) -> Bools:
        """[strategy of the provider] whether the loop takes parts of the other operand's last dimension that are no whole rows of lanes."""
        size, last = shape.operands[other].shape[-1], shape.rule.operands[other][-1:]
        found = [
            _are_summed(shape, cut) and last == (cut,) and cuts_rows(size, count)
            for cut, count in zip(cuts, devices.tolist(), strict=True)
        ]
        return np.asarray(found, dtype=np.bool_)

    def _product(self, edge: Edge, value: int) -> KernelSpace | None:
        node = self._graph.nodes[edge.reader]
        if self._prices.lowering != "xla-tpu" or node.space is None:
            return None
        shape, is_given = node.space.shape, self._graph.given is not None
        if shape.name != PRODUCT and not (is_given and may_loop(shape.name, shape.rule)):
            return None
        kernel = self._graph.program.kernels[node.kernel]
        if not self._is_unconstrained(edge, node):
            return None
        is_lone = self._is_lone(value, kernel.ops[-1]) and edge.begin == kernel.time
        return node.space if is_lone and not node.space.shape.manual_axes else None

    def _is_unconstrained(self, edge: Edge, node: Node) -> bool:
        """Of given shardings: whether no constraint is on what the product reads, and its other operand comes as it is read."""
        given, space = self._graph.given, node.space
        if given is None or space is None:
            return True
        if not given.reads.keys().isdisjoint(edge.sites):
            return False
        if len(space.strategies) != 1:  # of a convolution nothing says how it is partitioned
            return space.shape.name != PRODUCT
        uses = self._graph.program.kernels[node.kernel].uses
        return all(
            given.values.get(use.value) == read or any(given.reads.get(site) == read for site in use.sites)
            for number, (use, read) in enumerate(zip(uses, space.strategies[0].operands, strict=True))
            if number != edge.operand
        )

    def _is_lone(self, value: int, product: int) -> bool:
        """Whether no other product may ask for the operand whole; of given shardings, whether none does."""
        others = self._reads.get((value, product))
        if others is None or self._graph.given is None:
            return others is not None and not others
        return not any(self._is_gathered_by(*other) for other in others)

    def _is_gathered_by(self, value: int, product: int) -> bool:
        """Whether a product reads the value in fewer parts than it is made in."""
        node = self._product_nodes[product]
        type_, made = self._graph.program.listing.values[value].type, self._graph.provider.get(value)
        assert type_ is not None
        assert made is not None
        layouts = self._graph.layouts[type_.rank].shardings
        held = self._graph.nodes[made[0]].choices.supplies[made[1]].tolist()
        uses = self._graph.program.kernels[node.kernel].uses
        numbers = [number for number, use in enumerate(uses) if use.value == value]
        read = [one for number in numbers for one in node.choices.demands[number].tolist()]
        return min(layouts[one].num_shards for one in read) < max(layouts[one].num_shards for one in held)


def _cut_factors(
    shape: KernelShape, operand: int, held: TensorSharding, read: TensorSharding
) -> tuple[int, ...]:
    cut = next((dim for dim, axes in enumerate(held.axes) if axes != read.axes[dim]), None)
    return shape.rule.operands[operand][cut] if cut is not None else ()


def _are_summed(shape: KernelShape, factors: tuple[int, ...]) -> bool:
    return any(shape.rule.factors[factor].kind is FactorKind.REDUCTION for factor in factors)


def _axes(sharding: TensorSharding) -> tuple[AxisRef, ...]:
    return next(axes for axes in sharding.axes if axes)
