"""Values of knobs that explain measurements best: Gauss-Newton on the relative errors, (predicted - measured)/measured.

Each step is a least-squares problem with lower bounds; where all that limits stays what it is, one step is exact. Then
rows far off the rest count less (Huber's weights [1]), so that a few bad runs do not decide.

[1] Huber, Robust estimation of a location parameter, 1964, with the usual 1.345 spreads.
"""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .knobs import Knob, turned, values_of
from .measurements import Batch, Floats, predicted

if TYPE_CHECKING:
    from .hardware import Hardware

_FARTHEST = 1e3  # so many times the base's figure at most
_STEPS, _REWEIGHTS = 40, 12
_HUBER, _SPREAD = 1.345, 1.4826  # of the median absolute deviation, for a normal distribution


def slopes_at(
    base: "Hardware", knobs: Sequence[Knob], values: Floats, batches: Sequence[Batch], measured: Floats
) -> tuple[Floats, Floats]:
    """Relative errors [points], and how they change with each knob [points, knobs]."""
    now = predicted(batches, turned(base, knobs, values))
    columns: list[Floats] = []
    for index, knob in enumerate(knobs):
        step = max(abs(float(values[index])) * 1e-3, knob.least * 1e-1, 1e-9)
        moved = values.copy()
        moved[index] += step
        columns.append((predicted(batches, turned(base, knobs, moved)) - now) / step / measured)
    return (now - measured) / measured, np.stack(columns, axis=1) if columns else np.zeros((len(now), 0))


def descend(
    base: "Hardware", knobs: Sequence[Knob], batches: Sequence[Batch], measured: Floats
) -> tuple[Floats, Floats]:
    """The best values, from several starts, and the weights of the points."""
    least = np.asarray([knob.least for knob in knobs])
    start = values_of(base, knobs)
    ratio = float(np.median(measured / predicted(batches, base)))
    tried = [
        _descend_from(base, knobs, np.maximum(first, least), batches, measured)
        for first in (start, start * ratio)
    ]
    values, weights, _ = min(tried, key=lambda found: found[2])
    return values, weights


def _descend_from(
    base: "Hardware", knobs: Sequence[Knob], values: Floats, batches: Sequence[Batch], measured: Floats
) -> tuple[Floats, Floats, float]:
    """Values, weights and the sum of what Huber's loss makes of the errors.

    The spread leaves out as many errors as knobs but one, the smallest: those are what the knobs can make nothing, whatever the noise.
    """
    weights, errors = np.ones(len(measured)), np.zeros(len(measured))
    for _ in range(_REWEIGHTS):
        values = _gauss_newton(base, knobs, values, batches, measured, weights)
        errors = predicted(batches, turned(base, knobs, values)) / measured - 1
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
    most = np.maximum(values_of(base, knobs), 1.0) * _FARTHEST
    root = np.sqrt(weights)

    def loss(at: Floats) -> float:
        return float(np.sum((root * (predicted(batches, turned(base, knobs, at)) / measured - 1)) ** 2))

    best = loss(values)
    for _ in range(_STEPS):
        errors, slopes = slopes_at(base, knobs, values, batches, measured)
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


def standard_errors(
    base: "Hardware",
    knobs: Sequence[Knob],
    values: Floats,
    batches: Sequence[Batch],
    measured: Floats,
    weights: Floats,
) -> Floats:
    """Standard errors of the values, from the spread of the residuals."""
    errors, slopes = slopes_at(base, knobs, values, batches, measured)
    scale = np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
    variance = float(np.sum(weights * errors**2)) / max(len(measured) - len(knobs), 1)
    weighted = np.sqrt(weights)[:, None] * slopes / scale
    return np.sqrt(np.maximum(np.diag(np.linalg.pinv(weighted.T @ weighted)) * variance, 0)) / scale
