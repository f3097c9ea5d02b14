"""Real small programs from module to plan and back, on eight devices with half of the memory that replication takes."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from autoshard import api, pipeline
from autoshard.cost import follow
from autoshard.errors import AutoshardError
from autoshard.mlir.forms import Form
from autoshard.pipeline import Loaded
from autoshard.plans import Plan, read_plan
from autoshard.problem import evaluate
from autoshard.solve import solve
from autoshard.solve.brute import brute_force
from tests.programs import PROGRAMS

MESH = (("x", 4), ("y", 2))
QUICK = ("mlp_train", "fft_mixer")


def _programs() -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in PROGRAMS]


PENDING_DEEP = {
    "fixed_point": "copies of one value for several loops are priced apart, and Shardy's passes merge them"
}


@cache
def replicated_peak(name: str, form: Form) -> tuple[Loaded, int]:
    """A program without a limit, and the bytes that it takes where nothing is split."""
    request = pipeline.Request(mesh=MESH, memory_bytes=None, form=form)
    loaded = pipeline.load_module(PROGRAMS[name]().encode(), request)
    priced = pipeline.price(loaded)
    return loaded, evaluate(priced.problem, follow(priced, {})).peak


@cache
def planned(name: str, share: float = 0.5, form: Form = "xla") -> tuple[Loaded, Plan]:
    """A plan for a budget of this share of what replication takes."""
    loaded, peak = replicated_peak(name, form)
    loaded = replace(loaded, memory_bytes=int(share * peak))
    return loaded, pipeline.plan_loaded(loaded, time_limit_s=60 if name in QUICK else 20)


@pytest.mark.parametrize("name", _programs())
def test_plan_holds_what_it_says(name: str) -> None:
    """It fits, adds up, is bounded from below, and is no slower than a baseline that fits."""
    loaded, plan = planned(name)
    price = plan.price
    assert plan.status in ("optimal", "feasible")
    assert loaded.memory_bytes is not None
    assert price.peak_bytes <= loaded.memory_bytes
    assert plan.fits
    assert price.step_ns == price.compute_ns + price.communication_ns
    assert price.communication_ns == sum(c.ns * c.repeat for c in price.collectives)
    assert 0 < plan.lower_bound_ns <= price.step_ns
    assert plan.status != "optimal" or plan.gap == 0
    assert [b.name for b in plan.baselines] == ["fully replicated", "data parallel", "fully sharded"]
    assert not plan.baselines[0].fits
    assert all(price.step_ns <= b.price.step_ns for b in plan.baselines if b.fits)
    assert 0 < plan.smallest_peak_bytes <= price.peak_bytes


@pytest.mark.parametrize("name", _programs())
def test_check(name: str, request: pytest.FixtureRequest) -> None:
    """The checker, which shares no code with the planner, agrees; and so do the collectives of Shardy's own passes."""
    if name in PENDING_DEEP:
        request.applymarker(pytest.mark.xfail(reason=PENDING_DEEP[name], strict=True))
    _, plan = planned(name)
    report = pipeline.check_plan(PROGRAMS[name]().encode(), plan, deep=True)
    assert report.passed, report.to_text()


def test_json_round_trip(tmp_path: Path) -> None:
    """A plan is plain data: what is written is read back equal."""
    _, plan = planned("mlp_train")
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    assert read_plan(file) == plan
    assert json.loads(plan.to_json())["price"]["step_ns"] == plan.price.step_ns


def test_plan_of_another_module() -> None:
    """A plan is refused for a module with other bytes."""
    _, plan = planned("mlp_train")
    with pytest.raises(AutoshardError, match="the plan is for another module"):
        pipeline.check_plan((PROGRAMS["mlp_train"]() + "// another\n").encode(), plan)


def test_plan_of_quite_another_module() -> None:
    """The same where not even the number of arguments is the plan's."""
    _, plan = planned("mlp_train")
    with pytest.raises(AutoshardError, match="the plan is for another module"):
        pipeline.check_plan(PROGRAMS["fft_mixer"]().encode(), plan)


MATMULS = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%a: tensor<4x8xf32>, %w: tensor<8x8xf32> {tf.aliasing_output = 0 : i32}) -> tensor<8x8xf32> {
  %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
    : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = stablehlo.dot_general %a, %0, contracting_dims = [0] x [0]
    : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}"""


def test_solver_equals_brute_force() -> None:
    """On a tiny program, without a limit and with limits on both sides of every peak that could matter."""
    request = pipeline.Request(memory_bytes=None)
    priced = pipeline.price(pipeline.load_module(MATMULS.encode(), request))
    free = brute_force(priced.problem)
    assert free.smallest_peak is not None and free.peak is not None
    limits = {free.smallest_peak + d for d in (-1, 0, 1)} | {free.peak + d for d in (-1, 0)}
    for limit in (None, *sorted(limits)):
        problem = replace(priced.problem, memory_limit=limit)
        expected, found = brute_force(problem), solve(problem, time_limit_s=300)
        assert (found.status, found.cost) == (expected.status, expected.cost)
        if found.choice is not None:
            assert evaluate(problem, found.choice).cost == found.cost


def _without_timings(plan: Plan) -> Any:
    return msgspec.to_builtins(replace(plan, statistics={}))


def test_deterministic() -> None:
    """Two runs to the proof of the optimum give the same plan, to the last sharding."""
    loaded, peak = replicated_peak("fft_mixer", "xla")
    loaded = replace(loaded, memory_bytes=peak // 2)
    plans = [pipeline.plan_loaded(loaded, time_limit_s=300, seed=7) for _ in range(2)]
    assert [plan.status for plan in plans] == ["optimal", "optimal"]
    assert _without_timings(plans[0]) == _without_timings(plans[1])


def test_infeasible_names_the_smallest_peak() -> None:
    """A budget that nothing fits in is proved to be too small, and what was found is what the exact solver finds."""
    loaded = pipeline.load_module(MATMULS.encode(), pipeline.Request(memory_bytes=1))
    plan = pipeline.plan_loaded(loaded, time_limit_s=300)
    exact = brute_force(pipeline.price(loaded).problem)
    assert (plan.status, plan.fits) == ("infeasible", False)
    assert plan.smallest_peak_bytes == exact.smallest_peak
    assert plan.price.peak_bytes == plan.smallest_peak_bytes


ON_X = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'


@pytest.mark.parametrize("form", ["shardy", "xla"])
def test_cost_of_a_planned_module(form: Form) -> None:
    """Pricing the written module as it is finds the plan's own communication."""
    module = MATMULS.replace("%a: tensor<4x8xf32>", f"%a: tensor<4x8xf32> {ON_X}")
    loaded = pipeline.load_module(module.encode(), pipeline.Request(memory_bytes=None, form=form))
    plan = pipeline.plan_loaded(loaded, time_limit_s=300)
    assert plan.price.communication_ns > 0
    written = pipeline.write_planned(loaded, plan, constraints="all")
    costed = api.price(written.encode(), memory_bytes=None, form=form)
    assert costed.price.communication_ns == plan.price.communication_ns


def test_a_constraint_that_holds_costs_nothing() -> None:
    """Writing down the sharding that a value has anyway adds no time."""
    constrained = MATMULS.replace(
        "return %1", "%2 = sdy.sharding_constraint %1 <@mesh, [{}, {}]> : tensor<8x8xf32>\nreturn %2"
    )
    steps = [api.price(module.encode(), memory_bytes=None).price.step_ns for module in (MATMULS, constrained)]
    assert steps[0] == steps[1]


def test_package_function_stays() -> None:
    """`autoshard.plan` is the function, also at its second use: no module of the package has its name."""
    code = "import autoshard; autoshard.plan; assert callable(autoshard.plan) and callable(autoshard.price)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0


def _verified(name: str, share: float, tmp_path: Path) -> None:
    loaded, plan = planned(name, share)
    assert plan.fits
    files = {"planned": pipeline.write_planned(loaded, plan), "against": PROGRAMS[name]()}
    for file, text in files.items():
        (tmp_path / f"{file}.mlir").write_text(text)
    report = pipeline.verify_modules(*(str(tmp_path / f"{file}.mlir") for file in files), devices=8)
    assert report.passed, report.to_text()
    assert np.prod([size for _, size in plan.mesh]) == report.num_devices


def test_verify(tmp_path: Path) -> None:
    """A planned training step computes on eight devices what the original does on one."""
    _verified("mlp_train", 0.5, tmp_path)


RUN = (
    "transformer_train",
    "transformer_train_scan",
    "convnet_train",
    "moe_train",
    "decode_step",
    "mlp_train",
)


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.5, 0.35])
@pytest.mark.parametrize("name", RUN)
def test_verify_under_budgets(name: str, share: float, tmp_path: Path) -> None:
    """The same for every kind of program, under budgets that force different plans."""
    _verified(name, share, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_budgets_force_different_plans(name: str) -> None:
    """Less memory, other shardings of the arguments, and a lower peak."""
    found = [planned(name, share)[1] for share in (1.0, 0.35)]
    shardings = {tuple(argument.sharding for argument in plan.arguments) for plan in found}
    assert len(shardings) == 2
    assert found[0].price.peak_bytes > found[1].price.peak_bytes


def test_notes_of_baselines() -> None:
    """What is split beside the batch: how many arrays of open sharding, where there are several."""
    head = "%x: tensor<16x8xf32>, %w: tensor<8x8xf32>"
    dot = "stablehlo.dot_general {}, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x8xf32>) -> tensor<16x8xf32>"
    for arguments, work, note in (
        (head, "", "the same and one array"),
        (f"{head} {{sdy.sharding = #sdy.sharding<@mesh, [{{?}}, {{?}}]>}}", "", "the same and one array"),
        (f"{head} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}}", "", "no other array can be split"),
        (
            f"{head}, %v: tensor<8x8xf32>",
            f"%3 = {dot.format('%1, %v')}",
            "the same and 2 arrays along their largest dimensions",
        ),
    ):
        module = f"""sdy.mesh @mesh = <["x"=2]>
func.func @main({arguments}) -> tensor<16x8xf32> {{
  %1 = {dot.format("%x, %w")}
  {work}
  return {"%3" if work else "%1"} : tensor<16x8xf32>
}}"""
        loaded = pipeline.load_module(module.encode(), pipeline.Request(memory_bytes=None))
        assert pipeline.plan_loaded(loaded).baselines[2].note == note
