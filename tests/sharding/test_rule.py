"""Op sharding rules in Shardy's notation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, new_context
from autoshard.sharding import Factor, FactorKind, OpShardingRule, parse_rule
from tests.sharding.strategies import rules, untimed

CONTEXT = new_context()


@untimed
@given(rules(most_factors=22))
def test_text_round_trip(rule: OpShardingRule) -> None:
    """Every rule parses back from its text, bare and as the attribute writes it."""
    assert parse_rule(str(rule)) == rule
    assert parse_rule(f"#sdy.op_sharding_rule<{rule}>") == rule


@untimed
@given(rules(most_factors=22))
def test_shardy_reads_and_prints_the_same(rule: OpShardingRule) -> None:
    """Shardy's parser accepts what prints, and what it prints is the same rule."""
    attribute = ir.Attribute.parse(f"#sdy.op_sharding_rule<{rule}>", CONTEXT)
    assert parse_rule(str(attribute)) == rule


@pytest.mark.parametrize(
    "text",
    [
        "([i, k], [k, j])->([i, j]) {i=8, j=16, k=4} reduction={k}",
        "([ij])->([i, j]) {i=2, j=4}",
        "([i], [])->([i]) {i=8}",
        "()->([i]) {i=8}",
        "([])->([])",
        "([i, j])->([j, i]) {i=8, j=4} need_replication={j} permutation={i} blocked_propagation={i, j}",
        "([i])->([i]) {i=8}, custom",
    ],
)
def test_notation(text: str) -> None:
    """The notation of Shardy's documentation, character by character."""
    assert str(parse_rule(text)) == text


def test_kinds_are_read() -> None:
    """Each factor has one kind; blocked propagation goes beside it."""
    rule = parse_rule(
        "([i, j, k, l])->([i]) {i=1, j=2, k=3, l=4}"
        " reduction={j} need_replication={k} permutation={l} blocked_propagation={j}"
    )
    assert rule.factors == (
        Factor(1),
        Factor(2, FactorKind.REDUCTION, is_blocked=True),
        Factor(3, FactorKind.NEED_REPLICATION),
        Factor(4, FactorKind.PERMUTATION),
    )


def test_names_past_z() -> None:
    """The eighteenth factor is z, the next z_1, also in compound dimensions."""
    count = 20
    dims = (*((i,) for i in range(count - 3)), tuple(range(count - 3, count)))
    rule = OpShardingRule((Factor(2),) * count, (dims,), (dims,))
    assert "y, zz_1z_2]" in str(rule)
    assert parse_rule(str(rule)) == rule


def test_elementwise() -> None:
    """Dimension i is factor i in every operand and result."""
    assert str(OpShardingRule.elementwise((8, 4), 2)) == "([i, j], [i, j])->([i, j]) {i=8, j=4}"


@pytest.mark.parametrize("text", ["", "[i]", "([i], [j])"])
def test_not_a_rule(text: str) -> None:
    """A text without an arrow is an error that shows what a rule looks like."""
    with pytest.raises(AutoshardError, match="not an op sharding rule"):
        parse_rule(text)


@untimed
@given(st.sampled_from("ijk"))
def test_factor_without_size(symbol: str) -> None:
    """A factor that is used must have a size."""
    with pytest.raises(AutoshardError, match=f"factor '{symbol}' has no size"):
        parse_rule(f"([{symbol}])->([l]) {{l=4}}")
