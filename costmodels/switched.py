"""Collectives in nodes of GPUs, behind a switch or fully meshed, and on the network between the nodes.

With g devices of the group in each of D nodes, and W bytes/ns that one device sends within its node
(a switch: its whole bandwidth; a full mesh: g-1 links):

1. All-gather, reduce-scatter of V bytes: V·(g-1)/(g·W) within a node [1]; on several, `cuts` with node and network.
2. All-reduce: twice that, W counted higher by the gain of reducing in the switch where it can [1].
3. All-to-all with S bytes a device: S·(g-1)/(g·W) within a node [1, with V = S·g], or the network's time.
4. Permute: S over one link.

Latency grows with log2 of the group, as NCCL's does on 2, 4 and 8 GPUs.

[1] "How to Scale Your Model", chapter on GPUs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from .amounts import Amount, affine_ns
from .cuts import gather_ns_per_byte
from .distinct import DimensionKind
from .network import Network
from .topology import Axis, Placement


@dataclass(frozen=True, slots=True)
class _Group:
    """Nodes of a group, its devices in each of them, and `Route.copies`."""

    nodes: int
    inner: int
    copies: int


@final
@dataclass(frozen=True, slots=True)
class SwitchedCommunication:
    """This module's model: dimension 0 of the placement counts nodes, dimension 1 the chips of a node."""

    placement: Placement
    link_bytes_per_ns: float
    link_per_peer: bool
    latency_ns: float
    overhead_ns: float
    all_reduce_speedup: float
    network: Network | None

    @property
    def dimension_kinds(self) -> tuple[DimensionKind, ...]:
        """Nodes and chips are told by their numbers; they are not alike even where those are equal."""
        nodes, chips = self.placement.shape
        return (DimensionKind((0, nodes), is_spaced=False), DimensionKind((1, chips), is_spaced=False))

    def all_gather_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 1; `bytes`: the result on one device."""
        group = self._group(axes)
        return self._time(bytes, group, self._gather(group, self._rate(group)))

    def reduce_scatter_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 1; `bytes`: the operand on one device."""
        return self.all_gather_ns(bytes, axes)

    def all_reduce_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 2; `bytes`: the operand on one device."""
        group = self._group(axes)
        return self._time(bytes, group, 2 * self._gather(group, self._rate(group) * self.all_reduce_speedup))

    def all_to_all_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 3; `bytes`: the operand on one device."""
        group = self._group(axes)
        between = self.network.exchange_ns_per_byte(group.nodes) if self.network else 0.0
        within = (group.inner - 1) / (group.inner * self._rate(group))
        return self._time(bytes, group, max(within, between))

    def relayed_all_to_all_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 3: a switch passes nothing on through other devices."""
        return self.all_to_all_ns(bytes, axes)

    def collective_permute_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 4; `bytes`: what one device sends."""
        group = self._group(axes)
        between = 1 / self.network.bytes_per_ns if self.network and group.nodes > 1 else 0.0
        within = 1 / self.link_bytes_per_ns if group.inner > 1 else 0.0
        return self._time(bytes, group, max(within, between))

    def _group(self, axes: Sequence[Axis]) -> _Group:
        route = self.placement.route(axes)
        nodes = math.prod(piece.length for piece in route.pieces if piece.dimension == 0)
        inner = math.prod(piece.length for piece in route.pieces if piece.dimension == 1)
        return _Group(nodes, inner, route.copies)

    def _rate(self, group: _Group) -> float:
        links = max(group.inner - 1, 1) if self.link_per_peer else 1
        return links * self.link_bytes_per_ns

    def _gather(self, group: _Group, rate: float) -> float:
        if self.network is None or group.nodes == 1:
            return gather_ns_per_byte([(group.inner, rate)])
        if group.inner == 1:
            return gather_ns_per_byte([(group.nodes, self.network.bytes_per_ns)])
        return gather_ns_per_byte([(group.inner, rate), (group.nodes, self.network.bytes_per_ns)])

    def _time(self, bytes: Amount, group: _Group, ns_per_byte: float) -> Amount:
        fixed_ns = 0.0
        if group.inner > 1:
            fixed_ns += self.overhead_ns + self.latency_ns * math.log2(group.inner)
        if self.network and group.nodes > 1:
            fixed_ns += self.network.fixed_ns(group.nodes)
        return affine_ns(bytes, fixed_ns, group.copies * ns_per_byte)
