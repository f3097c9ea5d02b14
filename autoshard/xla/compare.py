"""Compares results of the original and the planned module within a tolerance that fits how they are computed.

The largest error may be `relative * scale + 2 * eps * size + 8 * noise`. `scale` is the largest value of the result,
`eps * size` the rounding of what is stored, and `noise` what rounding each input once does to the result. For a result
that is carried (it takes the place of an argument, as a weight does that is updated) values are changes against that
argument, and `relative` is fit to the result's own type: an error in a small update must not hide behind a large
weight, nor a wrong bfloat16 gradient behind the float32 moment that it is added to. For other results
`relative` is fit to the narrowest floating type in the program, because sharding re-associates its reductions.
Integers and booleans are exact.
"""

from dataclasses import dataclass

import numpy as np

from autoshard.xla.dtypes import epsilon, is_complex, is_float
from autoshard.xla.module import Port

PASSED, FAILED, NOT_COMPARABLE = "passed", "FAILED", "not comparable"
_RELATIVE = {"f64": 1e-12, "f32": 1e-5, "f16": 5e-3, "bf16": 2e-2}  # 100 roundings; of short types few
_RELATIVE_OF_SHORTER = 0.25  # 8 and 4 bit floats
_ROUNDINGS = 2
_NOISE_FACTOR = 8
_LOOSEST = 0.5  # of the scale; a tolerance beyond it would let wrong results through


@dataclass(frozen=True, slots=True)
class Row:
    """Verdict on one result of main; errors and tolerance are absolute, in the result's own unit."""

    name: str
    type: str
    max_error: float
    relative_error: float
    tolerance: float
    verdict: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One result of main: of the original, of the planned module, and of the original on nudged inputs.

    `spread`: largest difference between the copies of a part of `planned` that several devices hold.
    `carried` and `nudged_carried`: the argument whose place it takes in the next step, in the same runs.
    """

    port: Port
    original: np.ndarray
    planned: np.ndarray
    spread: float
    nudged: list[np.ndarray]
    carried: np.ndarray | None = None
    nudged_carried: list[np.ndarray] | None = None


def compare(result: Result, narrowest: str) -> Row:
    """`narrowest`: the floating type with the fewest digits that the program computes with."""
    element = result.port.type.dtype
    if result.spread == float("inf"):
        return _row(result.port, result.spread, result.spread, 0.0, FAILED, "devices hold different copies")
    if result.original.size == 0:
        return _row(result.port, 0.0, 0.0, 0.0, PASSED, "empty")
    if not (is_float(element) or is_complex(element)):
        return _compare_exactly(result)
    return _compare_floats(result, relative_tolerance(narrowest if result.carried is None else element))


def relative_tolerance(element: str) -> float:
    component = element[len("complex<") : -1] if is_complex(element) else element
    return _RELATIVE.get(component, _RELATIVE_OF_SHORTER)


def _compare_exactly(result: Result) -> Row:
    differs = result.original != result.planned
    if result.spread > 0:
        return _row(result.port, result.spread, 0.0, 0.0, FAILED, "devices hold different copies")
    if not differs.any():
        return _row(result.port, 0.0, 0.0, 0.0, PASSED)
    original, planned = (x.astype(np.float64) for x in (result.original, result.planned))
    error = float(np.abs(original - planned).max())
    share = float(differs.mean())
    unstable = max(float((result.original != nudged).mean()) for nudged in result.nudged)
    remark = f"{share:.2%} of the elements differ"
    if 0 < share <= 4 * unstable:
        remark += f"; rounding the inputs changes {unstable:.2%}"
        return _row(result.port, error, share, 0.0, NOT_COMPARABLE, remark)
    return _row(result.port, error, share, 0.0, FAILED, remark)


def _compare_floats(result: Result, relative: float) -> Row:
    finite = np.isfinite(result.original.astype(np.complex128))
    if not finite.any():
        return _row(result.port, 0.0, 0.0, 0.0, NOT_COMPARABLE, "no finite value in the original")
    original, planned = _wide(result.original)[finite], _wide(result.planned)[finite]
    change = _change(original, result.carried, finite)
    scale = float(np.abs(change).max())
    nudged_carried = result.nudged_carried or [None] * len(result.nudged)
    noise = max(
        _largest(_change(_wide(nudged)[finite], carried, finite) - change)
        for nudged, carried in zip(result.nudged, nudged_carried, strict=True)
    )
    strict = relative * scale + _ROUNDINGS * epsilon(result.port.type.dtype) * float(np.abs(original).max())
    tolerance = strict + _NOISE_FACTOR * noise
    error = max(_largest(planned - original), result.spread)
    relative_error = error / scale if scale > 0 else (0.0 if error == 0 else float("inf"))
    verdict, remark = PASSED, ""
    if not error <= tolerance:
        verdict = FAILED
    elif error > 0 and (strict if error <= strict else tolerance) > _LOOSEST * scale:
        verdict, remark = (
            NOT_COMPARABLE,
            f"rounding alone may change it by {tolerance / scale:.0%}" if scale else "",
        )
    elif not finite.all():
        verdict, remark = NOT_COMPARABLE, f"{1 - finite.mean():.2%} of the original is not finite"
    return _row(result.port, error, relative_error, tolerance, verdict, remark)


def _change(values: np.ndarray, carried: np.ndarray | None, finite: np.ndarray) -> np.ndarray:
    return values if carried is None else values - _wide(carried)[finite]


def _largest(differences: np.ndarray) -> float:
    """Infinity where one is not finite: the other side has no number where this one has."""
    return float(np.abs(differences).max()) if np.isfinite(differences).all() else float("inf")


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def _row(port: Port, error: float, relative: float, tolerance: float, verdict: str, remark: str = "") -> Row:
    return Row(port.name, str(port.type), error, relative, tolerance, verdict, remark)
