"""Operands that XLA gathers while their product runs: what is written, emitted and waited for."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from autoshard import pipeline
from autoshard.check import Subject, check
from autoshard.held import LOOPED
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


CUTS = ('[{"x", "y"}, {}]', '[{}, {"x", "y"}]')
BATCHED = '#sdy.sharding<@mesh, [{"x", "y"}, {}, {}]>'


def batch(width: int) -> str:
    return f"tensor<64x1024x{width}xbf16>"


def product(made: str, read: str, weight: str, sizes: tuple[int, int], *, is_output_first: bool) -> str:
    width, columns = sizes[::-1] if is_output_first else sizes
    return f"""{made} = stablehlo.dot_general {read}, {weight}, contracting_dims = [2] x [{int(is_output_first)}]
          : ({batch(width)}, tensor<{sizes[0]}x{sizes[1]}xbf16>) -> {batch(columns)}"""


def peak(hardware: str, weights: Sequence[tuple[int, int, int]], body: str, width: int, columns: int) -> int:
    """What `cost` says of a module that reads weights of two dimensions, each split along one of them (the third number)."""
    arguments = [
        f"%w{number}: tensor<{rows}x{cols}xbf16> {{sdy.sharding = #sdy.sharding<@mesh, {CUTS[cut]}>}}"
        for number, (rows, cols, cut) in enumerate(weights)
    ]
    text = f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%a: {batch(width)} {{sdy.sharding = {BATCHED}}}, {", ".join(arguments)})
          -> ({batch(columns)} {{sdy.sharding = {BATCHED}}}) {{
        {body}
        return %made : {batch(columns)}
      }}"""
    topology = (2, 2, 4) if hardware == "tpu-v5p" else (4, 4)
    loaded = pipeline.load_module(
        text.encode(), pipeline.Request(hardware=hardware, topology=topology, memory_bytes=None)
    )
    return pipeline.cost_loaded(loaded).price.peak_bytes


@pytest.mark.parametrize(
    ("hardware", "is_output_first", "is_summed", "width", "columns", "then", "compiled_bytes"),
    [
        ("tpu-v6e", True, False, 2048, 32768, "", 562_306_592),
        ("tpu-v6e", False, False, 2048, 32768, "", 562_306_592),
        ("tpu-v6e", True, False, 2048, 32768, "tanh", 830_741_536),
        ("tpu-v5p", True, False, 2048, 32768, "", 360_913_952),
        ("tpu-v5p", True, False, 2048, 32768, "tanh", 629_333_024),
        ("tpu-v5p", False, False, 16384, 8192, "", 293_755_936),
        ("tpu-v5p", False, False, 8192, 32768, "", 537_025_568),
        ("tpu-v5p", False, True, 16384, 8192, "", 352_475_680),
        ("tpu-v5p", False, True, 16384, 8192, "tanh", 419_568_160),
        ("tpu-v6e", False, True, 33024, 2048, "", 600_299_552),  # parts of 2064 along the lanes
        ("tpu-v5p", False, True, 33024, 2048, "", 617_044_000),
        ("tpu-v6e", True, True, 33024, 2048, "", 600_299_552),
        ("tpu-v5e", True, False, 2048, 32768, "", 293_923_840),
        ("tpu-v5e", False, False, 2048, 32768, "tanh", 562_359_296),
    ],
)
def test_what_a_loop_stores(
    hardware: str,
    is_output_first: bool,
    is_summed: bool,
    width: int,
    columns: int,
    then: str,
    compiled_bytes: int,
) -> None:
    """Within 6 % of what libtpu takes: parts, parts of the result, and the whole of it where it is not returned as it is made."""
    sizes = (columns, width) if is_output_first else (width, columns)
    cut = int(is_output_first) if is_summed else int(not is_output_first)
    body = product("%0" if then else "%made", "%a", "%w0", sizes, is_output_first=is_output_first)
    if then:
        body += f"\n%made = stablehlo.{then} %0 : {batch(columns)}"
    found = peak(hardware, [(*sizes, cut)], body, width, columns)
    assert found == pytest.approx(compiled_bytes, rel=0.06)


@pytest.mark.parametrize(
    ("hardware", "is_gated", "compiled_bytes"),
    [
        ("tpu-v5p", True, 545_715_744),
        ("tpu-v6e", True, 520_800_000),
        ("tpu-v5p", False, 394_600_000),
        ("tpu-v6e", False, 369_600_000),
    ],
)
def test_nothing_is_written_over_a_loops_result(hardware: str, is_gated: bool, compiled_bytes: int) -> None:
    """Of a perceptron: what elementwise work makes of one product or two lies beside them (within 6 % of what libtpu takes)."""
    up, down = (4096, 16384), (16384, 4096)
    lines = [product("%up", "%a", "%w0", up, is_output_first=False)]
    if is_gated:
        lines += [
            product("%gate", "%a", "%w2", up, is_output_first=False),
            f"%s = stablehlo.logistic %gate : {batch(16384)}",
            f"%h = stablehlo.multiply %s, %up : {batch(16384)}",
        ]
    else:
        lines.append(f"%h = stablehlo.tanh %up : {batch(16384)}")
    lines.append(product("%made", "%h", "%w1", down, is_output_first=False))
    weights = [(*up, 1), (*down, 1), (*up, 1)][: 3 if is_gated else 2]
    found = peak(hardware, weights, "\n".join(lines), 4096, 4096)
    assert found == pytest.approx(compiled_bytes, rel=0.06)


def test_what_a_loop_takes_is_named() -> None:
    """Not as a copy of the weight, which is never there whole."""
    text = layer(1 << 20).decode()
    request = pipeline.Request(hardware="tpu-v5p", topology=(2, 2, 4), memory_bytes=None)
    held = pipeline.price_as_written(pipeline.load_module(text.encode(), request)).held()
    looped = [one for one in held.buffers if one.note == LOOPED]
    assert {(one.kind, one.op) for one in looped} == {("value", "stablehlo.dot_general")}
    assert not any(one.kind == "copy" for one in held.buffers)


def test_a_result_in_the_memory_of_another_counts_once() -> None:
    """Of three products in a row, cut along columns (within 6 % of what libtpu takes)."""
    square = (8192, 8192)
    names = ("%a", "%b", "%c", "%made")
    lines = [
        product(made, read, f"%w{number}", square, is_output_first=False)
        for number, (read, made) in enumerate(pairwise(names))
    ]
    found = peak("tpu-v5p", [(*square, 1)] * 3, "\n".join(lines), 8192, 8192)
    assert found == pytest.approx(353_000_000, rel=0.06)


WITH_ITSELF = """
  sdy.mesh @mesh = <["x"=4, "y"=4]>
  func.func @main(%a: tensor<32768x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>})
      -> (tensor<32768x32768xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}) {
    %0 = stablehlo.dot_general %a, %a, contracting_dims = [1] x [1]
      : (tensor<32768x4096xbf16>, tensor<32768x4096xbf16>) -> tensor<32768x32768xbf16>
    return %0 : tensor<32768x32768xbf16>
  }"""
IN_COLUMNS = """
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%a: tensor<64x256x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>},
                  %w: tensor<4096x16384xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
      -> (tensor<64x256x16384xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}) {
    %0 = stablehlo.dot_general %a, %w, contracting_dims = [2] x [0]
      : (tensor<64x256x4096xbf16>, tensor<4096x16384xbf16>) -> tensor<64x256x16384xbf16>
    %1 = stablehlo.tanh %0 : tensor<64x256x16384xbf16>
    return %1 : tensor<64x256x16384xbf16>
  }"""

NO_WHOLE_ROWS = """
  sdy.mesh @mesh = <["x"=8]>
  func.func @main(%a: tensor<64x1024x16512xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>},
                  %w: tensor<16512x2048xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<64x1024x2048xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}) {
    %0 = stablehlo.tanh %a : tensor<64x1024x16512xbf16>
    %1 = stablehlo.dot_general %0, %w, contracting_dims = [2] x [0]
      : (tensor<64x1024x16512xbf16>, tensor<16512x2048xbf16>) -> tensor<64x1024x2048xbf16>
    return %1 : tensor<64x1024x2048xbf16>
  }"""


@pytest.mark.parametrize(
    ("text", "topology"), [(WITH_ITSELF, (4, 4)), (IN_COLUMNS, (2, 4)), (NO_WHOLE_ROWS, (2, 4))]
)
def test_the_checker_has_the_same_buffers(text: str, topology: tuple[int, int]) -> None:
    """Of an operand that the product reads as it is too, and of copies that fit into vector memory one by one."""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(hardware="tpu-v6e", topology=topology))
    report = check(
        Subject(loaded.program, loaded.hardware, loaded.communication), pipeline.plan_loaded(loaded)
    )
    assert report.passed, report
