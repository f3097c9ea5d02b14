"""What a plan moves between devices, one collective at a time, and its price.

Bytes are those of `costmodels`: the result on one device for an all-gather (and a slice), the operand for all others. A slice reads
and writes the part that it keeps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoshard.check.emitted import Compiler, Sent, is_summed_vector
from autoshard.check.planned import Planned
from autoshard.mlir.collective import LOCAL
from autoshard.plans import EmittedCollective, PlannedCollective
from autoshard.sharding import AxisRef, TensorType
from costmodels import Communication, Hardware


@dataclass(frozen=True, slots=True)
class Moved:
    """A collective before it is priced."""

    kind: str
    axes: tuple[AxisRef, ...]
    bytes: int
    repeat: int
    op: int
    sent: tuple[Sent, ...]  # what the compiler makes of it
    kept_bytes: int = 0  # of what sends nothing, as wide as it would travel
    hidden_ns: int = 0
    merged: tuple[Sent, ...] | None = None  # emitted in place of `sent`, which is what is paid for
    passes_ns: int = 0  # of a sum that is scattered in a product, all passes together
    laid_out: int = 0  # how often what is gathered is written anew
    is_waited_for: bool = False  # though gathers run behind compute


@dataclass(frozen=True, slots=True)
class Prices:
    hardware: Hardware
    communication: Communication
    lowering: str
    overlap: str
    apart_below: int = 0
    """Elements of what is gathered in front of all else, where it is so along several dimensions."""
    leaves_loops: bool = False
    """Where Shardy's passes leave it: what the compiler does before and after them is done in them."""

    @property
    def merges_slices(self) -> bool:
        """Whether a sum and the slice that alone reads it are one reduce-scatter."""
        return self.lowering == "shardy" or self.leaves_loops

    @property
    def sums_after_loops(self) -> bool:
        return self.lowering == "xla-tpu" and not self.leaves_loops

    @property
    def starts_early(self) -> bool:
        """Whether the compiler starts gathers early, whatever a plan assumes of the time that they take."""
        return self.lowering == "xla-tpu" and self.hardware.gathers_behind_compute

    @property
    def compiler(self) -> Compiler:
        placement = self.communication.placement
        extents = dict(zip(placement.names, placement.shape, strict=True))
        is_cubic = all(extents.get(dimension, 1) > 1 for dimension in "012")
        return Compiler(self.lowering, math.prod(placement.shape), is_cubic)


def priced(planned: Planned, moved: Moved, prices: Prices) -> PlannedCollective:
    return PlannedCollective(
        moved.kind,
        axis_names(moved.axes),
        moved.bytes,
        ns_of(prices, moved) - moved.hidden_ns,
        moved.repeat,
        planned.where(moved.op) if moved.op >= 0 else "arguments and results",
        moved.hidden_ns,
        tuple(
            EmittedCollective(sent.kind, sent.devices, sent.bytes)
            for sent in (moved.sent if moved.merged is None else moved.merged)
        ),
    )


def ns_of(prices: Prices, moved: Moved) -> int:
    """What it takes to send what is sent; a copy of the part that a device keeps for what is kept."""
    if moved.passes_ns:
        return moved.passes_ns
    if prices.lowering != "xla-tpu" and moved.kind not in LOCAL:
        return ns_of_one(prices, moved.kind, moved.bytes, moved.axes)
    copied = ns_of_one(prices, moved.kind, moved.kept_bytes, moved.axes) if moved.kind in LOCAL else 0
    return (
        copied
        + laid_out_ns(prices, moved)
        + sum(
            ns_of_one(
                prices, one.kind, one.bytes * (one.devices if one.kind == "all_gather" else 1), one.axes
            )
            for one in moved.sent
        )
    )


def laid_out_ns(prices: Prices, moved: Moved) -> int:
    """For what is gathered along several dimensions."""
    return math.ceil(prices.hardware.copy_ns(moved.kept_bytes * moved.laid_out))


def axis_names(axes: Sequence[AxisRef]) -> tuple[str, ...]:
    """Axes as a plan names them: `x`, `x:(1)2`."""
    return tuple(str(axis).replace('"', "") for axis in axes)


def ns_of_one(prices: Prices, kind: str, bytes_: int, axes: Sequence[AxisRef]) -> int:
    """One that the compiler carries out as it is: gathers that it makes sums of are sums by now (`emitted`)."""
    if kind in LOCAL:
        stored = math.prod(axis.size for axis in axes) if prices.lowering == "xla-tpu" else 1
        return math.ceil(prices.hardware.copy_ns(bytes_ * stored))
    communication, group = prices.communication, _group(axes)
    if prices.lowering == "xla-tpu" and kind == "all_reduce":
        latency = communication.all_reduce_ns(0, group)
        return communication.all_reduce_ns(bytes_, group) - latency + latency // 4
    match kind:
        case "all_gather":
            return communication.all_gather_ns(bytes_, group)
        case "all_reduce":
            return communication.all_reduce_ns(bytes_, group)
        case "reduce_scatter":
            return communication.reduce_scatter_ns(bytes_, group)
        case "all_to_all" if prices.lowering == "xla-tpu":
            return communication.relayed_all_to_all_ns(bytes_, group)
        case "all_to_all":
            return communication.all_to_all_ns(bytes_, group)
        case "collective_permute" | "halo_exchange":
            return communication.collective_permute_ns(bytes_, group)
        case _:
            raise AssertionError(f"Shardy emits no {kind} for a reshard")


def _group(axes: Sequence[AxisRef]) -> list[str | tuple[str, int, int]]:
    return [(axis.name, axis.pre_size, axis.size) if axis.is_sub_axis else axis.name for axis in axes]


def type_sent(prices: Prices, type_: TensorType, travels: TensorType) -> TensorType:
    is_narrowed = prices.lowering == "xla-tpu" and not is_summed_vector(type_)
    return travels if is_narrowed else type_
