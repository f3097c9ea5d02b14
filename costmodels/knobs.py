"""The figures of a profile that measurements can move, each as a *knob*: a time that prices are linear in.

Overhead, latency, ns per byte, 1/efficiency: linear wherever the same link or unit is what limits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from .figures import Switch
from .measurements import Batch, CollectiveRuns, Floats

if TYPE_CHECKING:
    from .hardware import Hardware

LEAST_US = 1e-3
"""A latency is at least a nanosecond: a collective is never free."""
FASTEST_GB_PER_S = 100_000
"""What a profile takes at most; a faster link is no link."""
_FASTEST_EFFICIENCY = 1.5  # of a search for one of at most 1


@dataclass(frozen=True, slots=True)
class Knob:
    """`value(base)` and `turn(hardware, value)` read and set it; `figures` are those of the profile that it moves."""

    name: str
    figures: tuple[str, ...]
    least: float
    value: Callable[["Hardware"], float]
    turn: Callable[["Hardware", float], "Hardware"]


def candidates(base: "Hardware", batches: Sequence[Batch]) -> list[Knob]:
    """The knobs that a profile has, whether or not these measurements move them."""
    knobs = [*_link_knobs("link")]
    kinds = {batch.kind for batch in batches if isinstance(batch, CollectiveRuns)}
    if (
        isinstance(base.topology, Switch)
        and base.topology.all_reduce_speedup
        and "all_reduce" in kinds
        and len(kinds) > 1
    ):
        knobs.append(SPEEDUP)
    if base.network is not None:
        network = _link_knobs("network")
        knobs += network if base.network.overhead_us else network[1:]
    knobs += (
        [knob for knob in _link_knobs("core_link") if knob.name != "core_link.overhead"]
        if base.core_link
        else []
    )
    of_types = [f"{type_}_matrix" for type_ in ("f32", "f64", "f8", "i8")]
    given = [of for of in (*of_types, "misaligned") if getattr(base.chip, f"{of}_efficiency") is not None]
    overheads = [of for of in ("kernel", "matrix") if getattr(base.chip, f"{of}_overhead_us") is not None]
    return [*knobs, *(_efficiency(of) for of in ("matrix", *given, "hbm")), *map(_overhead, overheads)]


def _link_knobs(table: str) -> list[Knob]:
    def changed(hardware: "Hardware", **figures: float | None) -> "Hardware":
        link = msgspec.structs.replace(getattr(hardware, table), **figures)
        return msgspec.structs.replace(hardware, **{table: link})

    return [
        Knob(
            f"{table}.overhead",
            (f"{table}.overhead_us",),
            0.0,
            lambda h: getattr(h, table).overhead_ns,
            lambda h, ns: changed(h, overhead_us=ns / 1e3 if ns > 0 else None),
        ),
        Knob(
            f"{table}.latency",
            (f"{table}.latency_us",),
            LEAST_US * 1e3,
            lambda h: getattr(h, table).latency_ns,
            lambda h, ns: changed(h, latency_us=ns / 1e3),
        ),
        Knob(
            f"{table}.ns_per_byte",
            (f"{table}.achievable_gb_per_s",),
            1e-3 / FASTEST_GB_PER_S,
            lambda h: 1 / getattr(h, table).bytes_per_ns,
            lambda h, ns: changed(h, achievable_gb_per_s=1 / ns),
        ),
    ]


def _efficiency(of: str) -> Knob:
    key = f"{of}_efficiency"
    return Knob(
        f"chip.{key}",
        (f"chip.{key}",),
        1 / _FASTEST_EFFICIENCY,
        lambda h: 1 / getattr(h.chip, key),
        lambda h, value: msgspec.structs.replace(h, chip=msgspec.structs.replace(h.chip, **{key: 1 / value})),
    )


def _overhead(of: str) -> Knob:
    key = f"{of}_overhead_us"
    return Knob(
        f"chip.{of}_overhead",
        (f"chip.{key}",),
        LEAST_US * 1e3,
        lambda h: getattr(h.chip, key) * 1e3,
        lambda h, ns: msgspec.structs.replace(h, chip=msgspec.structs.replace(h.chip, **{key: ns / 1e3})),
    )


def all_reduce_speedup(hardware: "Hardware") -> float:
    """Of a switch that adds up itself; 1 for all else."""
    return (hardware.topology.all_reduce_speedup or 1.0) if isinstance(hardware.topology, Switch) else 1.0


SPEEDUP = Knob(
    "topology.1/all_reduce_speedup",
    ("topology.all_reduce_speedup",),
    0.1,
    lambda h: 1 / all_reduce_speedup(h),
    lambda h, value: msgspec.structs.replace(
        h, topology=msgspec.structs.replace(h.topology, all_reduce_speedup=1 / value)
    ),
)


def overhead_and_latency(table: str, base: "Hardware") -> Knob:
    """Overhead and latency of a link, scaled alike."""
    overhead, latency, _ = _link_knobs(table)
    return _scaled_alike(base, overhead, latency)


def overheads_of_products(base: "Hardware") -> Knob:
    """That of a kernel and what products take beyond it, scaled alike."""
    return _scaled_alike(base, _overhead("kernel"), _overhead("matrix"))


def _scaled_alike(base: "Hardware", first: Knob, second: Knob) -> Knob:
    """Both times what they are in the base, where the first may be nothing."""
    mine = [knob for knob in (first, second) if knob.value(base)]
    return Knob(
        f"{first.name} and {second.name}",
        tuple(figure for knob in mine for figure in knob.figures),
        max(1e-6, *(knob.least / knob.value(base) for knob in mine)),
        lambda h: second.value(h) / second.value(base),
        lambda h, value: second.turn(first.turn(h, value * first.value(base)), value * second.value(base)),
    )


def turned(base: "Hardware", knobs: Sequence[Knob], values: Sequence[float] | Floats) -> "Hardware":
    """The profile with each knob at its value."""
    for knob, value in zip(knobs, values, strict=True):
        base = knob.turn(base, float(value))
    return base


def values_of(base: "Hardware", knobs: Sequence[Knob]) -> Floats:
    """Where the knobs are in a profile, at least the least that they take."""
    return np.asarray([max(knob.value(base), knob.least) for knob in knobs], dtype=np.float64)
