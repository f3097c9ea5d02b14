"""Verdicts on single results."""

import numpy as np
import pytest

from autoshard.sharding import TensorType
from autoshard.xla.compare import FAILED, NOT_COMPARABLE, PASSED, Result, Row, compare
from autoshard.xla.report import VerifyReport


def result(
    original: np.ndarray,
    planned: np.ndarray,
    dtype: str = "f32",
    noise: float = 0.0,
    carried: np.ndarray | None = None,
) -> Result:
    from autoshard.xla.module import Port

    nudged = original + np.asarray(noise).astype(original.dtype)
    port = Port("y", TensorType(original.shape, dtype))
    return Result(port, original, planned, 0.0, [nudged], carried, None if carried is None else [carried])


ONES = np.ones(100, np.float32)


@pytest.mark.parametrize(
    ("factor", "narrowest", "noise", "verdict"),
    [
        (1 + 5e-6, "f32", 0.0, PASSED),
        (1 + 1e-4, "f32", 0.0, FAILED),
        (1 + 1e-4, "f32", 1e-4, PASSED),
        (1 + 1e-2, "bf16", 0.0, PASSED),
        (1 + 1e-1, "bf16", 0.0, FAILED),
        (1 + 1e-1, "bf16", 0.2, NOT_COMPARABLE),
        (3.0, "bf16", 0.2, FAILED),
        (float("nan"), "f32", 0.0, FAILED),
    ],
)
def test_floats(factor: float, narrowest: str, noise: float, verdict: str) -> None:
    """The tolerance follows the type of the arithmetic and what rounding does; where that is too much, no verdict."""
    assert (
        compare(result(ONES, (ONES * factor).astype(np.float32), noise=noise), narrowest).verdict == verdict
    )


def test_changes_of_carried_state() -> None:
    """A weight's update that is 1 % wrong fails, though the weight is right to five digits."""
    update = 1e-3 * np.linspace(1, 2, 100, dtype=np.float32)
    wrong = ONES + 1.01 * update
    assert compare(result(ONES + update, wrong, carried=ONES), "bf16").verdict == FAILED
    assert compare(result(ONES + update, wrong), "bf16").verdict == PASSED


def test_changes_lost_in_rounding() -> None:
    """An update below the weight's own rounding shows nothing."""
    nudged_up = np.nextafter(ONES, np.float32(2))
    assert compare(result(nudged_up, ONES, carried=ONES), "f32").verdict == NOT_COMPARABLE


def test_integers_are_exact() -> None:
    """One wrong integer fails, unless rounding alone moves as many."""
    original, planned = np.arange(100), np.arange(100)
    planned[3] = 0
    assert compare(result(original, planned, "i64"), "f32").verdict == FAILED
    assert compare(result(original, planned, "i64", noise=1.0), "f32").verdict == NOT_COMPARABLE
    assert compare(result(original, original, "i64"), "f32").verdict == PASSED


def test_infinities_are_not_compared() -> None:
    """A result that is not finite proves nothing, and fails where the finite rest differs."""
    original = ONES.copy()
    original[0] = np.inf
    assert compare(result(original, original), "f32").verdict == NOT_COMPARABLE
    assert compare(result(original, original * 2), "f32").verdict == FAILED
    assert compare(result(np.full(3, np.nan, np.float32), ONES[:3]), "f32").verdict == NOT_COMPARABLE


def test_report_needs_half_of_the_results() -> None:
    """A report passes if nothing fails and most could be compared."""

    def row(verdict: str) -> Row:
        return Row("y", "tensor<f32>", 0.0, 0.0, 1.0, verdict)

    def report(*verdicts: str) -> VerifyReport:
        return VerifyReport(8, 0, "f32", tuple(map(row, verdicts)), {})

    assert report(PASSED, NOT_COMPARABLE).passed
    assert not report(PASSED, NOT_COMPARABLE, NOT_COMPARABLE).passed
    assert not report(PASSED, PASSED, FAILED).passed
    assert "1 FAILED" in report(PASSED, PASSED, FAILED).to_text()
    assert "60 more" in report(*[PASSED] * 100).to_text()
