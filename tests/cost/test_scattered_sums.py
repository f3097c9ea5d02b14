"""What a scatter makes on each device and what that is summed to, as messages of a graph whose edges are split."""

from dataclasses import replace

import pytest

from autoshard import pipeline
from autoshard.annotated import price_as_written
from autoshard.check import Subject, check
from autoshard.plans import emitted_bytes

NODES, EDGES, WIDTH = 262144, 1048576, 512
MADE = NODES * WIDTH * 4
EDGE, NODE, INDEX = f"tensor<{EDGES}x{WIDTH}xf32>", f"tensor<{NODES}x{WIDTH}xf32>", f"tensor<{EDGES}x1xi32>"
WEIGHT, RESULT = f"tensor<{WIDTH}x16xf32>", f"tensor<{NODES}x16xf32>"
WIDE = f"tensor<{NODES}x{2 * WIDTH}xf32>"

PRODUCT = f"""
        %out = stablehlo.dot_general %sum, %w, contracting_dims = [1] x [0] : ({NODE}, {WEIGHT}) -> {RESULT}"""
ELEMENTWISE = f"""
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %t = stablehlo.tanh %sum : {NODE}
        %r = stablehlo.reduce(%t init: %zero) applies stablehlo.add across dimensions = [1]
          : ({NODE}, tensor<f32>) -> tensor<{NODES}xf32>
        %out = stablehlo.broadcast_in_dim %r, dims = [0] : (tensor<{NODES}xf32>) -> {RESULT}"""
CONCATENATED = f"""
        %both = stablehlo.concatenate %n, %sum, dim = 1 : ({NODE}, {NODE}) -> {WIDE}
        %out = stablehlo.dot_general %both, %v, contracting_dims = [1] x [0] : ({WIDE}, tensor<{2 * WIDTH}x16xf32>) -> {RESULT}"""

FEW = f"tensor<{NODES}x8xf32>"
BESIDE_FEW = f"""
        %few = stablehlo.slice %n [0:{NODES}, 0:8] : ({NODE}) -> {FEW}
        %rows = stablehlo.concatenate %few, %few, dim = 1 : ({FEW}, {FEW}) -> {RESULT}
        %p = stablehlo.dot_general %sum, %w, contracting_dims = [1] x [0] : ({NODE}, {WEIGHT}) -> {RESULT}
        %out = stablehlo.multiply %p, %rows : {RESULT}"""
"""Other rows are concatenated, and take little."""


def messages(behind: str, summed: str = "[{}, {}]") -> str:
    """Each device adds what its edges send to all nodes."""
    edges = '{sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}]>}'
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%e: {EDGE} {edges}, %i: {INDEX} {edges}, %w: {WEIGHT}, %n: {NODE}, %v: tensor<{2 * WIDTH}x16xf32>) -> {RESULT} {{
        %zeros = stablehlo.constant dense<0.0> : {NODE}
        %made = "stablehlo.scatter"(%zeros, %i, %e) <{{scatter_dimension_numbers = #stablehlo.scatter<
          update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
          ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %s = stablehlo.add %x, %y : tensor<f32>
            stablehlo.return %s : tensor<f32>
        }}) : ({NODE}, {INDEX}, {EDGE}) -> {NODE}
        %sum = sdy.sharding_constraint %made <@mesh, {summed}> : {NODE}
        {behind}
        return %out : {RESULT}
      }}"""


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v5p", "tpu-v6e"])
@pytest.mark.parametrize(
    ("behind", "least", "most"),
    [(PRODUCT, 1.5, 1.75), (ELEMENTWISE, 1.0, 1.2), (CONCATENATED, 2.0, 2.35)],
    ids=["narrowed", "in place", "laid out anew"],
)
def test_a_sum_of_what_is_scattered(hardware: str, behind: str, least: float, most: float) -> None:
    """As libtpu 0.0.52 has it: float32 beside bfloat16 for a product, one buffer for elementwise work, two of float32 where rows are
    concatenated. Edges, and nodes where they are read, are arguments."""
    topology = (2, 2, 4) if hardware == "tpu-v5p" else (4, 4)
    request = pipeline.Request(hardware=hardware, topology=topology, memory_bytes=None)
    written = price_as_written(pipeline.load_module(messages(behind).encode(), request))
    arguments = EDGES * WIDTH * 4 // 16 + MADE
    taken = written.priced.expected_peak(written.choice) - arguments - EDGES * 4 // 16
    assert least * MADE <= taken <= most * MADE


@pytest.mark.parametrize(
    "summed", ["[{}, {}]", '[{"x", "y"}, {}]', '[{}, {"x"}]'], ids=["whole", "rows", "columns"]
)
@pytest.mark.parametrize(
    "behind", [PRODUCT, ELEMENTWISE, CONCATENATED], ids=["product", "elementwise", "concatenated"]
)
def test_the_checker_agrees(behind: str, summed: str) -> None:
    loaded = pipeline.load_module(
        messages(behind, summed).encode(), pipeline.Request(hardware="tpu-v6e", topology=(4, 4))
    )
    plan = pipeline.plan_loaded(loaded)
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed


@pytest.mark.parametrize("behind", [PRODUCT, BESIDE_FEW], ids=["narrowed", "laid out anew"])
def test_the_checker_counts_such_sums(behind: str) -> None:
    """Of a module as it is written, where nothing else can be chosen: without them it finds another peak."""
    text = "\n".join(line for line in messages(behind).splitlines() if "sharding_constraint" not in line)
    loaded = pipeline.load_module(
        text.replace("%sum", "%made").encode(),
        pipeline.Request(hardware="tpu-v6e", topology=(4, 4), memory_bytes=None),
    )
    plan = price_as_written(loaded).plan()
    unaware = replace(loaded.program, scattered_sums={})
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed
    assert not check(Subject(unaware, loaded.hardware, loaded.communication), plan).passed


def kept_in_parts(axis: str) -> bytes:
    """A product that four devices sum, of which each keeps a part: 251 rows of tiles, eight tiles a row."""
    rows, given, weight = 4 * 251 * 8, f"tensor<{4 * 251 * 8}x2048xbf16>", "tensor<2048x1024xbf16>"
    made = f"tensor<{rows}x1024xbf16>"
    return f"""
      sdy.mesh @mesh = <["x"=4, "y"=4]>
      func.func @main(%a: {given} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"{axis}"}}]>}},
          %w: {weight} {{sdy.sharding = #sdy.sharding<@mesh, [{{"{axis}"}}, {{}}]>}})
          -> ({made} {{sdy.sharding = #sdy.sharding<@mesh, [{{"{axis}"}}, {{}}]>}}) {{
        %0 = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({given}, {weight}) -> {made}
        %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{}}]> : {made}
        %2 = sdy.sharding_constraint %1 <@mesh, [{{"{axis}"}}, {{}}]> : {made}
        return %2 : {made}
      }}""".encode()


@pytest.mark.parametrize(("axis", "rows"), [("x", 255), ("y", 260)])
def test_parts_of_sums_are_padded(axis: str, rows: int) -> None:
    """The last axis of v5p 2x2x4 is a square of two by two, where parts are padded for both ways round (libtpu 0.0.52)."""
    request = pipeline.Request(hardware="tpu-v5p", topology=(2, 2, 4), memory_bytes=None)
    price = pipeline.cost_loaded(pipeline.load_module(kept_in_parts(axis), request)).price
    row = 8 * 1024 * 2
    assert emitted_bytes(price) == {
        "all_reduce": 4 * rows * row,
        "collective_permute": 3 * (rows - 251) * row,
    }
