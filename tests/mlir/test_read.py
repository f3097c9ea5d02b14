"""What a listing says of values, ops, data flow, arguments and the user's demands."""

import pytest

from autoshard.errors import AutoshardError
from tests.mlir.modules import listed, main_of

CARRIED = main_of(
    """%zero = stablehlo.constant dense<0> : tensor<i32>
    %b = stablehlo.abs %a : tensor<8x16xf32>
    %r:2 = stablehlo.while(%i = %zero, %x = %b) : tensor<i32>, tensor<8x16xf32>
      attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {?}]>]>}
      cond { %ten = stablehlo.constant dense<10> : tensor<i32>
        %go = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %go : tensor<i1> }
      do { %one = stablehlo.constant dense<1> : tensor<i32>
        %j = stablehlo.add %i, %one : tensor<i32>
        %y = stablehlo.add %x, %a : tensor<8x16xf32>
        stablehlo.return %j, %y : tensor<i32>, tensor<8x16xf32> }
    %s = stablehlo.negate %r#1 : tensor<8x16xf32>
    return %s : tensor<8x16xf32>"""
)


class TestDataFlow:
    def test_a_loops_result_and_block_arguments_are_one_value(self) -> None:
        listing = listed(CARRIED)
        flow = listing.data_flows[1]
        assert flow.kind == "while"
        add = next(op for op in listing.ops if op.name == "stablehlo.add" and op.operands[1] == 0)
        negate = next(op for op in listing.ops if op.name == "stablehlo.negate")
        assert add.operands[0] == flow.target == negate.operands[0]

    def test_a_loop_is_handed_values_before_its_condition_and_after_its_body(self) -> None:
        listing = listed(CARRIED)
        names = [op.name.removeprefix("stablehlo.") for op in listing.ops]
        assert names == ["constant", "abs", "constant", "compare", "constant", "add", "add", "negate"]
        flow = listing.data_flows[1]
        assert (flow.begin, flow.end) == (2, 7)
        assert [(s.time, s.repeat) for s in flow.sources] == [(2, 1), (7, 10)]
        assert [s.value for s in flow.sources] == [listing.ops[1].results[0], listing.ops[6].results[0]]

    def test_condition_and_body_are_regions_of_their_own(self) -> None:
        assert [op.region for op in listed(CARRIED).ops] == [0, 0, 1, 1, 2, 2, 2, 0]
        assert [op.repeat for op in listed(CARRIED).ops] == [1, 1, 10, 10, 10, 10, 10, 1]

    def test_the_users_sharding_of_a_loop_is_a_demand_on_the_carried_value(self) -> None:
        assert [str(flow.demand) for flow in listed(CARRIED).data_flows] == ["None", '[{"x"}, {?}]']

    @pytest.mark.parametrize(
        "branching",
        [
            '%r = "stablehlo.case"(%i) ({ ONE stablehlo.return %1 : tensor<8x16xf32> }, { stablehlo.return %a : tensor<8x16xf32> })'
            " : (tensor<i32>) -> tensor<8x16xf32>",
            '%r = "stablehlo.if"(%p) ({ ONE stablehlo.return %1 : tensor<8x16xf32> }, { stablehlo.return %a : tensor<8x16xf32> })'
            " : (tensor<i1>) -> tensor<8x16xf32>",
        ],
    )
    def test_branches_feed_the_result(self, branching: str) -> None:
        body = branching.replace("ONE", "%1 = stablehlo.abs %a : tensor<8x16xf32>")
        listing = listed(
            main_of(
                body + "\nreturn %r : tensor<8x16xf32>",
                "%a: tensor<8x16xf32>, %i: tensor<i32>, %p: tensor<i1>",
            )
        )
        (flow,) = listing.data_flows
        assert flow.kind == "case"
        assert [s.value for s in flow.sources] == [listing.ops[0].results[0], 0]
        assert listing.results[0].value == flow.target

    def test_a_barrier_is_one_flow_an_operand(self) -> None:
        listing = listed(
            main_of(
                "%r:2 = stablehlo.optimization_barrier %a, %i : tensor<8x16xf32>, tensor<i32>\nreturn %r#0 : tensor<8x16xf32>",
                "%a: tensor<8x16xf32>, %i: tensor<i32>",
            )
        )
        assert [(f.kind, f.sources[0].value) for f in listing.data_flows] == [
            ("optimization_barrier", 0),
            ("optimization_barrier", 1),
        ]
        assert not listing.ops

    def test_a_named_computation_carries_in_and_out(self) -> None:
        listing = listed(
            main_of(
                """%r = sdy.named_computation<"f">(%a) in_shardings=[<@mesh, [{"x"}, {}]>] out_shardings=[<@mesh, [{}, {?}]>]
                  (%b: tensor<8x16xf32>) {
                  %1 = stablehlo.abs %b : tensor<8x16xf32>
                  sdy.return %1 : tensor<8x16xf32>
                } : (tensor<8x16xf32>) -> tensor<8x16xf32>
                return %r : tensor<8x16xf32>"""
            )
        )
        into, out = listing.data_flows
        assert listing.ops[0].operands == (into.target,)
        assert out.sources[0].value == listing.ops[0].results[0]
        assert [str(into.demand), str(out.demand)] == ['[{"x"}, {}]', "[{}, {?}]"]

    def test_reducers_are_not_walked(self) -> None:
        listing = listed(
            main_of(
                """%z = stablehlo.constant dense<0.0> : tensor<f32>
                %r = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [1]
                  : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
                return %r : tensor<8xf32>""",
                results="tensor<8xf32>",
            )
        )
        assert [op.name for op in listing.ops] == ["stablehlo.constant", "stablehlo.reduce"]


class TestSignature:
    def test_names_come_from_jax_then_locations_then_positions(self) -> None:
        listing = listed(
            main_of(
                "return %a, %b, %c : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>",
                '%a: tensor<4xf32> {jax.arg_name = "params.w"}, %b: tensor<4xf32> loc("batch"), %c: tensor<4xf32>',
                'tensor<4xf32> {jax.result_info = "loss"}, tensor<4xf32>, tensor<4xf32>',
            )
        )
        assert [a.name for a in listing.arguments] == ["params.w", "batch", "arg2"]
        assert [r.name for r in listing.results] == ["loss", "result1", "result2"]
        assert listing.values[0].name == "params.w"

    def test_donation_is_read(self) -> None:
        listing = listed(
            main_of(
                "return %a, %b : tensor<4xf32>, tensor<4xf32>",
                "%a: tensor<4xf32> {tf.aliasing_output = 1 : i32}, %b: tensor<4xf32> {jax.buffer_donor = true}, %c: tensor<4xf32>",
                "tensor<4xf32>, tensor<4xf32>",
            )
        )
        assert [(a.is_donated, a.aliased_result) for a in listing.arguments] == [
            (True, 1),
            (True, None),
            (False, None),
        ]

    def test_demands_on_arguments_results_and_ops(self) -> None:
        listing = listed(
            main_of(
                """%0 = stablehlo.abs %a {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {"z"}]>]>} : tensor<8x16xf32>
                %1 = sdy.sharding_constraint %0 <@mesh, [{"x", ?}, {}]> : tensor<8x16xf32>
                %2 = sdy.reshard %1 <@mesh, [{}, {}]> : tensor<8x16xf32>
                return %2 : tensor<8x16xf32>""",
                '%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}p1, {?}]>}',
                'tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], replicated={"y"}>}',
            )
        )
        assert str(listing.arguments[0].demand) == '[{"x"}p1, {?}]'
        assert str(listing.results[0].demand) == '[{}, {}], replicated={"y"}'
        assert [str(op.demand) for op in listing.ops] == ['[{}, {"z"}]', '[{"x", ?}, {}]', "[{}, {}]"]
        assert [op.name for op in listing.ops[1:]] == ["sdy.sharding_constraint", "sdy.reshard"]
        assert all(str(op.rule) == "([i, j])->([i, j]) {i=8, j=16}" for op in listing.ops)

    def test_an_inlined_mesh_is_the_same_mesh(self) -> None:
        listing = listed(
            main_of(
                "return %a : tensor<8x16xf32>",
                '%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=2, "y"=2, "z"=4]>, [{"x"}, {}]>}',
            )
        )
        assert str(listing.arguments[0].demand) == '[{"x"}, {}]'

    def test_an_empty_mesh_means_replicated(self) -> None:
        text = main_of(
            "return %a : tensor<8x16xf32>",
            "%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@empty_mesh, [{}, {}]>}",
        ).replace("sdy.mesh @mesh", "sdy.mesh @empty_mesh = <[]>\nsdy.mesh @mesh")
        assert str(listed(text).arguments[0].demand) == "[{}, {}]"


class TestLocations:
    def test_an_op_is_named_and_placed(self) -> None:
        listing = listed(
            main_of(
                '%0 = stablehlo.abs %a : tensor<8x16xf32> loc("jit(f)/layer/abs"("model.py":12:3))\nreturn %0 : tensor<8x16xf32>'
            )
        )
        assert listing.ops[0].location == "jit(f)/layer/abs (model.py:12)"
        assert listing.values[1].name == "jit(f)/layer/abs"

    def test_without_locations_the_line_of_the_module_text(self) -> None:
        listing = listed(main_of("%0 = stablehlo.abs %a : tensor<8x16xf32>\nreturn %0 : tensor<8x16xf32>"))
        assert listing.ops[0].location == "<bytes>:4"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            '%0 = sdy.sharding_constraint %a <@other, [{"q"}, {}]> : tensor<8x16xf32>',
            r"a sharding on mesh @other = <.*> in a plan for mesh @mesh = ",
        ),
    ],
)
def test_what_cannot_be_planned_yet_is_refused_where_it_stands(body: str, reason: str) -> None:
    text = main_of(body + "\nreturn %a : tensor<8x16xf32>").replace(
        "sdy.mesh @mesh", 'sdy.mesh @other = <["q"=2]>\nsdy.mesh @mesh'
    )
    with pytest.raises(AutoshardError, match=f"(?s)<bytes>:5: {reason}|<bytes>:6: {reason}"):
        listed(text, [("x", 2), ("y", 2), ("z", 4)])


def test_dynamic_shapes_are_refused_where_they_stand() -> None:
    text = main_of("return %a : tensor<?x16xf32>", "%a: tensor<?x16xf32>", "tensor<?x16xf32>")
    with pytest.raises(AutoshardError, match=r"<bytes>:3: tensor<\?x16xf32> has a dynamic shape"):
        listed(text)


def test_windows_are_each_op_s_own() -> None:
    """Slices that differ in where they begin alone, among others: what is known of one is not taken for another."""
    count = 40
    slices = "\n".join(
        f"%{i} = stablehlo.slice %a [{i}:{i + 8}] : (tensor<64xf32>) -> tensor<8xf32>" for i in range(count)
    )
    names = ", ".join(f"%{i}" for i in range(count))
    types = ", ".join(["tensor<8xf32>"] * count)
    text = f"func.func @main(%a: tensor<64xf32>) -> ({types}) {{\n{slices}\nreturn {names} : {types}\n}}"
    listing = listed(text, [("x", 4)])
    assert [op.windows[0].low for op in listing.ops] == [-i for i in range(count)]
