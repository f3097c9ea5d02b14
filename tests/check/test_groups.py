"""The checker knows sharding groups by itself: it compares the settled shardings of the members that the module names."""

from dataclasses import replace

import pytest

from autoshard.check import Subject, check
from autoshard.mlir.listing import GroupMember, ShardingGroup
from autoshard.plans import PlannedValue
from tests.check import by_hand
from tests.check.by_hand import X_BY_Y, X_ROWS, XY_ROWS, Y_ROWS

GROUP = "(sdy.sharding_group group_id=0 at line)"


def subject_with(*members: int) -> Subject:
    group = ShardingGroup(tuple(GroupMember(value, f"v{value}", 0, "line") for value in members))
    return by_hand.subject(replace(by_hand.listing(), groups=(group,)))


def test_members_with_one_sharding_pass() -> None:
    """w and the next step's w; y as it settles, and z."""
    for members in ((1, 4), (2, 3)):
        report = check(subject_with(*members), by_hand.plan())
        (finding,) = (f for f in report.findings if f.name == "sharding groups")
        assert finding.ok, report.to_text()


@pytest.mark.parametrize(
    ("members", "value", "planned", "detail"),
    [
        ((1, 4), 4, PlannedValue(X_ROWS), f"v1 {GROUP} is {Y_ROWS}, v4 {GROUP} is {X_ROWS}"),
        ((2, 3), 2, PlannedValue(X_ROWS), f"v2 {GROUP} is {X_ROWS}, v3 {GROUP} is {XY_ROWS}"),
        ((2, 3), 3, PlannedValue(XY_ROWS, X_BY_Y), f"v2 {GROUP} is {XY_ROWS}, v3 {GROUP} is {X_BY_Y}"),
    ],
)
def test_a_member_of_its_own_mind_fails(
    members: tuple[int, int], value: int, planned: PlannedValue, detail: str
) -> None:
    report = check(subject_with(*members), by_hand.with_value(by_hand.plan(), value, planned))
    (finding,) = (f for f in report.failures if f.name == "sharding groups")
    assert finding.detail == detail
