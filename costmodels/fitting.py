"""A base profile and measurements -> the figures that explain the measurements best.

Every fitted figure is turned into a *knob*, a time that prices are linear in wherever the same link or unit is what
limits: overhead, latency, ns per byte, 1/efficiency. The knobs are found by Gauss-Newton on the relative errors
(predicted - measured)/measured, each step a least-squares problem with lower bounds; where all that limits stays what it
is, one step is exact. Then rows far off the rest count less (Huber's weights [1]), so that a few bad runs do not decide.

A knob that no measurement depends on stays at the base's figure. Overhead and latency that cannot be told apart (one group
size) keep the base's ratio. What still cannot be told apart, or is not visible in the noise, is an error.

[1] Huber, Robust estimation of a location parameter, 1964, with the usual 1.345 spreads.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from .errors import HardwareError
from .figures import Switch
from .measurements import Batch, CollectiveRuns, Floats, predicted

if TYPE_CHECKING:
    from .hardware import Hardware

LEAST_US = 1e-3
"""A latency is at least a nanosecond: a collective is never free."""
FASTEST_GB_PER_S = 100_000
"""What a profile takes at most; a faster link is no link."""
CLAMPED = 1.05
"""An efficiency up to this is noise about 1."""

_FASTEST_EFFICIENCY = 1.5  # of a search for one of at most 1
_FARTHEST = 1e3  # so many times the base's figure at most
_STEPS, _REWEIGHTS = 40, 12
_HUBER, _SPREAD = 1.345, 1.4826  # of the median absolute deviation, for a normal distribution
_ALIKE = 1e-6  # columns whose angle is smaller than this say the same


@dataclass(frozen=True, slots=True)
class Knob:
    """`value(base)` and `turn(hardware, value)` read and set it; `figures` are those of the profile that it moves."""

    name: str
    figures: tuple[str, ...]
    least: float
    value: Callable[["Hardware"], float]
    turn: Callable[["Hardware", float], "Hardware"]


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
    knobs = _visible(base, _candidates(base, batches), None, batches, measured)
    while True:
        knobs = _distinct(base, knobs, batches, measured)
        values, weights = _solve(base, knobs, batches, measured)
        still = _visible(base, knobs, values, batches, measured)
        if len(still) == len(knobs):
            break
        knobs = still
    fitted = [
        FittedKnob(*each)
        for each in zip(knobs, values, _errors(base, knobs, values, batches, measured, weights), strict=True)
    ]
    for each in fitted:
        _require_finite_bandwidth(each)
    hardware, warnings = _within_reason(base, _turned(base, knobs, values), fitted)
    return Fit(hardware, tuple(fitted), measured, predicted(batches, hardware), warnings)


def _candidates(base: "Hardware", batches: Sequence[Batch]) -> list[Knob]:
    knobs = [*_link_knobs("link")]
    kinds = {batch.kind for batch in batches if isinstance(batch, CollectiveRuns)}
    if (
        isinstance(base.topology, Switch)
        and base.topology.all_reduce_speedup
        and "all_reduce" in kinds
        and len(kinds) > 1
    ):
        knobs.append(_SPEEDUP)
    if base.network is not None:
        network = _link_knobs("network")
        knobs += network if base.network.overhead_us else network[1:]
    knobs += (
        [knob for knob in _link_knobs("core_link") if knob.name != "core_link.overhead"]
        if base.core_link
        else []
    )
    return [*knobs, _efficiency("matrix"), _efficiency("hbm"), _KERNEL_OVERHEAD]


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


_KERNEL_OVERHEAD = Knob(
    "chip.kernel_overhead",
    ("chip.kernel_overhead_us",),
    LEAST_US * 1e3,
    lambda h: h.chip.kernel_overhead_us * 1e3,
    lambda h, ns: msgspec.structs.replace(
        h, chip=msgspec.structs.replace(h.chip, kernel_overhead_us=ns / 1e3)
    ),
)


def _speedup(hardware: "Hardware") -> float:
    return (hardware.topology.all_reduce_speedup or 1.0) if isinstance(hardware.topology, Switch) else 1.0


_SPEEDUP = Knob(
    "topology.1/all_reduce_speedup",
    ("topology.all_reduce_speedup",),
    0.1,
    lambda h: 1 / _speedup(h),
    lambda h, value: msgspec.structs.replace(
        h, topology=msgspec.structs.replace(h.topology, all_reduce_speedup=1 / value)
    ),
)


def _together(table: str, base: "Hardware") -> Knob:
    """Overhead and latency of a link, scaled alike."""
    overhead, latency, _ = _link_knobs(table)
    scale = max(LEAST_US * 1e3 / latency.value(base), 1e-6)
    return Knob(
        f"{table}.overhead and {table}.latency",
        (*overhead.figures, *latency.figures) if overhead.value(base) else latency.figures,
        scale,
        lambda h: latency.value(h) / latency.value(base),
        lambda h, value: latency.turn(
            overhead.turn(h, value * overhead.value(base)), value * latency.value(base)
        ),
    )


def _turned(base: "Hardware", knobs: Sequence[Knob], values: Sequence[float] | Floats) -> "Hardware":
    for knob, value in zip(knobs, values, strict=True):
        base = knob.turn(base, float(value))
    return base


def _slopes(
    base: "Hardware", knobs: Sequence[Knob], values: Floats, batches: Sequence[Batch], measured: Floats
) -> tuple[Floats, Floats]:
    """Relative errors [points], and how they change with each knob [points, knobs]."""
    now = predicted(batches, _turned(base, knobs, values))
    columns: list[Floats] = []
    for index, knob in enumerate(knobs):
        step = max(abs(float(values[index])) * 1e-3, knob.least * 1e-1, 1e-9)
        moved = values.copy()
        moved[index] += step
        columns.append((predicted(batches, _turned(base, knobs, moved)) - now) / step / measured)
    return (now - measured) / measured, np.stack(columns, axis=1) if columns else np.zeros((len(now), 0))


def _values(base: "Hardware", knobs: Sequence[Knob]) -> Floats:
    return np.asarray([max(knob.value(base), knob.least) for knob in knobs], dtype=np.float64)


def _visible(
    base: "Hardware",
    knobs: Sequence[Knob],
    values: Floats | None,
    batches: Sequence[Batch],
    measured: Floats,
) -> list[Knob]:
    """Those that some measurement depends on at these values; None: at the base's."""
    at = _values(base, knobs) if values is None else values
    _, slopes = _slopes(base, knobs, at, batches, measured)
    reach = np.abs(slopes).max(axis=0) * np.maximum(at, 1.0)
    return [knob for knob, much in zip(knobs, reach, strict=True) if much > 1e-7]


def _distinct(
    base: "Hardware", knobs: Sequence[Knob], batches: Sequence[Batch], measured: Floats
) -> list[Knob]:
    """Knobs that the measurements tell apart: overhead and latency of a link are joined where they do not.

    Raises:
        HardwareError: too few points for the knobs, or knobs that still look alike.
    """
    found = list(knobs)
    for table in ("link", "network"):
        pair = [knob for knob in found if knob.name in (f"{table}.overhead", f"{table}.latency")]
        if len(pair) == 2 and _alike(base, pair, batches, measured):
            found[found.index(pair[0])] = _together(table, base)
            found.remove(pair[1])
    names = [knob.name for knob in found]
    if not names:
        raise HardwareError("no figure of the profile depends on these measurements")
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
    _, slopes = _slopes(base, knobs, _values(base, knobs), batches, measured)
    columns = slopes / np.linalg.norm(slopes, axis=0)
    _, sizes, directions = np.linalg.svd(columns, full_matrices=True)
    if len(sizes) == len(knobs) and sizes[-1] > _ALIKE * sizes[0]:
        return []
    return [knob.name for knob, share in zip(knobs, directions[-1], strict=True) if abs(share) > 0.05]


def _solve(
    base: "Hardware", knobs: Sequence[Knob], batches: Sequence[Batch], measured: Floats
) -> tuple[Floats, Floats]:
    """The best values, from several starts, and the weights of the points."""
    least = np.asarray([knob.least for knob in knobs])
    start = _values(base, knobs)
    ratio = float(np.median(measured / predicted(batches, base)))
    tried = [
        _descend(base, knobs, np.maximum(first, least), batches, measured) for first in (start, start * ratio)
    ]
    values, weights, _ = min(tried, key=lambda found: found[2])
    return values, weights


def _descend(
    base: "Hardware", knobs: Sequence[Knob], values: Floats, batches: Sequence[Batch], measured: Floats
) -> tuple[Floats, Floats, float]:
    """Values, weights and the sum of what Huber's loss makes of the errors.

    The spread leaves out as many errors as knobs but one, the smallest: those are what the knobs can make nothing, whatever the noise.
    """
    weights, errors = np.ones(len(measured)), np.zeros(len(measured))
    for _ in range(_REWEIGHTS):
        values = _gauss_newton(base, knobs, values, batches, measured, weights)
        errors = predicted(batches, _turned(base, knobs, values)) / measured - 1
        spread = _SPREAD * float(np.median(np.sort(np.abs(errors))[len(knobs) - 1 :]))
        size = np.maximum(np.abs(errors), 1e-300)
        after = np.minimum(1.0, _HUBER * max(spread, 1e-9) / size)
        if np.abs(after - weights).max() < 1e-3:
            break
        weights = after
    return values, weights, float(np.sum(weights * errors**2))


def _gauss_newton(
    base: "Hardware",
    knobs: Sequence[Knob],
    values: Floats,
    batches: Sequence[Batch],
    measured: Floats,
    weights: Floats,
) -> Floats:
    least = np.asarray([knob.least for knob in knobs])
    most = np.maximum(_values(base, knobs), 1.0) * _FARTHEST
    root = np.sqrt(weights)

    def loss(at: Floats) -> float:
        return float(np.sum((root * (predicted(batches, _turned(base, knobs, at)) / measured - 1)) ** 2))

    best = loss(values)
    for _ in range(_STEPS):
        errors, slopes = _slopes(base, knobs, values, batches, measured)
        target = bounded_least_squares(root[:, None] * slopes, root * (slopes @ values - errors), least)
        for share in (1.0, 0.5, 0.25, 0.1, 0.02):
            tried = np.clip(values + share * (target - values), least, most)
            if (found := loss(tried)) < best:
                break
        else:
            return values
        is_done = best - found < 1e-12 * max(best, 1e-12)
        values, best = tried, found
        if is_done:
            return values
    return values


def bounded_least_squares(matrix: Floats, target: Floats, least: Floats) -> Floats:
    """The x ≥ `least` that makes |matrix·x - target| least: the best over all sets of unknowns that lie on their bounds."""
    scale = np.maximum(np.linalg.norm(matrix, axis=0), 1e-300)
    best: tuple[float, Floats] | None = None
    rest = target - matrix @ least
    for count in range(len(least), -1, -1):
        for free in itertools.combinations(range(len(least)), count):
            x = np.zeros(len(least))
            chosen = list(free)
            if chosen:
                x[chosen] = (
                    np.linalg.lstsq(matrix[:, chosen] / scale[chosen], rest, rcond=None)[0] / scale[chosen]
                )
            if (x >= 0).all():
                size = float(np.sum((matrix @ x - rest) ** 2))
                best = min(best, (size, x), key=lambda found: found[0]) if best else (size, x)
        if best is not None and count == len(least):
            break
    assert best is not None, "all on their bounds is always allowed"
    return best[1] + least


def _errors(
    base: "Hardware",
    knobs: Sequence[Knob],
    values: Floats,
    batches: Sequence[Batch],
    measured: Floats,
    weights: Floats,
) -> Floats:
    """Standard errors of the values, from the spread of the residuals."""
    errors, slopes = _slopes(base, knobs, values, batches, measured)
    scale = np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
    variance = float(np.sum(weights * errors**2)) / max(len(measured) - len(knobs), 1)
    weighted = np.sqrt(weights)[:, None] * slopes / scale
    return np.sqrt(np.maximum(np.diag(np.linalg.pinv(weighted.T @ weighted)) * variance, 0)) / scale


def _require_finite_bandwidth(each: FittedKnob) -> None:
    if not each.knob.name.endswith("ns_per_byte"):
        return
    table = each.knob.name.partition(".")[0]
    if each.value <= 1.001 / FASTEST_GB_PER_S or each.value < 2 * each.error:
        raise HardwareError(
            f"the times do not grow with the bytes: the fit would make [{table}] infinitely fast "
            f"({each.value:.3g} ± {each.error:.2g} ns a byte)",
            fix="Measure larger sizes, check the columns of bytes and time, or leave out runs that were disturbed.",
        )


def _within_reason(
    base: "Hardware", hardware: "Hardware", fitted: Sequence[FittedKnob]
) -> tuple["Hardware", tuple[str, ...]]:
    """The profile with figures that a profile can have, and what a reader should know of them.

    Raises:
        HardwareError: a unit faster than its peak.
    """
    warnings: list[str] = []
    for key, peak in (
        ("matrix_efficiency", "the peak of the matrix unit"),
        ("hbm_efficiency", "hbm_gb_per_s"),
    ):
        efficiency = getattr(hardware.chip, key)
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
                f"[{table}] came out as {link.bytes_per_ns:.4g} GB/s, above its nominal {link.nominal_gb_per_s:g}"
            )
    speedup = _speedup(hardware)
    if speedup < 1:
        warnings.append(f"topology.all_reduce_speedup came out as {speedup:.4g} and was set to 1")
        hardware = _SPEEDUP.turn(hardware, 1.0)
    for each in fitted:
        if each.value <= each.knob.least * 1.001 and not each.knob.name.endswith("ns_per_byte"):
            warnings.append(f"{each.knob.name} came out as 0")
        elif each.error > 0.5 * each.value:
            warnings.append(f"{each.knob.name} is uncertain by {each.error / each.value:.0%}")
    return hardware, tuple(warnings)
