"""Sums that XLA scatters while their product runs: what is written, emitted and waited for."""

import importlib.util

import pytest

from autoshard import pipeline
from autoshard.check import Subject, check
from autoshard.plans import Plan, emitted_bytes
from costmodels import load
from tests.cost.priced import compiled_bytes

HARDWARE = load("tpu-v5e")
WIDTH = 4096
ROWS = '[{"x", "y"}, {}]'
PART_BYTES = WIDTH * WIDTH * 2 // 16


def gradient(rows: int, result: str, y: int = 4) -> str:
    """A weight's gradient from a batch that is split over all devices."""
    batch = '#sdy.sharding<@mesh, [{"x", "y"}, {}]>'
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"={y}]>
      func.func @main(%a: tensor<{rows}x{WIDTH}xbf16> {{sdy.sharding = {batch}}},
                      %g: tensor<{rows}x{WIDTH}xbf16> {{sdy.sharding = {batch}}})
          -> (tensor<{WIDTH}x{WIDTH}xbf16> {{sdy.sharding = #sdy.sharding<@mesh, {result}>}}) {{
        %0 = stablehlo.dot_general %a, %g, contracting_dims = [0] x [0]
          : (tensor<{rows}x{WIDTH}xbf16>, tensor<{rows}x{WIDTH}xbf16>) -> tensor<{WIDTH}x{WIDTH}xbf16>
        return %0 : tensor<{WIDTH}x{WIDTH}xbf16>
      }}"""


def planned(text: str) -> tuple[Plan, str]:
    """The plan, which the checker finds right, and the module as XLA gets it."""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None))
    plan = pipeline.plan_loaded(loaded)
    findings = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).findings
    assert [finding.name for finding in findings if not finding.ok] == []
    return plan, pipeline.write_planned(loaded, plan)


def pass_ns(bytes_: int = PART_BYTES) -> int:
    return int(HARDWARE.place([("x", 4), ("y", 4)]).collective_permute_ns(bytes_, ["x", "y"]))


@pytest.mark.parametrize("rows", [16384, 1 << 20])
def test_passes_hide_behind_the_product(rows: int) -> None:
    """17 passes of a part among 16 devices, two at a time: one waits, and what the product is too short for; nothing is constrained."""
    plan, written = planned(gradient(rows, ROWS))
    (sum_,) = plan.price.collectives
    assert [(one.kind, one.bytes) for one in sum_.emitted] == [("collective_permute", 17 * PART_BYTES)]
    passes_ns = 17 * pass_ns() - 8 * pass_ns(0)
    assert sum_.ns == max(pass_ns(), passes_ns - plan.price.compute_ns)
    assert sum_.ns + sum_.hidden_ns == passes_ns
    assert "[{}, {}]" not in written


@pytest.mark.parametrize(("rows", "result", "y"), [(1024, ROWS, 4), (4160, ROWS, 4), (1 << 20, ROWS, 16)])
def test_other_sums_go_everywhere(rows: int, result: str, y: int) -> None:
    """Where the product is shorter than a pass (the second by its operations at peak only), or there are more than 16 devices."""
    plan, _ = planned(gradient(rows, result, y))
    assert "collective_permute" not in emitted_bytes(plan.price)
    assert all(one.kind != "reduce_scatter" or not one.hidden_ns for one in plan.price.collectives)


@pytest.mark.parametrize(
    ("hardware", "topology", "rows", "is_looped"),
    [
        ("tpu-v5e", (4, 4), 262, False),
        ("tpu-v5e", (4, 4), 264, True),
        ("tpu-v6e", (4, 4), 610, False),
        ("tpu-v6e", (4, 4), 620, True),
        ("tpu-v5p", (2, 2, 4), 262, False),
        ("tpu-v5p", (2, 2, 4), 266, True),
        ("tpu-v5p:scheduler", (2, 2, 4), 266, True),
    ],
)
def test_from_which_product_on(hardware: str, topology: tuple[int, ...], rows: int, is_looped: bool) -> None:
    """Rows a device, as the compiler has it (libtpu 0.0.52): by its own figures of links and operations, not by ours."""
    asked = pipeline.Request(hardware=hardware, topology=topology, memory_bytes=None)
    text = (
        gradient(rows * 16, ROWS).replace(f"{WIDTH}xbf16", "1536xbf16").replace(f"{WIDTH}x1536", "1536x1536")
    )
    priced = pipeline.cost_loaded(pipeline.load_module(text.encode(), asked)).price
    assert ("collective_permute" in emitted_bytes(priced)) == is_looped


def padded_sum(y: int, columns: int) -> str:
    """40 rows for each of 4 * y devices, of what all of them make; the product is too short for loops."""
    rows = 40 * 4 * y
    batch = f"{{sdy.sharding = #sdy.sharding<@mesh, {ROWS}>}}"
    a, b, made = (
        f"tensor<{shape}xbf16>" for shape in (f"{64 * y}x{rows}", f"{64 * y}x{columns}", f"{rows}x{columns}")
    )
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"={y}]>
      func.func @main(%a: {a} {batch}, %b: {b} {batch}) -> ({made} {batch}) {{
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : ({a}, {b}) -> {made}
        %1 = sdy.sharding_constraint %0 <@mesh, {ROWS}> : {made}
        return %1 : {made}
      }}"""


PADDED = [
    pytest.param("tpu:v5e:4x4", 4, 5120, 40, id="a square"),
    pytest.param("tpu:v5e:4x8", 8, 5120, 48, id="an oblong"),
    pytest.param("tpu:v6e:4x8", 8, 5120, 40, id="of more tiles at once"),
    pytest.param("tpu:v5p:2x4x4", 8, 5120, 40, id="of three dimensions"),
    pytest.param("tpu:v5e:8x16", 32, 1280, 48, id="a larger oblong"),
    pytest.param("tpu:v5e:8x8", 16, 2560, 40, id="a larger square"),
]


def of_parts(devices: int, rows: int, columns: int) -> dict[str, int]:
    """What a sum emits whose parts have so many rows, 40 of them their own."""
    emitted = {"all_reduce": devices * rows * columns * 2}
    moved = (devices - 1) * (rows - 40) * columns * 2
    return emitted | ({"collective_permute": moved} if moved else {})


@pytest.mark.parametrize(("target", "y", "columns", "rows"), PADDED)
def test_parts_of_a_whole_slice(target: str, y: int, columns: int, rows: int) -> None:
    """Padded to 48 rows on two unequal dimensions, and nowhere else; the checker finds the same."""
    _, chip, shape = target.split(":")
    topology = tuple(map(int, shape.split("x")))
    asked = pipeline.Request(hardware=f"tpu-{chip}", topology=topology, memory_bytes=None)
    loaded = pipeline.load_module(padded_sum(y, columns).encode(), asked)
    assert emitted_bytes(pipeline.cost_loaded(loaded).price) == of_parts(4 * y, rows, columns)
    plan = pipeline.plan_loaded(loaded)
    findings = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).findings
    assert [finding.name for finding in findings if not finding.ok] == []


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.parametrize(("target", "y", "columns", "rows"), PADDED)
def test_the_compiler_pads_them(target: str, y: int, columns: int, rows: int) -> None:
    assert compiled_bytes(padded_sum(y, columns), target) == of_parts(4 * y, rows, columns)


WHOLE, HALF, THREE = "tensor<131072x1536xbf16>", "tensor<131072x768xbf16>", "tensor<64x2048x1536xbf16>"
HALVES = f"""
        %3 = stablehlo.slice %2 [0:131072, 0:768] : ({WHOLE}) -> {HALF}
        %4 = stablehlo.slice %2 [0:131072, 768:1536] : ({WHOLE}) -> {HALF}"""
ONE_HALF = f"""
        %3 = stablehlo.slice %2 [0:131072, 0:768] : ({WHOLE}) -> {HALF}
        %4 = stablehlo.negate %3 : {HALF}"""
OF_ANOTHER = f"""
        %n = stablehlo.negate %2 : {WHOLE}{HALVES.replace("slice %2", "slice %n")}"""
RESHAPED = f"""
        %n = stablehlo.reshape %2 : ({WHOLE}) -> {THREE}
        %q = stablehlo.slice %n [0:64, 0:2048, 0:768] : ({THREE}) -> tensor<64x2048x768xbf16>
        %3 = stablehlo.reshape %q : (tensor<64x2048x768xbf16>) -> {HALF}
        %p = stablehlo.slice %n [0:64, 0:2048, 768:1536] : ({THREE}) -> tensor<64x2048x768xbf16>
        %4 = stablehlo.reshape %p : (tensor<64x2048x768xbf16>) -> {HALF}"""
CUTS = [
    pytest.param(HALVES, False, id="halves"),
    pytest.param(ONE_HALF, False, id="one half"),
    pytest.param(OF_ANOTHER, True, id="of what is made of it"),
    pytest.param(RESHAPED, True, id="reshaped"),
]


def kept_in_rows(cut: str, k: int = 4096) -> str:
    """A product that four devices sum and keep the rows of, and what reads it."""
    a, b, parts = f"tensor<131072x{k}xbf16>", f"tensor<{k}x1536xbf16>", '[{"x", "y"}, {}]'

    def given(sharding: str) -> str:
        return f"{{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"

    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%a: {a} {given('[{"x"}, {"y"}]')}, %b: {b} {given('[{"y"}, {}]')}) -> ({HALF} {given(parts)}) {{
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({a}, {b}) -> {WHOLE}
        %1 = sdy.sharding_constraint %0 <@mesh, [{{"x"}}, {{}}]> : {WHOLE}
        %2 = sdy.sharding_constraint %1 <@mesh, {parts}> : {WHOLE}{cut}
        %5 = stablehlo.tanh %3 : {HALF}
        %6 = stablehlo.multiply %5, %4 : {HALF}
        return %6 : {HALF}
      }}"""


@pytest.mark.parametrize(("cut", "is_padded"), CUTS)
def test_what_is_cut_is_not_scattered(cut: str, is_padded: bool) -> None:
    """XLA makes one slice of a slice and of the one that it would scatter a sum by, so what slices read is summed whole and stays so."""
    asked = pipeline.Request(topology=(4, 4), memory_bytes=None)
    price = pipeline.cost_loaded(pipeline.load_module(kept_in_rows(cut).encode(), asked)).price
    assert ("collective_permute" in emitted_bytes(price)) == is_padded
    assert ("reduce_scatter" in [one.kind for one in price.collectives]) == is_padded


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.parametrize(("cut", "is_padded"), CUTS)
def test_the_compiler_scatters_it(cut: str, is_padded: bool) -> None:
    assert ("collective_permute" in compiled_bytes(kept_in_rows(cut), "tpu:v5e:4x4")) == is_padded


@pytest.mark.parametrize(("cut", "is_padded"), CUTS)
def test_plans_scatter_what_is_not_cut(cut: str, is_padded: bool) -> None:
    """With arguments and result as given, operands too large to be moved, and no constraint; the checker finds the same."""
    lines = [line for line in kept_in_rows(cut, k=65536).splitlines() if "sharding_constraint" not in line]
    plan, _ = planned("\n".join(lines).replace("%2", "%0"))
    assert ("reduce_scatter" in [one.kind for one in plan.price.collectives]) == is_padded
