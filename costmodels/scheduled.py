"""What the scheduler of XLA:TPU takes collectives for, whatever they take on the links.

Linear in bytes, without latency, hops or wraparound [1]. With B bytes/ns of one axis in both directions, for a group of n devices that
covers k whole dimensions of the torus (at least 1), S bytes on one device:

1. All-reduce 2·S/(B·k), reduce-scatter S/(B·k).
2. All-gather of V bytes: V/B where the scheduler counts the whole result, V·(n-1)/(n·B) elsewhere; half of it of 2x2 devices that are
   two whole dimensions.
3. All-to-all S·(n-1)/n·L/B, L the longest dimension that the group goes along.
4. Permute 2·S/B.

A profile is priced so when it is loaded as "NAME:scheduler": products at peak and these, nothing else. That is the estimate that
`autoshard compile` prints of a compiled program, so that the two can be laid side by side; a step of the hardware has memory traffic and
latency besides.

[1] Recovered from the schedules of single collectives by libtpu 0.0.51, for groups that fill whole axes, on slices of v5e (4x4 to 16x16),
v6e (4x4, 16x16) and v5p (4x4x4, 2x2x4), and by 0.0.52 on v4 (2x2x4, 4x4x4).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from .amounts import Amount, affine_ns
from .distinct import DimensionKind
from .figures import Scheduler
from .topology import Axis, Piece, Placement


@dataclass(frozen=True, slots=True)
class Group:
    """How many devices, how many whole dimensions they cover, and the longest dimension that they go along."""

    devices: int
    whole_dimensions: int
    longest: int

    @staticmethod
    def spanning(spans: Sequence[int], shape: Sequence[int]) -> "Group":
        """Of all devices at `spans` places of each dimension of a torus of that shape."""
        along = [(span, size) for span, size in zip(spans, shape, strict=True) if span > 1]
        whole = sum(span == size for span, size in along)
        return Group(math.prod(spans), max(1, whole), max((size for _, size in along), default=1))


def ns_per_byte(scheduler: Scheduler, kind: str, group: Group) -> float:
    """Of a kind of `collectives.KINDS`, or a relayed all-to-all, in the bytes of that kind there."""
    axis_ns, share = 1 / scheduler.axis_gb_per_s, (group.devices - 1) / group.devices
    match kind:
        case "all_reduce":
            return 2 * axis_ns / group.whole_dimensions
        case "reduce_scatter":
            return axis_ns / group.whole_dimensions
        case "all_gather":
            whole_ns = axis_ns if scheduler.counts_whole_gathers else share * axis_ns
            return whole_ns / 2 if (group.devices, group.whole_dimensions) == (4, 2) else whole_ns
        case "all_to_all" | "relayed_all_to_all":
            return share * group.longest * axis_ns
        case _:
            return 2 * axis_ns


@final
@dataclass(frozen=True, slots=True)
class ScheduledCommunication:
    """The model of this module, on one slice: dimension 0 of the placement counts slices, of `dimensions` the torus has one each."""

    placement: Placement
    dimensions: tuple[int, ...]
    scheduler: Scheduler

    @property
    def dimension_kinds(self) -> tuple[DimensionKind, ...]:
        """Equal dimensions are interchangeable."""
        torus = (DimensionKind((size,), is_spaced=True) for size in self.dimensions)
        return (DimensionKind((self.placement.shape[0],), is_spaced=False), *torus)

    def all_gather_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 2; `bytes`: the result on one device."""
        return self._time("all_gather", bytes, axes)

    def reduce_scatter_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 1; `bytes`: the operand on one device."""
        return self._time("reduce_scatter", bytes, axes)

    def all_reduce_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 1; `bytes`: the operand on one device."""
        return self._time("all_reduce", bytes, axes)

    def all_to_all_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 3; `bytes`: the operand on one device."""
        return self._time("all_to_all", bytes, axes)

    def relayed_all_to_all_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 3; `bytes`: the operand on one device."""
        return self._time("relayed_all_to_all", bytes, axes)

    def collective_permute_ns(self, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        """Formula 4; `bytes`: what one device sends."""
        return self._time("collective_permute", bytes, axes)

    def _time(self, kind: str, bytes: Amount, axes: Sequence[Axis]) -> Amount:
        route = self.placement.route(axes)
        if not route.pieces:
            return affine_ns(bytes, 0, 0)
        return affine_ns(
            bytes, 0, route.copies * ns_per_byte(self.scheduler, kind, self._group(route.pieces))
        )

    def _group(self, pieces: Sequence[Piece]) -> Group:
        spans = [1] * len(self.dimensions)
        for piece in pieces:
            spans[piece.dimension - 1] *= piece.length
        return Group.spanning(spans, self.dimensions)
