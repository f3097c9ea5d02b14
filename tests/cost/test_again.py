"""Readers of one weight that gather it each for itself: once for all as far as that fits, else anew for each."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from autoshard import pipeline
from autoshard.annotated import price_as_written
from autoshard.check import CheckReport, Subject, check
from autoshard.loading import Loaded
from autoshard.mlir.forms import Form
from autoshard.plans import Plan, emitted_bytes

LAYERS, WIDTH, ROWS = 12, 4096, 32768
WEIGHT, HIDDEN = f"tensor<{WIDTH}x{WIDTH}xf32>", f"tensor<{ROWS}x{WIDTH}xf32>"
WEIGHT_BYTES = WIDTH * WIDTH * 4
SPLIT = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'


def there_and_back(times: int = 1) -> str:
    """All layers one after the other, then back through their transposes, so often; batch and weights are split over all devices."""
    weights = ", ".join(f"%w{layer}: {WEIGHT} {SPLIT}" for layer in range(LAYERS))
    body = [f"%zero = stablehlo.constant dense<0.0> : {HIDDEN}"]
    value = "%a"
    for time in range(times):
        for layer, dims in [(n, "[1] x [0]") for n in range(LAYERS)] + [
            (n, "[1] x [1]") for n in reversed(range(LAYERS))
        ]:
            name = f"%p{time}_{layer}_{dims[-2]}"
            body.append(
                f"{name} = stablehlo.dot_general {value}, %w{layer}, contracting_dims = {dims} : ({HIDDEN}, {WEIGHT}) -> {HIDDEN}"
            )
            body.append(f"{name}t = stablehlo.maximum {name}, %zero : {HIDDEN}")
            value = f"{name}t"
    lines = "\n        ".join(body)
    return f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: {HIDDEN} {SPLIT}, {weights}) -> ({HIDDEN} {SPLIT}) {{
        {lines}
        return {value} : {HIDDEN}
      }}"""


def planned(
    times: int = 1, memory_bytes: int | None = None, hardware: str = "tpu-v6e"
) -> tuple[Loaded, Plan]:
    request = pipeline.Request(hardware=hardware, topology=(2, 2), memory_bytes=memory_bytes)
    loaded = pipeline.load_module(there_and_back(times).encode(), request)
    return loaded, pipeline.plan_loaded(loaded)


def tight(times: int) -> int:
    """Room for less than all weights gathered at once."""
    _, plan = planned(times)
    assert not any(use.again for use in plan.uses), "with memory to spare nothing is gathered again"
    return plan.price.peak_bytes * 85 // 100


def report(loaded: Loaded, plan: Plan) -> CheckReport:
    return check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)


@pytest.mark.parametrize("times", [1, 2])
def test_what_does_not_fit_in_between_is_gathered_again(times: int) -> None:
    """There and back twice the same weights have four readers, and as many gathers where each is to have its own."""
    limit = tight(times)
    loaded, plan = planned(times, limit)
    assert plan.fits
    assert plan.price.peak_bytes <= limit
    assert {use.again for use in plan.uses} == set(range(2 * times))
    assert report(loaded, plan).passed
    paid = sum(collective.kind == "all_gather" for collective in plan.price.collectives)
    assert paid > LAYERS
    assert emitted_bytes(plan.price) == {"all_gather": paid * WEIGHT_BYTES // 2 // 4}  # in bfloat16, operands


def test_a_plan_that_does_not_say_so_is_refused() -> None:
    """XLA would gather once, and hold that."""
    loaded, plan = planned(1, tight(1))
    silent = replace(plan, uses=tuple(replace(use, again=0) for use in plan.uses))
    offenders = {finding.name for finding in report(loaded, silent).findings if not finding.ok}
    assert {"peak", "compiled"} <= offenders


@pytest.mark.parametrize("form", ["xla", "shardy"])
def test_each_has_a_barrier(form: Form) -> None:
    """Of the xla form from the third gather on with another operand of the reader, as XLA makes one of barriers of one value."""
    loaded, plan = planned(2, tight(2))
    written = pipeline.write_planned(loaded, plan, form)
    barriers = [line for line in written.splitlines() if "optimization_barrier" in line]
    numbers = [use.again for use in plan.uses if use.again]
    assert len(barriers) == (len(numbers) if form == "xla" else sum(numbers))
    pairs = sum("optimization_barrier %" in line and ":2 =" in line for line in barriers)
    assert pairs == (sum(number > 1 for number in numbers) if form == "xla" else 0)


def test_shardy_gathers_as_often() -> None:
    loaded, plan = planned(2, tight(2))
    assert pipeline.check_plan(there_and_back(2).encode(), plan, deep=True).passed
    assert report(loaded, plan).passed


def test_the_written_module_costs_the_same() -> None:
    loaded, plan = planned(2, tight(2))
    request = pipeline.Request(hardware="tpu-v6e", topology=(2, 2), memory_bytes=None)
    written = pipeline.load_module(pipeline.write_planned(loaded, plan).encode(), request)
    again = price_as_written(written).plan()
    assert emitted_bytes(again.price) == emitted_bytes(plan.price)
    assert again.price.peak_bytes == pytest.approx(plan.price.peak_bytes, rel=0.06)  # 840 MB for 825 and 872


def test_what_is_gathered_once_is_held() -> None:
    """Of the module as it is written without barriers, whose readers each have a constraint."""
    loaded, plan = planned(1, tight(1))
    written = pipeline.write_planned(loaded, plan)
    barrier = r"(%\S+) = stablehlo.optimization_barrier (%\S+) : (.*)"
    constraint = r'\1 = sdy.sharding_constraint \2 <@mesh, [{"x"}, {}]> : \3'
    plain = re.sub(barrier, constraint, written)
    request = pipeline.Request(hardware="tpu-v6e", topology=(2, 2), memory_bytes=None)
    peaks = [
        price_as_written(pipeline.load_module(text.encode(), request)).plan().price.peak_bytes
        for text in (written, plain)
    ]
    assert peaks[1] > peaks[0] + WEIGHT_BYTES // 2


def test_it_computes_the_same(tmp_path: Path) -> None:
    """With rows and columns few enough to run."""
    loaded, plan = planned(2, tight(2))
    files = {"planned": pipeline.write_planned(loaded, plan), "against": there_and_back(2)}
    for file, text in files.items():
        small = text.replace(str(WIDTH), "16").replace(str(ROWS), "32")
        (tmp_path / f"{file}.mlir").write_text(small)
    found = pipeline.verify_modules(*(str(tmp_path / f"{file}.mlir") for file in files), devices=4)
    assert found.passed, found.to_text()


def cast_for_each(casts: int) -> str:
    """A weight, cast so often, of which two products ask and later two more, in turn."""
    rows, whole = f"tensor<{ROWS}x{WIDTH}xbf16>", f"tensor<{WIDTH}x{WIDTH}xbf16>"
    names = ["%c0", f"%c{casts - 1}"]
    made = "\n".join(
        f"""%n{n} = stablehlo.convert %w : ({WEIGHT}) -> {whole}
        %c{n} = sdy.sharding_constraint %n{n} <@mesh, [{{"x"}}, {{}}]> : {whole}"""
        for n in range(casts)
    )

    def product(name: str, read: str, weight: str, dim: int) -> str:
        types = f"({rows}, {whole}) -> {rows}"
        return f"{name} = stablehlo.dot_general {read}, {weight}, contracting_dims = [1] x [{dim}] : {types}"

    return f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: {rows} {SPLIT}, %w: {WEIGHT} {SPLIT}) -> ({rows} {SPLIT}, {rows} {SPLIT}) {{
        {made}
        {product("%p0", "%a", names[0], 0)}
        %t0 = stablehlo.tanh %p0 : {rows}
        {product("%p1", "%t0", names[1], 0)}
        %t1 = stablehlo.tanh %p1 : {rows}
        {product("%q1", "%t1", names[1], 1)}
        %t2 = stablehlo.tanh %q1 : {rows}
        {product("%q0", "%t2", names[0], 1)}
        return %q0, %t1 : {rows}, {rows}
      }}"""


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v6e"])
def test_equal_casts_have_one_copy(hardware: str) -> None:
    """XLA makes them one, and one gather of it, as if the program had one; it was counted for each, from its first reader to its last."""
    request = pipeline.Request(hardware=hardware, topology=(2, 2))
    plans = list[Plan]()
    for casts in (1, 2):
        loaded = pipeline.load_module(cast_for_each(casts).encode(), request)
        plans.append(pipeline.plan_loaded(loaded))
        assert report(loaded, plans[-1]).passed
    assert plans[0].price.peak_bytes == plans[1].price.peak_bytes
