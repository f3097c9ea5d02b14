"""Sub-axes: chosen where heads do not divide, written in both forms, priced as the devices that they are, equal in numbers."""

from unittest import mock

import pytest

import costmodels
from autoshard import api, pipeline
from autoshard.plans import Plan
from autoshard.space import Strategy
from tests.programs.attention import REPLICATED, attention, heads_only
from tests.sdy.arbitrary import added_reshards, arbitrary, complaints, differences


def is_cut(strategy: Strategy) -> bool:
    return any(axis.is_sub_axis for axes in strategy.factor_axes for axis in axes)


def planned(text: str) -> Plan:
    plan = api.plan(text.encode(), memory_bytes=None, time_limit_s=20, form="shardy")
    assert plan.status == "optimal"
    return plan


SMALL = {"one axis": attention('"x"=8', 2, 8, 12, 4), "two axes": attention('"y"=2, "x"=4', 2, 8, 6, 4)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", SMALL)
def test_arbitrary_plans_are_what_they_say(name: str, seed: int) -> None:
    """Kernels with sub-axes wherever there are any: the checker agrees, and Shardy's pass adds no reshard."""
    written = arbitrary(SMALL[name], is_cut, seed)
    assert '":(' in written.text
    assert complaints(written, deep=False) == ""
    assert added_reshards(written) == 0


@pytest.mark.parametrize("name", SMALL)
def test_arbitrary_plans_compute_the_same(name: str) -> None:
    """XLA on eight devices takes sub-axes in constraints and computes what one device does."""
    written = arbitrary(SMALL[name], is_cut, 1, "xla")
    assert '":(' in written.text
    assert complaints(written, deep=False) == ""
    assert differences(written) == ""


def test_arguments_and_results_have_none() -> None:
    """Shardy's export strips sub-axes there."""
    for seed in range(4):
        plan = arbitrary(SMALL["one axis"], is_cut, seed).plan
        assert not any("(" in row.sharding for row in (*plan.arguments, *plan.results))


def test_what_the_user_demands_there_is_kept() -> None:
    ends = '{sdy.sharding = #sdy.sharding<@mesh, [{"x":(4)2}, {}, {}]>}'
    plan = planned(attention('"x"=8', 2, 8, 12, 4, ends=ends))
    assert plan.arguments[0].sharding == plan.results[0].sharding == '[{"x":(4)2}, {}, {}]'


def test_twelve_heads_on_eight_devices() -> None:
    """Four parts of three heads each, two of the batch: everything is local until the result is gathered.

    step = step of half the batch and a quarter of the heads + slices of queries, keys and values + all-gather(result)
    """
    whole = heads_only('"x"=8', 2, 2048, 12, 64, dtype="bf16", ends=REPLICATED)
    part = heads_only('"x"=1', 1, 2048, 3, 64, dtype="bf16", ends=REPLICATED)
    plan, local = planned(whole), planned(part)
    result = 2 * 2 * 2048 * 768
    gathered = costmodels.load("tpu-v5e").place([("x", 8)]).all_gather_ns(result, ["x"])
    slices = [c for c in plan.price.collectives if c.kind == "all_slice"]
    assert [c.bytes for c in slices] == [result // 8] * 3
    assert plan.price.step_ns == local.price.step_ns + gathered + sum(c.ns for c in slices)
    assert {axis for c in plan.price.collectives for axis in c.axes} == {"x:(1)4", "x:(4)2"}


def test_whole_axes_alone_cost_more() -> None:
    """Without cuts the same program takes longer: padding the heads, or moving them to split something else."""
    text = attention('"x"=8', 1, 4096, 12, 64, dtype="bf16", ends=REPLICATED)
    cut = planned(text).price.step_ns
    with mock.patch("autoshard.space.cuts._needs", return_value=()):
        assert cut < planned(text).price.step_ns


def test_a_loop_carries_a_cut() -> None:
    """Carried state is no argument: heads that go round a loop stay split by a part of the axis."""
    x, w, h = "tensor<2x64x96xf32>", "tensor<96x96xf32>", "tensor<2x64x12x8xf32>"
    text = f"""sdy.mesh @mesh = <["x"=8]>
    func.func @main(%x: {x}, %w: {w}) -> {x} {{
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : ({x}, {w}) -> {x}
      %h = stablehlo.reshape %0 : ({x}) -> {h}
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %r:2 = stablehlo.while(%i = %zero, %y = %h) : tensor<i32>, {h}
        cond {{ %ten = stablehlo.constant dense<10> : tensor<i32>
          %go = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %go : tensor<i1> }}
        do {{ %one = stablehlo.constant dense<1> : tensor<i32>
          %j = stablehlo.add %i, %one : tensor<i32>
          %b = stablehlo.tanh %y : {h}
          stablehlo.return %j, %b : tensor<i32>, {h} }}
      %f = stablehlo.reshape %r#1 : ({h}) -> {x}
      return %f : {x}
    }}"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None, form="xla"))
    graph = pipeline.price(loaded).graph
    carried = next(i for i, flow in enumerate(graph.program.flows) if flow.kind.value == "carried")
    layouts = graph.layouts[4].shardings
    assert '[{}, {}, {"x":(1)4}, {}]' in {str(layouts[i]) for i in graph.nodes[carried].choices.supplies[0]}
    written = arbitrary(text, is_cut, 0, "xla")
    assert complaints(written, deep=False) == ""
    assert differences(written) == ""
