"""Partial sums: left partial where that is cheaper, nowhere that it is wrong, and as the user demands."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

import costmodels
from autoshard import pipeline
from autoshard.errors import AutoshardError
from autoshard.mlir.write import Form
from autoshard.pipeline import Loaded, Request
from autoshard.plans import Plan
from tests.sdy.devices import Devices

SIZE = 512
T = f"tensor<{SIZE}x{SIZE}xf32>"
BYTES = 4 * SIZE * SIZE
MESH = 'sdy.mesh @mesh = <["x"=8]>\n'
GRID = 'sdy.mesh @mesh = <["x"=4, "y"=2]>\n'
WHOLE, ROWS, COLUMNS = "[{}, {}]", '[{"x"}, {}]', '[{}, {"x"}]'
PARTIAL = '[{}, {}], unreduced={"x"}'
DOT = f"contracting_dims = [1] x [0] : ({T}, {T}) -> {T}"
X = costmodels.load("tpu-v5e").place([("x", 8)])


def module(arguments: dict[str, str], body: str, result: str, mesh: str = MESH) -> str:
    """A function of tensors of these shardings that returns `%r`."""
    each = ", ".join(f"%{n}: {T} {{sdy.sharding = #sdy.sharding<@mesh, {s}>}}" for n, s in arguments.items())
    returned = f"{T} {{sdy.sharding = #sdy.sharding<@mesh, {result}>}}"
    return f"{mesh}func.func @main({each}) -> ({returned}) {{\n{body}\nreturn %r : {T}\n}}"


def on(sharding: str) -> str:
    return f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {sharding}>]>}}"


FACTORS = {"a": COLUMNS, "b": ROWS, "c": COLUMNS, "d": ROWS}
PRODUCTS = f"%0 = stablehlo.dot_general %a, %b, {DOT}\n%1 = stablehlo.dot_general %c, %d, {DOT}\n"
LOOP = f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
%zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {T}
%first = stablehlo.constant dense<0> : tensor<i32>
%trips = stablehlo.constant dense<16> : tensor<i32>
%one = stablehlo.constant dense<1> : tensor<i32>
%loop:2 = stablehlo.while(%i = %first, %sum = %zeros) : tensor<i32>, {T} cond {{
  %goes_on = stablehlo.compare LT, %i, %trips : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %goes_on : tensor<i1>
}} do {{
  %0 = stablehlo.dot_general %a, %b, {DOT}
  %1 = stablehlo.add %sum, %0 : {T}
  %next = stablehlo.add %i, %one : tensor<i32>
  stablehlo.return %next, %1 : tensor<i32>, {T}
}}
%r = stablehlo.tanh %loop#1 : {T}"""


def loaded(text: str, form: Form = "shardy") -> Loaded:
    return pipeline.load_module(text.encode(), Request(form=form, memory_bytes=None))


def planned(text: str, form: Form = "shardy") -> Plan:
    """The best plan, which the independent checker and Shardy's passes agree with."""
    plan = pipeline.plan_loaded(loaded(text, form), time_limit_s=20)
    assert plan.status == "optimal"
    report = pipeline.check_plan(text.encode(), plan, deep=form == "shardy")
    assert report.passed, report.to_text()
    return plan


def moved(plan: Plan) -> list[tuple[str, int, int]]:
    """Kind, bytes and repeats of what is sent."""
    return [
        (c.kind, c.bytes, c.repeat)
        for c in plan.price.collectives
        if "unreduced" not in c.kind and c.kind != "all_slice"
    ]


def simulated(text: str, inputs: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """What the devices compute together from the plan's explicit collectives."""
    source = loaded(text)
    plan = pipeline.plan_loaded(source, time_limit_s=20)
    (result,) = Devices(pipeline.write_planned(source, plan, "shardy-collectives")).run(inputs)
    return result


def drawn(count: int) -> list[NDArray[np.float64]]:
    random = np.random.default_rng(1)
    return [random.standard_normal((SIZE, SIZE)) / SIZE**0.5 for _ in range(count)]


class TestTextbook:
    def test_a_sum_of_two_products_is_reduced_once(self) -> None:
        """step = two products and a sum + one all-reduce"""
        plan = planned(module(FACTORS, PRODUCTS + f"%r = stablehlo.add %0, %1 : {T}", WHOLE))
        assert moved(plan) == [("all_reduce", BYTES, 1)]
        assert plan.price.communication_ns == X.all_reduce_ns(BYTES, ["x"])

    def test_it_is_scattered_where_its_parts_are_wanted(self) -> None:
        plan = planned(module(FACTORS, PRODUCTS + f"%r = stablehlo.add %0, %1 : {T}", ROWS))
        assert moved(plan) == [("reduce_scatter", BYTES, 1)]
        assert plan.price.communication_ns == X.reduce_scatter_ns(BYTES, ["x"])

    def test_gradients_accumulated_by_a_loop_leave_it_partial(self) -> None:
        """One all-reduce after 16 trips instead of one in each."""
        plan = planned(module({"a": COLUMNS, "b": ROWS}, LOOP, WHOLE))
        assert moved(plan) == [("all_reduce", BYTES, 1)]
        assert plan.price.communication_ns == X.all_reduce_ns(BYTES, ["x"])

    def test_a_loop_that_looks_at_its_sum_reduces_it_in_each_trip(self) -> None:
        body = LOOP.replace(
            "%1 = stablehlo.add %sum,", f"%2 = stablehlo.tanh %sum : {T}\n%1 = stablehlo.add %2,"
        )
        plan = planned(module({"a": COLUMNS, "b": ROWS}, body, WHOLE))
        assert {repeat for kind, _, repeat in moved(plan) if "reduce" in kind} <= {16}

    def test_every_addend_goes_along(self) -> None:
        """A whole value added to two partial ones is made partial, which sends nothing."""
        body = PRODUCTS + f"%2 = stablehlo.add %0, %w : {T}\n%r = stablehlo.add %2, %1 : {T}"
        assert moved(planned(module({**FACTORS, "w": WHOLE}, body, WHOLE))) == [("all_reduce", BYTES, 1)]

    @pytest.mark.parametrize("op", ["maximum", "multiply"])
    def test_two_partial_sums_meet_in_nothing_else(self, op: str) -> None:
        """The maximum and the product of two sums are not sums of anything that a device has."""
        plan = planned(module(FACTORS, PRODUCTS + f"%r = stablehlo.{op} %0, %1 : {T}", WHOLE))
        assert sum("reduce" in kind for kind, _, _ in moved(plan)) == 2
        assert not any("unreduced" in value.produced for value in plan.values.values())


class TestForms:
    def test_the_xla_form_has_partial_sums_where_xla_adds_first(self) -> None:
        """Between a product and an addition, unwritten; not where the sum is scaled in between."""
        text = module(FACTORS, PRODUCTS + f"%r = stablehlo.add %0, %1 : {T}", WHOLE)
        plan = planned(text, "xla")
        assert plan.decisions().has_partial_sums
        assert "unreduced" not in pipeline.write_planned(loaded(text, "xla"), plan)
        scaled = f"%2 = stablehlo.negate %0 : {T}\n%r = stablehlo.add %2, %1 : {T}"
        plan = planned(module(FACTORS, PRODUCTS + scaled, WHOLE), "xla")
        assert not plan.decisions().has_partial_sums
        assert not plan.warnings

    def test_demands_for_them_are_met_by_whole_values_there_and_it_says_so(self) -> None:
        plan = planned(module({"a": PARTIAL}, f"%r = stablehlo.tanh %a : {T}", WHOLE), "xla")
        assert plan.arguments[0].sharding == WHOLE
        assert any("1 demands for partial sums" in w and "argument 0 `arg0`" in w for w in plan.warnings)

    def test_a_plan_with_partial_sums_is_not_written_in_the_xla_form(self) -> None:
        source = loaded(module(FACTORS, PRODUCTS + f"%r = stablehlo.add %0, %1 : {T}", WHOLE))
        plan = pipeline.plan_loaded(source, time_limit_s=20)
        with pytest.raises(AutoshardError, match="xla form cannot say"):
            pipeline.write_planned(source, plan, "xla")

    def test_a_written_plan_costs_what_it_was_planned_for(self) -> None:
        text = module({"a": COLUMNS, "b": ROWS}, LOOP, WHOLE)
        plan, source = planned(text), loaded(text)
        written = loaded(pipeline.write_planned(source, plan))
        assert pipeline.cost_loaded(written).price.step_ns == plan.price.step_ns


class TestDemands:
    def test_an_argument_that_arrives_partial_is_reduced_for_what_is_not_linear(self) -> None:
        plan = planned(module({"a": PARTIAL}, f"%r = stablehlo.tanh %a : {T}", WHOLE))
        assert plan.arguments[0].sharding == PARTIAL
        assert moved(plan)[0] in [("all_reduce", BYTES, 1), ("reduce_scatter", BYTES, 1)]

    def test_a_partial_accumulator_takes_a_product_in_without_any_communication(self) -> None:
        body = f"%0 = stablehlo.dot_general %b, %c, {DOT}\n%r = stablehlo.add %a, %0 : {T}"
        plan = planned(module({"a": PARTIAL, "b": COLUMNS, "c": ROWS}, body, PARTIAL))
        assert not plan.price.collectives
        assert plan.results[0].sharding == PARTIAL

    def test_on_an_op(self) -> None:
        body = f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {on(PARTIAL)} : ({T}, {T}) -> {T}\n"
        plan = planned(module({"a": COLUMNS, "b": ROWS}, f"{body}%r = stablehlo.tanh %0 : {T}", WHOLE))
        assert any(value.settled == PARTIAL or value.produced == PARTIAL for value in plan.values.values())

    def test_an_op_without_a_demand_for_it_is_not_left_partial_for_one_that_says_whole(self) -> None:
        """A sharding without unreduced says that the value is whole."""
        body = PRODUCTS.replace("[0] : ", f"[0] {on(WHOLE)} : ") + f"%r = stablehlo.add %0, %1 : {T}"
        assert len(moved(planned(module(FACTORS, body, WHOLE)))) == 2

    @pytest.mark.parametrize(
        ("op", "reason"),
        [
            (f"stablehlo.tanh %a {on(PARTIAL)} : {T}", "stablehlo.tanh of a sum is not the sum of"),
            (f"stablehlo.maximum %a, %a {on(PARTIAL)} : {T}", "stablehlo.maximum of a sum is not"),
            (f"stablehlo.constant {on(PARTIAL)} dense<1.0> : {T}", "every device has all of stablehlo.constant"),
            (f"stablehlo.iota dim = 0 {on(PARTIAL)} : {T}", "every device has all of stablehlo.iota"),
        ],
    )  # fmt: skip
    def test_of_what_cannot_be_one_is_refused_where_it_stands(self, op: str, reason: str) -> None:
        text = module({"a": WHOLE}, f"%0 = {op}\n%r = stablehlo.tanh %0 : {T}", WHOLE)
        with pytest.raises(AutoshardError, match=f'<bytes>:3: .*partial sum over {{"x"}}: {reason}'):
            loaded(text)

    def test_a_sum_that_is_spelled_out_after_a_partial_value_is_that_reduction(self) -> None:
        body = (
            f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {on(PARTIAL)} : ({T}, {T}) -> {T}\n"
            f"%1 = stablehlo.negate %0 {on(PARTIAL)} : {T}\n"
            f'%r = sdy.all_reduce {{"x"}} %1 out_sharding=<@mesh, {WHOLE}> : {T}'
        )
        assert moved(planned(module({"a": COLUMNS, "b": ROWS}, body, WHOLE))) == [("all_reduce", BYTES, 1)]


class TestNumbers:
    """Eight devices, with each collective of the written module, compute what one computes."""

    def test_a_sum_of_products(self) -> None:
        a, b, c, d, w = inputs = drawn(5)
        body = PRODUCTS + f"%2 = stablehlo.add %0, %w : {T}\n%r = stablehlo.subtract %2, %1 : {T}"
        found = simulated(module({**FACTORS, "w": WHOLE}, body, ROWS), inputs)
        np.testing.assert_allclose(found, a @ b + w - c @ d, atol=1e-9)

    def test_a_loop(self) -> None:
        a, b = inputs = drawn(2)
        found = simulated(module({"a": COLUMNS, "b": ROWS}, LOOP, WHOLE), inputs)
        np.testing.assert_allclose(found, np.tanh(16 * (a @ b)), atol=1e-9)

    def test_arguments_and_results_that_are_partial(self) -> None:
        a, b, c = inputs = drawn(3)
        body = (
            f"%0 = stablehlo.dot_general %b, %c, {DOT}\n"
            f"%1 = stablehlo.transpose %a, dims = [1, 0] : ({T}) -> {T}\n%r = stablehlo.add %1, %0 : {T}"
        )
        found = simulated(module({"a": PARTIAL, "b": COLUMNS, "c": ROWS}, body, PARTIAL), inputs)
        np.testing.assert_allclose(found, a.T + b @ c, atol=1e-9)

    @pytest.mark.parametrize("seed", range(3))
    def test_random_linear_programs_on_a_grid(self, seed: int) -> None:
        """Sums, products by whole factors and transposes of products that are split over either axis."""
        random = np.random.default_rng(seed)
        inputs = drawn(4)
        shardings = [COLUMNS, ROWS, '[{}, {"y"}]', '[{"y"}, {"x"}]', '[{}, {}], unreduced={"y"}', WHOLE]
        arguments = {name: shardings[random.integers(len(shardings))] for name in "abcd"}
        values, lines, last = {f"%{n}": v for n, v in zip("abcd", inputs, strict=True)}, list[str](), "%a"
        for number in range(6):
            other = list(values)[random.integers(len(values))]
            a, b, name = values[last], values[other], f"%v{number}" if number < 5 else "%r"
            op, values[name] = (
                (f"stablehlo.dot_general {last}, {other}, {DOT}", a @ b),
                (f"stablehlo.dot_general {other}, {last}, {DOT}", b @ a),
                (f"stablehlo.add {last}, {other} : {T}", a + b),
                (f"stablehlo.multiply {last}, {other} : {T}", a * b),
                (f"stablehlo.transpose {last}, dims = [1, 0] : ({T}) -> {T}", a.T),
            )[random.integers(5)]
            lines.append(f"{name} = {op}")
            last = name
        text = module(arguments, "\n".join(lines), shardings[seed % len(shardings)], GRID)
        planned(text)
        np.testing.assert_allclose(simulated(text, inputs), values["%r"], atol=1e-7)


def test_the_plan_is_the_best_of_all_choices() -> None:
    """Whatever is demanded of the values, reduced early or late, in parts or whole, is no cheaper than the free plan, and once as cheap."""
    lines = (
        f"%0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] {{}} : ({T}, {T}) -> {T}",
        f"%1 = stablehlo.dot_general %c, %d, contracting_dims = [1] x [0] {{}} : ({T}, {T}) -> {T}",
        f"%r = stablehlo.add %0, %1 {{}} : {T}",
    )

    def step_ns(*demands: str) -> int:
        body = "\n".join(line.format(demand) for line, demand in zip(lines, demands, strict=True))
        plan = pipeline.plan_loaded(loaded(module(FACTORS, body, ROWS)), time_limit_s=20)
        assert plan.status == "optimal"
        return plan.price.step_ns

    every = itertools.product((WHOLE, PARTIAL), (ROWS, PARTIAL), (WHOLE, ROWS, PARTIAL))
    assert step_ns("", "", "") == min(step_ns(*map(on, chosen)) for chosen in every)
