"""Ops that Shardy's pass leaves without a rule get ours, which Shardy's verifier accepts; the rest is said aloud."""

import pytest

from autoshard.mlir.facts import RULE
from autoshard.mlir.listing import Op
from autoshard.mlir.rules import ELEMENTWISE, ELEMENTWISE_CUSTOM_CALLS
from autoshard.sharding import FactorKind
from tests.mlir.modules import listed, main_of, read_text

T = "tensor<8x16xf32>"
ELEMENTWISE_RULE = "([i, j])->([i, j]) {i=8, j=16}"
TWO_OPERANDS = "([i, j], [i, j])->([i, j]) {i=8, j=16}"


def op_of(body: str, arguments: str = f"%a: {T}") -> Op:
    """The first op of the body, whose module passes Shardy's verifier with our rule attached."""
    _, listing, handles = read_text(main_of(f"{body}\nreturn", arguments, ""))
    assert handles.walked.module.verify()
    return listing.ops[0]


UNARY = [
    "_asin_acos_kernel",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bessel_i1e",
    "cosh",
    "digamma",
    "erf",
    "erf_inv",
    "erfc",
    "lgamma",
    "sinh",
    "square",
    "tan",
]
PREDICATES = ("is_inf", "is_neg_inf", "is_pos_inf")
BINARY = ["next_after", "polygamma", "zeta"]
BROADCASTING = [
    "add",
    "atan2",
    "divide",
    "maximum",
    "minimum",
    "multiply",
    "next_after",
    "polygamma",
    "power",
    "remainder",
    "subtract",
    "zeta",
]
INTEGER_BROADCASTING = (
    "and", "or", "shift_left", "shift_right_arithmetic", "shift_right_logical", "xor",
)  # fmt: skip


@pytest.mark.parametrize("name", [name for name in UNARY if name != "_asin_acos_kernel"])
def test_unary_chlo(name: str) -> None:
    assert str(op_of(f'%0 = "chlo.{name}"(%a) : ({T}) -> {T}').rule) == ELEMENTWISE_RULE


@pytest.mark.parametrize("name", PREDICATES)
def test_chlo_predicates(name: str) -> None:
    assert str(op_of(f'%0 = "chlo.{name}"(%a) : ({T}) -> tensor<8x16xi1>').rule) == ELEMENTWISE_RULE


@pytest.mark.parametrize("name", [*BINARY, *(f"broadcast_{name}" for name in BROADCASTING)])
def test_binary_chlo_on_equal_shapes(name: str) -> None:
    assert str(op_of(f'%0 = "chlo.{name}"(%a, %a) : ({T}, {T}) -> {T}').rule) == TWO_OPERANDS


@pytest.mark.parametrize("name", INTEGER_BROADCASTING)
def test_integer_chlo_on_equal_shapes(name: str) -> None:
    integers = "tensor<8x16xi32>"
    op = op_of(
        f'%0 = "chlo.broadcast_{name}"(%a, %a) : ({integers}, {integers}) -> {integers}', f"%a: {integers}"
    )
    assert str(op.rule) == TWO_OPERANDS


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (
            f'%0 = "chlo.broadcast_compare"(%a, %a) {{comparison_direction = #chlo<comparison_direction LT>}}'
            f" : ({T}, {T}) -> tensor<8x16xi1>",
            TWO_OPERANDS,
        ),
        (f'%0 = "chlo.broadcast_complex"(%a, %a) : ({T}, {T}) -> tensor<8x16xcomplex<f32>>', TWO_OPERANDS),
        (
            '%0 = "chlo.mulhi"(%i, %i) : (tensor<8x16xi32>, tensor<8x16xi32>) -> tensor<8x16xi32>',
            TWO_OPERANDS,
        ),
        (
            f'%0 = "chlo.broadcast_select"(%p, %a, %a) : (tensor<8x16xi1>, {T}, {T}) -> {T}',
            "([i, j], [i, j], [i, j])->([i, j]) {i=8, j=16}",
        ),
        (
            '%0 = "chlo._asin_acos_kernel"(%c) : (tensor<8x16xcomplex<f32>>) -> tensor<8x16xcomplex<f32>>',
            ELEMENTWISE_RULE,
        ),
        (f'%0 = "chlo.constant_like"(%a) {{value = 1.0 : f32}} : ({T}) -> {T}', ELEMENTWISE_RULE),
        (f"%0 = chlo.conj %a : {T} -> {T}", ELEMENTWISE_RULE),
        (f"%0 = sdy.propagation_barrier %a allowed_direction=NONE : {T}", ELEMENTWISE_RULE),
        (f"%0 = stablehlo.tan %a : {T}", ELEMENTWISE_RULE),
        (
            f'%0 = "stablehlo.map"(%a, %a) <{{dimensions = array<i64: 0, 1>}}> ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>):'
            f" %s = stablehlo.add %x, %y : tensor<f32> stablehlo.return %s : tensor<f32>}}) : ({T}, {T}) -> {T}",
            TWO_OPERANDS,
        ),
        (
            f"%v, %w = chlo.top_k(%a, k = 4) : {T} -> (tensor<8x4xf32>, tensor<8x4xi32>)",
            "([i, j])->([i, j], [i, j]) {i=8, j=16} need_replication={j}",
        ),
        (f"%0 = stablehlo.iota dim = 1 : {T}", "()->([i, j]) {i=8, j=16}"),
        (f"%0 = stablehlo.constant dense<0.0> : {T}", "()->([i, j]) {i=8, j=16}"),
        (
            f"%0 = stablehlo.get_dimension_size %a, dim = 0 : ({T}) -> tensor<i32>",
            "([i, j])->([]) {i=8, j=16} need_replication={i, j}",
        ),
        ("%0 = stablehlo.partition_id : tensor<ui32>", "()->([])"),
        ("%0 = stablehlo.create_token : !stablehlo.token", "()->([])"),
    ],
)
def test_ops_with_a_rule_of_ours(body: str, rule: str) -> None:
    arguments = f"%a: {T}, %i: tensor<8x16xi32>, %p: tensor<8x16xi1>, %c: tensor<8x16xcomplex<f32>>"
    assert str(op_of(body, arguments).rule) == rule


def test_rng_is_made_where_it_is_wanted() -> None:
    op = op_of(
        f"%0 = stablehlo.rng %m, %m, %s, distribution = UNIFORM : (tensor<f32>, tensor<f32>, tensor<2xi64>) -> {T}",
        "%m: tensor<f32>, %s: tensor<2xi64>",
    )
    assert str(op.rule) == "([], [], [i])->([j, k]) {i=2, j=8, k=16} need_replication={i}"


def test_batch_norm_splits_its_feature_dimension_only() -> None:
    op = op_of(
        f'%0:3 = "stablehlo.batch_norm_training"(%a, %s, %s) <{{epsilon = 0.1 : f32, feature_index = 1 : i64}}> '
        f": ({T}, tensor<16xf32>, tensor<16xf32>) -> ({T}, tensor<16xf32>, tensor<16xf32>)",
        f"%a: {T}, %s: tensor<16xf32>",
    )
    assert str(op.rule) == "([i, j], [j], [j])->([i, j], [j], [j]) {i=8, j=16} need_replication={i}"


@pytest.mark.parametrize("target", ELEMENTWISE_CUSTOM_CALLS)
def test_elementwise_custom_calls(target: str) -> None:
    assert str(op_of(f"%0 = stablehlo.custom_call @{target}(%a) : ({T}) -> {T}").rule) == ELEMENTWISE_RULE


RAGGED = (
    "{{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_batching_dimensions = [], rhs_batching_dimensions = [], "
    "lhs_contracting_dimensions = [{lhs}], rhs_contracting_dimensions = [{rhs}], lhs_ragged_dimensions = [{ragged}], "
    "rhs_group_dimensions = [{group}]>}}"
)


def test_ragged_dot_over_rows_keeps_rows_and_groups_whole() -> None:
    attributes = RAGGED.format(lhs=1, rhs=1, ragged=0, group=0)
    op = op_of(
        f'%0 = "chlo.ragged_dot"(%a, %b, %g) {attributes} : ({T}, tensor<4x16x32xf32>, tensor<4xi32>) -> tensor<8x32xf32>',
        f"%a: {T}, %b: tensor<4x16x32xf32>, %g: tensor<4xi32>",
    )
    assert str(op.rule) == (
        "([i, j], [k, j, l], [m])->([i, l]) {i=8, j=16, k=4, l=32, m=4} reduction={j} need_replication={i, k, m}"
    )
    assert (op.flops, op.is_matmul) == (2 * 8 * 16 * 32, True)
    assert (op.linear, op.leaves_addends) == (((0,), (1,)), True)
    assert op.has_default_precision


def test_ragged_dot_that_asks_for_more_precision() -> None:
    attributes = RAGGED.format(lhs=1, rhs=1, ragged=0, group=0)[:-1]
    for precision, is_default in (("DEFAULT", True), ("HIGHEST", False)):
        asked = f"precision_config = [#chlo<precision {precision}>, #chlo<precision DEFAULT>]"
        op = op_of(
            f'%0 = "chlo.ragged_dot"(%a, %b, %g) {attributes}, {asked}}} : ({T}, tensor<4x16x32xf32>, tensor<4xi32>) -> tensor<8x32xf32>',
            f"%a: {T}, %b: tensor<4x16x32xf32>, %g: tensor<4xi32>",
        )
        assert op.has_default_precision is is_default


def test_ragged_dot_over_the_contraction_keeps_it_whole() -> None:
    attributes = RAGGED.format(lhs=1, rhs=0, ragged=1, group="")
    op = op_of(
        f'%0 = "chlo.ragged_dot"(%a, %b, %g) {attributes} : ({T}, tensor<16x32xf32>, tensor<4xi32>) -> tensor<4x8x32xf32>',
        f"%a: {T}, %b: tensor<16x32xf32>, %g: tensor<4xi32>",
    )
    assert str(op.rule) == (
        "([i, j], [j, k], [m])->([l, i, k]) {i=8, j=16, k=32, l=4, m=4} need_replication={j, l, m}"
    )


def test_broadcasting_over_different_shapes_is_not_ours_to_judge() -> None:
    op = op_of(
        f'%0 = "chlo.broadcast_add"(%a, %b) : ({T}, tensor<16xf32>) -> {T}', f"%a: {T}, %b: tensor<16xf32>"
    )
    assert op.rule is None


def test_an_unknown_op_is_named_with_count_and_place() -> None:
    listing = listed(
        main_of(
            f"%0 = stablehlo.custom_call @mine(%a) : ({T}) -> {T}\n%1 = stablehlo.custom_call @mine(%0) : ({T}) -> {T}\nreturn %1 : {T}"
        )
    )
    assert [op.rule for op in listing.ops] == [None, None]
    assert listing.warnings == (
        "2 x stablehlo.custom_call: no sharding rule is known, operands and results are replicated; first at <bytes>:4",
    )


def test_the_users_rule_wins_and_stays_the_users() -> None:
    own = "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16} need_replication={j}, custom>"
    _, listing, handles = read_text(
        main_of(f"%0 = stablehlo.custom_call @mine(%a) {{{RULE} = {own}}} : ({T}) -> {T}\nreturn %0 : {T}")
    )
    assert str(listing.ops[0].rule) == "([i, j])->([i, j]) {i=8, j=16} need_replication={j}, custom"
    assert handles.user_rules == {0}


def test_every_elementwise_op_of_ours_is_tested() -> None:
    tested = {
        *(f"chlo.{name}" for name in (*UNARY, *PREDICATES, *BINARY)),
        *(
            f"chlo.broadcast_{name}"
            for name in (*BROADCASTING, *INTEGER_BROADCASTING, "compare", "complex", "select")
        ),
        *("chlo.conj", "chlo.constant_like", "chlo.mulhi", "stablehlo.map", "stablehlo.tan"),
        *("sdy.propagation_barrier", "sdy.reshard", "sdy.sharding_constraint"),
    }
    assert set(ELEMENTWISE) == tested


def test_equal_ops_share_one_rule_object() -> None:
    listing = listed(
        main_of(f"%0 = stablehlo.abs %a : {T}\n%1 = chlo.square %0 : {T} -> {T}\nreturn %1 : {T}")
    )
    assert listing.ops[0].rule is listing.ops[1].rule


def test_a_kernel_gradient_is_not_split_over_window_positions() -> None:
    """Shardy's rule has reduction={j, k, l}; only the batch l sums up part by part."""
    op = op_of(
        "%0 = stablehlo.convolution(%a, %b) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], "
        "window = {pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : "
        "(tensor<16x8x8x4xf32>, tensor<16x8x8x8xf32>) -> tensor<3x3x4x8xf32>",
        "%a: tensor<16x8x8x4xf32>, %b: tensor<16x8x8x8xf32>",
    )
    kinds = [factor.kind for factor in op.rule.factors] if op.rule is not None else []
    whole = [i for i, kind in enumerate(kinds) if kind is FactorKind.NEED_REPLICATION]
    summed = [i for i, kind in enumerate(kinds) if kind is FactorKind.REDUCTION]
    assert op.rule is not None
    assert [dim[0] for dim in op.rule.operands[0][1:3]] == whole
    assert [op.rule.operands[0][0][0]] == summed


@pytest.mark.parametrize(("low", "high", "moved"), [(0, 0, ""), (3, -3, "i"), (-1, 1, "i")])
def test_a_pad_that_shifts_rows_moves_them(low: int, high: int, moved: str) -> None:
    """Shardy's rule passes the dimension through, for its size stays."""
    op = op_of(
        f"%0 = stablehlo.pad %a, %z, low = [{low}, 0], high = [{high}, 0], interior = [0, 0] : ({T}, tensor<f32>) -> {T}",
        f"%a: {T}, %z: tensor<f32>",
    )
    assert str(op.rule) == "([i, j], [])->([i, j]) {i=8, j=16}" + (
        f" permutation={{{moved}}}" if moved else ""
    )
