"""What the compiler that carries a plan out makes of Shardy's collectives, and what that costs.

Kinds, axes and bytes of a plan's collectives are Shardy's; what is emitted, and its price, are those of what runs:

- `shardy`: each collective is itself.
- `xla-tpu`: what libtpu 0.0.51 compiles for v5e (4x4, 8x8, 16x16) and v5p (2x2x4) where a change of sharding is written step by step.
    - Sums go everywhere, and each device slices its part: an all-reduce where Shardy has a reduce-scatter,
      of padded parts (`cost.padding`). Of those that the user wrote in manual computations some stay (`program.scatters`).
    - What lies over all devices of a slice of more than 32 is gathered by summing zero-padded arrays, in its own type where it would travel
      in a narrower one: up to 16 MiB in all (v5e and v6e, 4x16, 8x8, 8x16 and 16x16: 256 KiB a device over 64 and 64 over 256, not 4 KiB
      more), and any size on a torus of three dimensions (v4, v5p and tpu7x, 64 to 256 devices, shards of 32 KiB to 128 MiB). On two
      dimensions long columns of narrow rows, which lie along the lanes, are gathered (`cost.uneven`). Gathers
      over 16 and 32 devices, and over 64 of 128 or 256, are left as they are.
    - What loops carry unchanged is brought to another sharding before them (`cost.loops`), sums that they add up are made after them
      (`cost.accumulation`).
    - Sums over one group that meet in an addition are made once, of what it adds (`program.additions`).
    - Results that one op reduces together (the largest and where it is) are gathered.
    - Values travel in the widest type that their readers take of them (`program.widths`), once for readers that ask for the same
      (`cost.merged`).
    - All-to-alls are relayed along whole dimensions, as XLA's scheduler prices them (`costmodels.torus`, formula 4).
    - Dimensions that do not divide are padded to the same part on every device, also to send them (`cost.uneven`).
    - What is gathered along several dimensions arrives part by part, and is laid out anew behind that (`cost.relaid`).

XLA also combines all-reduces that wait for nothing in between, so that they share one latency. Of those in data-parallel steps of
three real programs these are left: 99 of 320 (ResNet-50, whose batch statistics wait for each other), 6 of 393 (ViT-L), 9 of 296
(GPT-2 medium). Bytes stay the same.

An all-slice moves nothing between devices: it reads and writes the part that it keeps. In `xla-tpu` it reads and writes the whole: a
sharding constraint keeps XLA from fusing what makes the value (a ViT-L step whose gradient norm was sliced took 1 % more matrix
time).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoshard.mlir.collective import LOCAL
from autoshard.sharding import AxisRef, TensorType, dtype_bits, total_size
from costmodels import Communication, Hardware

Lowering = Literal["shardy", "xla-tpu"]

MOST_SUMMED_BYTES = 16 * 2**20
MANY_DEVICES = 33
CUBIC = 3  # dimensions of a torus
ALONG_LANES = "all_gather_along_lanes"
"""A gather that stays one, however little it brings."""
SHORT_VECTOR_BYTES = 64 * 1024
_LANES = 128  # elements of a row of the vector registers
COMBINED_LATENCY_SHARE = 4  # an all-reduce pays one part in so many of its latency


def is_gathered_by_sum(type_: TensorType, held: int) -> bool:
    """Whether a vector of which each device holds so many elements is: short ones whose parts are of no whole rows of registers."""
    return is_short_vector(type_) and held % _LANES > 0


def is_short_vector(type_: TensorType) -> bool:
    """Whether it has one dimension, beside those of one element, and few bytes."""
    return type_.num_bytes <= SHORT_VECTOR_BYTES and max(type_.shape, default=1) == type_.num_elements


@dataclass(frozen=True, slots=True)
class Emitted:
    """A collective as the compiler writes it; `bytes` are those of the operand on one device, whatever the kind."""

    kind: str  # one of Shardy's that sends something
    axes: tuple[AxisRef, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class CollectivePrices:
    communication: Communication
    hardware: Hardware
    lowering: Lowering = "shardy"
    apart_below: int = 0  # elements of what is gathered in front of all else, where it is so along several dimensions (`cost.relaid`)
    _known: dict[tuple[str, int, tuple[AxisRef, ...], int], int] = field(
        default_factory=dict[tuple[str, int, tuple[AxisRef, ...], int], int], compare=False, repr=False
    )

    @property
    def merges_equal(self) -> bool:
        """Whether the compiler carries out once what several readers ask for alike."""
        return self.lowering == "xla-tpu"

    @property
    def merges_slices(self) -> bool:
        """Whether the compiler makes a reduce-scatter of a sum and the slice that alone reads it."""
        return self.lowering == "shardy"

    @property
    def gathers_ahead(self) -> bool:
        """Whether the compiler starts gathers early, and has shards of arguments and of casts of them ready for that, whatever a plan
        assumes.
        """
        return self.lowering == "xla-tpu" and self.hardware.gathers_behind_compute

    @property
    def sums_little(self) -> bool:
        """Whether the compiler gathers what lies over all devices by a sum, but for what is large."""
        return self.lowering == "xla-tpu" and 0 < self._most_summed_bytes(self.devices) < math.inf

    @property
    def sums_after_loops(self) -> bool:
        """Whether the compiler makes sums that a loop adds up once, after it."""
        return self.lowering == "xla-tpu"

    @property
    def sums_first(self) -> bool:
        """Whether what is unreduced is addends of an addition, which the compiler sums before it changes their sharding otherwise."""
        return self.lowering == "xla-tpu"

    @property
    def narrows_maxima(self) -> bool:
        """Whether the largest of widened values goes between devices as narrow as they were."""
        return self.lowering == "xla-tpu"

    @property
    def devices(self) -> int:
        """Of the slice."""
        return math.prod(self.communication.placement.shape)

    def sent(self, type_: TensorType, travels: TensorType) -> TensorType:
        """What goes between devices of a value that may travel as `travels`."""
        is_narrowed = self.lowering == "xla-tpu" and not is_short_vector(type_)
        return travels if is_narrowed else type_

    def widening(self, type_: TensorType, sent: TensorType) -> int:
        """How many times as many bytes a value has as what travels of it."""
        return max(dtype_bits(type_.dtype) // max(dtype_bits(sent.dtype), 1), 1)

    def outlasts_pass(
        self, local_flops: float, dtype: str, part_bytes: int, axes: tuple[AxisRef, ...]
    ) -> bool:
        """Whether a product takes longer, at the peak rate, than a part of so many bytes is taken to pass, latency left out."""
        pass_ns = self.hardware.taken_pass_ns(part_bytes)
        if pass_ns is None:
            whole_ns, latency_ns = (
                self.ns_of_one("collective_permute", bytes_, axes) for bytes_ in (part_bytes, 0)
            )
            pass_ns = whole_ns - latency_ns
        return local_flops * 1e9 > pass_ns * self.hardware.peak_flop_per_s(dtype)

    def emitted(
        self, kind: str, bytes_: int, axes: tuple[AxisRef, ...], widening: int = 1
    ) -> tuple[Emitted, ...]:
        """What one collective is compiled to where everything divides; `bytes_` as in costmodels, `widening` as of `ns`."""
        devices = total_size(axes)
        if kind in LOCAL or devices == 1:
            return ()
        kind = "collective_permute" if kind == "halo_exchange" else kind
        operand = bytes_ // devices if kind == "all_gather" else bytes_
        return (self.carried_out(Emitted(kind, axes, operand), widening),)

    def carried_out(self, one: Emitted, widening: int = 1) -> Emitted:
        """The collective that runs in the place of one; `widening` as of `ns`."""
        if self.lowering != "xla-tpu":
            return one
        devices = total_size(one.axes)
        summed = one.bytes * devices * widening
        if one.kind == "all_gather" and summed <= self._most_summed_bytes(devices) > 0:
            return Emitted("all_reduce", one.axes, summed)
        return Emitted("all_reduce", one.axes, one.bytes) if one.kind == "reduce_scatter" else one

    def ns_of_emitted(self, one: Emitted, widening: int = 1) -> int:
        """Of one run; what is a gather here is priced as what it is carried out as, a reduce-scatter as itself."""
        if one.kind == "reduce_scatter":
            return int(self._itself(one.kind, np.asarray(one.bytes, dtype=np.int64), one.axes))
        bytes_ = one.bytes * total_size(one.axes) if one.kind == "all_gather" else one.bytes
        return self.ns_of_one(one.kind, bytes_, one.axes, widening)

    def ns_of_one(self, kind: str, bytes_: int, axes: tuple[AxisRef, ...], widening: int = 1) -> int:
        """The same for one size; kernels of a program ask for the same few again and again."""
        key = (kind, bytes_, axes, widening)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = int(self.ns(kind, bytes_, axes, widening))
        return found

    def ns(
        self, kind: str, bytes_: NDArray[np.int64] | int, axes: Sequence[AxisRef], widening: int = 1
    ) -> NDArray[np.int64]:
        """Whole ns of one run; `bytes_` as in costmodels, for those that send nothing of the result on one device.

        Args:
            widening: how many times as many bytes a value has as what travels of it, which a sum in the place of a gather sends.
        """
        sizes = np.asarray(bytes_, dtype=np.int64)
        if kind in LOCAL:
            stored = total_size(axes) if self.lowering == "xla-tpu" else 1
            return np.ceil(self.hardware.copy_ns(sizes * stored)).astype(np.int64)
        if self.lowering == "xla-tpu":
            if kind in ("reduce_scatter", "all_reduce"):
                return self._all_reduce(sizes, axes)
            if kind == "all_to_all":
                return self._itself("relayed_all_to_all", sizes, axes)
            if kind == ALONG_LANES:
                return self._itself("all_gather", sizes, axes)
            devices = total_size(axes)
            if kind == "all_gather" and (most := self._most_summed_bytes(devices)) > 0:
                summed = self._all_reduce(sizes * widening, axes)
                return np.where(sizes * widening <= most, summed, self._itself(kind, sizes, axes))
        return self._itself(kind, sizes, axes)

    def relaid(
        self, bytes_: NDArray[np.int64], passes: NDArray[np.int64], devices: int, widening: int = 1
    ) -> NDArray[np.int64]:
        """How often results of gathers of so many bytes over so many devices are written anew, of `cost.relaid`'s passes.

        None is of what is summed instead.
        """
        if self.lowering != "xla-tpu":
            return np.zeros_like(passes)
        return np.where(bytes_ * widening <= self._most_summed_bytes(devices), 0, passes)

    def copies_ns(self, bytes_: NDArray[np.int64], copies: NDArray[np.int64]) -> NDArray[np.int64]:
        """Whole ns in which so many bytes are written anew so often."""
        return np.ceil(self.hardware.copy_ns(bytes_ * copies)).astype(np.int64)

    def _most_summed_bytes(self, devices: int) -> float:
        """Up to which what lies over so many devices is gathered by a sum."""
        placement = self.communication.placement
        if devices < MANY_DEVICES or devices != self.devices:
            return 0
        sizes = zip(placement.names, placement.shape, strict=True)
        dimensions = sum(size > 1 for name, size in sizes if name.isdecimal())
        return math.inf if dimensions >= CUBIC else MOST_SUMMED_BYTES

    def _all_reduce(self, sizes: NDArray[np.int64], axes: Sequence[AxisRef]) -> NDArray[np.int64]:
        latency = int(self._itself("all_reduce", np.zeros((), dtype=np.int64), axes))
        return self._itself("all_reduce", sizes, axes) - (latency - latency // COMBINED_LATENCY_SHARE)

    def _itself(self, kind: str, sizes: NDArray[np.int64], axes: Sequence[AxisRef]) -> NDArray[np.int64]:
        price = getattr(self.communication, f"{kind}_ns")
        return np.asarray(price(sizes, [axis_key(axis) for axis in axes]), dtype=np.int64)


def axis_key(axis: AxisRef) -> str | tuple[str, int, int]:
    """An axis as costmodels names it."""
    return (axis.name, axis.pre_size, axis.size) if axis.is_sub_axis else axis.name
