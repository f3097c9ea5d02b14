"""What the compiler has in memory at its peak, read from its dumps and laid beside what is predicted; no compiler is needed but once."""

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import autoshard
from autoshard import pipeline
from autoshard.cli import cli
from autoshard.errors import AutoshardError
from autoshard.held import HeldBuffer, HeldMemory
from autoshard.xla.compile_report import CompileReport
from autoshard.xla.compiled import Compiled, DoesNotFitError
from autoshard.xla.compiling import compile_planned
from autoshard.xla.heap import CompiledBuffer, held_in_heap
from autoshard.xla.held_beside import HeldSide, held_differences, temporary_bytes
from autoshard.xla.hlo import parse_hlo
from autoshard.xla.makers import Makers
from autoshard.xla.memory import CompiledMemory
from autoshard.xla.prediction import prediction_of
from autoshard.xla.probe import PROBE
from tests.xla.test_compile import needs_libtpu

ASSIGNMENT = """BufferAssignment:
allocation 0: size 4096, page 0, parameter 0, shape |f32[32,32]| at ShapeIndex {}:
 value: <1 a @0> (size=4096,offset=0): f32[32,32]{1,0:T(8,128)}
allocation 1: size 700, page 0, preallocated-temp:
 value: <2 early @0> (size=500,offset=0): f32[125]{0}
 value: <3 both{0} @0> (size=300,offset=0): f32[75]{0}
 value: <4 both{1} @0> (size=200,offset=300): f32[50]{0}
 value: <5 renamed @0> (size=200,offset=300): f32[2,25]{1,0}
 value: <6 last @0> (size=100,offset=600): f32[25]{0}
allocation 2: size 900, color 1, page 0, preallocated-temp:
 value: <7 near @0> (size=900,offset=0): f32[225]{0}
allocation 3: size 50, page 0, preallocated-temp:
 value: <8 other @0> (size=50,offset=0): s8[50]{0}
"""
LIVES = """HloLiveRange (max 9):
  BufferLiveRange:
    a{}:0-9
    early{}:0-2
    both{0}:3-6
    both{1}:3-4
    renamed{}:4-7
    last{}:5-9
    near{}:0-9
    other{}:4-5
  Live ranges at 9 (peak):
    near{}: 900 bytes (cumulative: 900 bytes)
"""


def test_the_fullest_heap() -> None:
    """At time 5 all heaps of main memory hold 650 bytes; of two values in one place one counts."""
    found = held_in_heap(ASSIGNMENT, LIVES)
    assert [(one.name, one.bytes) for one in found] == [
        ("both{0}", 300),
        ("renamed", 200),
        ("last", 100),
        ("other", 50),
    ]
    assert found[1].type == "f32[2,25]{1,0}"


def test_a_place_that_two_share() -> None:
    """A value and its new name are alive together for a moment: the heap is no fuller for that."""
    lives = LIVES.replace("other{}:4-5", "other{}:8-9").replace("early{}:0-2", "early{}:0-3")
    assert sum(one.bytes for one in held_in_heap(ASSIGNMENT, lives)) == 600


HLO = """HloModule m, num_partitions=2

%passed (p0: f32[8], p1: f32[8]) -> (f32[8], f32[8]) {
  %p0 = f32[8] parameter(0)
  %p1 = f32[8] parameter(1)
  %sum = f32[8] add(%p0, %p1), metadata={op_name="adds"}
  %view = f32[8] bitcast(%p1)
  ROOT %both = (f32[8], f32[8]) tuple(%sum, %view)
}

%doubled (p2: f32[8], p3: f32[8]) -> (f32[8], f32[8]) {
  %p2 = f32[8] parameter(0)
  %p3 = f32[8] parameter(1)
  %less = f32[8] subtract(%p2, %p3), metadata={op_name="subtracts"}
  %more = f32[8] add(%p2, %p3), metadata={op_name="doubles"}
  ROOT %results = (f32[8], f32[8]) tuple(%less, %more)
}

%body (state: (f32[8], f32[8])) -> (f32[8], f32[8]) {
  %state = (f32[8], f32[8]) parameter(0)
  %kept = f32[8] get-tuple-element(%state), index=0
  %moved = f32[8] get-tuple-element(%state), index=1
  %pair = (f32[8], f32[8]) fusion(%moved, %moved), kind=kLoop, calls=%doubled
  %twice = f32[8] get-tuple-element(%pair), index=1
  ROOT %next = (f32[8], f32[8]) tuple(%kept, %twice)
}

%cond (state.1: (f32[8], f32[8])) -> pred[] {
  %state.1 = (f32[8], f32[8]) parameter(0)
  ROOT %true = pred[] constant(true)
}

ENTRY %main (x: f32[8], y: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0), metadata={op_name="x"}
  %y = f32[8] parameter(1)
  %made = f32[8] multiply(%x, %y), metadata={op_name="multiplies"}
  %fusion = (f32[8], f32[8]) fusion(%x, %made), kind=kLoop, calls=%passed
  %second = f32[8] get-tuple-element(%fusion), index=1
  %begun = (f32[8], f32[8]{0:S(1)}, u32[]) copy-start(%second)
  %init = (f32[8], f32[8]) tuple(%made, %y)
  %loop = (f32[8], f32[8]) while(%init), condition=%cond, body=%body
  ROOT %out = f32[8] get-tuple-element(%loop), index=0
}
"""


@pytest.mark.parametrize(
    ("buffer", "name"),
    [
        ("made", "multiplies"),
        ("fusion{0}", "adds"),
        ("fusion{1}", "multiplies"),
        ("begun{0}", "multiplies"),
        ("loop{0}", "multiplies"),
        ("loop{1}", "doubles"),
        ("x", "argument 0"),
        ("init{1}", "argument 1"),
        ("nothing", ""),
    ],
)
def test_what_a_buffer_is_made_for(buffer: str, name: str) -> None:
    """Behind copies, views, fusions and loops that hand it on."""
    assert Makers(parse_hlo(HLO)).op_name(buffer) == name


def compiled(temporary: int, *held: tuple[str, int]) -> Compiled:
    buffers = tuple(CompiledBuffer("b", "f32[1]", size, where) for where, size in held)
    memory = CompiledMemory(1000, 0, 0, temporary)
    return Compiled("tpu:v5e:4x4", "libtpu", False, 16, (), memory, None, 0, (), 0.0, {}, "", buffers)


def predicted(peak: int, *held: tuple[str, str, int], gaps: int = 0) -> HeldMemory:
    buffers = tuple(HeldBuffer(kind, "", where, "", "", "", size) for kind, where, size in held)
    return HeldMemory(peak, buffers, gaps, 0)


def test_differences() -> None:
    """Nearly equal sizes of one op, then of any ops, are alike; what is left is told op by op, and gaps beside it."""
    mine = predicted(
        1770,
        ("argument", "w", 1000),
        ("value", "dot", 106),
        ("value", "dot", 200),
        ("copy", "add", 300),
        ("value", "exp", 64),
        gaps=100,
    )
    others = compiled(920, ("dot", 100), ("dot", 400), ("constraint", 310), ("exp", 64))
    assert held_differences(mine, others) == (
        HeldSide("dot", 200, 1, 400, 1),
        HeldSide("gaps of the heap", 100, 1, 46, 1),
    )
    assert temporary_bytes(mine) == 770


def test_what_no_op_is_named_for() -> None:
    """It is said in words."""
    report = CompileReport(compiled(100, ("", 100)), None)
    assert "(the compiler names none)" in report.to_text()


@needs_libtpu
def test_beside_the_compiler() -> None:
    """Buffers are named after the ops of the module and are no more than is allocated; scores are among them."""
    found = compile_planned(WIDE.encode(), "tpu:v5e:2x2")
    scores = [one for one in found.held if one.where.startswith("stablehlo.dot_general")]
    assert [one.bytes for one in scores] == [16384 * 8192 * 4]
    assert sum(one.bytes for one in found.held) <= found.memory.temporary_bytes
    request = pipeline.Request(hardware="tpu-v5e", topology=(2, 2), memory_bytes=None)
    held = pipeline.price_as_written(pipeline.load_module(WIDE.encode(), request)).held()
    report = CompileReport(found, prediction_of(autoshard.price(WIDE.encode()), "cost", held))
    assert "temporary memory at the peak" in report.to_text()
    assert PROBE not in report.to_text(show_all=True)
    assert json.loads(report.to_json())["compiled"]["held"]


@needs_libtpu
def test_without_collectives() -> None:
    """What prices collectives is not in the module whose memory is told; such a program waits for nothing."""
    found = compile_planned(WIDE.encode(), "tpu:v5e:2x2")
    assert found.collectives == ()
    assert PROBE not in found.hlo_text
    assert found.time is not None
    assert (found.time.communication_ns, found.time.step_ns) == (0, found.time.matmul_ns)


@needs_libtpu
def test_without_asynchronous_collectives() -> None:
    """Memory is told of the program as it is where nothing that it sends is asynchronous; what it waits for is priced all the same."""
    text = WIDE.replace(
        '-> (tensor<65536xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})',
        "-> (tensor<65536xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})",
    )
    found = compile_planned(text.encode(), "tpu:v5e:2x2")
    assert [(one.kind, one.is_asynchronous) for one in found.collectives] == [("all-gather", False)]
    assert PROBE not in found.hlo_text
    assert found.time is not None
    assert found.time.communication_ns > 0


@needs_libtpu
def test_the_time_limit_is_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not fit beside the probe is compiled again, in what the first compilation left of the time."""
    spent: list[float] = []

    def refuse(*_: object, spent_s: float, **__: object) -> None:
        spent.append(spent_s)
        time.sleep(0.2)
        raise AutoshardError("Ran out of memory in memory space hbm. Used 3.00M of 2.00M hbm.")

    monkeypatch.setattr("autoshard.xla.compiling.run_worker", refuse)
    with pytest.raises(DoesNotFitError):
        compile_planned(WIDE.encode(), "tpu:v5e:2x2", time_limit_s=60)
    first, second = spent
    assert second >= first + 0.2


WIDE = """
sdy.mesh @mesh = <["x"=4]>
func.func @main(%x: tensor<65536x8192xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %w: tensor<8192x8192xbf16>)
    -> (tensor<65536xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<65536x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<65536x8192xf32>
  %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.maximum across dimensions = [1]
    : (tensor<65536x8192xf32>, tensor<f32>) -> tensor<65536xf32>
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<65536xf32>) -> tensor<65536x8192xf32>
  %3 = stablehlo.subtract %0, %2 : tensor<65536x8192xf32>
  %4 = stablehlo.exponential %3 : tensor<65536x8192xf32>
  %5 = stablehlo.convert %4 : (tensor<65536x8192xf32>) -> tensor<65536x8192xbf16>
  %6 = stablehlo.dot_general %5, %w, contracting_dims = [1] x [0]
    : (tensor<65536x8192xbf16>, tensor<8192x8192xbf16>) -> tensor<65536x8192xf32>
  %7 = stablehlo.reduce(%6 init: %z) applies stablehlo.maximum across dimensions = [1]
    : (tensor<65536x8192xf32>, tensor<f32>) -> tensor<65536xf32>
  return %7 : tensor<65536xf32>
}
"""


@needs_libtpu
def test_beside_a_plan(tmp_path: Path) -> None:
    """As without one, since the written module is priced as it was planned."""
    module, planned, plan = (tmp_path / name for name in ("m.mlir", "p.mlir", "p.json"))
    module.write_text(WIDE)
    made = ["plan", str(module), "--topology", "2x2", "-o", str(planned), "--plan-out", str(plan)]
    assert CliRunner().invoke(cli, made).exit_code == 0
    found = [
        CliRunner().invoke(cli, ["compile", str(planned), *with_plan, "--target", "tpu:v5e:2x2", "--json"])
        for with_plan in ([], ["--plan", str(plan)])
    ]
    differences = [json.loads(one.stdout)["held_differences"] for one in found]
    assert differences[0] == differences[1] != []
