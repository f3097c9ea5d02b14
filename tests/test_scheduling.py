"""Plans chosen for their step in the order of the compiler's scheduler."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from autoshard import pipeline
from autoshard.cost import PricedGraph, read_back, schedule_of
from autoshard.loading import Loaded
from autoshard.overlaps import Overlap
from autoshard.plans import Plan, Price
from autoshard.pricing import price, repriced
from autoshard.problem import Problem, evaluate
from autoshard.requests import HIDING_MEMORY_SHARE
from autoshard.scheduling import shortest_in_order
from autoshard.solve import Solution, solve
from costmodels import Hardware
from tests.mlir.modules import counted_loop
from tests.problem.strategies import all_choices, valid_choices

W, ROWS = "tensor<4096x4096xbf16>", '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'


def layers(count: int, rows: int) -> str:
    """Products of activations, split over rows like the weights, and one weight after another."""
    x = f"tensor<{rows}x4096xbf16>"
    weights = ", ".join(f"%w{number}: {W} {ROWS}" for number in range(count))
    body = "\n".join(
        f"%{number + 1} = stablehlo.dot_general %{number}, %w{number}, contracting_dims = [1] x [0] : ({x}, {W}) -> {x}"
        for number in range(count)
    ).replace("%0,", "%a,")
    return f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: {x} {ROWS}, {weights}) -> ({x} {ROWS}) {{
        {body}
        return %{count} : {x}
      }}"""


def loaded_for(
    text: str,
    hardware: str = "tpu-v5e:scheduler",
    overlap: Overlap | None = None,
    topology: tuple[int, ...] = (4,),
) -> Loaded:
    asked = pipeline.Request(memory_bytes=None, hardware=hardware, overlap=overlap, topology=topology)
    return pipeline.load_module(text.encode(), asked)


def in_order_ns(loaded: Loaded, priced: PricedGraph, choice: NDArray[np.int64]) -> int:
    return schedule_of(priced, choice, read_back(priced, choice), loaded.hardware).step_ns


def in_order(plan: Plan) -> int:
    assert plan.is_by_order
    return plan.price.compared_ns(is_by_order=True)


def counted(price_: Price) -> int:
    """The step in order, and a twentieth of what it hides."""
    found = price_.scheduled
    assert found is not None
    return found.step_ns + (found.asynchronous_ns - found.waited_ns) // 20


def cheapest(loaded: Loaded) -> tuple[PricedGraph, NDArray[np.int64]]:
    """By price alone."""
    priced = price(loaded)
    found = solve(priced.problem, time_limit_s=20).choice
    assert found is not None
    return priced, found


@pytest.mark.parametrize(("count", "rows", "is_shorter"), [(2, 512, False), (4, 1024, True), (4, 2048, True)])
def test_the_shortest_step_in_order_is_taken(count: int, rows: int, is_shorter: bool) -> None:
    """It is no longer than that of the cheapest by price or of what a plan is compared with; the bound is of the price."""
    loaded = loaded_for(layers(count, rows))
    plan = pipeline.plan_loaded(loaded)
    priced, choice = cheapest(loaded)
    theirs = in_order_ns(loaded, priced, choice)
    assert plan.lower_bound_ns == evaluate(priced.problem, choice).cost
    assert (in_order(plan) < theirs) == is_shorter
    assert all(counted(plan.price) <= counted(one.price) for one in plan.baselines if one.fits)
    assert (plan.status, "scheduler's order" in plan.proved) == (
        ("feasible", True) if is_shorter else ("optimal", False)
    )
    assert pipeline.check_plan(layers(count, rows).encode(), plan).passed
    written = pipeline.write_planned(loaded, plan)
    again = pipeline.cost_loaded(loaded_for(written))
    assert again.price.scheduled == plan.price.scheduled


@pytest.mark.parametrize("rows", [512, 1024, 2048, 4096, 8192])
def test_no_choice_is_much_shorter(rows: int) -> None:
    """Of all that there are; rounds of prices may miss what comes together only."""
    loaded = loaded_for(layers(2, rows))
    plan, priced = pipeline.plan_loaded(loaded), price(loaded)
    choices = all_choices(priced.problem)
    assert len(choices) < 20000
    steps = [
        in_order_ns(loaded, priced, choice)
        for choice in choices
        if evaluate(priced.problem, choice).cost is not None
    ]
    assert len(steps) > 10
    assert in_order(plan) <= 1.1 * min(steps)


@pytest.mark.parametrize("rows", [512, 1024, 2048, 8192])
def test_at_what_it_waits_for_a_choice_costs_its_step_in_order(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prices of the next round are right for the choice that they come from, to a hundredth of what is sent.

    But for the share of copies, which no schedule has.
    """

    def nothing(_: Hardware, bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        return 0 * bytes

    monkeypatch.setattr(Hardware, "copy_ns", nothing)
    loaded = loaded_for(layers(3, rows))
    priced = price(loaded)
    choices = valid_choices(priced.problem, 3, 60)
    for choice in choices:
        found = schedule_of(priced, choice, read_back(priced, choice), loaded.hardware)
        cost = evaluate(repriced(loaded, priced, found.waited_percent).problem, choice).cost
        assert cost is not None
        assert found.step_ns - 10 <= cost <= found.step_ns + found.asynchronous_ns // 100 + 10
    assert len(choices) > 5


def statuses(plan: Plan) -> tuple[str, bool]:
    return plan.status, plan.price.step_ns == plan.lower_bound_ns


def test_nothing_is_hidden_where_that_is_assumed() -> None:
    """Then, and at the hardware's own prices, the cheapest is taken."""
    text = layers(4, 1024)
    assert statuses(pipeline.plan_loaded(loaded_for(text, overlap="none"))) == ("optimal", True)
    assert statuses(pipeline.plan_loaded(loaded_for(text, "tpu-v5e"))) == ("optimal", True)
    assert statuses(pipeline.plan_loaded(loaded_for(text))) == ("feasible", False)


def test_no_time_for_more_than_the_cheapest() -> None:
    """A plan comes all the same, no longer in order than what it is compared with."""
    for time_limit_s in (0, 1e-3):
        plan = pipeline.plan_loaded(loaded_for(layers(4, 1024)), time_limit_s=time_limit_s)
        assert plan.status in ("optimal", "feasible")
        assert all(counted(plan.price) <= counted(one.price) for one in plan.baselines if one.fits)


def test_equal_requests_have_equal_plans() -> None:
    """The rounds too are deterministic."""
    text = layers(4, 2048)
    first, second = (pipeline.plan_loaded(loaded_for(text)) for _ in range(2))
    assert (first.values, first.uses, first.price) == (second.values, second.uses, second.price)


def test_what_is_gathered_for_a_loop_too_is_there_for_the_product_in_front() -> None:
    """It is sent once, before the first that reads it: the written module is priced alike."""
    x, two, end = (
        "tensor<2048x4096xbf16>",
        '#sdy.sharding<@mesh, [{}, {"x", "y"}]>',
        "contracting_dims = [1] x [1]",
    )
    one_column, rows = '#sdy.sharding<@mesh, [{}, {"y"}]>', '#sdy.sharding<@mesh, [{"x", "y"}, {}]>'
    turn = f"""
      %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({x}, {W}) -> {x}
      %next = stablehlo.dot_general %y, %v, {end} : ({x}, {W}) -> {x}"""
    text = f"""
      sdy.mesh @mesh = <["x"=2, "y"=8]>
      func.func @main(%a: {x} {{sdy.sharding = {one_column}}}, %w: {W} {{sdy.sharding = {two}}}, %u: {W},
                      %v: {W} {{sdy.sharding = {one_column}}})
          -> ({x} {{sdy.sharding = #sdy.sharding<@mesh, [{{"x"}}, {{"y"}}]>}}, {W} {{sdy.sharding = {rows}}}) {{
        %1 = stablehlo.dot_general %a, %u, {end} : ({x}, {W}) -> {x}
        %3 = stablehlo.dot_general %1, %u, contracting_dims = [1] x [0] : ({x}, {W}) -> {x}
        %4 = stablehlo.tanh %3 : {x}
        %5 = stablehlo.dot_general %a, %4, contracting_dims = [0] x [0] : ({x}, {x}) -> {W}
        {counted_loop(16, (("%x", "%4", x),), turn, ("%next",))}
        return %r#1, %5 : {x}, {W}
      }}"""
    loaded = loaded_for(text, topology=(8, 2))
    plan = pipeline.plan_loaded(loaded)
    again = pipeline.cost_loaded(loaded_for(pipeline.write_planned(loaded, plan), topology=(8, 2)))
    assert again.price.scheduled == plan.price.scheduled


def test_work_decides_between_steps_that_are_equal_only() -> None:
    """A loop of elementwise work takes the scheduler no time: nothing is moved so that there is less of it."""
    x = "tensor<4096x4096xf32>"
    turn = f"\n %y = stablehlo.tanh %x : {x}\n %next = stablehlo.cosine %y : {x}"
    text = f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: {x} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}})
          -> ({x} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}) {{
        {counted_loop(200000, (("%x", "%a", x),), turn, ("%next",))}
        return %r#1 : {x}
      }}"""
    assert in_order(pipeline.plan_loaded(loaded_for(text))) == 0


@pytest.mark.parametrize("hardware", ["tpu-v5p:scheduler", "tpu-v6e:scheduler"])
def test_what_is_synchronous_is_never_free(hardware: str) -> None:
    """Gathers of these chips: without waiting, a choice still costs all that it sends so."""
    loaded = loaded_for(layers(3, 2048), hardware)
    priced = price(loaded)
    free = repriced(loaded, priced, dict.fromkeys(range(len(priced.graph.edges)), 0)).problem
    choices = valid_choices(free, 5, 60)
    for choice in choices:
        cost = evaluate(free, choice).cost
        assert cost is not None
        found = schedule_of(priced, choice, read_back(priced, choice), loaded.hardware)
        assert cost >= found.compute_ns + found.synchronous_ns
    assert len(choices) > 5


def test_a_plan_says_whether_it_was_chosen_by_order() -> None:
    """Whatever else is known of its order."""
    text = layers(4, 1024)
    by_price = pipeline.plan_loaded(loaded_for(text, overlap="none"))
    assert not by_price.is_by_order
    assert by_price.price.compared_ns(is_by_order=by_price.is_by_order) == by_price.price.step_ns
    by_order = pipeline.plan_loaded(loaded_for(text))
    assert by_order.is_by_order
    assert by_order.price.compared_ns(is_by_order=True) < by_order.price.step_ns


def with_memory(loaded: Loaded, usable_bytes: int) -> Loaded:
    chip = loaded.hardware.chip
    chip = msgspec.structs.replace(chip, hbm_gb=usable_bytes / 1e9, hbm_gib=None, usable_hbm_fraction=1.0)
    hardware = msgspec.structs.replace(loaded.hardware, chip=chip)
    assert abs(hardware.usable_hbm_bytes - usable_bytes) <= 1
    return replace(loaded, hardware=hardware)


@pytest.mark.parametrize(("share", "has_room"), [(1.0, False), (1.5, True)])
def test_a_choice_that_leaves_room_is_looked_for(share: float, has_room: bool) -> None:
    """Where the cheapest has more alive than the scheduler hides collectives with; then it is the one that is taken."""
    asked = pipeline.Request(memory_bytes=None, hardware="tpu-v5e:scheduler")
    loaded = pipeline.load_module(layers(4, 1024).encode(), asked)
    cheapest_ = solve(price(loaded).problem, time_limit_s=20)
    assert cheapest_.peak is not None
    loaded = with_memory(loaded, int(cheapest_.peak * share))
    room = int(loaded.hardware.usable_hbm_bytes * HIDING_MEMORY_SHARE)
    priced, tried = price(loaded), list[int | None]()

    def solved(problem: Problem, starts: Sequence[NDArray[np.int64]]) -> Solution:
        tried.append(problem.memory_limit)
        return solve(problem, time_limit_s=20, hints=starts)

    found = shortest_in_order(loaded, priced, cheapest_, [], solved).solution
    assert found.choice is not None
    assert found.peak is not None
    assert all(limit is not None and limit <= room for limit in tried)
    assert tried
    assert found.peak <= room
    assert (cheapest_.peak <= room) == has_room
    assert cheapest_.choice is not None
    if has_room:
        assert in_order_ns(loaded, priced, found.choice) <= in_order_ns(loaded, priced, cheapest_.choice)


def test_what_is_hidden_counts_where_there_is_no_room() -> None:
    """Of choices that all have too much alive the one is taken that sends least, whatever could run behind compute."""
    asked = pipeline.Request(memory_bytes=None, hardware="tpu-v5e:scheduler")
    loaded = pipeline.load_module(layers(3, 2048).encode(), asked)
    priced = price(loaded)
    cheapest_ = solve(priced.problem, time_limit_s=20)
    choices = valid_choices(priced.problem, 7, 40)
    full = with_memory(loaded, min(evaluate(priced.problem, choice).peak for choice in choices))

    def unsolved(_problem: Problem, _starts: Sequence[NDArray[np.int64]]) -> None:
        return None

    found = shortest_in_order(full, priced, cheapest_, choices, unsolved).solution
    assert found.choice is not None

    def sent_ns(choice: NDArray[np.int64]) -> int:
        schedule = schedule_of(priced, choice, read_back(priced, choice), loaded.hardware)
        return schedule.compute_ns + schedule.synchronous_ns + schedule.asynchronous_ns

    assert cheapest_.choice is not None
    assert sent_ns(found.choice) == min(map(sent_ns, [*choices, cheapest_.choice]))
