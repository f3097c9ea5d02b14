"""Products that only a transposition reads are brought to another sharding behind it, but where XLA may scatter them while they run."""

import pytest

from autoshard import pipeline
from autoshard.annotated import cost_loaded
from autoshard.mlir.decisions import Decisions
from autoshard.mlir.turning import changed_behind
from autoshard.mlir.write import write
from autoshard.sharding import TensorSharding
from tests.mlir.modules import main_of, read_text, sharding

MADE, TURNED, WEIGHT = "tensor<32x64xf32>", "tensor<64x32xf32>", "tensor<64x32xf32>"
WHOLE = TensorSharding.replicated_closed(2)


def written(settled: str, read: str, turned: str, *, moved: str = "", other: str = "%t") -> list[str]:
    """The ops of the written update, in order, with the sharding of constraints; of a product that is made whole."""
    types = f"{WEIGHT}, {MADE if other == '%g' else TURNED}"
    body = f"""
      %g = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : (tensor<128x32xf32>, tensor<128x64xf32>) -> {MADE}
      %t = stablehlo.transpose %g, dims = [1, 0] : ({MADE}) -> {TURNED}
      %u = stablehlo.add %w, %t : {WEIGHT}
      return %u, {other} : {types}"""
    arguments = f"%a: tensor<128x32xf32>, %b: tensor<128x64xf32>, %w: {WEIGHT}"
    source, listing, handles = read_text(main_of(body, arguments, types))
    (product, result, updated) = (op.results[0] for op in listing.ops)
    rows = sharding('[{"x"}, {}]')
    made = {
        0: rows,
        1: rows,
        2: sharding(turned),
        product: WHOLE,
        result: sharding(turned),
        updated: sharding(turned),
    }
    kept = made | {product: sharding(settled), result: sharding(moved or turned)}
    uses = {(1, 0): sharding(read), (2, 1): sharding(moved or turned)}
    decisions = changed_behind(Decisions(made, kept, {}, uses), handles.walked, listing)
    lines = write(source, handles, listing, decisions, "xla").splitlines()
    return [
        line.partition("@mesh, ")[2].partition(">")[0] if "constraint" in line else name
        for line in lines
        for name in ("dot_general", "transpose", "add", "constraint")
        if name in line
    ]


@pytest.mark.parametrize(
    ("settled", "read"),
    [("[{}, {}]", '[{}, {"x"}]'), ('[{}, {"x"}]', '[{}, {"x"}]')],
    ids=["where it is read", "at once"],
)
def test_a_sum_is_sliced_behind_the_transposition(settled: str, read: str) -> None:
    found = written(settled, read, '[{"x"}, {}]')
    assert found[:4] == ["dot_general", "transpose", "[{}, {}]", '[{"x"}, {}]']


def test_parts_that_are_exchanged_are_so_behind_the_transposition() -> None:
    """The sum is sliced one way and read another, which is paid for."""
    found = written('[{"x"}, {}]', '[{}, {"x"}]', '[{"x"}, {}]', other="%u")
    assert found[:5] == ["dot_general", "transpose", "[{}, {}]", '[{}, {"x"}]', '[{"x"}, {}]']
    returned = written('[{"x"}, {}]', '[{}, {"x"}]', '[{"x"}, {}]')
    assert returned[:3] == ["dot_general", "[{}, {}]", '[{"x"}, {}]'], (
        "what is returned as it settles stays so"
    )


@pytest.mark.parametrize(
    ("settled", "turned", "moved", "other"),
    [
        ('[{}, {"x", "y", "z"}]', '[{"x", "y", "z"}, {}]', "", "%t"),
        ('[{}, {"x"}]', '[{"x"}, {}]', "[{}, {}]", "%t"),
        ('[{}, {"x"}]', '[{"x"}, {}]', "", "%g"),
    ],
    ids=["a loop may scatter it", "the transposition is moved itself", "another reads it"],
)
def test_other_sums_are_sliced_before_it(settled: str, turned: str, moved: str, other: str) -> None:
    found = written(settled, settled, turned, moved=moved, other=other)
    assert settled in found[: found.index("transpose")]


ROWS, SPLIT = '#sdy.sharding<@mesh, [{"x", "y"}, {}]>', '#sdy.sharding<@mesh, [{"y"}, {"x"}]>'
STEP = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%w: tensor<512x256xf32> {sdy.sharding = SPLIT}, %m: tensor<512x256xf32> {sdy.sharding = SPLIT},
    %a: tensor<1024x256xf32> {sdy.sharding = ROWS}, %b: tensor<1024x512xf32> {sdy.sharding = ROWS})
    -> (tensor<512x256xf32> {sdy.sharding = SPLIT}, tensor<512x256xf32> {sdy.sharding = SPLIT}) {
  %g = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : (tensor<1024x256xf32>, tensor<1024x512xf32>) -> tensor<256x512xf32>
  UPDATE
  return %u, %n : tensor<512x256xf32>, tensor<512x256xf32>
}"""
AT_ONCE = """%t = stablehlo.transpose %g, dims = [1, 0] : (tensor<256x512xf32>) -> tensor<512x256xf32>
  %n = stablehlo.add %m, %t : tensor<512x256xf32>
  %u = stablehlo.subtract %w, %n : tensor<512x256xf32>"""
IN_LOOP = """%zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %ten = stablehlo.constant dense<10> : tensor<i32>
  %r:2 = stablehlo.while(%x = %m, %i = %zero) : tensor<512x256xf32>, tensor<i32>
  cond {
    %p = stablehlo.compare LT, %i, %ten : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1>
  } do {
    %t = stablehlo.transpose %g, dims = [1, 0] : (tensor<256x512xf32>) -> tensor<512x256xf32>
    %y = stablehlo.multiply %x, %t : tensor<512x256xf32>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %y, %j : tensor<512x256xf32>, tensor<i32>
  }
  %n = stablehlo.tanh %r#0 : tensor<512x256xf32>
  %u = stablehlo.subtract %w, %n : tensor<512x256xf32>"""


@pytest.mark.parametrize(
    ("update", "hardware", "is_behind"),
    [(AT_ONCE, "tpu-v5e", True), (IN_LOOP, "tpu-v5e", False), (AT_ONCE, "h100", False)],
    ids=["TPU", "a transposition in a loop", "GPU"],
)
def test_a_written_plan_costs_what_was_planned(update: str, hardware: str, is_behind: bool) -> None:
    """Read again, the change is in front of the transposition, where it was planned; it is written behind it for TPUs alone."""
    text = STEP.replace("UPDATE", update).replace("SPLIT", SPLIT).replace("ROWS", ROWS)
    request = pipeline.Request(hardware=hardware, memory_bytes=None, form="xla")
    loaded = pipeline.load_module(text.encode(), request)
    plan = pipeline.plan_loaded(loaded)
    module = pipeline.write_planned(loaded, plan)
    lines = [
        line
        for line in module.splitlines()
        if "transpose" in line or "dot_general" in line or "constraint" in line
    ]
    (after,) = (number + 1 for number, line in enumerate(lines) if "dot_general" in line)
    assert ("transpose" in lines[after]) is is_behind
    found = cost_loaded(pipeline.load_module(module.encode(), request))
    assert (found.price.step_ns, found.price.peak_bytes) == (plan.price.step_ns, plan.price.peak_bytes)
    kinds = [[(one.kind, one.bytes) for one in each.price.collectives] for each in (found, plan)]
    assert kinds[0] == kinds[1]
