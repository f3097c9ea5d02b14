"""A plan changed in one place is caught by the finding that is meant for it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autoshard.check import check
from autoshard.check.report import CheckReport
from autoshard.plans import Plan, PlannedUse, PlannedValue, Price
from tests.check import by_hand
from tests.check.by_hand import RESULT_SITE, X_BY_Y, X_ROWS, XY_ROWS, Y_ROWS

Change = Callable[[Plan], Plan]


def priced(**figures: int) -> Change:
    def change(plan: Plan) -> Plan:
        price = plan.price
        known = ("step_ns", "compute_ns", "communication_ns", "peak_bytes")
        found: dict[str, Any] = {name: getattr(price, name) for name in known} | figures
        return replace(plan, price=Price(**found, collectives=price.collectives))

    return change


def field(**changes: object) -> Change:
    return lambda plan: replace(plan, **changes)


def value(number: int, produced: str, settled: str = "", shared: str = "") -> Change:
    return lambda plan: by_hand.with_value(plan, number, PlannedValue(produced, settled, shared))


def use(op: int, operand: int, sharding: str) -> Change:
    return lambda plan: by_hand.with_use(plan, op, operand, sharding)


def collective(**changes: object) -> Change:
    def change(plan: Plan) -> Plan:
        (only,) = plan.price.collectives
        return replace(plan, price=replace(plan.price, collectives=(replace(only, **changes),)))

    return change


def without_value(number: int) -> Change:
    return lambda plan: replace(plan, values={v: p for v, p in plan.values.items() if v != number})


def more_uses(*uses: PlannedUse) -> Change:
    return lambda plan: replace(plan, uses=(*plan.uses, *uses))


STEP = by_hand.price().step_ns
PEAK = by_hand.price().peak_bytes

TAMPERED: list[tuple[str, str, Change]] = [
    ("hash", "module", field(module_sha256="b" * 64)),
    ("mesh size", "mesh", field(mesh=(("x", 2), ("y", 4)))),
    ("mesh names", "mesh", field(mesh=(("y", 4), ("x", 2)))),
    ("hardware", "hardware", field(hardware="tpu-v4")),
    ("form", "lowering", field(form="hlo")),
    ("form of another compiler", "lowering", field(form="xla")),
    ("carry", "carry", field(carry=())),
    ("recomputed", "recomputed", field(cloneable=(2,))),
    ("bound above the cost", "bound", field(lower_bound_ns=STEP + 1)),
    ("negative bound", "bound", field(lower_bound_ns=-1)),
    ("bound below an optimum", "status", field(lower_bound_ns=STEP - 1)),
    ("unknown status", "status", field(status="good")),
    ("fits and is infeasible", "status", field(status="infeasible")),
    ("budget", "status", field(memory_bytes=PEAK - 1)),
    ("smallest peak", "status", field(smallest_peak_bytes=PEAK + 1)),
    ("no sharding", "shardings", without_value(3)),
    ("axis twice", "shardings", value(3, '[{"x"}, {"x"}]')),
    ("axis of another mesh", "shardings", value(3, '[{"z"}, {}]')),
    ("wrong rank", "shardings", value(3, '[{"x"}]')),
    ("open", "shardings", value(3, '[{"x", ?}, {}]')),
    ("no notation", "shardings", value(3, "[x, y]")),
    ("no such value", "shardings", value(99, "[]")),
    ("no such operand", "shardings", more_uses(PlannedUse(1, 1, XY_ROWS))),
    ("no such op", "shardings", more_uses(PlannedUse(99, 0, XY_ROWS))),
    ("no such result", "shardings", more_uses(PlannedUse(RESULT_SITE, 2, XY_ROWS))),
    ("no such flow", "shardings", more_uses(PlannedUse(-1, 0, XY_ROWS))),
    ("use given twice", "shardings", more_uses(PlannedUse(1, 0, XY_ROWS))),
    ("sharding of an intermediate", "rules", value(3, X_ROWS)),
    ("sharding of an argument", "interface", value(0, X_ROWS)),
    ("use of an argument", "rules", use(0, 0, X_ROWS)),
    ("use of an intermediate", "rules", use(1, 0, X_ROWS)),
    ("two factors on one axis", "rules", use(0, 1, '[{"y"}, {"x"}]')),
    ("unequal state", "carried state", use(RESULT_SITE, 1, X_ROWS)),
    ("row of an argument", "interface", lambda p: replace(p, arguments=(p.arguments[1], p.arguments[0]))),
    (
        "bytes of a row",
        "interface",
        lambda p: replace(p, results=(replace(p.results[0], bytes=1), p.results[1])),
    ),
    ("no rows", "interface", field(results=())),
    ("settled elsewhere", "collectives", value(2, X_ROWS, '[{"x"}, {"y"}]')),
    ("kind of a collective", "collectives", collective(kind="all_reduce")),
    ("axes of a collective", "collectives", collective(axes=("x",))),
    ("bytes of a collective", "collectives", collective(bytes=2048)),
    ("count of a collective", "collectives", collective(repeat=2)),
    ("time of a collective", "collective times", collective(ns=1)),
    ("what is compiled", "compiled", collective(emitted=())),
    ("compute", "compute", priced(compute_ns=1)),
    ("communication", "communication", priced(communication_ns=1)),
    ("step", "step", priced(step_ns=STEP + 1)),
    ("peak", "peak", priced(peak_bytes=PEAK - 4)),
    ("peak over the budget", "budget", lambda p: replace(priced(peak_bytes=8)(p), memory_bytes=8)),
]


def failed(report: CheckReport) -> set[str]:
    return {finding.name for finding in report.failures}


@pytest.mark.parametrize(
    ("name", "change"), [case[1:] for case in TAMPERED], ids=[case[0] for case in TAMPERED]
)
def test_tampered(name: str, change: Change) -> None:
    """The change fails the check, and this finding among those that fail."""
    report = check(by_hand.subject(), change(by_hand.plan()))
    assert not report.passed
    assert name in failed(report), report.to_text()


def test_same_sharding_everywhere_is_legal() -> None:
    """What is caught is the contradiction: a sharding changed in all its places is legal, and only its price differs."""
    plan = by_hand.with_use(by_hand.with_use(by_hand.plan(), 0, 0, X_ROWS), 0, 1, "[{}, {}]")
    legality = {"shardings", "interface", "division", "carried state", "demands", "rules", "reads"}
    names = failed(check(by_hand.subject(), plan))
    assert not legality & names
    assert {"collectives", "compute"} <= names
    assert X_BY_Y != Y_ROWS
