"""Modules of a review: each once failed to plan, was mispriced, or was said to be more than it is."""

from dataclasses import replace

import pytest

from autoshard import pipeline
from autoshard.check.bound import bound
from autoshard.errors import AutoshardError
from autoshard.pipeline import WITHIN_LEVELS, Request
from autoshard.plans import Plan

T = "tensor<16x16xf32>"
PARTIAL = '[{?}, {?}], unreduced={"x"}'
MESH = 'sdy.mesh @m = <["x"=2, "y"=4]>\n'


def on(sharding: str) -> str:
    return f"sdy.sharding = #sdy.sharding<@m, {sharding}>"


def product(a: str, w: str, result: str = "", groups: str = "") -> str:
    """The product of two arguments with these attributes."""
    return (
        f"{MESH}func.func @main(%a: {T} {{{a}}}, %w: {T} {{{w}}}) -> ({T} {{{result}}}) {{\n{groups}"
        f"%0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {T}) -> {T}\nreturn %0 : {T}\n}}"
    )


def loop(results: str, first: str, carried: str, body: str, number: str) -> str:
    """A loop of eight trips, the carried value %b and its counter."""
    return f"""{results}:2 = stablehlo.while(%b{number} = {first}, %i{number} = %c0) : {T}, tensor<i32>
      attributes {{sdy.sharding = #sdy.sharding_per_value<[<@m, {carried}>, <@m, []>]>}}
    cond {{
      %p = stablehlo.compare LT, %i{number}, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    }} do {{
      {body}
      %j = stablehlo.add %i{number}, %one : tensor<i32>
      stablehlo.return %k, %j : {T}, tensor<i32>
    }}\n"""


PRODUCT = f"""%d = stablehlo.dot_general %b1, %b1, contracting_dims = [1] x [0] : ({T}, {T}) -> {T}
      %k = sdy.sharding_constraint %d <@m, [{{}}, {{"x"}}]> : {T}"""
FIRST = loop("%r", "%a", '[{}, {"y"}]', PRODUCT, "1")
SECOND = loop("%q", "%r#0", "[{}, {}]", f"%k = stablehlo.negate %b2 : {T}", "2")


def looping(loops: str, returned: str) -> str:
    return f"""{MESH}func.func @main(%a: {T} {{{on('[{?}, {"y"}]')}}}) -> ({T} {{{on("[{}, {}]")}}}) {{
    %c0 = stablehlo.constant dense<0> : tensor<i32>
    %n = stablehlo.constant dense<8> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    {loops}return {returned} : {T}\n}}"""


def planned(text: str) -> Plan:
    plan = pipeline.plan_loaded(pipeline.load_module(text, Request(form="shardy")), time_limit_s=300)
    assert plan.status == "optimal"
    return plan


@pytest.mark.parametrize(("loops", "returned"), [(FIRST, "%r#0"), (FIRST + SECOND, "%q#0")])
def test_what_directly_follows_a_loop_is_not_in_it(loops: str, returned: str) -> None:
    """The carried value is gathered in each trip and once more behind the loop, by what returns or a second loop."""
    text = looping(loops, returned)
    plan = planned(text)
    gathered = [c for c in plan.price.collectives if (c.kind, c.axes) == ("all_gather", ("y",))]
    assert sum(c.repeat for c in gathered) == 9
    assert pipeline.check_plan(text, plan).passed


def test_state_with_an_early_and_a_late_demand_on_its_two_ends() -> None:
    """What keeps later demands out at a level gives way to what is due on the other end."""
    text = product(
        "tf.aliasing_output = 0 : i32, " + on('[{"x", ?}p0, {?}]'),
        on('[{?}, {"y"}p2]'),
        on('[{?}p3, {"y"}p3]'),
    )
    plan = planned(text)
    assert [level.priority for level in plan.levels] == [0, 2, 3]
    assert all(level.is_proved for level in plan.levels)
    assert plan.arguments[0].sharding == plan.results[0].sharding == '[{"x"}, {"y"}]'
    assert pipeline.check_plan(text, plan).passed


def test_members_of_a_group_that_ask_the_same_do_so_at_the_more_urgent_priority() -> None:
    groups = f"sdy.sharding_group %a group_id=0 : {T}\nsdy.sharding_group %w group_id=0 : {T}\n"
    together = product(on('[{"x", ?}p0, {?}]'), on('[{"x"}p2, {?}]'), on('[{}, {"y"}p3]'), groups)
    alone = product(on('[{"x", ?}p0, {?}]'), on('[{"x"}, {?}]'), on('[{}, {"y"}p3]'), groups)
    assert planned(together).levels == planned(alone).levels


@pytest.mark.parametrize("demands", [('[{"y", ?}, {?}]', PARTIAL), (PARTIAL, '[{"y", ?}, {?}]')])
def test_no_member_of_a_group_loses_a_demand_for_a_partial_sum(demands: tuple[str, str]) -> None:
    """One member is to be whole, the other a partial sum: which was met depended on their order."""
    products = "".join(
        f"%{number} = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] "
        f"{{sdy.sharding = #sdy.sharding_per_value<[<@m, {demand}>]>}} : ({T}, {T}) -> {T}\n"
        f"sdy.sharding_group %{number} group_id=0 : {T}\n"
        for number, demand in enumerate(demands)
    )
    text = f"{MESH}func.func @main(%a: {T}, %w: {T}) -> ({T}, {T}) {{\n{products}return %0, %1 : {T}, {T}\n}}"
    with pytest.raises(AutoshardError, match="sharded differently") as refused:
        pipeline.load_module(text, Request(form="shardy"))
    assert PARTIAL in refused.value.reason


def test_a_dimension_that_says_nothing_makes_no_level() -> None:
    plan = planned(product(on('[{"x"}p1, {?}]'), on('[{?}, {"y"}p2]')))
    assert [level.priority for level in plan.levels] == [1, 2]


def test_a_plan_by_levels_is_the_cheapest_within_them_only() -> None:
    """A baseline that ignores the levels may be cheaper."""
    plan = planned(product(on('[{"x"}p1, {?}]'), on('[{?}, {"y"}p2]')))
    assert plan.proved == WITHIN_LEVELS
    cheaper = replace(plan.price, step_ns=plan.price.step_ns - 1)
    with_cheaper = replace(plan, baselines=(replace(plan.baselines[0], price=cheaper, fits=True),))
    assert bound(with_cheaper).ok
    assert not bound(replace(with_cheaper, levels=())).ok
