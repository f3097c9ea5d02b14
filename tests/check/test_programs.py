"""Plans of real small programs, drawn at random from all that may be chosen, hold up in every finding.

A solver's answers are few and alike; any choice of strategies is a legal plan with a price, so the checker is held against those.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autoshard import pipeline
from autoshard.check import Subject, check
from autoshard.mlir import passes
from autoshard.mlir.forms import Form
from autoshard.mlir.source import load
from autoshard.overlaps import Overlap
from autoshard.problem import Problem, evaluate
from autoshard.solve import Solution, Status
from tests.cost.test_in_turn import DILATED, module
from tests.problem.possible import mended
from tests.programs import PROGRAMS, gated_train

MESHES = {"4x2": (("x", 4), ("y", 2)), "2x2x2": (("a", 2), ("b", 2), ("c", 2))}


def arbitrary(problem: Problem, *, seed: int, hints: Sequence[Any], **_: Any) -> Solution:
    """The better baseline with a part of its nodes, from a twentieth to all, chosen at random."""
    random = np.random.default_rng(seed)
    choice = np.asarray(hints[seed % len(hints)], dtype=np.int64).copy()
    drawn = random.random(len(choice)) < (0.05, 0.3, 1.0)[seed % 3]
    choice[drawn] = random.integers(0, problem.strategy_counts)[drawn]
    return chosen(problem, mended(problem, choice, np.asarray(hints[seed % len(hints)])))


def last_start(problem: Problem, *, hints: Sequence[Any], **_: Any) -> Solution:
    return chosen(problem, np.asarray(hints[-1], dtype=np.int64))


def chosen(problem: Problem, choice: NDArray[np.int64]) -> Solution:
    priced = evaluate(problem, choice)
    return Solution(Status.FEASIBLE, choice, priced.cost, priced.peak, 0, priced.peak, choice, 0)


def refused(
    program: str,
    mesh: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    form: Form = "xla",
    overlap: Overlap = "none",
) -> str:
    """What the checker has against an arbitrary plan."""
    monkeypatch.setattr(pipeline, "solve", arbitrary)
    request = pipeline.Request(mesh=MESHES[mesh], memory_bytes=None, form=form, overlap=overlap)
    loaded = pipeline.load_module(PROGRAMS[program]().encode(), request)
    plan = pipeline.plan_loaded(loaded, seed=seed)
    report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
    return "" if report.passed else report.to_text()


@pytest.mark.parametrize(
    "program", ["mlp_train", "decode_step", "fft_mixer", "moe_sorted_train", "rnn_train"]
)
def test_arbitrary_plan(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of a plan equal those that the checker works out."""
    assert refused(program, "4x2", 1, monkeypatch) == ""


@pytest.mark.parametrize("program", ["mlp_train", "decode_step", "transformer_train_scan"])
def test_arbitrary_plan_with_overlap(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the plan hides behind compute is what the checker lets it hide."""
    assert refused(program, "4x2", 1, monkeypatch, overlap="async") == ""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("program", ["mlp_train", "rnn_train"])
def test_arbitrary_plan_with_partial_sums(program: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in the form that has them."""
    assert refused(program, "4x2", seed, monkeypatch, "shardy") == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_many_arbitrary_plans(program: str, mesh: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on two meshes, from choices near a baseline to entirely random ones."""
    assert refused(program, mesh, seed, monkeypatch) == ""


HANDED_BACK = """func.func @main(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:3 = stablehlo.while(%i = %zero, %t = %x, %v = %w) : tensor<i32>, tensor<64x64xf32>, tensor<64x64xf32> cond {
    %end = stablehlo.constant dense<4> : tensor<i32>
    %c = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %n = stablehlo.add %i, %one : tensor<i32>
    %y = stablehlo.dot_general %t, %v, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    %z = stablehlo.dot_general %y, %v, contracting_dims = [1] x [1] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
    stablehlo.return %n, %z, %v : tensor<i32>, tensor<64x64xf32>, tensor<64x64xf32>
  }
  return %r#1 : tensor<64x64xf32>
}"""


@pytest.mark.parametrize("form", ["xla", "shardy"])
def test_what_a_loop_hands_back_is_no_copy(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """State that a loop does not change goes back as it came, where the readers beside share a copy."""
    monkeypatch.setattr(pipeline, "solve", arbitrary)
    request = pipeline.Request(mesh=MESHES["4x2"], memory_bytes=None, form=form)
    loaded = pipeline.load_module(HANDED_BACK.encode(), request)
    (carried,) = (
        flow.target for flow in loaded.listing.data_flows if flow.target in [s.value for s in flow.sources]
    )
    copied = 0
    for seed in range(2, 18, 3):
        plan = pipeline.plan_loaded(loaded, seed=seed)
        copied += bool(plan.values[carried].shared)
        report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
        assert report.passed, report.to_text()
    assert copied, "no choice has a copy"


T, W, ROW = "tensor<65536x8192xf32>", "tensor<8192x8192xf32>", "tensor<8192xf32>"
BESIDE_A_BIAS = f"""func.func @main(%a: {T}, %w: {W}) -> ({ROW}, {W}, {T}) {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %g = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
  %b = stablehlo.reduce(%g init: %zero) applies stablehlo.add across dimensions = [0] : ({T}, tensor<f32>) -> {ROW}
  %v = stablehlo.dot_general %g, %a, contracting_dims = [0] x [0] : ({T}, {T}) -> {W}
  %l = stablehlo.dot_general %g, %w, contracting_dims = [1] x [1] : ({T}, {W}) -> {T}
  return %b, %v, %l : {ROW}, {W}, {T}
}}"""


def test_a_shared_copy_is_as_wide_as_the_widest_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the value itself is stored narrower, as a product that a bias is summed of."""
    monkeypatch.setattr(pipeline, "solve", arbitrary)
    request = pipeline.Request(mesh=MESHES["4x2"], memory_bytes=None)
    loaded = pipeline.load_module(BESIDE_A_BIAS.encode(), request)
    product = loaded.program.kernels[0].results[0]
    assert (loaded.program.stored.of_value(product).dtype, loaded.program.widths.of_value(product).dtype) == (
        "bf16",
        "f32",
    )
    copied = 0
    for seed in range(2, 60, 3):
        plan = pipeline.plan_loaded(loaded, seed=seed)
        copied += bool(plan.values[product].shared)
        report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
        assert report.passed, report.to_text()
    assert copied, "no choice has a copy"


def test_gathers_over_a_part_of_many_devices() -> None:
    """What lies over 64 of 128 devices is gathered, however small, and priced so."""
    text = """sdy.mesh @mesh = <["x"=64, "y"=2]>
func.func @main(%a: tensor<1024x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> (tensor<1024x512xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
  %b = stablehlo.add %a, %a : tensor<1024x512xf32>
  return %b : tensor<1024x512xf32>
}"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(topology=(8, 16), memory_bytes=None))
    plan = pipeline.plan_loaded(loaded)
    report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
    assert report.passed, report.to_text()
    assert [one.kind for c in plan.price.collectives for one in c.emitted] == ["all_gather"]


def hinted(number: int, problem: Problem, *, hints: Sequence[Any], **_: Any) -> Solution:
    """What the solver starts from in the place of what it finds."""
    priced = evaluate(problem, hints[number])
    return Solution(
        Status.FEASIBLE, hints[number], priced.cost, priced.peak, 0, priced.peak, hints[number], 0
    )


data_parallel = partial(hinted, 1)  # as Shardy propagates it
fully_sharded = partial(hinted, 2)


@pytest.mark.parametrize("baseline", [data_parallel, fully_sharded])
@pytest.mark.parametrize("program", ["mlp_train", "embedding_train"])
def test_emitted(program: str, baseline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Baselines cost the collectives that Shardy's passes emit for the written module."""
    monkeypatch.setattr(pipeline, "solve", baseline)
    request = pipeline.Request(mesh=MESHES["4x2"], memory_bytes=None)
    loaded = pipeline.load_module(PROGRAMS[program]().encode(), request)
    plan = pipeline.plan_loaded(loaded)
    written = pipeline.write_planned(loaded, plan, "shardy")
    emitted = passes.collectives(load(written.encode()), loaded.mesh)
    report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan, emitted)
    assert report.passed, report.to_text()
    assert emitted, "gradients are reduced"


INVARIANT = """
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%w: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %a: tensor<64x64xf32>)
      -> (tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %five = stablehlo.constant dense<5> : tensor<i32>
    %r:3 = stablehlo.while(%n = %zero, %t = %w, %sum = %a) : tensor<i32>, tensor<64x64xf32>, tensor<64x64xf32>
      attributes {sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, <@mesh, [{"x"}, {}]>, <@mesh, [{}, {"x"}]>]>}
      cond {
        %go = stablehlo.compare LT, %n, %five : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %go : tensor<i1>
      } do {
        %m = stablehlo.add %n, %one : tensor<i32>
        %f = stablehlo.add %t, %sum : tensor<64x64xf32>
        stablehlo.return %m, %t, %f : tensor<i32>, tensor<64x64xf32>, tensor<64x64xf32>
      }
    return %r#2 : tensor<64x64xf32>
  }"""
"""What the loop carries unchanged is split in rows, and read in columns in each of five trips."""


@pytest.mark.parametrize(("form", "runs"), [("xla", 1), ("shardy", 5)])
def test_what_the_compiler_moves_out_of_loops(form: Form, runs: int) -> None:
    """Is one exchange of the plan, which Shardy's passes leave in the loop."""
    request = pipeline.Request(hardware="tpu-v5e", memory_bytes=None, form=form)
    plan = pipeline.plan_loaded(pipeline.load_module(INVARIANT.encode(), request))
    assert [(c.kind, c.repeat) for c in plan.price.collectives] == [("all_to_all", runs)]
    report = pipeline.check_plan(INVARIANT.encode(), plan, deep=True)
    assert report.passed, report.to_text()


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v6e"])
def test_products_that_share_float32_operands(hardware: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops are handed them in bfloat16, and other products read that, in the plan that splits all arrays."""
    monkeypatch.setattr(pipeline, "solve", last_start)
    request = pipeline.Request(
        mesh=(("x", 4), ("y", 4)), hardware=hardware, topology=(4, 4), memory_bytes=None
    )
    loaded = pipeline.load_module(gated_train("float32").encode(), request)
    plan = pipeline.plan_loaded(loaded)
    report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
    assert report.passed, report.to_text()


SHORT_ROWS = """
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%a: tensor<16x1024x4x128xbf16>, %b: tensor<16x1024x4x4x128xbf16>) -> tensor<16x4x1024x1024x4xbf16> {
    %0 = stablehlo.dot_general %a, %b, batching_dims = [0, 2] x [0, 3], contracting_dims = [3] x [4]
      : (tensor<16x1024x4x128xbf16>, tensor<16x1024x4x4x128xbf16>) -> tensor<16x4x1024x1024x4xbf16>
    return %0 : tensor<16x4x1024x1024x4xbf16>
  }"""


@pytest.mark.parametrize("text", [SHORT_ROWS, module(DILATED)], ids=["rows of four", "in turn"])
def test_products_that_libraries_for_gpus_are_slow_at(text: str) -> None:
    """Grouped queries whose heads come last, and a convolution that is gone through position by position."""
    loaded = pipeline.load_module(text.encode(), pipeline.Request(hardware="h100"))
    subject = Subject(loaded.program, loaded.hardware, loaded.communication)
    assert check(subject, pipeline.plan_loaded(loaded)).passed


TABLE, IDS, ROWS = "tensor<16384x4xf32>", "tensor<1000x2x1xi32>", "tensor<1000x2x4xf32>"
SCATTER = """"stablehlo.scatter"(%z, %{ids}, %{rows}) <{{indices_are_sorted = false, unique_indices = false, scatter_dimension_numbers =
    #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
    index_vector_dim = 2>}}> ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
  }}) : ({table}, {type}, {added}) -> {table}"""


@pytest.mark.parametrize("seed", range(6))
def test_sums_of_what_is_scattered(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Addends over an axis are those over its sub-axes, that split two dimensions of what is scattered."""
    monkeypatch.setattr(pipeline, "solve", arbitrary)
    first, second = (
        SCATTER.format(ids=ids, rows=rows, table=TABLE, type=IDS, added=ROWS)
        for ids, rows in (("i", "p"), ("j", "y"))
    )
    text = f"""module {{
      func.func @main(%i: {IDS}, %j: {IDS}, %x: tensor<1000x2x32xf32>, %w: tensor<32x4xf32>, %y: {ROWS}) -> {TABLE} {{
        %z = stablehlo.constant dense<0.0> : {TABLE}
        %p = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : (tensor<1000x2x32xf32>, tensor<32x4xf32>) -> {ROWS}
        %0 = {first}
        %1 = {second}
        %2 = stablehlo.add %0, %1 : {TABLE}
        return %2 : {TABLE}
      }}
    }}"""
    request = pipeline.Request(mesh=(("a", 4), ("b", 4)), hardware="tpu-v5e", memory_bytes=None)
    loaded = pipeline.load_module(text.encode(), request)
    plan = pipeline.plan_loaded(loaded, seed=seed)
    report = check(Subject(loaded.program, loaded.hardware, loaded.communication), plan)
    assert report.passed, report.to_text()
