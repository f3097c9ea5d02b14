"""The two views of a strategy hold the same elements on every device, and each gives the other back."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.sharding import (
    AxisRef,
    FactorAxes,
    Mesh,
    OpShardingRule,
    TensorMapping,
    TensorSharding,
    factor_axes_of,
    merge_sub_axes,
    parse_rule,
    parse_sharding,
    tensor_sharding,
    total_size,
)
from tests.sharding.strategies import Assigned, assigned, rules, untimed

Device = dict[str, int]  # index on every axis


def devices(mesh: Mesh) -> list[Device]:
    ranges = [range(axis.size) for axis in mesh.axes]
    return [dict(zip(mesh.axis_names, at, strict=True)) for at in itertools.product(*ranges)]


def shard_of(device: Device, axes: Sequence[AxisRef], mesh: Mesh) -> int:
    """Which of the shards that `axes` make is this device's: `"x":(p)s` is the digit of x after the first p parts."""
    index = 0
    for axis in axes:
        minor = mesh.axis_size(axis.name) // axis.end
        index = index * axis.size + device[axis.name] // minor % axis.size
    return index


def held(size: int, axes: Sequence[AxisRef], device: Device, mesh: Mesh) -> range:
    """The part of [0, size) that a device holds: equal shards, the last ones padded."""
    shard = -(-size // total_size(axes))
    begin = min(size, shard_of(device, axes, mesh) * shard)
    return range(begin, min(size, begin + shard))


def held_by_factors(
    rule: OpShardingRule, dim: Sequence[int], factor_axes: FactorAxes, device: Device, mesh: Mesh
) -> list[int]:
    """Indices of a dimension, major factor first, whose index on every factor the device holds."""
    indices = [0]
    for factor in dim:
        size = rule.factors[factor].size
        mine = held(size, factor_axes[factor], device, mesh)
        indices = [index * size + i for index in indices for i in mine]
    return indices


def dim_size(rule: OpShardingRule, dim: Sequence[int]) -> int:
    size = 1
    for factor in dim:
        size *= rule.factors[factor].size
    return size


def mappings(rule: OpShardingRule) -> tuple[TensorMapping, ...]:
    return (*rule.operands, *rule.results)


def divides(rule: OpShardingRule, factor_axes: FactorAxes) -> bool:
    return all(f.size % total_size(axes) == 0 for f, axes in zip(rule.factors, factor_axes, strict=True))


@untimed
@given(assigned())
def test_devices_hold_the_same_elements(case: Assigned) -> None:
    """A tensor's sharding puts on each device just the elements that the axes of the factors do, where shards are equal."""
    for mapping in mappings(case.rule):
        sharding = tensor_sharding(case.rule, mapping, case.factor_axes, case.mesh)
        if sharding is None or not divides(case.rule, case.factor_axes):
            continue
        for dim, axes in zip(mapping, sharding.axes, strict=True):
            size = dim_size(case.rule, dim)
            for device in devices(case.mesh):
                by_factors = held_by_factors(case.rule, dim, case.factor_axes, device, case.mesh)
                assert by_factors == list(held(size, axes, device, case.mesh))


@untimed
@given(assigned())
def test_refused_where_elements_are_strided(case: Assigned) -> None:
    """Where shards are equal, no sharding is given just when some device would hold elements with gaps between them."""
    for mapping in mappings(case.rule):
        if not divides(case.rule, case.factor_axes):
            continue
        parts = [
            held_by_factors(case.rule, dim, case.factor_axes, device, case.mesh)
            for dim in mapping
            for device in devices(case.mesh)
        ]
        has_gaps = any(part[-1] - part[0] >= len(part) for part in parts)
        refused = tensor_sharding(case.rule, mapping, case.factor_axes, case.mesh) is None
        assert refused == has_gaps


@untimed
@given(assigned())
def test_inverse(case: Assigned) -> None:
    """Shardings made of factor axes give those factor axes back."""
    made = [tensor_sharding(case.rule, m, case.factor_axes, case.mesh) for m in mappings(case.rule)]
    shardings = [s for s in made if s is not None]
    if len(shardings) == len(made):
        assert factor_axes_of(case.rule, mappings(case.rule), shardings, case.mesh) == case.factor_axes


SMALL = Mesh.of([("x", 4), ("y", 2)])
CUTS = (
    (SMALL.axis("x"), SMALL.axis("y")),
    (SMALL.axis("x", 1, 2), SMALL.axis("x", 2, 2), SMALL.axis("y")),
)


def every_assignment(slots: int) -> set[FactorAxes]:
    """All disjoint parts of the small mesh's axes in all orders on so many factors."""
    found: set[FactorAxes] = set()
    for parts in CUTS:
        for order in itertools.permutations(parts):
            for homes in itertools.product(range(slots + 1), repeat=len(parts)):
                hands = [
                    [part for part, home in zip(order, homes, strict=True) if home == slot]
                    for slot in range(slots)
                ]
                found.add(tuple(merge_sub_axes(hand, SMALL) for hand in hands))
    return found


ASSIGNMENTS = {slots: every_assignment(slots) for slots in (1, 2, 3)}


@untimed
@given(rules(most_factors=3, sizes=(1, 2, 3, 4, 8)), st.data())
def test_none_just_where_nothing_gives_the_shardings(rule: OpShardingRule, data: st.DataObject) -> None:
    """Of shardings drawn apart for each tensor, factor axes are found just when some assignment makes all of them."""
    made: dict[tuple[TensorSharding, ...], FactorAxes] = {}
    single: list[set[TensorSharding]] = [set() for _ in mappings(rule)]
    for factor_axes in ASSIGNMENTS[len(rule.factors)]:
        shardings = [tensor_sharding(rule, m, factor_axes, SMALL) for m in mappings(rule)]
        known = tuple(s for s in shardings if s is not None)
        if len(known) == len(shardings):
            made[known] = factor_axes
            for seen, sharding in zip(single, known, strict=True):
                seen.add(sharding)
    apart = tuple(data.draw(st.sampled_from(sorted(seen, key=str))) for seen in single)
    wanted = data.draw(st.sampled_from([apart, *itertools.islice(made, 20)]))
    found = factor_axes_of(rule, mappings(rule), wanted, SMALL)
    assert (found is not None) == (wanted in made)
    if found is not None:
        again = tuple(tensor_sharding(rule, m, found, SMALL) for m in mappings(rule))
        assert again == wanted


RESHAPE = parse_rule("([ij])->([i, j]) {i=4, j=6}")


@pytest.mark.parametrize(
    ("i", "j", "expected"),
    [
        ("", "", "[{}]"),
        ('"x"', "", '[{"x"}]'),
        ('"x"', '"z"', '[{"x", "z"}]'),
        ('"x":(1)2', "", '[{"x":(1)2}]'),
        ('"x":(1)2', '"z"', None),
        ("", '"z"', None),
        ('"z"', "", None),
        ('"y"', '"x":(1)2', None),
        ('"y", "x":(1)2', '"x":(2)2', '[{"y", "x"}]'),
    ],
)
def test_fill_order(i: str, j: str, expected: str | None) -> None:
    """A compound dimension fills its major factor to the end, evenly, before the next one is split."""
    mesh = Mesh.of([("x", 4), ("y", 2), ("z", 3)])
    factor_axes = parse_sharding(f"[{{{i}}}, {{{j}}}]", mesh).axes
    sharding = tensor_sharding(RESHAPE, RESHAPE.operands[0], factor_axes, mesh)
    assert (None if sharding is None else str(sharding)) == expected


@pytest.mark.parametrize(
    ("operand", "result", "expected"),
    [
        ('[{"x", "z"}]', '[{"x"}, {"z"}]', '[{"x"}, {"z"}]'),
        ('[{"x", "z"}]', '[{"x"}, {}]', None),
        ('[{"x":(1)2}]', '[{"x":(1)2}, {}]', '[{"x":(1)2}, {}]'),
        ('[{"y", "x"}]', '[{"y", "x":(1)2}, {"x":(2)2}]', '[{"y", "x":(1)2}, {"x":(2)2}]'),
        ('[{"z"}]', '[{"z"}, {}]', None),
    ],
)
def test_factor_axes_of_a_reshape(operand: str, result: str, expected: str | None) -> None:
    """An axis that reaches past the major factor is cut where that factor ends."""
    mesh = Mesh.of([("x", 4), ("y", 2), ("z", 3)])
    shardings = [parse_sharding(text, mesh) for text in (operand, result)]
    found = factor_axes_of(RESHAPE, mappings(RESHAPE), shardings, mesh)
    assert found == (None if expected is None else parse_sharding(expected, mesh).axes)
