"""Ranges of hardware figures over which a plan stays the best: against closed forms, and against every choice tried."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import autoshard
from autoshard import pipeline
from autoshard.cli import main
from autoshard.cost import PricedGraph, follow, recall
from autoshard.errors import AutoshardError
from autoshard.explanations import Sensitivity
from autoshard.loading import Loaded, with_figures
from autoshard.plans import Plan
from autoshard.problem import evaluate
from autoshard.ranging import FIGURES, figures_of_plan, sensitivity_of
from autoshard.ranging.figures import ScaledFigure
from autoshard.ranging.sensitivity import TOLERANCE, enough
from autoshard.recording import plan_of_choice
from autoshard.report import sensitivity_text
from autoshard.report.units import times_text
from autoshard.solve import solve
from costmodels import KINDS, Hardware, load, names
from tests.interrupts import interrupting
from tests.programs import PROGRAMS

REPLICATED = "{sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}"
PRODUCT = f"""
sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<4096x16384xbf16> {REPLICATED}, %b: tensor<16384x512xbf16> {REPLICATED})
    -> (tensor<4096x512xbf16> {REPLICATED}) {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<4096x16384xbf16>, tensor<16384x512xbf16>) -> tensor<4096x512xbf16>
  return %0 : tensor<4096x512xbf16>
}}
"""
"""Everything is whole outside: the product is made whole on each device, or in parts that are gathered."""


def _product(m: int, k: int, n: int, shardings: list[str]) -> str:
    a, b, c = f"{m}x{k}", f"{k}x{n}", f"{m}x{n}"
    left, right, made = (f"{{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}" for sharding in shardings)
    return f"""
sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<{a}xbf16> {left}, %b: tensor<{b}xbf16> {right}) -> (tensor<{c}xbf16> {made}) {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<{a}xbf16>, tensor<{b}xbf16>) -> tensor<{c}xbf16>
  return %0 : tensor<{c}xbf16>
}}
"""


def _planned(text: str, memory_bytes: int | None = None) -> tuple[pipeline.Request, Plan]:
    request = pipeline.Request(memory_bytes=memory_bytes, form="shardy")
    return request, pipeline.plan_loaded(pipeline.load_module(text.encode(), request), time_limit_s=300)


def _sensitivity(
    text: str, request: pipeline.Request, plan: Plan, *figures: str, span: float = 16
) -> Sensitivity:
    return sensitivity_of(
        pipeline.read_module(text.encode(), request), plan, figures=figures, span=span, time_limit_s=300
    )


def test_crossing_of_one_product() -> None:
    """A product in parts pays until its gather takes what is saved: the bandwidth of that follows from two prices and the latency."""
    request, plan = _planned(PRODUCT)
    found = _sensitivity(PRODUCT, request, plan, "link-bandwidth", "link-latency", span=64)
    gathered = [c for c in plan.price.collectives if c.kind == "all_gather"]
    assert len(gathered) == 1
    loaded = pipeline.load_module(PRODUCT.encode(), request)
    whole_ns = pipeline.price_as_written(loaded).plan().price.step_ns
    latency_ns = loaded.communication.all_gather_ns(0, ["x"])
    room_ns = whole_ns - (plan.price.step_ns - gathered[0].ns)
    by_bandwidth, by_latency = found.figures
    assert by_bandwidth.is_proved and by_latency.is_proved
    assert by_bandwidth.low is not None and by_latency.high is not None
    slowest = (gathered[0].ns - latency_ns) / (room_ns - latency_ns)
    assert by_bandwidth.low.factor == pytest.approx(slowest, rel=0.02)
    assert by_latency.high.factor == pytest.approx(
        (room_ns - gathered[0].ns + latency_ns) / latency_ns, rel=0.02
    )
    beyond = by_bandwidth.low.beyond
    assert beyond is not None and beyond.step_ns == pytest.approx(whole_ns, rel=0.01)
    assert by_bandwidth.high is not None and by_bandwidth.high.beyond is None
    assert by_bandwidth.high.factor == 64


@pytest.mark.parametrize("seed", range(6))
def test_every_choice_tried(seed: int) -> None:
    """Inside a range no choice beats the plan, just beyond it one does, by the stated part of the step."""
    draw = np.random.default_rng(seed)
    m, k, n = (2 ** draw.integers(6, 14, size=3)).tolist()
    text = _product(
        m, k, n, draw.choice(["[{}, {}]", '[{"x"}, {}]', '[{}, {"x"}]', "[{?}, {?}]"], 3).tolist()
    )
    request, plan = _planned(text)
    loaded = pipeline.load_module(text.encode(), request)
    priced = pipeline.price(loaded)
    choice = recall(priced, plan.decisions())
    assert choice is not None
    found = _sensitivity(text, request, plan)
    assert found.better is None and found.step_ns == plan.price.step_ns
    for row, figure in zip(
        found.figures, figures_of_plan(loaded.hardware, loaded.communication), strict=True
    ):
        assert row.is_proved and row.low is not None and row.high is not None
        at_random = (
            row.low.factor * (row.high.factor / row.low.factor) ** share for share in draw.uniform(0, 1, 2)
        )
        for factor in (*row.looked_at, *(at_random if row.is_linear else ())):
            problem = _at(loaded, priced, figure.name, factor).problem
            best = solve(problem, time_limit_s=300, solver="brute").cost
            mine = evaluate(problem, choice).cost
            assert best is not None and mine is not None
            assert best > enough(mine) - 2 * problem.edge_count  # roundings, in between
        for end in (row.low, row.high):
            if end.beyond is not None:
                problem = _at(loaded, priced, figure.name, end.beyond.factor).problem
                best = solve(problem, time_limit_s=300, solver="brute").cost
                assert best is not None and best <= end.beyond.step_ns
                assert end.beyond.step_ns <= end.beyond.plan_ns * (1 - TOLERANCE) + 1
                assert max(end.factor / end.beyond.factor, end.beyond.factor / end.factor) <= 1.0101


def _at(loaded: Loaded, priced: PricedGraph, name: str, factor: float) -> PricedGraph:
    figure = next(figure for figure in FIGURES if figure.name == name)
    return pipeline.repriced(with_figures(loaded, figure.scaled(loaded.hardware, factor)), priced)


@pytest.mark.parametrize("name", ["mlp_train", "moe_sorted_train", "rnn_train", "fixed_point"])
def test_a_plan_is_a_choice_again(name: str) -> None:
    """What a plan's file decides is recalled as a choice of the same price, for choices of all kinds."""
    request = pipeline.Request(mesh=(("x", 4), ("y", 2)), memory_bytes=None, form="shardy")
    loaded = pipeline.load_module(PROGRAMS[name]().encode(), request)
    priced = pipeline.price(loaded)
    problem = priced.problem
    draw = np.random.default_rng(0)
    for start in (
        follow(priced, {}),
        *(c for _, c, _ in pipeline.baseline_choices(loaded, priced) if c is not None),
    ):
        choice = start.copy()
        for node in draw.integers(0, problem.node_count, 20):
            kept = choice[node]
            choice[node] = draw.choice(np.flatnonzero(problem.node_mask(node)))
            if evaluate(problem, choice).cost is None:
                choice[node] = kept
        plan = plan_of_choice(loaded, priced, choice, "feasible", "", 0, (), {})
        again = recall(priced, plan.decisions())
        assert again is not None
        told = plan_of_choice(loaded, priced, again, "feasible", "", 0, (), {})
        assert (told.values, told.uses, told.price) == (plan.values, plan.uses, plan.price)


@pytest.mark.parametrize("name", names())
def test_every_figure_is_scaled(name: str) -> None:
    """A factor of 1 changes nothing, one of 2 doubles what is shown, on every profile that has the figure."""
    hardware = load(name)
    for figure in FIGURES:
        value = figure.value(hardware)
        if value is not None:
            assert figure.scaled(hardware, 1.0) == hardware
            assert figure.value(figure.scaled(hardware, 2.0)) == 2 * value
            assert figure.unit


@pytest.mark.parametrize(
    ("name", "topology", "slices"),
    [("tpu-v5e", (4, 4), None), ("tpu-v5e", (2, 4), 2), ("tpu7x", (2, 4), None), ("h100", (2, 8), None)],
)
def test_what_is_called_a_line_is_one(name: str, topology: tuple[int, ...], slices: int | None) -> None:
    """Of three prices of any collective, at factors evenly apart, the one in the middle is halfway between the others."""
    hardware = load(name)
    mesh = (("x", 4), ("y", 4))
    lines = [f for f in FIGURES if f.is_line_on(hardware, hardware.place(mesh, topology, slices=slices))]
    assert "link-latency" in {figure.name for figure in lines}
    _assert_lines(hardware, lines, topology, slices)


def test_lines_of_a_scheduler() -> None:
    """What it takes depends on two figures, in straight lines."""
    hardware, topology = load("tpu-v5e:scheduler"), (4, 4)
    model = hardware.place((("x", 4), ("y", 4)), topology)
    used = figures_of_plan(hardware, model)
    assert [figure.name for figure in used] == ["matrix-peak", "scheduler-bandwidth"]
    assert all(figure.is_line_on(hardware, model) for figure in used)
    _assert_lines(hardware, used, topology, None)
    with pytest.raises(AutoshardError, match="link-latency plays no part on tpu-v5e:scheduler"):
        figures_of_plan(hardware, model, ["link-latency"])
    with pytest.raises(AutoshardError, match="scheduler-bandwidth plays no part on tpu-v5e "):
        figures_of_plan(load("tpu-v5e"), load("tpu-v5e").place((("x", 4),), (4, 1)), ["scheduler-bandwidth"])


def _assert_lines(
    hardware: Hardware, lines: Sequence[ScaledFigure], topology: tuple[int, ...], slices: int | None
) -> None:
    mesh = (("x", 4), ("y", 4))
    for figure in lines:
        if figure.value(hardware) is None:
            continue
        models = [
            figure.scaled(hardware, 1 / part if figure.is_rate else part).place(mesh, topology, slices=slices)
            for part in (0.1, 5.05, 10.0)
        ]
        for kind, axes in product(KINDS, (["x"], ["y"], ["x", "y"])):
            first, middle, last = (getattr(model, f"{kind}_ns")(1 << 20, axes) for model in models)
            assert abs(first + last - 2 * middle) <= 2, (figure.name, kind, axes)  # each is rounded up


def test_a_plan_that_is_not_the_best() -> None:
    """Where the profile's own figures have a better plan, that is said, and nothing else."""
    request, plan = _planned(PRODUCT)
    whole = pipeline.cost_loaded(pipeline.load_module(PRODUCT.encode(), request))
    found = _sensitivity(PRODUCT, request, whole)
    assert found.better is not None and found.better.step_ns == plan.price.step_ns
    assert all(row.low is None and row.high is None and not row.is_proved for row in found.figures)


def test_refusals() -> None:
    """Figures that there are not, or that the topology does not use, spans that are none, plans that do not fit."""
    request, plan = _planned(PRODUCT)
    with pytest.raises(AutoshardError, match="no figure is called 'speed'"):
        _sensitivity(PRODUCT, request, plan, "speed")
    with pytest.raises(AutoshardError, match="network-bandwidth plays no part"):
        _sensitivity(PRODUCT, request, plan, "network-bandwidth")
    read = pipeline.read_module(PRODUCT.encode(), request)
    for span, precision in ((1.0, 0.01), (float("nan"), 0.01), (16.0, 0.0)):
        with pytest.raises(AutoshardError, match="give a span above 1"):
            sensitivity_of(read, plan, span=span, precision=precision)
    with pytest.raises(AutoshardError, match="does not fit"):
        sensitivity_of(replace(read, memory_bytes=1000), plan)
    for values in ({}, plan.values | {10**6: next(iter(plan.values.values()))}):
        with pytest.raises(AutoshardError, match="none that this version chooses from"):
            sensitivity_of(read, replace(plan, values=values))


def test_overlap_is_no_line() -> None:
    """Where collectives run behind compute, what holds at the ends is not said to hold in between."""
    request = replace(pipeline.Request(memory_bytes=None, form="shardy"), overlap="async")
    plan = pipeline.plan_loaded(pipeline.load_module(PRODUCT.encode(), request), time_limit_s=300)
    found = _sensitivity(PRODUCT, request, plan, "link-bandwidth")
    assert not found.figures[0].is_linear and len(found.figures[0].looked_at) > 3


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The table for people, the same as JSON, and from Python."""
    module, file = tmp_path / "product.mlir", tmp_path / "plan.json"
    module.write_text(PRODUCT)

    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["autoshard", *arguments])
        main()
        return capsys.readouterr().out

    run("plan", str(module), "--memory", "none", "--form", "shardy", "--plan-out", str(file))
    printed = run("sensitivity", str(file), "--figure", "link-bandwidth", "--figure", "matrix-peak")
    assert "link-bandwidth times" in printed and "GB/s" in printed and "proved" in printed
    data = json.loads(run("sensitivity", str(file), "--figure", "link-bandwidth", "--json"))
    plan = autoshard.plan(module, memory_bytes=None, form="shardy")
    found = autoshard.sensitivity(module, plan, figures=["link-bandwidth"])
    assert found.figures[0].low is not None
    assert data["figures"][0]["low"]["factor"] == found.figures[0].low.factor


def test_times_that_differ_read_differently() -> None:
    assert times_text(20_226, 20_231) == ("20226 ns", "20231 ns")
    assert times_text(20_226, 20_326) == ("20.23 µs", "20.33 µs")


@pytest.mark.parametrize("where", ["Portfolio.run", "Record.hint"])
@pytest.mark.parametrize("calls", [1, 2])
def test_an_interrupt_ends_the_search(where: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the solver runs, or before it has begun: no further look, and what is known is told."""
    request, plan = _planned(PRODUCT)
    solved = interrupting(calls, monkeypatch, where)
    found = _sensitivity(PRODUCT, request, plan)
    assert found.is_interrupted and len(solved) == calls
    said = _text(found)
    assert "interrupted: what was known by then" in said and ", then interrupted" in said
    assert all(
        end is not None and end.is_cut_short for end in (found.figures[-1].low, found.figures[-1].high)
    )


def test_an_interrupt_between_looks_ends_the_search() -> None:
    """Ctrl-C while prices are made anew."""
    request, plan = _planned(PRODUCT)
    looked: list[str] = []

    def interrupt(phase: str, fraction: float | None) -> None:
        looked.append(phase)
        if len(looked) == 5:
            raise KeyboardInterrupt

    found = sensitivity_of(pipeline.read_module(PRODUCT.encode(), request), plan, progress=interrupt)
    assert found.is_interrupted and len(looked) == 5


def _text(found: Sensitivity) -> str:
    console = Console(width=150)
    with console.capture() as printed:
        console.print(sensitivity_text(found))
    return printed.get()
