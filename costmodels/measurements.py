"""What was measured, and what a profile says of the same.

Runs of one kind that were laid out alike are one `Batch`, so that a profile prices them in one go. Reading them from tables
is `reading_measurements`'s, fitting a profile to them `fitting`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from .calibration import Range
from .figures import Link
from .topology import Axis

if TYPE_CHECKING:
    from .hardware import Hardware

Floats = NDArray[np.float64]

_FINE = 1e6  # prices are whole ns; those of times so many times longer have six digits more
_PRICED_BYTES = 2**24
"""Prices are affine in bytes: of none and of so many they say all others, far below the longest time that can be told."""


class Batch(Protocol):
    """Runs that differ in size only."""

    @property
    def measured_ns(self) -> tuple[float, ...]:
        """What each run took."""
        ...

    def predicted_ns(self, hardware: "Hardware") -> Floats:
        """What a profile says they take, not rounded."""
        ...

    def points(self) -> list[str]:
        """Each run in words."""
        ...

    def range(self) -> Range:
        """The least and greatest that was measured."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """A mesh on a physical shape, and the axes of it whose devices form the group."""

    mesh: tuple[tuple[str, int], ...]
    topology: tuple[int, ...] | None
    group: tuple[Axis, ...]
    devices: int
    is_apart: bool = False  # each axis on a dimension of its own


@dataclass(frozen=True, slots=True)
class CollectiveRuns:
    """A collective of `KINDS` over one group; `bytes` as in `collectives`."""

    kind: str
    layout: Layout
    bytes: tuple[int, ...]
    measured_ns: tuple[float, ...]

    def predicted_ns(self, hardware: "Hardware") -> Floats:
        fine, layout = slowed(hardware, _FINE), self.layout
        model = fine.place_apart(layout.mesh) if layout.is_apart else fine.place(layout.mesh, layout.topology)
        price: Any = getattr(model, f"{self.kind}_ns")
        priced = np.asarray([0, _PRICED_BYTES], dtype=np.int64)
        fixed, some = price(priced, list(self.layout.group)) / _FINE
        return fixed + (some - fixed) / _PRICED_BYTES * np.asarray(self.bytes, dtype=np.float64)

    def points(self) -> list[str]:
        return [f"{self.kind} of {size} B over {self.layout.devices} devices" for size in self.bytes]

    def range(self) -> Range:
        devices = float(self.layout.devices)
        ends = (float(min(self.bytes)), float(max(self.bytes)))
        return Range(self.kind, len(self.bytes), bytes=ends, devices=(devices, devices))


@dataclass(frozen=True, slots=True)
class MatmulRuns:
    """Products of [m, k] by [k, n] in one element type."""

    dtype: str
    m: tuple[int, ...]
    k: tuple[int, ...]
    n: tuple[int, ...]
    batch: tuple[int, ...]
    measured_ns: tuple[float, ...]

    def predicted_ns(self, hardware: "Hardware") -> Floats:
        m, k, n, batch = (np.asarray(size, dtype=np.float64) for size in (self.m, self.k, self.n, self.batch))
        return np.asarray(hardware.matmul_roofline(m=m, k=k, n=n, dtype=self.dtype, batch=batch).ns)

    def points(self) -> list[str]:
        sizes = zip(self.batch, self.m, self.k, self.n, strict=True)
        return [f"{b} x [{m}, {k}] by [{k}, {n}] in {self.dtype}" for b, m, k, n in sizes]

    def range(self) -> Range:
        m, k, n = ((float(min(size)), float(max(size))) for size in (self.m, self.k, self.n))
        return Range("matmul", len(self.m), dtype=self.dtype, m=m, k=k, n=n)


@dataclass(frozen=True, slots=True)
class MemoryRuns:
    """Kernels that do nothing but read and write so many bytes; of none, the launch of a kernel."""

    bytes: tuple[int, ...]
    measured_ns: tuple[float, ...]

    def predicted_ns(self, hardware: "Hardware") -> Floats:
        return np.asarray(hardware.kernel_roofline(0.0, np.asarray(self.bytes, dtype=np.float64), "f32").ns)

    def points(self) -> list[str]:
        return [f"memory traffic of {size} B" for size in self.bytes]

    def range(self) -> Range:
        return Range("memory", len(self.bytes), bytes=(float(min(self.bytes)), float(max(self.bytes))))


def slowed(hardware: "Hardware", factor: float) -> "Hardware":
    """The same links, each of their times so many times longer."""

    def slower(link: Link | None) -> Link | None:
        return link and Link(
            nominal_gb_per_s=link.bytes_per_ns / factor,
            latency_us=link.latency_us * factor,
            overhead_us=link.overhead_ns / 1e3 * factor,
        )

    links = {name: slower(getattr(hardware, name)) for name in ("link", "core_link", "network")}
    return msgspec.structs.replace(hardware, **links)


def predicted(batches: Sequence[Batch], hardware: "Hardware") -> Floats:
    """[points] of all batches, one after another."""
    return np.concatenate([batch.predicted_ns(hardware) for batch in batches])


def merged_ranges(batches: Sequence[Batch]) -> tuple[Range, ...]:
    """One range for each kind and element type, devices apart from bytes."""
    found: dict[tuple[str, str | None], Range] = {}
    for each in (batch.range() for batch in batches):
        key = (each.kind, each.dtype)
        found[key] = _around(found[key], each) if key in found else each
    return tuple(found.values())


def _around(first: Range, second: Range) -> Range:
    def both(name: str) -> tuple[float, float] | None:
        a, b = getattr(first, name), getattr(second, name)
        return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))

    ends = {name: both(name) for name in ("bytes", "devices", "m", "k", "n")}
    return Range(first.kind, first.points + second.points, first.dtype, **ends)
