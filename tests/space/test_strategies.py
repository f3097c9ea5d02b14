"""The strategies of a kernel against all assignments of axes to factors, tried one by one."""

import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.program import KernelShape
from autoshard.sharding import (
    AxisRef,
    FactorKind,
    Mesh,
    OpShardingRule,
    TensorMapping,
    TensorSharding,
    parse_rule,
    parse_sharding,
    total_size,
)
from autoshard.space import Strategy, strategies, strategy_of
from tests.mlir.modules import main_of
from tests.program.modules import program_of
from tests.space.custom import kernel_rules, shape_of, tensor_shape

MESHES = (
    Mesh.of([("x", 4), ("y", 2)]),
    Mesh.of([("x", 2), ("y", 3)]),
    Mesh.of([("x", 2), ("one", 1), ("y", 2), ("z", 2)]),
    Mesh.of([("x", 2), ("y", 2), ("z", 2), ("w", 2)]),
)
quick = settings(deadline=None, max_examples=50)

Hands = tuple[tuple[AxisRef, ...], ...]
Key = tuple[tuple[TensorSharding, ...], tuple[TensorSharding, ...], tuple[AxisRef, ...]]


def key(strategy: Strategy) -> Key:
    return strategy.operands, strategy.settled, strategy.reduced


def dealt(mesh: Mesh, slots: int) -> Iterator[Hands]:
    """Every way to give each axis with several devices to one slot or none, in any order within a slot.

    Four axes and more go in two parts, a major and a minor one, or one axis goes alone, in mesh order within a slot.
    """
    axes = [mesh.axis(axis.name) for axis in mesh.axes if axis.size > 1]
    found: set[Hands] = set()
    for order in itertools.permutations(axes) if len(axes) <= 3 else [tuple(axes)]:
        for homes in itertools.product(range(slots + 1), repeat=len(axes)):
            if len(axes) <= 3 or in_two_parts(homes, slots):
                found.add(
                    tuple(
                        tuple(axis for axis, home in zip(order, homes, strict=True) if home == slot)
                        for slot in range(slots)
                    )
                )
    yield from found


def in_two_parts(homes: Sequence[int], nowhere: int) -> bool:
    """Whether a cut leaves one home on either side, or a single axis has a home at all; the last number is no home."""
    parts = any(len(set(homes[:cut])) == len(set(homes[cut:])) == 1 for cut in range(1, len(homes)))
    return parts or sum(home != nowhere for home in homes) == 1


def may_split(rule: OpShardingRule, hands: Hands) -> bool:
    """Only pass-through and reduction factors, in at most as many shards as they have elements."""
    splittable = (FactorKind.PASS_THROUGH, FactorKind.REDUCTION)
    return all(
        not axes or (factor.kind in splittable and total_size(axes) <= factor.size)
        for factor, axes in zip(rule.factors, hands, strict=True)
    )


def projected(rule: OpShardingRule, mapping: TensorMapping, hands: Hands) -> TensorSharding | None:
    """Axes of a compound dimension: those of its factors in a row, if all but the last split one are split to the end."""
    dims: list[tuple[AxisRef, ...]] = []
    for dim in mapping:
        split = [position for position, factor in enumerate(dim) if hands[factor]]
        last = split[-1] if split else 0
        if any(total_size(hands[f]) != rule.factors[f].size for f in dim[:last]):
            return None
        is_inner = last < len(dim) - 1 or len(split) > 1
        if split and is_inner and rule.factors[dim[last]].size % total_size(hands[dim[last]]):
            return None
        dims.append(tuple(axis for factor in dim for axis in hands[factor]))
    return TensorSharding.closed(dims)


def scattered(
    result: TensorSharding, axes: Sequence[AxisRef], shape: tuple[int, ...], mesh: Mesh
) -> Iterator[TensorSharding]:
    """Every way to split a result that divides over all reduced axes besides, behind the axes that it has.

    With three axes and more only one dimension takes them, and stays in mesh order.
    """
    has_many_axes = sum(axis.size > 1 for axis in mesh.axes) > 2
    orders = itertools.product(
        itertools.permutations(axes), itertools.product(range(len(shape)), repeat=len(axes))
    )
    for order, homes in orders:
        dims = [
            (*have, *(axis for axis, home in zip(order, homes, strict=True) if home == dim))
            for dim, have in enumerate(result.axes)
        ]
        is_in_order = len(set(homes)) == 1 and dims[homes[0]] == tuple(sorted(dims[homes[0]], key=mesh.order))
        sharding = TensorSharding.closed(dims)
        if sharding.divides(shape) and (is_in_order or not has_many_axes):
            yield sharding


def by_brute_force(rule: OpShardingRule, mesh: Mesh) -> set[Key]:
    found: set[Key] = set()
    for hands in dealt(mesh, len(rule.factors)):
        operands, results = (
            [projected(rule, mapping, hands) for mapping in mappings]
            for mappings in (rule.operands, rule.results)
        )
        reads, makes = ([s for s in shardings if s is not None] for shardings in (operands, results))
        if not may_split(rule, hands) or (len(reads), len(makes)) != (len(operands), len(results)):
            continue
        kinds = [factor.kind for factor in rule.factors]
        reduced = tuple(
            sorted(
                (a for k, axes in zip(kinds, hands, strict=True) if k is FactorKind.REDUCTION for a in axes),
                key=mesh.order,
            )
        )
        settled = {tuple(makes)}
        if reduced and len(makes) == 1:
            shape = tensor_shape(rule, rule.results[0])
            settled |= {(sharding,) for sharding in scattered(makes[0], reduced, shape, mesh)}
        found |= {(tuple(reads), leaves, reduced) for leaves in settled}
    return found


@quick
@given(kernel_rules(), st.sampled_from(MESHES))
def test_all_strategies(rule: OpShardingRule, mesh: Mesh) -> None:
    """Just the legal assignments of whole axes, each result complete or scattered over all the axes it was summed over."""
    found = [key(strategy) for strategy in strategies(shape_of(rule, mesh), mesh)]
    assert set(found) == by_brute_force(rule, mesh)
    assert len(set(found)) == len(found)


@quick
@given(kernel_rules(results=2), st.sampled_from(MESHES))
def test_all_strategies_of_two_results(rule: OpShardingRule, mesh: Mesh) -> None:
    """The same for an op with several results, which are never scattered."""
    found = [key(strategy) for strategy in strategies(shape_of(rule, mesh), mesh)]
    assert set(found) == by_brute_force(rule, mesh)
    assert len(set(found)) == len(found)


MOVED = "the result moves without need"
SUB_AXES = "an axis splits two factors"


def refusals(shape: KernelShape, strategy: Strategy, mesh: Mesh) -> list[str]:
    """What is wrong with a strategy, by the words of Shardy's documentation."""
    rule, wrong = shape.rule, list[str]()
    used = [axis.name for axes in strategy.factor_axes for axis in axes]
    if len(set(used)) < len(used):
        wrong.append(SUB_AXES)
    for factor, axes in zip(rule.factors, strategy.factor_axes, strict=True):
        if axes and factor.kind is FactorKind.NEED_REPLICATION:
            wrong.append("a factor that needs replication is split")
        if axes and factor.kind is FactorKind.PERMUTATION:
            wrong.append("a permutation factor is split")
        if axes and total_size(axes) > factor.size:
            wrong.append("there are more shards than elements")
    for mapping, sharding in zip(
        (*rule.operands, *rule.results), (*strategy.operands, *strategy.produced), strict=True
    ):
        for dim, axes in zip(mapping, sharding.axes, strict=True):
            if axes != tuple(axis for factor in dim for axis in strategy.factor_axes[factor]):
                wrong.append("a tensor is not split as its factors are")
    for factor, axes in zip(rule.factors, strategy.factor_axes, strict=True):
        if factor.kind is FactorKind.REDUCTION and not set(axes) <= set(strategy.reduced):
            wrong.append("partial sums are left over")
    if list(strategy.reduced) != sorted(strategy.reduced, key=mesh.order):
        wrong.append("reduced axes are not in mesh order")
    if strategy.is_scattered:
        before, after = strategy.produced[0].num_shards, strategy.settled[0].num_shards
        if after != before * total_size(strategy.reduced):
            wrong.append("a scattered result is not split over all reduced axes")
    elif strategy.settled != strategy.produced:
        wrong.append(MOVED)
    return wrong


@quick
@given(kernel_rules(), st.sampled_from(MESHES))
def test_every_strategy_is_legal(rule: OpShardingRule, mesh: Mesh) -> None:
    """No strategy breaks a rule of Shardy's, and the first is full replication."""
    shape = shape_of(rule, mesh)
    found = strategies(shape, mesh)
    assert [refusals(shape, strategy, mesh) for strategy in found] == [[]] * len(found)
    assert not any(found[0].factor_axes)


@quick
@given(kernel_rules(), st.sampled_from(MESHES))
def test_strategy_of_its_shardings(rule: OpShardingRule, mesh: Mesh) -> None:
    """What a strategy reads and makes names it: the same reduced axes come back from the shardings alone."""
    shape = shape_of(rule, mesh)
    for strategy in strategies(shape, mesh):
        if not strategy.is_scattered:
            again = strategy_of(shape, strategy.operands, strategy.settled, mesh)
            assert again is not None
            assert again.factor_axes == strategy.factor_axes
            assert again.reduced == strategy.reduced


MATMUL = parse_rule("([i, k], [k, j])->([i, j]) {i=8, j=16, k=4} reduction={k}")


def test_matmul_on_one_axis() -> None:
    """Whole; split by rows, by columns; or by what is summed, all-reduced or scattered by rows or columns."""
    mesh = Mesh.of([("x", 4)])
    found = [key(strategy) for strategy in strategies(shape_of(MATMUL, mesh), mesh)]
    x = (mesh.axis("x"),)
    whole = TensorSharding.replicated_closed(2)
    rows, columns = TensorSharding.closed([x, ()]), TensorSharding.closed([(), x])
    assert found[0] == ((whole, whole), (whole,), ())
    assert set(found[1:]) == {
        ((rows, whole), (rows,), ()),
        ((whole, columns), (columns,), ()),
        ((columns, rows), (whole,), x),
        ((columns, rows), (rows,), x),
        ((columns, rows), (columns,), x),
    }


def test_number_of_strategies_of_a_matmul() -> None:
    """Two axes: 4^2 homes and 3 where both are in one in the other order; for the reduced axes the ways to scatter all of them: 2 * (3 * 2)
    where one is reduced; where both are, two orders of reducing that scatter alike: 4 homes and 2 in the other order.
    """
    mesh = Mesh.of([("x", 2), ("y", 2)])
    assert len(strategies(shape_of(MATMUL, mesh), mesh)) == 16 + 3 + 12 + 2 * (4 + 2)


WINDOW = """
  %0 = stablehlo.convolution(%a, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<4x8x8x4xf32>, tensor<3x3x4x16xf32>) -> tensor<4x8x8x16xf32>
  return %0 : tensor<4x8x8x16xf32>"""


def test_windows_may_be_split_over_space() -> None:
    """A convolution's image may be split, its window not."""
    mesh = Mesh.of([("x", 2), ("y", 2), ("z", 4)])
    text = main_of(WINDOW, "%a: tensor<4x8x8x4xf32>, %k: tensor<3x3x4x16xf32>", "tensor<4x8x8x16xf32>")
    found = strategies(program_of(text).kernels[0].shape, mesh)
    assert any(strategy.operands[0].axes[1] for strategy in found)
    assert not any(axes for strategy in found for axes in strategy.operands[1].axes[:2])


def test_a_slice_is_split_in_no_more_parts_than_its_smaller_side_has_rows() -> None:
    """The factor has the operand's 8 rows; the result has 4."""
    mesh = Mesh.of([("x", 2), ("y", 2), ("z", 4)])
    text = main_of("""
      %0 = stablehlo.slice %a [2:6, 0:16] : (tensor<8x16xf32>) -> tensor<4x16xf32>
      return %0 : tensor<4x16xf32>""", results="tensor<4x16xf32>")  # fmt: skip
    found = strategies(program_of(text).kernels[0].shape, mesh)
    assert max(total_size(strategy.operands[0].axes[0]) for strategy in found) == 4


def test_a_concatenate_of_slices_stays_whole() -> None:
    """Though Shardy's rule has a permutation factor for it."""
    mesh = Mesh.of([("x", 2), ("y", 2), ("z", 4)])
    text = main_of("""
      %0 = stablehlo.slice %a [2:8, 0:16] : (tensor<8x16xf32>) -> tensor<6x16xf32>
      %1 = stablehlo.slice %a [0:2, 0:16] : (tensor<8x16xf32>) -> tensor<2x16xf32>
      %2 = stablehlo.concatenate %0, %1, dim = 0 : (tensor<6x16xf32>, tensor<2x16xf32>) -> tensor<8x16xf32>
      return %2 : tensor<8x16xf32>""")  # fmt: skip
    shape = program_of(text).kernels[-1].shape
    assert shape.name == "stablehlo.concatenate"
    assert FactorKind.PERMUTATION in {factor.kind for factor in shape.rule.factors}
    found = strategies(shape, mesh)
    assert not any(strategy.produced[0].axes[0] for strategy in found)
    assert any(strategy.produced[0].axes[1] for strategy in found)


DEMANDS = [
    '[{"x"}, {}]',
    '[{"x"}, {?}]',
    '[{}, {"y"}]',
    '[{"y", "x"}, {}]',
    '[{"x":(1)2}, {?}]',
    '[{"x":(2)2, ?}, {}]',
    "[{?}, {?}]",
    "[{}, {}]",
    '[{?}, {?}], replicated={"x"}',
    '[{"y", ?}, {?}]',
]


RULES = [
    "([i, k], [k, j])->([i, j]) {i=8, j=16, k=4} reduction={k}",
    "([i, j])->([i, j]) {i=8, j=16}",
    "([ij])->([i, j]) {i=8, j=16}",
    "([i, j])->([i, j]) {i=8, j=16} need_replication={i, j}",
    "([i, j])->([i, j]) {i=8, j=16} permutation={i}",
]


@pytest.mark.parametrize("demand", DEMANDS)
@pytest.mark.parametrize("rule", RULES)
def test_demands_are_met(rule: str, demand: str) -> None:
    """Under every strategy the first result settles as the user wrote; what the rule cannot make is resharded to it."""
    mesh = MESHES[0]
    wanted = parse_sharding(demand, mesh)
    shape = shape_of(parse_rule(rule), mesh, demand)
    found = strategies(shape, mesh)
    assert found
    assert all(strategy.settled[0].satisfies(wanted) for strategy in found)
    allowed = {MOVED, *([SUB_AXES] if '":(' in demand else [])}
    assert not {reason for strategy in found for reason in refusals(shape, strategy, mesh)} - allowed


@pytest.mark.parametrize("demand", DEMANDS)
def test_demands_take_no_other_strategy_away(demand: str) -> None:
    """Whatever meets the demand without one, is there with it."""
    mesh = MESHES[0]
    wanted = parse_sharding(demand, mesh)
    free = {key(s) for s in strategies(shape_of(MATMUL, mesh), mesh) if s.settled[0].satisfies(wanted)}
    kept = {key(s) for s in strategies(shape_of(MATMUL, mesh, demand), mesh)}
    assert free <= kept


def test_padding_is_allowed() -> None:
    """Intermediates need not divide: five rows on four devices are two on each."""
    mesh = Mesh.of([("x", 4)])
    found = strategies(shape_of(parse_rule("([i])->([i]) {i=5}"), mesh), mesh)
    assert [str(strategy.settled[0]) for strategy in found] == ["[{}]", '[{"x"}]']
    assert found[1].settled[0].local_shape((5,)) == (2,)


@quick
@given(kernel_rules(), st.sampled_from(MESHES))
def test_number_is_bounded_by_the_assignments(rule: OpShardingRule, mesh: Mesh) -> None:
    """At most (factors + 1)^axes assignments in all orders of the axes, times the ways to scatter."""
    axes = sum(axis.size > 1 for axis in mesh.axes)
    rank = len(rule.results[0])
    most = (len(rule.factors) + 1) ** axes * math.factorial(axes) * (1 + max(rank, 1) ** axes)
    assert len(strategies(shape_of(rule, mesh), mesh)) <= most
