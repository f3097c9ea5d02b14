"""How much of a reshard runs behind compute, as an assumption that the user picks (`autoshard.overlaps`).

`none`   Nothing: a step takes the sum of its kernels and collectives.
`async`  Gathers and permutes of what is there ahead of time (`program.prefetchable`: weights, mostly) start early and run behind other
         kernels. What one read hides in one run is at most nine tenths of its own time, since what arrives is written to memory at
         the kernels' expense (a twelfth of the time on v5e: the links bring 67 GB/s, memory takes 819), and at most

             1/2 · (matmul FLOPs of the reading kernel / devices) / matrix unit's rate / number of its operands that are there early

         which is a lower bound on the kernel's own time under any strategy. A copy shared by several readers counts with the second
         of them, since it spares that one's gather. With the half, copy and read together never hide more than the kernels take.
         What a constraint of the user's brings hides half of the first kernel that reads it, as does that one's own read.
         The copy takes memory from when on the products until its read take as long as a gather of the whole value.

Seen in what libtpu 0.0.51 compiles for v5e (4x4, ten programs): all-reduces, reduce-scatters and all-to-alls are synchronous; gathers of
weights are asynchronous and hidden whole (Llama-3 8B forward, a loop over layers: 155 ms of gathers, none exposed); gathers and permutes
of activations stay exposed to nine tenths, since the next kernel waits for them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.cost.graph import Edge, Graph
from autoshard.cost.layouts import Ints
from autoshard.cost.lowering import CollectivePrices
from autoshard.cost.reshard import Collective
from autoshard.program import Ahead, KernelShape, KernelTimes, Pace, first_readers, prefetchable
from costmodels import Hardware

ASYNCHRONOUS = frozenset({"all_gather", "collective_permute"})
HIDING_SHARE = 0.5  # of the least time of the reading kernel
HIDDEN_PERCENT = 90  # of the collective
SCHEDULED_LONGER = 2
"""A product by a scheduler's own times, before its tiles are chosen: two to four times its least."""

_NO_LIMIT = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class Hideable:
    """What one run of a reshard may run behind compute: of what is there ahead of time, and a share of the rest up to a limit.

    kinds: of its collectives, that may.
    """

    early_ns: int = 0
    share_percent: int = 0
    share_at_most_ns: int = 0
    kinds: frozenset[str] = ASYNCHRONOUS

    def hidden_ns(self, asynchronous_ns: Ints) -> Ints:
        """What of the asynchronous part of the reshard does."""
        early = np.minimum(asynchronous_ns * HIDDEN_PERCENT // 100, self.early_ns)
        share = (asynchronous_ns - early) * self.share_percent // 100
        return early + np.minimum(share, self.share_at_most_ns)


NOTHING = Hideable()


def hideable(
    graph: Graph, hardware: Hardware, early: Mapping[int, int], waited_percent: Mapping[int, int]
) -> dict[int, Hideable]:
    """Edge -> what one run of its reshard hides; edges that hide nothing are left out. `early` is of `early_ns`.

    Where times are a scheduler's, a share of the asynchronous collectives that are not there ahead of time, no more than the products in
    the same loops take by its own times; or, of edges that are in `waited_percent`, all but that.
    """
    known = {
        number: Hideable(0, 100 - percent, _NO_LIMIT, hardware.asynchronous)
        for number, percent in waited_percent.items()
    }
    if not hardware.hidden_percent:
        return {number: Hideable(ns) for number, ns in early.items()} | known
    products: dict[int, float] = {}
    for kernel in graph.program.kernels:
        least_ns = _least_ns(kernel.shape, graph.mesh.num_devices, hardware)
        products[kernel.repeat] = products.get(kernel.repeat, 0.0) + least_ns
    found = {
        number: Hideable(
            early.get(number, 0),
            hardware.hidden_percent,
            int(SCHEDULED_LONGER * products.get(edge.repeat, 0.0)),
        )
        for number, edge in enumerate(graph.edges)
    }
    return found | known


def early_ns(graph: Graph, hardware: Hardware) -> dict[int, int]:
    """Edge -> ns that one run of its reshard may run behind compute as what it brings is there ahead of time; others are left out."""
    early = prefetchable(graph.program)
    by_kernel = [
        _allowance_ns(
            kernel.shape, sum(use.value in early for use in kernel.uses), graph.mesh.num_devices, hardware
        )
        for kernel in graph.program.kernels
    ]
    for move, reader in first_readers(graph.program).items():
        by_kernel[move] = by_kernel[reader]
    second = {
        hub: by_kernel[readers[1]] for hub, readers in _kernel_readers(graph).items() if len(readers) > 1
    }
    found: dict[int, int] = {}
    for number, edge in enumerate(graph.edges):
        if value_of(graph, edge) in early:
            kernel = graph.nodes[edge.reader].kernel
            found[number] = by_kernel[kernel] if kernel >= 0 else second.get(edge.reader, 0)
    return {number: ns for number, ns in found.items() if ns}


def begins(graph: Graph, early: Mapping[int, int], prices: CollectivePrices) -> dict[int, int]:
    """Edge -> from when on the copy that its reshard makes takes memory, of edges that hide something.

    A gather starts so early that products take as long as it does, of the whole value over all devices.
    """
    devices = graph.mesh.num_devices
    work_ns = [_least_ns(kernel.shape, devices, prices.hardware) for kernel in graph.program.kernels]
    ahead = Ahead(graph.program, work_ns)
    found: dict[int, int] = {}
    for number in early:
        edge = graph.edges[number]
        gather_ns = prices.communication.all_gather_ns(edge.type.num_bytes, graph.mesh.axis_names)
        found[number] = ahead.begin(edge.begin, gather_ns)
    return found


def pace_of(graph: Graph, hardware: Hardware) -> Pace:
    """By the least times of each kernel under any strategy: its product on the matrix unit, and what goes to and from memory."""
    devices = graph.mesh.num_devices
    shapes = [kernel.shape for kernel in graph.program.kernels]
    return Pace(graph.program, [_kernel_times(shape, devices, hardware) for shape in shapes])


def hide(steps: Sequence[Collective], hideable: Hideable) -> list[Collective]:
    """The same collectives, the asynchronous ones hidden as far as that goes, first to last."""
    asynchronous = sum(step.ns - step.waited_ns for step in steps if step.kind in hideable.kinds)
    left = int(hideable.hidden_ns(np.asarray(asynchronous)))
    found: list[Collective] = []
    for step in steps:
        hidden = min(step.ns - step.waited_ns, left) if step.kind in hideable.kinds else 0
        left -= hidden
        found.append(replace(step, ns=step.ns - hidden, hidden_ns=hidden) if hidden else step)
    return found


def _allowance_ns(shape: KernelShape, early_operands: int, devices: int, hardware: Hardware) -> int:
    if not early_operands:
        return 0
    return int(HIDING_SHARE * _least_ns(shape, devices, hardware) / early_operands)


def _least_ns(shape: KernelShape, devices: int, hardware: Hardware) -> float:
    """Of a product under any strategy, on the matrix unit; 0 of other kernels."""
    if not shape.is_matmul or not shape.operands:  # of constants
        return 0.0
    line = hardware.kernel_roofline(shape.flops / devices, 0, shape.operands[0].dtype, unit="matrix")
    return float(line.work_ns)


def _kernel_times(shape: KernelShape, devices: int, hardware: Hardware) -> KernelTimes:
    memory_ns = shape.traffic_bytes / devices / hardware.hbm_bytes_per_s * 1e9
    return KernelTimes(hardware.scheduled_product_ns(_least_ns(shape, devices, hardware)), memory_ns)


def _kernel_readers(graph: Graph) -> dict[int, list[int]]:
    """The kernels that read each hub, in program order."""
    found: dict[int, list[int]] = {}
    for edge in graph.edges:
        if graph.nodes[edge.provider].hub >= 0 and graph.nodes[edge.reader].kernel >= 0:
            found.setdefault(edge.provider, []).append(graph.nodes[edge.reader].kernel)
    return {hub: sorted(readers) for hub, readers in found.items()}


def value_of(graph: Graph, edge: Edge) -> int:
    """The value that is read, number in the listing."""
    node = graph.nodes[edge.provider]
    if node.hub >= 0:
        return node.hub
    if node.flow >= 0:
        return graph.program.flows[node.flow].value
    return graph.program.kernels[node.kernel].results[edge.result]
