"""Priorities: each level is the best within what the level before decided, and Shardy's own example comes out as documented."""

import pytest

from autoshard import pipeline
from autoshard.errors import AutoshardError
from autoshard.pipeline import Loaded, Request
from autoshard.plans import Plan

MESH = 'sdy.mesh @mesh = <["data"=4, "model"=2]>\n'
X, W1, W2 = "tensor<64x256xf32>", "tensor<256x1024xf32>", "tensor<1024x256xf32>"


def mlp(x: str, w1: str, w2: str) -> str:
    """Two matrix products whose arguments have these shardings."""
    arguments = ", ".join(
        f"%{name}: {type_} {{sdy.sharding = #sdy.sharding<@mesh, {text}>}}"
        for name, type_, text in (("x", X, x), ("w1", W1, w1), ("w2", W2, w2))
    )
    return (
        f"{MESH}func.func @main({arguments}) -> {X} {{\n"
        f"%0 = stablehlo.dot_general %x, %w1, contracting_dims = [1] x [0] : ({X}, {W1}) -> tensor<64x1024xf32>\n"
        "%1 = stablehlo.tanh %0 : tensor<64x1024xf32>\n"
        f"%2 = stablehlo.dot_general %1, %w2, contracting_dims = [1] x [0] : (tensor<64x1024xf32>, {W2}) -> {X}\n"
        f"return %2 : {X}\n}}"
    )


def loaded(text: str, memory: int | None = None) -> Loaded:
    return pipeline.load_module(text.encode(), Request(form="shardy", memory_bytes=memory))


def planned(text: str, memory: int | None = None) -> Plan:
    return pipeline.plan_loaded(loaded(text, memory), time_limit_s=20)


def arguments(plan: Plan) -> list[str]:
    return [argument.sharding for argument in plan.arguments]


EXAMPLE = mlp('[{"data"}p0, {?}]', '[{?}, {"model"}p1]', '[{?}, {"data"}p2]')


def test_batch_then_megatron_then_zero() -> None:
    """Shardy's documentation: batch parallelism, then tensor parallelism of the weights, then weights split over the batch axis too."""
    plan = planned(EXAMPLE)
    assert arguments(plan) == ['[{"data"}, {}]', '[{}, {"model"}]', '[{"model"}, {"data"}]']
    assert {(c.kind, c.axes) for c in plan.price.collectives} == {
        ("all_gather", ("data",)),  # the weights, before their use
        ("reduce_scatter", ("model",)),  # Megatron's sum
    }
    assert [level.priority for level in plan.levels] == [0, 1, 2]
    assert all(level.is_proved for level in plan.levels)
    assert plan.levels[-1].step_ns == plan.price.step_ns


def test_each_level_is_what_planning_without_the_later_demands_and_axes_gives() -> None:
    """Level 0 of the example is pure data parallelism, as on a mesh that has the batch axis only."""
    alone = mlp('[{"data"}, {}]', '[{}, {}], replicated={"data"}', '[{}, {}], replicated={"data"}')
    first = planned(alone.replace(', "model"=2', ""))
    assert planned(EXAMPLE).levels[0].step_ns == first.price.step_ns
    assert not first.price.collectives


def test_a_level_never_undoes_what_the_one_before_decided() -> None:
    """Without priorities the third demand makes another plan cheaper; with them the first two levels stand."""
    together = planned(EXAMPLE.replace("p0", "").replace("p1", "").replace("p2", ""))
    assert not together.levels
    assert together.price.step_ns <= planned(EXAMPLE).price.step_ns


def test_the_memory_limit_binds_the_last_level_only() -> None:
    """Data parallelism alone does not fit; that the weights are split at a later level makes it fit."""
    free = planned(EXAMPLE)
    limit = free.price.peak_bytes
    assert limit < free.levels[0].peak_bytes
    assert planned(EXAMPLE, limit).fits


def test_levels_are_given_up_where_they_leave_nothing_that_fits() -> None:
    """The summary says so, and the plan still meets every demand."""
    text = mlp('[{"data"}p0, {?}]', "[{?}, {?}]", '[{?}, {"model"}p1]')
    limit = planned(text).price.peak_bytes
    smallest = planned(text, 1).smallest_peak_bytes
    assert smallest < limit
    plan = planned(text, smallest)
    assert plan.fits
    assert arguments(plan)[0].startswith('[{"data"')
    assert arguments(plan)[2].endswith('{"model"}]')
    assert "without it" in plan.levels[-1].note


def test_demands_that_contradict_each_other_are_both_named() -> None:
    """Also where they have priorities: those order demands, they do not make them optional."""
    text = EXAMPLE.replace(
        f") -> {X} {{", f") -> ({X} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}) {{", 1
    )
    request = Request(form="shardy", memory_bytes=None, carry=[(0, 0)])
    with pytest.raises(AutoshardError) as refused:
        pipeline.plan_loaded(pipeline.load_module(text.encode(), request))
    assert "argument 0 `x`" in refused.value.reason or "argument 0 `arg0`" in refused.value.reason
    assert "result 0" in refused.value.reason


def test_results_divide_whatever_is_demanded_inside() -> None:
    """10 columns over 4 devices are a demand on what is summed, not on what the function returns of it."""
    text = (
        f"{MESH}func.func @main(%x: tensor<8x6xf32>, %w: tensor<6x10xf32>) -> tensor<8x10xf32> {{\n"
        "%0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x6xf32>, tensor<6x10xf32>) -> tensor<8x10xf32>\n"
        '%1 = sdy.sharding_constraint %0 <@mesh, [{"model"}p1, {"data"}p2]> : tensor<8x10xf32>\n'
        "return %1 : tensor<8x10xf32>\n}"
    )
    source = pipeline.load_module(text.encode(), Request())
    plan = pipeline.plan_loaded(source, time_limit_s=20)
    assert plan.results[0].sharding == '[{"model"}, {}]'
    assert pipeline.check_plan(text.encode(), plan).passed
