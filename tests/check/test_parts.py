"""The checker's own projection between dimensions and factors."""

import pytest

from autoshard.check.parts import (
    Parts,
    conflict,
    dealt,
    joined,
    overlapping,
    parts_of,
    pieces,
    project,
    tensor_sharding,
)
from autoshard.sharding import Mesh, OpShardingRule, parse_axes, parse_rule, parse_sharding

MESH = Mesh.of([("a", 2), ("b", 4), ("c", 3)])


def parts(text: str) -> Parts:
    return parts_of(parse_axes(text, MESH))


@pytest.mark.parametrize(
    ("axes", "sizes", "shares"),
    [
        ('"b"', [8], ['"b"']),
        ('"b"', [2, 8], ['"b":(1)2', '"b":(2)2']),
        ('"b"', [4, 8], ['"b"', ""]),
        ('"a", "b"', [2, 8], ['"a"', '"b"']),
        ('"a", "b"', [4, 2], ['"a", "b":(1)2', '"b":(2)2']),
        ('"a"', [4, 8], ['"a"', ""]),
        ('"c"', [2, 8], None),
        ('"b"', [6, 8], None),
        ("", [2, 8], ["", ""]),
        ('"b"', [], None),
        ("", [], []),
        ('"b"', [1, 4], ["", '"b"']),
        ('"c"', [8], ['"c"']),
    ],
)
def test_dealt(axes: str, sizes: list[int], shares: list[str] | None) -> None:
    """Compound dimensions fill the major factor first and exactly; only the last factor may be split unevenly."""
    expected = None if shares is None else list(map(parts, shares))
    assert dealt(parts(axes), sizes) == expected


def test_joined() -> None:
    """Parts that continue each other are one, so a split has one form."""
    assert joined(parts('"b":(1)2, "b":(2)2')) == parts('"b"')
    assert joined([("b", 2, 4), ("b", 1, 2)]) == (("b", 2, 4), ("b", 1, 2))


def test_pieces() -> None:
    """An axis, and the sub-axes that it is: the same pieces."""
    whole, halves = parts('"b"'), parts('"b":(2)2, "a", "b":(1)2')
    assert pieces(whole, halves) == {("b", 1, 2), ("b", 2, 4)}
    assert pieces(halves, whole) - pieces(whole, halves) == set(pieces(parts('"a"')))
    assert pieces(whole) == set(whole)


def test_overlapping() -> None:
    assert overlapping(parts('"b":(1)2, "a", "b":(2)2')) is None
    assert overlapping([("b", 1, 4), ("b", 2, 4)]) == "b"


MATMUL = parse_rule("([i, k],[k, j])->([i, j]) {i=8, j=16, k=8} reduction={k}")
RESHAPE = parse_rule("([ij])->([i, j]) {i=2, j=8}")
SORT = parse_rule("([i, j])->([i, j]) {i=8, j=8} need_replication={j}")


def projected(rule: OpShardingRule, *texts: str) -> object:
    shardings = [parse_sharding(text, MESH) for text in texts]
    found = project(rule, zip((*rule.operands, *rule.results), shardings, strict=True))
    return found if isinstance(found, str) else conflict(rule, found)


@pytest.mark.parametrize(
    ("rule", "shardings", "reason"),
    [
        (MATMUL, ('[{"a"}, {"b"}]', '[{"b"}, {}]', '[{"a"}, {}]'), None),
        (MATMUL, ('[{"a"}, {"b"}]', "[{}, {}]", '[{"a"}, {}]'), "factor k is split as"),
        (MATMUL, ('[{"a"}, {}]', '[{}, {"a"}]', '[{"a"}, {"a"}]'), 'axis "a" splits two factors'),
        (MATMUL, ('[{"b":(1)2}, {}]', '[{}, {"b":(2)2}]', '[{"b":(1)2}, {"b":(2)2}]'), None),
        (RESHAPE, ('[{"a", "b"}]', '[{"a"}, {"b"}]'), None),
        (RESHAPE, ('[{"b"}]', '[{"b":(1)2}, {"b":(2)2}]'), None),
        (RESHAPE, ('[{"b", "a"}]', '[{"a"}, {"b"}]'), "factor i is split as"),
        (RESHAPE, ('[{"c"}]', "[{}, {}]"), "does not split by the factors"),
        (SORT, ('[{"a"}, {}]', '[{"a"}, {}]'), None),
        (SORT, ('[{}, {"a"}]', '[{}, {"a"}]'), "factor j must stay whole"),
    ],
)
def test_compatible(rule: OpShardingRule, shardings: tuple[str, ...], reason: str | None) -> None:
    """Shardy's compatibility: factors agree over all tensors, need-replication is whole, no axis on two factors."""
    found = projected(rule, *shardings)
    assert found is None if reason is None else reason in str(found)


def test_tensor_sharding() -> None:
    """From factors back to dimensions, parts of an axis joined."""
    factors = (parts('"b":(1)2'), parts('"b":(2)2'))
    assert str(tensor_sharding(((0, 1),), factors, MESH)) == '[{"b"}]'
    assert str(tensor_sharding(((0,), (1,)), factors, MESH)) == '[{"b":(1)2}, {"b":(2)2}]'
