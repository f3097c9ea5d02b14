"""Compares results of the original and the planned module within a tolerance that fits how they are computed.

The largest error may be `relative * scale + 2 * eps * size + 4 * noise`. `relative` belongs to the narrowest
floating type in the program, because sharding re-associates its reductions; `scale` is the largest value of the
result; `eps * size` is the rounding of what is stored; `noise` is what rounding every input once does to the result.
For a result that takes over an argument's buffer (a weight that is updated) the values are changes against that
argument, so that an error in a small update cannot hide behind a large weight. Integers and booleans are exact.
"""

from dataclasses import dataclass

import numpy as np

from autoshard.xla.dtypes import epsilon, is_complex, is_float
from autoshard.xla.module import Port

PASSED, FAILED, NOT_COMPARABLE = "passed", "FAILED", "not comparable"
_RELATIVE = {
    "f64": 1e-8,
    "f32": 1e-4,
    "f16": 1e-2,
    "bf16": 3e-2,
}  # a few hundred, for short formats a few, roundings
_RELATIVE_SHORTER = 0.25  # 8 and 4 bit floats
_ROUNDINGS = 2
_NOISE_FACTOR = 4
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
    """One result of main: of the original, of the original on nudged inputs, of the planned module.

    `before` and `nudged_before`: the argument whose buffer it takes over, in both kinds of inputs.
    """

    port: Port
    original: np.ndarray
    nudged: np.ndarray
    planned: np.ndarray
    before: np.ndarray | None = None
    nudged_before: np.ndarray | None = None


def relative_tolerance(narrowest: str) -> float:
    return _RELATIVE.get(narrowest, _RELATIVE_SHORTER)


def compare(result: Result, narrowest: str) -> Row:
    """`narrowest`: the floating type with the fewest digits that the program computes with."""
    element = result.port.type.dtype
    if result.original.size == 0:
        return _row(result.port, 0.0, 0.0, 0.0, PASSED, "empty")
    if not (is_float(element) or is_complex(element)):
        return _compare_exactly(result)
    return _compare_floats(result, relative_tolerance(narrowest))


def _compare_exactly(result: Result) -> Row:
    differs = result.original != result.planned
    if not differs.any():
        return _row(result.port, 0.0, 0.0, 0.0, PASSED)
    original, planned = (x.astype(np.float64) for x in (result.original, result.planned))
    error = float(np.abs(original - planned).max())
    share = float(differs.mean())
    unstable = float((result.original != result.nudged).mean())
    remark = f"{share:.2%} of the elements differ"
    if 0 < share <= 4 * unstable:
        return _row(
            result.port,
            error,
            share,
            0.0,
            NOT_COMPARABLE,
            f"{remark}; rounding the inputs changes {unstable:.2%}",
        )
    return _row(result.port, error, share, 0.0, FAILED, remark)


def _compare_floats(result: Result, relative: float) -> Row:
    finite = np.isfinite(result.original.astype(np.complex128))
    if not finite.any():
        return _row(result.port, 0.0, 0.0, 0.0, NOT_COMPARABLE, "no finite value in the original")
    original, planned = _wide(result.original)[finite], _wide(result.planned)[finite]
    change = _change(original, result.before, finite)
    scale = float(np.abs(change).max())
    noise = _largest(_change(_wide(result.nudged)[finite], result.nudged_before, finite) - change)
    strict = relative * scale + _ROUNDINGS * epsilon(result.port.type.dtype) * float(np.abs(original).max())
    tolerance = strict + _NOISE_FACTOR * noise
    error = _largest(planned - original)
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


def _change(values: np.ndarray, before: np.ndarray | None, finite: np.ndarray) -> np.ndarray:
    return values if before is None else values - _wide(before)[finite]


def _largest(differences: np.ndarray) -> float:
    """Infinity where one is not finite: the other side has no number where this one has."""
    return float(np.abs(differences).max()) if np.isfinite(differences).all() else float("inf")


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def _row(port: Port, error: float, relative: float, tolerance: float, verdict: str, remark: str = "") -> Row:
    return Row(port.name, str(port.type), error, relative, tolerance, verdict, remark)
