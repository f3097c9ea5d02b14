"""Sharding groups as they are read: joined, of one shape, with one demand."""

import pytest

from autoshard.errors import AutoshardError
from autoshard.mlir.listing import Listing
from autoshard.program import with_group_demands
from tests.mlir.modules import listed, main_of

T = "tensor<8x16xf32>"
BODY = f"%0 = stablehlo.abs %a : {T}\n%1 = stablehlo.abs %b : {T}\n%2 = stablehlo.abs %1 : {T}\n"


def grouped(*groups: tuple[str, int], a: str = "", b: str = "", body: str = BODY) -> Listing:
    """A module with these (value, group id) pairs and demands on its arguments a and b; values 0 and 1 are those, the ops make 2, 3, 4."""
    ops = "".join(f"sdy.sharding_group {value} group_id={number} : {T}\n" for value, number in groups)
    demands = [f"{{sdy.sharding = #sdy.sharding<@mesh, {text}>}}" if text else "" for text in (a, b)]
    text = main_of(f"{body}{ops}return %2 : {T}", f"%a: {T} {demands[0]}, %b: {T} {demands[1]}")
    return with_group_demands(listed(text))


def values(listing: Listing) -> list[list[int]]:
    return [[member.value for member in group.members] for group in listing.groups]


def test_groups_are_not_ops() -> None:
    """They have no time and no number."""
    assert [op.name for op in grouped(("%a", 0), ("%b", 0)).ops] == ["stablehlo.abs"] * 3


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([("%a", 0), ("%b", 0)], [[0, 1]]),
        ([("%a", 0), ("%b", 1)], [[0], [1]]),
        ([("%a", 0), ("%0", 0), ("%b", 1), ("%1", 1), ("%1", 0)], [[0, 1, 2, 3]]),
        ([("%2", 5), ("%2", 5), ("%a", 5)], [[0, 4]]),
        ([("%a", 7), ("%b", 8), ("%0", 7), ("%1", 8)], [[0, 2], [1, 3]]),
    ],
)
def test_a_common_value_joins_groups(groups: list[tuple[str, int]], expected: list[list[int]]) -> None:
    assert sorted(values(grouped(*groups))) == expected


def test_members_of_different_shapes_are_refused_by_name_and_line() -> None:
    body = f"%t = stablehlo.transpose %a, dims = [1, 0] : ({T}) -> tensor<16x8xf32>\n" + (
        f"sdy.sharding_group %t group_id=3 : tensor<16x8xf32>\n{BODY}"
    )
    with pytest.raises(AutoshardError) as refused:
        grouped(("%a", 3), body=body)
    assert refused.value.reason.splitlines()[1:] == [
        f"  {T} arg0 (sdy.sharding_group group_id=3 at <bytes>:9)",
        "  tensor<16x8xf32> stablehlo.transpose (<bytes>:4) (sdy.sharding_group group_id=3 at <bytes>:5)",
    ]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ('[{"x"}, {}]', "", '[{"x"}, {}]'),
        ('[{"x", ?}, {}]', '[{"x", "z"}, {?}]', '[{"x", "z"}, {}]'),
        ('[{"x", ?}, {?}]', '[{?}, {"y", ?}], replicated={"z"}', '[{"x", ?}, {"y", ?}], replicated={"z"}'),
        ("[{?}, {?}]", "[{}, {}]", "[{}, {}]"),
    ],
)
def test_a_demand_on_one_member_is_one_on_all(a: str, b: str, expected: str) -> None:
    """Open dimensions take what the other demand adds."""
    listing = grouped(("%a", 0), ("%b", 0), ("%1", 0), a=a, b=b)
    demands = [*(argument.demand for argument in listing.arguments), listing.ops[1].demand]
    assert list(map(str, demands)) == [expected] * 3
    assert listing.ops[0].demand is None


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ('[{"x"}, {}]', '[{"y"}, {}]'),
        ('[{"x"}, {?}]', '[{"x", "y", ?}, {?}]'),
        ('[{"x", ?}, {?}]', '[{"y", ?}, {?}]'),
        ('[{"x", ?}, {?}]', '[{?}, {"x", ?}]'),
        ('[{"x", ?}, {?}]', '[{?}, {?}], replicated={"x"}'),
    ],
)
def test_demands_that_no_sharding_meets_are_refused(a: str, b: str) -> None:
    """Both are in the message as they were written."""
    with pytest.raises(AutoshardError, match="sharded differently") as refused:
        grouped(("%a", 0), ("%b", 0), a=a, b=b)
    assert a in refused.value.reason
    assert b in refused.value.reason


def test_a_demand_that_does_not_divide_an_argument_is_refused() -> None:
    """Also where it stands on a value that could be padded."""
    body = BODY.replace(
        f"stablehlo.abs %a : {T}",
        f'stablehlo.abs %a {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{{"x", "y", "z"}}, {{}}]>]>}} : {T}',
    )
    with pytest.raises(AutoshardError, match=r"does not divide tensor<8x16xf32>, an argument:\n  arg0"):
        grouped(("%a", 0), ("%0", 0), body=body)
