"""Modules of kinds that front ends emit seldom, each of which once crashed, was mispriced or lost what the user wrote."""

from collections.abc import Sequence

import pytest

from autoshard import pipeline
from autoshard.errors import AutoshardError
from autoshard.pipeline import Loaded, Request
from autoshard.plans import Plan

MESH = (("x", 4), ("y", 2))
CALLBACK = """sdy.mesh @one = <[], device_ids=[0]>
func.func public @main(%a: tensor<8x16xf32>, %t: !stablehlo.token) -> (tensor<8x16xf32>, !stablehlo.token) {
  stablehlo.custom_call @print(%a) {has_side_effect = true, sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>}
    : (tensor<8x16xf32>) -> ()
  %r:2 = stablehlo.custom_call @call(%t, %a)
    {has_side_effect = true, sdy.sharding = #sdy.sharding_per_value<[<@one, []>, <@one, []>]>}
    : (!stablehlo.token, tensor<8x16xf32>) -> (!stablehlo.token, tensor<8x16xf32>)
  return %r#1, %r#0 : tensor<8x16xf32>, !stablehlo.token
}"""
TWO_RESULTS = """sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func public @main(%a: tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8x16xf32>) {
  %r:2 = "stablehlo.sort"(%a, %a) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<f32>, %s: tensor<f32>):
    %c = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{?}, {?}]>, <@mesh, [SECOND, {?}]>]>}
    : (tensor<8x16xf32>, tensor<8x16xf32>) -> (tensor<8x16xf32>, tensor<8x16xf32>)
  return %r#0, %r#1 : tensor<8x16xf32>, tensor<8x16xf32>
}"""
SOFTMAX = """func.func public @main(%a: tensor<64x32xf32>, %w: tensor<32x64xf32>) -> tensor<64x64xf32> {
  %h = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x64xf32>) -> tensor<64x64xf32>
  %e = stablehlo.exponential %h : tensor<64x64xf32>
  %n = stablehlo.negate %e : tensor<64x64xf32>
  %s = stablehlo.add %n, %h : tensor<64x64xf32>
  return %s : tensor<64x64xf32>
}"""


def loaded(text: str, mesh: Sequence[tuple[str, int]] | None = MESH) -> Loaded:
    return pipeline.load_module(text.encode(), Request(mesh))


def planned(text: str, mesh: Sequence[tuple[str, int]] | None = MESH) -> Plan:
    return pipeline.plan_loaded(loaded(text, mesh), time_limit_s=300)


def test_a_product_of_constants_reads_nothing() -> None:
    """Its operands are made anew in its kernel; its sum may be scattered all the same."""
    text = """func.func public @main() -> tensor<64x64xf32> {
      %0 = stablehlo.iota dim = 0 : tensor<64x64xf32>
      %1 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
      return %1 : tensor<64x64xf32> }"""
    found = planned(text)
    assert found.status == "optimal"
    assert pipeline.check_plan(text.encode(), found).passed


def test_state_that_is_handed_back_unchanged_needs_no_edge() -> None:
    """The only reader of a donated argument may be the result that becomes it again."""
    text = """func.func public @main(%a: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8x8xf32> {
      return %a : tensor<8x8xf32> }"""
    found = planned(text)
    assert found.status == "optimal"
    assert pipeline.check_plan(text.encode(), found).passed


def test_a_host_callback_on_one_device_demands_nothing_and_stays_there() -> None:
    module, found = loaded(CALLBACK), planned(CALLBACK)
    assert pipeline.check_plan(CALLBACK.encode(), found, deep=True).passed
    for form in ("xla", "shardy"):
        assert pipeline.write_planned(module, found, form).count("<@one, []>") == 3
    assert pipeline.cost_loaded(module).price.step_ns == found.price.step_ns


def test_a_demand_on_a_later_result_is_kept_and_an_open_one_is_none() -> None:
    free = planned(TWO_RESULTS.replace("SECOND", "{?}"), None)
    text = TWO_RESULTS.replace("SECOND", '{"x"}')
    module, found = loaded(text, None), planned(text, None)
    assert found.status == free.status == "optimal"
    assert found.price.step_ns >= free.price.step_ns
    second = found.values[next(op.results for op in module.listing.ops if op.name == "stablehlo.sort")[1]]
    assert (second.settled or second.produced) == '[{"x"}, {}]'
    assert pipeline.check_plan(text.encode(), found).passed


def test_the_price_of_a_written_plan_is_that_of_the_plan() -> None:
    """An annotation that follows from the operands does not keep an op out of its kernel."""
    module, found = loaded(SOFTMAX), planned(SOFTMAX)
    written = pipeline.write_planned(module, found, "shardy")
    assert pipeline.cost_loaded(loaded(written, None)).price.step_ns == found.price.step_ns


def test_annotations_of_gspmd_are_named_as_ignored() -> None:
    text = """func.func public @main(%a: tensor<8x8xf32> {mhlo.sharding = "{replicated}"}) -> tensor<8x8xf32> {
      %0 = stablehlo.custom_call @Sharding(%a) {mhlo.sharding = "{devices=[4,2]<=[8]}"} : (tensor<8x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32> }"""
    (warning,) = loaded(text).listing.warnings
    assert warning.startswith("2 GSPMD annotations (mhlo.sharding) are ignored")


@pytest.mark.parametrize("type_", ["tensor<*xf32>", "f32", "memref<4xf32>", "tuple<tensor<8xf32>>"])
def test_values_that_are_no_ranked_tensors_are_refused(type_: str) -> None:
    with pytest.raises(AutoshardError, match=r"rank|not supported"):
        loaded(f"func.func public @main(%a: {type_}) -> {type_} {{ return %a : {type_} }}")


def test_a_function_without_a_body_is_refused_before_a_pass_dies_of_it() -> None:
    text = """func.func public @main(%a: tensor<8xf32>) -> tensor<8xf32> {
      %0 = func.call @outside(%a) : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32> }
      func.func private @outside(%a: tensor<8xf32>) -> tensor<8xf32>"""
    with pytest.raises(AutoshardError, match="@outside has no body"):
        loaded(text)


def test_a_mesh_symbol_that_needs_quotes_keeps_them() -> None:
    text = f'sdy.mesh @"odd name" = <["x"=4, "y z"=2]>\n{SOFTMAX}'
    module, found = loaded(text, None), planned(text, None)
    assert '@"odd name"' in pipeline.write_planned(module, found)


@pytest.mark.parametrize("name", ["ä", 'q"q', "a\\22"])
def test_axis_names_that_the_notation_escapes_are_refused(name: str) -> None:
    with pytest.raises(AutoshardError, match="has to escape"):
        loaded(SOFTMAX, [(name, 4)])


def test_a_mesh_larger_than_any_system_is_refused() -> None:
    with pytest.raises(AutoshardError, match="at most 1048576 devices"):
        loaded(SOFTMAX, [("x", 10**20)])


@pytest.mark.parametrize(("hardware", "mesh"), [("tpu7x", MESH), ("tpu-v5e", (("x", 32), ("y", 16)))])
def test_a_plan_for_chips_of_two_devices_or_several_slices_can_be_checked(
    hardware: str, mesh: tuple[tuple[str, int], ...]
) -> None:
    module = pipeline.load_module(SOFTMAX.encode(), Request(mesh, hardware))
    found = pipeline.plan_loaded(module, time_limit_s=300)
    assert pipeline.check_plan(SOFTMAX.encode(), found).passed
