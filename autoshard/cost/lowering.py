"""What a collective of Shardy's costs once a compiler has carried it out.

Kinds, axes and bytes are Shardy's; the price is that of what runs:

- `shardy`: each collective is itself.
- `xla-tpu`: XLA:TPU sums everywhere and lets each device slice its part instead of a reduce-scatter, and gathers small shards
  over many devices by summing zero-padded arrays. Both were seen in what libtpu 0.0.51 compiles for v5e (4x4, 8x8, 16x16): gathers
  over 64 and 256 devices change over between shards of 128 KiB and 160 KiB, gathers over 16 devices are left as they are.

XLA also combines all-reduces that wait for nothing in between, so that they share one latency. Of those in data-parallel steps of
three real programs these are left: 99 of 320 (ResNet-50, whose batch statistics wait for each other), 6 of 393 (ViT-L), 9 of 296
(GPT-2 medium).

An all-slice moves nothing between devices: it reads and writes the part that it keeps. In `xla-tpu` it reads and writes the whole: a
sharding constraint keeps XLA from fusing what makes the value (a ViT-L step whose gradient norm was sliced took 1 % more matrix
time).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoshard.sharding import AxisRef, total_size
from costmodels import Communication, Hardware

Lowering = Literal["shardy", "xla-tpu"]

LOCAL = frozenset({"all_slice", "replicated_to_unreduced", "sharded_to_unreduced"})
"""These send nothing: each device reads its own part and writes it, the rest zero where the result is a partial sum."""

SMALL_SHARD_BYTES = 128 * 1024
MANY_DEVICES = 33
COMBINED_LATENCY_SHARE = 4  # an all-reduce pays one part in so many of its latency


@dataclass(frozen=True, slots=True)
class CollectivePrices:
    communication: Communication
    hardware: Hardware
    lowering: Lowering = "shardy"
    _known: dict[tuple[str, int, tuple[AxisRef, ...]], int] = field(
        default_factory=dict[tuple[str, int, tuple[AxisRef, ...]], int], compare=False, repr=False
    )

    def ns_of_one(self, kind: str, bytes_: int, axes: tuple[AxisRef, ...]) -> int:
        """The same for one size; kernels of a program ask for the same few again and again."""
        key = (kind, bytes_, axes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = int(self.ns(kind, bytes_, axes))
        return found

    def ns(self, kind: str, bytes_: NDArray[np.int64] | int, axes: Sequence[AxisRef]) -> NDArray[np.int64]:
        """Whole ns of one run; `bytes_` as in costmodels, for those that send nothing of the result on one device."""
        sizes = np.asarray(bytes_, dtype=np.int64)
        if kind in LOCAL:
            stored = total_size(axes) if self.lowering == "xla-tpu" else 1
            return np.ceil(2 * sizes * stored * (1e9 / self.hardware.hbm_bytes_per_s)).astype(np.int64)
        if self.lowering == "xla-tpu":
            if kind in ("reduce_scatter", "all_reduce"):
                return self._all_reduce(sizes, axes)
            if kind == "all_gather" and (devices := total_size(axes)) >= MANY_DEVICES:
                is_small = sizes <= SMALL_SHARD_BYTES * devices
                summed = self._all_reduce(sizes, axes)
                return np.where(is_small, summed, self._itself(kind, sizes, axes))
        return self._itself(kind, sizes, axes)

    def _all_reduce(self, sizes: NDArray[np.int64], axes: Sequence[AxisRef]) -> NDArray[np.int64]:
        latency = int(self._itself("all_reduce", np.zeros((), dtype=np.int64), axes))
        return self._itself("all_reduce", sizes, axes) - (latency - latency // COMBINED_LATENCY_SHARE)

    def _itself(self, kind: str, sizes: NDArray[np.int64], axes: Sequence[AxisRef]) -> NDArray[np.int64]:
        price = getattr(self.communication, f"{kind}_ns")
        return np.asarray(price(sizes, [axis_key(axis) for axis in axes]), dtype=np.int64)


def axis_key(axis: AxisRef) -> str | tuple[str, int, int]:
    """An axis as costmodels names it."""
    return (axis.name, axis.pre_size, axis.size) if axis.is_sub_axis else axis.name
