"""What a plan holds in memory when it holds the most: every buffer with the op or argument that it is of.

The entries and what is said beside them add up to the predicted peak.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import Held, PricedGraph, chosen_ends, edges_in_products
from autoshard.program import FlowKind
from autoshard.sharding import TensorSharding, TensorType

LOOPED = "of a loop that gathers an operand"
GAPS = "gaps of the heap"


@dataclass(frozen=True, slots=True)
class HeldBuffer:
    """One buffer on one device; `bytes` with what its layout pads and its part of the heap's usual gaps."""

    kind: str  # "argument", "result", "value" or "copy" (in the sharding that readers ask for, or another layout)
    name: str  # of an argument, a result or what a loop carries; else ""
    op: str  # that makes it, of a copy of an argument that reads it; "" where none does
    location: str
    type: str  # on one device, as it is stored; "" where it is not the value itself
    note: str  # what it is instead; "" where it is the value itself
    bytes: int

    @property
    def is_handed_over(self) -> bool:
        """Whether a runtime allocates it, and it does not come and go."""
        return self.kind in ("argument", "result")

    @property
    def where(self) -> str:
        """As collectives have it in plans."""
        return f"{self.op} {self.location}".strip() or self.name


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """At the time of the peak, the largest buffers first. What lies in vector memory is not among them.

    gaps: of the heap, beyond the usual ones. rest: what the compiler stores besides while there is room, or of a plan that does not fit,
    what vector memory would hold.
    """

    peak_bytes: int
    buffers: tuple[HeldBuffer, ...]
    gap_bytes: int
    rest_bytes: int

    @property
    def handed_over_bytes(self) -> int:
        """Of arguments and results, each donated one once."""
        return sum(buffer.bytes for buffer in self.buffers if buffer.is_handed_over)

    @property
    def beside(self) -> tuple[tuple[str, int], ...]:
        """What is in the peak and in no buffer, named, in bytes."""
        found = (
            (GAPS, self.gap_bytes),
            ("what is stored besides", self.rest_bytes),
        )
        return tuple(one for one in found if one[1])


def held_memory(priced: PricedGraph, choice: NDArray[np.int64]) -> HeldMemory:
    """What a choice of one strategy a node holds at its peak."""
    peak = priced.peak(choice)
    names = _Names(priced, choice)
    buffers = tuple(names.buffer(held) for held in peak.held)
    return HeldMemory(peak.bytes, buffers, peak.gap_bytes, peak.rest_bytes)


class _Names:
    def __init__(self, priced: PricedGraph, choice: NDArray[np.int64]) -> None:
        self._priced, self._choice = priced, choice
        self._graph = priced.graph
        self._program = priced.graph.program
        self._in_products = edges_in_products(priced, choice)

    def buffer(self, held: Held) -> HeldBuffer:
        return self._on_edge(held) if held.edge >= 0 else self._of_node(held)

    def _of_node(self, held: Held) -> HeldBuffer:
        node = self._graph.nodes[held.node]
        if node.flow >= 0:
            flow = self._program.flows[node.flow]
            is_copy = bool(held.note) and not held.is_handed_over
            kind = "copy" if is_copy else "value" if flow.kind is FlowKind.CARRIED else flow.kind.value
            layouts = node.choices.supplies or node.choices.demands
            type_ = (
                ""
                if held.note
                else self._local(flow.value, flow.type, int(layouts[0][self._choice[held.node]]))
            )
            return HeldBuffer(kind, flow.name, "", "", type_, held.note, held.bytes)
        kernel = self._program.kernels[node.kernel]
        op, value = self._program.listing.ops[kernel.ops[-1]], kernel.results[0]
        layout = int(node.choices.supplies[0][self._choice[held.node]])
        is_one = not held.note and len(kernel.results) == 1
        type_ = self._local(value, kernel.shape.results[0], layout) if is_one else ""
        kind = "result" if held.is_handed_over else "value"
        return HeldBuffer(kind, "", op.name, op.location, type_, held.note, held.bytes)

    def _on_edge(self, held: Held) -> HeldBuffer:
        edge = self._graph.edges[held.edge]
        _, target = chosen_ends(self._priced, edge, self._choice)
        if held.edge in self._in_products:  # no copy is made
            kernel = self._program.kernels[self._graph.nodes[edge.reader].kernel]
            op = self._program.listing.ops[kernel.ops[-1]]
            return HeldBuffer("value", "", op.name, op.location, "", LOOPED, held.bytes)
        type_ = _local_text(edge.travels, self._graph.layouts[edge.type.rank].shardings[target])
        provider = self._graph.nodes[edge.provider]
        if provider.hub >= 0:
            provider = self._graph.nodes[self._graph.provider[provider.hub][0]]
        number = provider.kernel if provider.kernel >= 0 else self._graph.nodes[edge.reader].kernel
        name = self._program.flows[provider.flow].name if provider.flow >= 0 else ""
        if number < 0:
            return HeldBuffer("copy", name, "", "", type_, held.note, held.bytes)
        op = self._program.listing.ops[self._program.kernels[number].ops[-1]]
        return HeldBuffer("copy", name, op.name, op.location, type_, held.note, held.bytes)

    def _local(self, value: int, type_: TensorType, layout: int) -> str:
        sharding = self._graph.layouts[type_.rank].shardings[layout]
        return _local_text(self._priced.sizes.held(value, type_), sharding)


def _local_text(type_: TensorType, sharding: TensorSharding) -> str:
    local = TensorType(sharding.local_shape(type_.shape), type_.dtype)
    return str(local).removeprefix("tensor<").removesuffix(">")
