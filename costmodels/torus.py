"""Collectives on a torus whose dimensions may be open (a line) or closed (a ring).

Each link carries w bytes/ns each way. A group whose devices are `stride` apart shares its links with the
`stride - 1` groups in between: a device's rate b along a piece is w/stride on a line and 2w/stride on a ring.

1. All-gather, reduce-scatter of V bytes along one piece of n devices: V·(n-1)/(n·b) [1]. On a line that is
   the n-1 one-way hops of a shard from one end to the other. Along several dimensions and slices: `cuts`.
2. Two pieces of one dimension share its links: either the dimension counts with the slower rate, or all pieces
   but the fastest of each dimension go first, one after another, slowest first; whichever is quicker.
3. All-reduce: a reduce-scatter and an all-gather.
4. All-to-all with S bytes on each device: the middle link of the worst dimension carries S·⌊n/2⌋·⌈n/2⌉/n on
   a line, half of that on a ring; with V = n·S, V/(4·2w) on a ring [1] and twice that on a line.
   Relayed, every device's data goes along the whole of the longest piece, of L chips, both ways: S·L·(n-1)/(n·2w) [2].
5. Permute to the next device, cyclically: S·stride/w. On a line the last device's part comes back in the
   unused direction.

To that is added the latency of the hops to the farthest device and the collective's fixed overhead. Slices
are joined by the data centre network, which works at the same time as the torus.

[1] "How to Scale Your Model", chapter on sharded matrices, which writes V/W for 2w = W and large n.
[2] The scheduler's price of libtpu 0.0.51, seen on v5e 4x4, 8x8 and 16x16, v6e 4x4 and 16x16, v5p 2x2x4 and 4x4x4.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from .amounts import Amount, affine_ns
from .cuts import Part, gather_ns_per_byte
from .distinct import DimensionKind
from .network import Network
from .topology import Axis, Piece, Placement


@dataclass(frozen=True, slots=True)
class Dimension:
    """One physical dimension: its size, one direction of its links, and whether it closes into a ring."""

    size: int
    bytes_per_ns: float
    hop_ns: float
    wraps: bool

    def is_ring(self, piece: Piece) -> bool:
        """Whether the devices of `piece` go all the way round."""
        return self.wraps and piece.stride * piece.length == self.size

    def rate(self, piece: Piece) -> float:
        """Bytes/ns that one device of `piece` takes in, both directions together where it has both."""
        return (2 if self.is_ring(piece) else 1) * self.bytes_per_ns / piece.stride

    def farthest_ns(self, piece: Piece) -> float:
        """Latency to the farthest device of `piece`."""
        steps = piece.length // 2 if self.is_ring(piece) else piece.length - 1
        return steps * piece.stride * self.hop_ns

    def exchange_ns_per_byte(self, piece: Piece) -> float:
        """Of an all-to-all along `piece`, per byte of a device's operand."""
        middle = (piece.length // 2) * (piece.length - piece.length // 2) / piece.length
        return middle * (0.5 if self.is_ring(piece) else 1) * piece.stride / self.bytes_per_ns


@final
@dataclass(frozen=True, slots=True)
class TorusCommunication:
    """The model of this module: dimension 0 of the placement counts slices, the others are `dimensions`."""

    placement: Placement
    dimensions: tuple[Dimension, ...]
    overhead_ns: float
    network: Network | None

    @property
    def dimension_kinds(self) -> tuple[DimensionKind, ...]:
        """Slices are told by their number; equal dimensions of the torus are interchangeable."""
        torus = (
            DimensionKind((d.size, d.bytes_per_ns, d.hop_ns, d.wraps), is_spaced=True)
            for d in self.dimensions
        )
        return (DimensionKind((self.placement.shape[0],), is_spaced=False), *torus)

    def all_gather_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formulas 1 and 2; `bytes`: the result on one device."""
        return self._time(bytes, axes, self._gather, phases=1)

    def reduce_scatter_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formulas 1 and 2; `bytes`: the operand on one device."""
        return self._time(bytes, axes, self._gather, phases=1)

    def all_reduce_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 3; `bytes`: the operand on one device."""
        return self._time(bytes, axes, self._gather, phases=2)

    def all_to_all_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 4; `bytes`: the operand on one device."""
        return self._time(bytes, axes, self._exchange, phases=1)

    def relayed_all_to_all_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 4, relayed; `bytes`: the operand on one device."""
        return self._time(bytes, axes, self._relay, phases=1)

    def collective_permute_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 5; `bytes`: what one device sends."""
        return self._time(bytes, axes, self._shift, phases=1)

    def _time(
        self,
        bytes: Amount,
        axes: Sequence[Axis],
        ns_per_byte: Callable[[int, tuple[Piece, ...]], float],
        phases: int,
    ) -> Amount:
        route = self.placement.route(axes)
        if not route.pieces:
            return affine_ns(bytes, 0, 0)
        slices = math.prod(piece.length for piece in route.pieces if piece.dimension == 0)
        pieces = tuple(piece for piece in route.pieces if piece.dimension > 0)
        hops_ns = sum(self._dimension(piece).farthest_ns(piece) for piece in pieces)
        fixed_ns = self.overhead_ns + phases * hops_ns
        if self.network and slices > 1:
            fixed_ns += self.network.fixed_ns(slices)
        return affine_ns(bytes, fixed_ns, phases * route.copies * ns_per_byte(slices, pieces))

    def _dimension(self, piece: Piece) -> Dimension:
        return self.dimensions[piece.dimension - 1]

    def _gather(self, slices: int, pieces: tuple[Piece, ...]) -> float:
        between = [(slices, self.network.bytes_per_ns)] if self.network and slices > 1 else []
        slowest_first = sorted(
            ((piece, self._dimension(piece).rate(piece)) for piece in pieces), key=lambda item: item[1]
        )
        size = slices * math.prod(piece.length for piece in pieces)
        together: dict[int, Part] = {}
        fastest: dict[int, Part] = {}
        gathered, first = 1 / size, 0.0
        for index, (piece, rate) in enumerate(slowest_first):
            length, slowest = together.get(piece.dimension, (1, rate))
            together[piece.dimension] = (length * piece.length, slowest)
            if any(later.dimension == piece.dimension for later, _ in slowest_first[index + 1 :]):
                first += gathered * (piece.length - 1) / rate
                gathered *= piece.length
            else:
                fastest[piece.dimension] = (piece.length, rate)
        return min(
            gather_ns_per_byte([*together.values(), *between]),
            first + gather_ns_per_byte([*fastest.values(), *between]),
        )

    def _exchange(self, slices: int, pieces: tuple[Piece, ...]) -> float:
        between = self.network.exchange_ns_per_byte(slices) if self.network else 0.0
        loads: dict[int, float] = {}
        for piece in pieces:
            load = self._dimension(piece).exchange_ns_per_byte(piece)
            loads[piece.dimension] = loads.get(piece.dimension, 0.0) + load
        return max(between, *loads.values()) if loads else between

    def _relay(self, slices: int, pieces: tuple[Piece, ...]) -> float:
        size = math.prod(piece.length for piece in pieces)
        crossed = [piece.stride * piece.length / self._dimension(piece).bytes_per_ns for piece in pieces]
        return max([self._exchange(slices, pieces), *(each * (size - 1) / (2 * size) for each in crossed)])

    def _shift(self, slices: int, pieces: tuple[Piece, ...]) -> float:
        between = 1 / self.network.bytes_per_ns if self.network and slices > 1 else 0.0
        return max([between, *(piece.stride / self._dimension(piece).bytes_per_ns for piece in pieces)])
