"""Readers that ask for the same change of sharding get one collective, as XLA merges equal operations."""

import pytest

from autoshard import pipeline
from autoshard.annotated import cost_loaded, price_as_written
from autoshard.check import Subject, check
from autoshard.check.merging import Asked, carried_out
from autoshard.cost.graph import Edge
from autoshard.cost.layouts import LayoutsByRank
from autoshard.cost.loops import Loop
from autoshard.cost.lowering import CollectivePrices, Lowering
from autoshard.cost.merged import Move, emitted_once
from autoshard.cost.reshard import ReshardPrices
from autoshard.mlir.forms import Form
from autoshard.mlir.passes import decompose_reshards
from autoshard.sharding import Mesh, TensorType, parse_sharding
from tests.cost.priced import HARDWARE, communication

MESH = Mesh.of([("x", 4), ("y", 4)])
WIDE, NARROW = TensorType((64, 1024), "f32"), TensorType((64, 1024), "bf16")
BODY = Loop(3, 9, 2)
SPLIT, ROWS, WHOLE = '[{"x", "y"}, {}]', '[{"x"}, {}]', "[{}, {}]"
Reader = tuple[str, TensorType, tuple[Loop, ...]]


def sent(readers: list[Reader], lowering: Lowering = "xla-tpu") -> list[list[int]]:
    """Operand bytes of what is emitted for each reader of one value, whose rows are split over both axes."""
    layouts = LayoutsByRank()
    layouts[2].ids_of([parse_sharding(text, MESH) for text in (SPLIT, ROWS, WHOLE)])
    reshards = ReshardPrices(
        MESH, CollectivePrices(communication(MESH), HARDWARE, lowering), layouts, decompose_reshards
    )
    origin = layouts[2].ids_of([parse_sharding(SPLIT, MESH)])
    targets = [layouts[2].ids_of([parse_sharding(target, MESH)]) for target, _, _ in readers]
    for target in targets:
        reshards.want(WIDE.shape, origin, target)
    reshards.resolve()
    moves = [
        Move(
            i,
            Edge(0, 0, 1 + i, 0, WIDE, travels, 1, 0, 1, ((i, 0),), 7, loops),
            int(origin[0]),
            int(target[0]),
        )
        for i, ((_, travels, loops), target) in enumerate(zip(readers, targets, strict=True))
    ]
    return [[one.bytes for step in steps for one in step] for steps in emitted_once(reshards, moves)]


HELD = 16 * 1024  # bytes of f32 on a device
CASES: dict[str, tuple[list[Reader], list[list[int]]]] = {
    "the same": ([(WHOLE, WIDE, ()), (WHOLE, WIDE, ())], [[HELD], []]),
    "one of them wide": ([(WHOLE, NARROW, ()), (WHOLE, WIDE, ())], [[HELD], []]),
    "all narrow": ([(WHOLE, NARROW, ()), (WHOLE, NARROW, ())], [[HELD // 2], []]),
    "to different shardings": ([(WHOLE, WIDE, ()), (ROWS, WIDE, ())], [[HELD], [HELD]]),
    "in different bodies": ([(WHOLE, WIDE, ()), (WHOLE, WIDE, (BODY,))], [[HELD], [HELD]]),
}


@pytest.mark.parametrize(("readers", "expected"), CASES.values(), ids=CASES)
def test_equal_changes_are_carried_out_once(readers: list[Reader], expected: list[list[int]]) -> None:
    """In one body, as wide as the widest reader takes it."""
    assert sent(readers) == expected


def test_shardys_passes_merge_nothing() -> None:
    assert sent([(WHOLE, WIDE, ()), (WHOLE, WIDE, ())], "shardy") == [[HELD], [HELD]]


def test_the_checker_merges_first_steps_too() -> None:
    """A reader that goes on from where another one ends, and one of another value."""
    split, rows, whole = (parse_sharding(text, MESH) for text in (SPLIT, ROWS, WHOLE))
    asked = [
        Asked(1, frozenset(), (split, rows), NARROW),
        Asked(1, frozenset(), (split, rows, whole), WIDE),
        None,
        Asked(2, frozenset(), (split, rows), NARROW),
    ]
    assert carried_out(asked) == [[WIDE], [None, WIDE], [], [NARROW]]


def test_sums_are_as_wide_as_they_are() -> None:
    """Also the partial sums of a product of default precision that a product alone reads: what XLA narrows depends on what it combines."""
    text = """sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<64x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}, %b: tensor<512x256xf32>, %c: tensor<256x128xf32>)
    -> tensor<64x128xf32> {
  %p = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x256xf32>) -> tensor<64x256xf32>
  %s = sdy.sharding_constraint %p <@mesh, [{}, {}]> : tensor<64x256xf32>
  %r = stablehlo.dot_general %s, %c, contracting_dims = [1] x [0] : (tensor<64x256xf32>, tensor<256x128xf32>) -> tensor<64x128xf32>
  return %r : tensor<64x128xf32>
}"""
    request = pipeline.Request(mesh=(("x", 4),), hardware="tpu-v5e", memory_bytes=None, form="xla")
    plan = pipeline.plan_loaded(pipeline.load_module(text.encode(), request))
    (sum_,) = (one for one in plan.price.collectives if one.kind == "all_reduce")
    assert (sum_.bytes, sum_.emitted[0].bytes) == (64 * 256 * 4, 64 * 256 * 4)


LOOP = """sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<64x512xf32>, %b: tensor<512x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<64x512xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %w:3 = stablehlo.while(%i = %zero, %s = %a, %m = %b) : tensor<i32>, tensor<64x512xf32>, tensor<512x512xf32> cond {
    %end = stablehlo.constant dense<9> : tensor<i32>
    %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.add %i, %one : tensor<i32>
    %p = stablehlo.dot_general %s, %m, contracting_dims = [1] x [0] : (tensor<64x512xf32>, tensor<512x512xf32>) -> tensor<64x512xf32>
    %t = stablehlo.tanh %p : tensor<64x512xf32>
    stablehlo.return %n, %t, %m : tensor<i32>, tensor<64x512xf32>, tensor<512x512xf32>
  }
  return %w#1 : tensor<64x512xf32>
}"""


@pytest.mark.parametrize(("form", "runs"), [("xla", 1), ("shardy", 9)])
def test_what_a_loop_does_not_change_is_moved_before_it(form: Form, runs: int) -> None:
    """By XLA; Shardy's passes leave it in each trip. What the loop changes is moved in each."""
    request = pipeline.Request(mesh=(("x", 4),), hardware="tpu-v5e", memory_bytes=None, form=form)
    graph = pipeline.price(pipeline.load_module(LOOP.encode(), request)).graph
    product = next(
        number
        for number, node in enumerate(graph.nodes)
        if node.kernel >= 0 and graph.program.kernels[node.kernel].shape.is_matmul
    )
    reads = {edge.type.shape: edge.repeat for edge in graph.edges if edge.reader == product}
    assert reads == {(64, 512): 9, (512, 512): runs}


def test_gathers_that_stay_in_loops_are_not_merged_across_them() -> None:
    """Two loops of 9 trips that gather one weight, which neither changes, where they read it."""
    held = '%k = sdy.sharding_constraint %m <@mesh, [{"x"}, {}]> : tensor<512x512xf32>'
    whole = "%g = sdy.sharding_constraint %k <@mesh, [{}, {}]> : tensor<512x512xf32>"
    first = LOOP.replace("%p = ", f"{held}\n{whole}\n%p = ").replace(
        "dot_general %s, %m,", "dot_general %s, %g,"
    )
    head, rest = first.split("  %w:3")
    loop = "  %w:3" + rest.split("  return")[0]
    text = f"{head}{loop}{loop.replace('%w', '%v').replace('%s = %a', '%s = %w#1')}  return %v#1 : tensor<64x512xf32>\n}}"
    request = pipeline.Request(mesh=(("x", 4),), hardware="tpu-v5e", memory_bytes=None, form="xla")
    plan = cost_loaded(pipeline.load_module(text.encode(), request))
    gathers = [one for one in plan.price.collectives if one.kind == "all_gather"]
    assert sum(one.repeat for one in gathers if one.emitted) == 18


def test_a_shared_copy_is_as_wide_as_who_reads_it() -> None:
    """Products read the copy of a weight; what is added to the weight is read as it lies."""
    w, split = "tensor<512x512xf32>", 'sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>'
    text = f"""sdy.mesh @mesh = <["x"=4]>
    func.func @main(%a: tensor<4096x512xf32> {{{split}}},
                    %w: {w} {{{split}}}, %g: {w} {{{split}}})
        -> (tensor<4096x512xf32> {{{split}}}, {w} {{{split}}}) {{
      %h = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : (tensor<4096x512xf32>, {w}) -> tensor<4096x512xf32>
      %t = stablehlo.tanh %h : tensor<4096x512xf32>
      %r = stablehlo.dot_general %t, %w, contracting_dims = [1] x [1] : (tensor<4096x512xf32>, {w}) -> tensor<4096x512xf32>
      %u = stablehlo.add %w, %g : {w}
      return %r, %u : tensor<4096x512xf32>, {w}
    }}"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None))
    plan = pipeline.plan_loaded(loaded)
    findings = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).findings
    assert [finding.name for finding in findings if not finding.ok] == []
    gathered = [e.bytes for c in plan.price.collectives for e in c.emitted if e.kind == "all_gather"]
    assert gathered == [512 * 512 * 2 // 4]


ROWS_OF, NARROW_ROWS = "tensor<64x512xf32>", "tensor<64x512xbf16>"


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (f"%d = stablehlo.convert %a : ({NARROW_ROWS}) -> {ROWS_OF}", 2),
        (
            f"%c = stablehlo.convert %a : ({NARROW_ROWS}) -> {ROWS_OF}\n%d = stablehlo.negate %c : {ROWS_OF}",
            4,
        ),
    ],
    ids=["widened", "negated then"],
)
def test_maxima_of_widened_values(body: str, sent: int) -> None:
    """libtpu 0.0.51 sends the largest of what was widened as narrow as it was."""
    text = f"""sdy.mesh @mesh = <["x"=4]>
    func.func @main(%a: {NARROW_ROWS} {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"x"}}]>}})
        -> (tensor<64xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}]>}}) {{
      {body}
      %i = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %m = stablehlo.reduce(%d init: %i) applies stablehlo.maximum across dimensions = [1]
          : ({ROWS_OF}, tensor<f32>) -> tensor<64xf32>
      return %m : tensor<64xf32>
    }}"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(memory_bytes=None))
    written = price_as_written(loaded)
    plan, loaded = written.plan(), written.loaded
    findings = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).findings
    assert [finding.name for finding in findings if not finding.ok] == []
    (sum_,) = (one for one in plan.price.collectives if one.kind == "all_reduce")
    assert [one.bytes for one in sum_.emitted] == [64 * sent]
