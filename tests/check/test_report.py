"""Reports say what failed, in text and in JSON."""

import json

from autoshard.check import CheckReport, Finding
from autoshard.check.report import of_offenders


def test_text() -> None:
    """The verdict names the findings that failed and those that could not be made."""
    report = CheckReport((Finding("peak", False, 8, 4, "bytes"), Finding("step", True, 1, 1)), ("compute",))
    text = report.to_text()
    assert not report.passed
    assert "FAILED: peak; not checked: compute" in text
    assert "passed: all 1 findings hold" in CheckReport((Finding("step", True, 1, 1),)).to_text()


def test_json() -> None:
    report = CheckReport((Finding("peak", False, 8, 4, "bytes"),))
    data = json.loads(report.to_json())
    assert data["passed"] is False
    expected = {"name": "peak", "ok": False, "expected": 8, "found": 4, "detail": "bytes"}
    assert data["findings"] == [expected]


def test_first_offenders() -> None:
    """A finding about many things names the first few."""
    finding = of_offenders("rules", [f"op {number}" for number in range(7)], 9, "agree")
    assert finding.detail.splitlines() == ["op 0", "op 1", "op 2", "op 3", "op 4", "and 2 more"]
    assert finding.found == "7 of 9 do not"
