"""A base profile and measurements -> the figures that explain the measurements best.

The figures are `knobs`, `descent` finds their values.

A knob that no measurement depends on stays at the base's figure. Overhead and latency that cannot be told apart (one group
size), or the overheads of a kernel and of a product (products only), keep the base's ratio; where all products are misaligned,
what that loses stays the base's. What still cannot be told apart, or is not visible in the noise, is an error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from .descent import descend, slopes_at, standard_errors
from .errors import HardwareError
from .knobs import (
    FASTEST_GB_PER_S,
    SPEEDUP,
    Knob,
    all_reduce_speedup,
    candidates,
    overhead_and_latency,
    overheads_of_products,
    turned,
    values_of,
)
from .measurements import Batch, Floats, predicted

if TYPE_CHECKING:
    from .hardware import Hardware

CLAMPED = 1.05
"""An efficiency up to this is noise about 1."""
FAR_FASTER = 10
"""A link that is more times faster than its nominal figure was not measured: units differ by a thousand, those of two generations less."""
_ALIKE = 1e-6  # columns whose angle is smaller than this say the same


@dataclass(frozen=True, slots=True)
class FittedKnob:
    knob: Knob
    value: float
    error: float  # standard error of the value


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted profile (figures only), the knobs behind it, and what it says of every point."""

    hardware: "Hardware"
    knobs: tuple[FittedKnob, ...]
    measured_ns: Floats
    fitted_ns: Floats
    warnings: tuple[str, ...]


def fit(base: "Hardware", batches: Sequence[Batch]) -> Fit:
    """The profile that explains the measurements best.

    Raises:
        HardwareError: too few points, figures that cannot be told apart, or figures that no hardware has.
    """
    measured = np.concatenate([np.asarray(batch.measured_ns, dtype=np.float64) for batch in batches])
    knobs = _visible(base, candidates(base, batches), None, batches, measured)
    while True:
        knobs = _distinct(base, knobs, batches, measured)
        values, weights = descend(base, knobs, batches, measured)
        still = _visible(base, knobs, values, batches, measured)
        if len(still) == len(knobs):
            break
        knobs = still
    fitted = [
        FittedKnob(*each)
        for each in zip(
            knobs, values, standard_errors(base, knobs, values, batches, measured, weights), strict=True
        )
    ]
    for each in fitted:
        _require_bandwidth(base, each)
    hardware, warnings = _within_reason(base, turned(base, knobs, values), fitted)
    return Fit(hardware, tuple(fitted), measured, predicted(batches, hardware), warnings)


def _visible(
    base: "Hardware",
    knobs: Sequence[Knob],
    values: Floats | None,
    batches: Sequence[Batch],
    measured: Floats,
) -> list[Knob]:
    """Those that some measurement depends on at these values; None: at the base's."""
    at = values_of(base, knobs) if values is None else values
    _, slopes = slopes_at(base, knobs, at, batches, measured)
    reach = np.abs(slopes).max(axis=0) * np.maximum(at, 1.0)
    return [knob for knob, much in zip(knobs, reach, strict=True) if much > 1e-7]


def _distinct(
    base: "Hardware", knobs: Sequence[Knob], batches: Sequence[Batch], measured: Floats
) -> list[Knob]:
    """Knobs that the measurements tell apart: overhead and latency of a link, and overheads of kernels, are joined where they do not, and
    what misaligned products lose stays the base's.

    Raises:
        HardwareError: too few points for the knobs, or knobs that still look alike.
    """
    found = list(knobs)
    joined: dict[tuple[str, str], Callable[[], Knob]] = {
        ("link.overhead", "link.latency"): lambda: overhead_and_latency("link", base),
        ("network.overhead", "network.latency"): lambda: overhead_and_latency("network", base),
        ("chip.kernel_overhead", "chip.matrix_overhead"): lambda: overheads_of_products(base),
    }
    for names, join in joined.items():
        pair = [knob for knob in found if knob.name in names]
        if len(pair) == 2 and _alike(base, pair, batches, measured):
            found[found.index(pair[0])] = join()
            found.remove(pair[1])
    products = [knob for knob in found if knob.name.endswith(("matrix_efficiency", "misaligned_efficiency"))]
    lost = [knob for knob in products if knob.name == "chip.misaligned_efficiency"]
    if lost and len(products) > 1 and _alike(base, products, batches, measured):
        found.remove(lost[0])
    names = [knob.name for knob in found]
    if not names:
        raise HardwareError(
            "no figure of the profile depends on these measurements",
            fix="Check the columns of bytes and time, and the unit of the times.",
        )
    if len(measured) <= len(found):
        raise HardwareError(
            f"{len(measured)} measurement{'s' * (len(measured) > 1)} for {len(found)} figures ({', '.join(names)})",
            fix=f"Measure at least {len(found) + 1} points, of small and large sizes.",
        )
    if alike := _alike(base, found, batches, measured):
        raise HardwareError(
            f"these measurements cannot tell {' from '.join(alike)}",
            fix="Measure small and large sizes (some kB to some 100 MB), and groups of several sizes.",
        )
    return found


def _alike(base: "Hardware", knobs: Sequence[Knob], batches: Sequence[Batch], measured: Floats) -> list[str]:
    """Knobs whose effects are combinations of each other's; empty where all are independent."""
    _, slopes = slopes_at(base, knobs, values_of(base, knobs), batches, measured)
    columns = slopes / np.linalg.norm(slopes, axis=0)
    _, sizes, directions = np.linalg.svd(columns, full_matrices=True)
    if len(sizes) == len(knobs) and sizes[-1] > _ALIKE * sizes[0]:
        return []
    return [knob.name for knob, share in zip(knobs, directions[-1], strict=True) if abs(share) > 0.05]


def _require_bandwidth(base: "Hardware", each: FittedKnob) -> None:
    """Refuses a link that is as good as infinitely fast, or far faster than its nominal figure.

    Raises:
        HardwareError: such a link; its times are in another unit than they say, most likely.
    """
    if not each.knob.name.endswith("ns_per_byte"):
        return
    table = each.knob.name.partition(".")[0]
    if each.value <= each.knob.least * 1.001 or each.value < 2 * each.error:
        raise HardwareError(
            f"the times do not grow with the bytes: the fit would make [{table}] infinitely fast "
            f"({each.value:.3g} ± {each.error:.2g} ns a byte)",
            fix="Measure larger sizes, check the columns of bytes and time, or leave out runs that were disturbed.",
        )
    nominal, found = getattr(base, table).nominal_gb_per_s, 1 / each.value
    if found > min(FAR_FASTER * nominal, FASTEST_GB_PER_S):
        raise HardwareError(
            f"the fit would make [{table}] {found:.4g} GB/s: {found / nominal:.3g} times the nominal {nominal:g} in {base.name}",
            fix="Check the unit of the times and the bytes, or raise nominal_gb_per_s in the base.",
        )


def _within_reason(
    base: "Hardware", hardware: "Hardware", fitted: Sequence[FittedKnob]
) -> tuple["Hardware", tuple[str, ...]]:
    """The profile with figures that a profile can have, and what a reader should know of them.

    Raises:
        HardwareError: a unit faster than its peak.
    """
    warnings: list[str] = []
    figures = [figure for each in fitted for figure in each.knob.figures if figure.endswith("_efficiency")]
    for key in (figure.removeprefix("chip.") for figure in figures):
        peak = "hbm_gb_per_s" if key == "hbm_efficiency" else "the peak of the matrix unit"
        efficiency = getattr(hardware.chip, key)
        if efficiency > CLAMPED and key == "misaligned_efficiency":
            raise HardwareError(
                f"the fit would make chip.{key} {efficiency:.3g} or more: rows that are no multiple of row_bytes faster than others",
                fix="Check the sizes, or take row_bytes and misaligned_efficiency out of the base.",
            )
        if efficiency > CLAMPED:
            raise HardwareError(
                f"the fit would make chip.{key} {efficiency:.3g} or more: faster than {peak} in {base.name}",
                fix="Check the unit of the times, the sizes and the element type, or raise that figure in the base.",
            )
        if efficiency > 1:
            warnings.append(f"chip.{key} came out as {efficiency:.4g} and was set to 1")
            hardware = msgspec.structs.replace(
                hardware, chip=msgspec.structs.replace(hardware.chip, **{key: 1.0})
            )
    for table in ("link", "network", "core_link"):
        link = getattr(hardware, table)
        if link is not None and link.bytes_per_ns > link.nominal_gb_per_s * 1.02:
            warnings.append(
                f"[{table}] came out as {link.bytes_per_ns:.4g} GB/s, above its nominal {link.nominal_gb_per_s:g}: "
                "check the unit of the times and the bytes"
            )
    speedup = all_reduce_speedup(hardware)
    if speedup < 1:
        warnings.append(f"topology.all_reduce_speedup came out as {speedup:.4g} and was set to 1")
        hardware = SPEEDUP.turn(hardware, 1.0)
    for each in fitted:
        if each.value <= each.knob.least * 1.001 and not each.knob.name.endswith("ns_per_byte"):
            warnings.append(f"{each.knob.name} came out as 0")
        elif each.error > 0.5 * each.value:
            warnings.append(f"{each.knob.name} is uncertain by {each.error / each.value:.0%}")
    return hardware, tuple(warnings)
