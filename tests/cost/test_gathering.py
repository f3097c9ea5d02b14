"""Operands that XLA gathers while their product runs: what is written, emitted and waited for."""

from dataclasses import replace

import pytest

from autoshard import pipeline
from autoshard.check import Subject, check
from autoshard.plans import Plan, emitted_bytes
from autoshard.program import lone_operands
from costmodels import load

HARDWARE = load("tpu-v5p")
WIDTH = 4096
BATCH = '#sdy.sharding<@mesh, [{"x", "y"}, {}]>'
PART_BYTES = WIDTH * WIDTH * 2 // 16
PASSES = f"%1 = stablehlo.tanh %0 : tensor<{{rows}}x{WIDTH}xbf16>"
AGAIN = f"""%1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [1]
          : (tensor<{{rows}}x{WIDTH}xbf16>, tensor<{WIDTH}x{WIDTH}xbf16>) -> tensor<{{rows}}x{WIDTH}xbf16>"""


def layer(rows: int, then: str = PASSES) -> bytes:
    """A product of a batch and a weight that are both split over all devices."""
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%a: tensor<{rows}x{WIDTH}xbf16> {{sdy.sharding = {BATCH}}},
                      %w: tensor<{WIDTH}x{WIDTH}xbf16> {{sdy.sharding = {BATCH}}})
          -> (tensor<{rows}x{WIDTH}xbf16> {{sdy.sharding = {BATCH}}}) {{
        %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]
          : (tensor<{rows}x{WIDTH}xbf16>, tensor<{WIDTH}x{WIDTH}xbf16>) -> tensor<{rows}x{WIDTH}xbf16>
        {then.format(rows=rows)}
        return %1 : tensor<{rows}x{WIDTH}xbf16>
      }}""".encode()


def planned(text: bytes, hardware: str = "tpu-v5p") -> tuple[Plan, str]:
    topology = (2, 2, 4) if hardware == "tpu-v5p" else (4, 4)
    asked = pipeline.Request(hardware=hardware, topology=topology, memory_bytes=None)
    loaded = pipeline.load_module(text, asked)
    plan = pipeline.plan_loaded(loaded)
    report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
    assert report.passed, report
    return plan, pipeline.write_planned(loaded, plan)


def test_passes_hide_behind_the_product() -> None:
    """17 passes of a part, both ways round: the first waits. Nothing constrains the whole operand."""
    plan, written = planned(layer(1 << 20))
    (gather,) = plan.price.collectives
    placed = HARDWARE.place([("x", 4), ("y", 4)], (2, 2, 4))
    pass_ns = int(placed.collective_permute_ns(PART_BYTES, ["x", "y"]))
    assert gather.kind == "all_gather"
    assert [(one.kind, one.bytes) for one in gather.emitted] == [("collective_permute", 17 * PART_BYTES)]
    assert (gather.ns, gather.ns + gather.hidden_ns) == (pass_ns, 17 * pass_ns)
    assert "[{}, {}]" not in written


@pytest.mark.parametrize(
    ("text", "hardware"),
    [(layer(512), "tpu-v5p"), (layer(1 << 20, AGAIN), "tpu-v5p"), (layer(1 << 20), "tpu-v5e")],
)
def test_others_are_gathered_before(text: bytes, hardware: str) -> None:
    """For a product that is shorter than a pass, for two products that read one operand, and where gathers run behind compute anyway."""
    plan, _ = planned(text, hardware)
    assert "collective_permute" not in emitted_bytes(plan.price)


def test_lone_operands_are_told_through_transposes_and_widening() -> None:
    transposed = f"""%t = stablehlo.transpose %w, dims = [1, 0] : (tensor<{WIDTH}x{WIDTH}xbf16>) -> tensor<{WIDTH}x{WIDTH}xbf16>
        %1 = stablehlo.dot_general %0, %t, contracting_dims = [1] x [0]
          : (tensor<64x{WIDTH}xbf16>, tensor<{WIDTH}x{WIDTH}xbf16>) -> tensor<64x{WIDTH}xbf16>"""
    widened = f"""%h = stablehlo.convert %w : (tensor<{WIDTH}x{WIDTH}xbf16>) -> tensor<{WIDTH}x{WIDTH}xf32>
        %1 = stablehlo.dot_general %0, %h, contracting_dims = [1] x [0]
          : (tensor<64x{WIDTH}xbf16>, tensor<{WIDTH}x{WIDTH}xf32>) -> tensor<64x{WIDTH}xbf16>"""
    for then, alone in ((PASSES, True), (AGAIN, False), (transposed, False), (widened, False)):
        program = pipeline.load_module(layer(64, then), pipeline.Request()).program
        weight = program.listing.arguments[1].value
        assert any(value == weight for value, _ in lone_operands(program)) == alone


def test_what_is_widened_for_one_product_is_gathered_once_for_two() -> None:
    """As XLA takes the widening away before it partitions."""
    wide = f"tensor<{WIDTH}x{WIDTH}xf32>"
    text = layer(
        1 << 20,
        f"""%h = stablehlo.convert %w : (tensor<{WIDTH}x{WIDTH}xbf16>) -> {wide}
        %1 = stablehlo.dot_general %0, %h, contracting_dims = [1] x [1]
          : (tensor<{{rows}}x{WIDTH}xbf16>, {wide}) -> tensor<{{rows}}x{WIDTH}xbf16>""",
    )
    plan, _ = planned(text)
    assert emitted_bytes(plan.price) == {"all_gather": PART_BYTES}


def test_what_is_widened_for_products_has_no_constraint_but_their_own() -> None:
    """With one that says how it is made, XLA gathers it beside what was widened (the embedded example, libtpu 0.0.51); read back, the
    written module is the plan.
    """
    wide, narrow = f"tensor<{WIDTH}x{WIDTH}xf32>", f"tensor<{WIDTH}x{WIDTH}xbf16>"
    cast = f"%n = stablehlo.tanh %w : {narrow}"
    text = layer(
        1 << 20,
        f"""%h = stablehlo.convert %n : ({narrow}) -> {wide}
        %1 = stablehlo.dot_general %0, %h, contracting_dims = [1] x [1]
          : (tensor<{{rows}}x{WIDTH}xbf16>, {wide}) -> tensor<{{rows}}x{WIDTH}xbf16>""",
    ).replace(b"%0 = stablehlo.dot_general %a, %w", f"{cast}\n%0 = stablehlo.dot_general %a, %n".encode())
    plan, written = planned(text, "tpu-v5e")
    assert emitted_bytes(plan.price) == {"all_gather": PART_BYTES}
    constraints = [line for line in written.splitlines() if "sharding_constraint" in line and wide in line]
    assert ["[{}, {}]" in line for line in constraints] == [True]
    first, second = [one for one in plan.price.collectives if one.kind == "all_gather"]
    assert (len(first.emitted), len(second.emitted)) == (1, 0)
    assert plan.made_before_ns == second.ns > 0
    assert replace(plan, lowering="shardy").made_before_ns == 0
    again = pipeline.cost_loaded(pipeline.load_module(written.encode(), pipeline.Request(topology=(4, 4))))
    assert again.price.step_ns == plan.price.step_ns
    assert emitted_bytes(again.price) == emitted_bytes(plan.price)


WHOLE = f"""%0 = sdy.sharding_constraint %w <@mesh, [{{}}, {{}}]> : tensor<{WIDTH}x{WIDTH}xbf16>
        %1 = stablehlo.dot_general %a, %0, contracting_dims = [1] x [0]"""


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v5p"])
def test_of_a_module_written_by_hand_a_constraint_decides(hardware: str) -> None:
    """XLA makes the loop where nothing constrains what the product reads, on v5e too, and gathers where something does."""
    text = layer(1 << 20).decode()
    product = "%0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0]"
    constrained = (
        text.replace(product, WHOLE)
        .replace("tanh %0", "tanh %1")
        .replace("%1 = stablehlo.tanh", "%2 = stablehlo.tanh")
    )
    for module, emitted in (
        (text, {"collective_permute": 17 * PART_BYTES}),
        (constrained.replace("return %1", "return %2"), {"all_gather": PART_BYTES}),
    ):
        request = pipeline.Request(hardware=hardware, topology=(4, 4) if hardware == "tpu-v5e" else (2, 2, 4))
        plan = pipeline.cost_loaded(pipeline.load_module(module.encode(), request))
        assert emitted_bytes(plan.price) == emitted


@pytest.mark.parametrize(
    ("hardware", "is_output_first", "width", "columns", "then", "compiled_bytes"),
    [
        ("tpu-v6e", True, 2048, 32768, "", 562_306_592),
        ("tpu-v6e", False, 2048, 32768, "", 562_306_592),
        ("tpu-v6e", True, 2048, 32768, "tanh", 830_741_536),
        ("tpu-v5p", True, 2048, 32768, "", 360_913_952),
        ("tpu-v5p", True, 2048, 32768, "tanh", 629_333_024),
        ("tpu-v5p", False, 16384, 8192, "", 293_755_936),
        ("tpu-v5p", False, 8192, 32768, "", 537_025_568),
        ("tpu-v5e", True, 2048, 32768, "", 293_923_840),
        ("tpu-v5e", False, 2048, 32768, "tanh", 562_359_296),
    ],
)
def test_what_a_loop_stores(
    hardware: str, is_output_first: bool, width: int, columns: int, then: str, compiled_bytes: int
) -> None:
    """Within 6 % of what libtpu takes: parts, parts of the result, and the whole of it where it is not returned as it is made."""
    batch = '#sdy.sharding<@mesh, [{"x", "y"}, {}, {}]>'
    made = f"tensor<64x1024x{columns}xbf16>"
    sizes = (columns, width) if is_output_first else (width, columns)
    cut = '[{"x", "y"}, {}]' if is_output_first else '[{}, {"x", "y"}]'
    weight = f"tensor<{sizes[0]}x{sizes[1]}xbf16>"
    tail = f"%1 = stablehlo.{then} %0 : {made}" if then else ""
    text = f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%a: tensor<64x1024x{width}xbf16> {{sdy.sharding = {batch}}},
                      %w: {weight} {{sdy.sharding = #sdy.sharding<@mesh, {cut}>}}) -> ({made} {{sdy.sharding = {batch}}}) {{
        %0 = stablehlo.dot_general %a, %w, contracting_dims = [2] x [{int(is_output_first)}]
          : (tensor<64x1024x{width}xbf16>, {weight}) -> {made}
        {tail}
        return %{int(bool(then))} : {made}
      }}""".encode()
    topology = (2, 2, 4) if hardware == "tpu-v5p" else (4, 4)
    loaded = pipeline.load_module(text, pipeline.Request(hardware=hardware, topology=topology))
    assert pipeline.cost_loaded(loaded).price.peak_bytes == pytest.approx(compiled_bytes, rel=0.06)
