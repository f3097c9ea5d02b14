"""Collectives on a torus whose dimensions may be open (a line) or closed (a ring).

Each link carries w bytes/ns each way. A group whose devices are `stride` apart shares its links with the
`stride - 1` groups in between: a device's rate b along a piece is w/stride on a line and 2w/stride on a ring.

1. All-gather, reduce-scatter of V bytes along one piece of n devices: V·(n-1)/(n·b) [1, 2]. On a line that is
   the n-1 one-way hops of a shard from one end to the other.
2. Along several, N devices in all: V·(1-1/N)/Σb, the links of all dimensions busy at once [1], or what the
   slowest of them alone have to carry: the greatest V·(n-1)/(N·Σb) over sets of dimensions with n devices
   together; or one piece after another with the slowest first, if that is quicker.
3. All-reduce: a reduce-scatter and an all-gather.
4. All-to-all with S bytes on each device: the middle link of the worst dimension carries S·⌊n/2⌋·⌈n/2⌉/n on
   a line, half of that on a ring; with V = n·S, V/(4·2w) on a ring [1] and twice that on a line.
5. Permute to the next device, cyclically: S·stride/w. On a line the last device's part comes back in the
   unused direction.

To that is added the latency of the hops to the farthest device and the collective's fixed overhead. Slices
are joined by the data centre network; the two levels are pipelined, so the slower one counts.

[1] "How to Scale Your Model", chapter on sharded matrices, which writes V/W for 2w = W and large n.
[2] Chan et al., Collective communication: theory, practice, and experience, 2007: the bound (n-1)/n·V.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from .amounts import Amount, affine_ns
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
        size = math.prod(piece.length for piece in pieces)
        between = self.network.gather_ns_per_byte(slices, size) if self.network else 0.0
        if not pieces:
            return between
        rates = [(piece, self._dimension(piece).rate(piece)) for piece in pieces]
        return max(between, min(_tightest_cut(rates, size), _in_turn(rates, size)))

    def _exchange(self, slices: int, pieces: tuple[Piece, ...]) -> float:
        between = self.network.exchange_ns_per_byte(slices) if self.network else 0.0
        loads: dict[int, float] = {}
        for piece in pieces:
            load = self._dimension(piece).exchange_ns_per_byte(piece)
            loads[piece.dimension] = loads.get(piece.dimension, 0.0) + load
        return max(between, *loads.values()) if loads else between

    def _shift(self, slices: int, pieces: tuple[Piece, ...]) -> float:
        between = 1 / self.network.bytes_per_ns if self.network and slices > 1 else 0.0
        return max([between, *(piece.stride / self._dimension(piece).bytes_per_ns for piece in pieces)])


def _tightest_cut(rates: list[tuple[Piece, float]], size: int) -> float:
    """What has to come into the corner of any set of dimensions, all their links busy: formula 2."""
    lengths: dict[int, int] = {}
    slowest: dict[int, float] = {}
    for piece, rate in rates:
        lengths[piece.dimension] = lengths.get(piece.dimension, 1) * piece.length
        slowest[piece.dimension] = min(rate, slowest.get(piece.dimension, rate))
    corners = (
        corner for count in range(1, len(lengths) + 1) for corner in itertools.combinations(lengths, count)
    )
    return max(
        (math.prod(lengths[dimension] for dimension in corner) - 1)
        / (size * sum(slowest[dimension] for dimension in corner))
        for corner in corners
    )


def _in_turn(rates: list[tuple[Piece, float]], size: int) -> float:
    """One piece after another, the slowest first while there is little to move."""
    gathered, total = 1 / size, 0.0
    for piece, rate in sorted(rates, key=lambda item: item[1]):
        total += gathered * (piece.length - 1) / rate
        gathered *= piece.length
    return total
