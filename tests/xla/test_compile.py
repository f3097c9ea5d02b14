"""`compile` from the module to the report, on virtual CPU devices, and on TPUs where libtpu is installed."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import autoshard
from autoshard import AutoshardError, pipeline
from autoshard.cli import cli, main
from autoshard.mlir.source import load
from autoshard.plans import emitted_bytes
from autoshard.xla.compile_report import CompileReport
from autoshard.xla.compiled import Compiled, DoesNotFitError
from autoshard.xla.compiling import compile_planned
from autoshard.xla.places import places_before
from autoshard.xla.prediction import Prediction
from tests.cost.test_again import planned as there_and_back_planned
from tests.cost.test_again import tight

MODULE = """module @small {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func public @main(
      %x: tensor<64x32xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
      %w: tensor<32x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
      -> (tensor<64x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
      : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32> loc("the_product")
    %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}]> : tensor<64x16xf32>
    return %1 : tensor<64x16xf32>
  }
}
"""
LARGE = """module @large {
  sdy.mesh @mesh = <["x"=4]>
  func.func public @main(%x: tensor<65536x65536xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<65536x65536xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}) {
    return %x : tensor<65536x65536xf32>
  }
}
"""
needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: pip install 'autoshard[tpu]'"
)

needs_cuda = pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None
    or importlib.util.find_spec("jax_plugins.xla_cuda12") is None,
    reason="the compiler for GPUs is not installed: pip install 'autoshard[cuda]'",
)


def _installed(name: str) -> object:
    return name


def _missing(name: str) -> None:
    del name


@pytest.fixture(scope="module")
def on_cpus() -> Compiled:
    return compile_planned(MODULE.encode(), "cpu:4")


def test_plans_of_several_slices_are_compiled_for_cpus(tmp_path: Path) -> None:
    """Targets of TPUs are one slice; where the mesh lies says nothing of CPUs."""
    module, planned, plan = (tmp_path / name for name in ("m.mlir", "p.mlir", "p.json"))
    module.write_text(MODULE)
    where = ["--topology", "2", "--slices", "2", "--placement", "x=0,y=slices"]
    made = ["plan", str(module), *where, "-o", str(planned), "--plan-out", str(plan)]
    assert CliRunner().invoke(cli, made).exit_code == 0
    compiled = CliRunner().invoke(cli, ["compile", str(planned), "--plan", str(plan), "--target", "cpu:4"])
    assert compiled.exit_code == 0, compiled.output
    with pytest.raises(AutoshardError, match=r"on 2 slices of 2, the target is tpu:v5e:2x2\n.*cpu:4"):
        cli.main(
            ["compile", str(planned), "--plan", str(plan), "--target", "tpu:v5e:2x2"], standalone_mode=False
        )


def test_collectives_of_a_plan(on_cpus: Compiled) -> None:
    """The product's partial sums are summed over y, then rows are gathered over x; bytes are of operands on one device."""
    totals = {kind: (total.count, total.operand_bytes) for kind, total in on_cpus.totals().items()}
    assert totals == {"all-reduce": (1, 32 * 16 * 4), "all-gather": (1, 32 * 16 * 4)}
    by_kind = {one.kind: one for one in on_cpus.collectives}
    assert by_kind["all-reduce"].group_size == by_kind["all-gather"].group_size == 2
    assert by_kind["all-reduce"].where[0].startswith("stablehlo.dot_general the_product")
    assert "stablehlo.dot_general the_product" in on_cpus.hlo_text


def test_memory_of_a_plan(on_cpus: Compiled) -> None:
    """Arguments and outputs are their shards; there is a schedule for TPUs only."""
    assert on_cpus.memory.argument_bytes == 32 * 16 * 4 + 16 * 16 * 4
    assert on_cpus.memory.output_bytes == 64 * 16 * 4
    assert on_cpus.time is None
    assert on_cpus.matmul_flops == 2 * 32 * 16 * 16


def test_callbacks_without_results_stay_as_they_are() -> None:
    """JAX writes the sharding of one device on them (`jax.debug.print`), though there is no value to constrain."""
    text = """sdy.mesh @mesh = <["x"=2]>
    sdy.mesh @one = <[], device_ids=[0]>
    func.func public @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
      stablehlo.custom_call @xla_ffi_python_cpu_callback(%a) {
        has_side_effect = true, backend_config = {index = 0 : ui64}, api_version = 4 : i32,
        sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>} : (tensor<8xf32>) -> ()
      return %a : tensor<8xf32>
    }"""
    assert compile_planned(text, "cpu:2").num_devices == 2


def test_public_name() -> None:
    """The function and its records are part of the package's interface."""
    assert autoshard.compile_planned is compile_planned
    assert autoshard.Compiled is Compiled
    assert issubclass(autoshard.DoesNotFitError, AutoshardError)


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    file = tmp_path / "planned.mlir"
    file.write_text(MODULE)
    return file


def test_command(planned: Path, tmp_path: Path) -> None:
    """As predicted, kind by kind, where the prediction is of the module as it is written; the HLO is kept."""
    hlo = tmp_path / "kept.hlo"
    done = CliRunner().invoke(
        cli, ["compile", str(planned), "--target", "cpu:4", "--json", "--keep-hlo", str(hlo)]
    )
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert [(one["kind"], one["predicted"], one["compiled"]) for one in data["kinds"]] == [
        (kind, {"count": 1, "operand_bytes": 2048}, {"count": 1, "operand_bytes": 2048})
        for kind in ("all-gather", "all-reduce")
    ]
    assert data["differences"] == []
    assert data["compiled"]["memory"]["total_bytes"] > 0
    assert "ENTRY" in hlo.read_text()


def test_groups_and_runs_are_told(planned: Path) -> None:
    """Collectives of each kind say among how many devices; --all lists every compiled one with groups, bytes, runs and op."""
    arguments = ["compile", str(planned), "--target", "cpu:4"]
    short, full = (CliRunner().invoke(cli, [*arguments, *more]).stdout for more in ([], ["--all"]))
    rows = [line.split() for line in full.splitlines()]
    assert ["all-reduce", "of", "2", "1", "1", "2.05", "kB", "2.05", "kB", "none"] in rows
    (listed,) = (row for row in rows if row[:6] == ["all-reduce", "2", "of", "2", "2.05", "kB"])
    assert listed[6:] == ["1", "stablehlo.dot_general", "the_product"]
    assert "compiled collective " not in short


def test_notes_of_another_profile(on_cpus: Compiled) -> None:
    """A prediction of other hardware is no prediction of the target; one by the target's scheduler is of its scheduler."""
    compiled = replace(on_cpus, target="tpu:v5e:2x2")
    notes = {
        name: CompileReport(compiled, Prediction("one", name, (), 1, 1, 1)).note
        for name in ("tpu-v5e", "tpu-v5e:scheduler", "tpu-v5p:scheduler")
    }
    assert notes["tpu-v5e"] == ""
    assert notes["tpu-v5e:scheduler"].startswith(
        "times are predicted as the compiler's scheduler prices them"
    )
    assert notes["tpu-v5p:scheduler"].startswith("the prediction is for tpu-v5p:scheduler: ")


def test_places_of_a_plan(tmp_path: Path) -> None:
    """A plan has places of the module that was planned; they are found again in the written one, past calls and constraints."""
    unplanned = """module {
      func.func public @main(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {
        %0 = call @product(%x, %w) : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
        return %0 : tensor<64x16xf32>
      }
      func.func private @product(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {
        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
          : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
        return %0 : tensor<64x16xf32>
      }
    }"""
    original = tmp_path / "original.mlir"
    original.write_text(unplanned)
    without_names = MODULE.replace(' loc("the_product")', "").encode()
    assert places_before(load(without_names), load(original)) == {
        "stablehlo.dot_general <bytes>:7": f"stablehlo.dot_general {original}:7"
    }
    assert places_before(load(without_names), load(planned_elsewhere(tmp_path))) == {}


def planned_elsewhere(folder: Path) -> Path:
    file = folder / "elsewhere.mlir"
    file.write_text(
        "module { func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> } }"
    )
    return file


def test_report(planned: Path) -> None:
    """As text, without a prediction too."""
    done = CliRunner().invoke(cli, ["compile", str(planned), "--target", "cpu:4", "--no-predict"])
    assert done.exit_code == 0, done.output
    assert "Compiled for cpu:4 by jaxlib" in done.stdout
    assert "all-reduce" in done.stdout
    assert "predicted" not in done.stdout


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (MODULE, ["--target", "cpu:8"], "its mesh has 4 devices, cpu:8 has 8"),
        (MODULE, ["--target", "tpu:v5e"], "cannot read the topology"),
        (MODULE, ["--target", "cpu:4", "--hardware", "nothing"], "nothing"),
        (MODULE, ["--target", "cpu:4", "--fast"], "only compilations for TPUs have a fast form"),
        (MODULE, ["--target", "cpu:4", "--time-limit", "0.01"], r"XLA for cpu:4: not done after 0.01 s"),
        (MODULE, ["--target", "cpu:4", "--no-predict", "--plan", "p.json"], "contradict"),
        (MODULE, ["--target", "cpu:4", "--no-predict", "--hardware", "h100"], "contradict"),
        (
            MODULE,
            ["--target", "cpu:4", "--no-predict", "--keep-hlo", "/nowhere/x"],
            "/nowhere: no such folder",
        ),
        (MODULE, ["--target", "tpu:v5e:4x4x4"], "target tpu:v5e:4x4x4: (4, 4, 4) has 3 dimensions"),
        ("module { func.func public @main() { return } }", ["--target", "cpu:2"], "no sdy.mesh"),
    ],
)
def test_bad_requests(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    arguments: list[str],
    message: str,
) -> None:
    """What cannot be honoured is said in one block, with exit status 2."""
    file = tmp_path / "planned.mlir"
    file.write_text(text)
    monkeypatch.setattr("sys.argv", ["autoshard", "compile", str(file), *arguments])
    monkeypatch.setattr("autoshard.xla.targets.importlib.util.find_spec", _installed)
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_plan_for_another_mesh(planned: Path, tmp_path: Path) -> None:
    """The plan must be for as many devices as the target has."""
    plan = tmp_path / "plan.json"
    plan.write_text(autoshard.price(MODULE.encode()).to_json())
    done = CliRunner().invoke(cli, ["compile", str(planned), "--target", "cpu:8", "--plan", str(plan)])
    assert isinstance(done.exception, AutoshardError)
    assert "the plan is for 4 devices, cpu:8 has 8" in str(done.exception)


def test_without_the_compiler(planned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setattr("autoshard.xla.targets.importlib.util.find_spec", _missing)
    with pytest.raises(AutoshardError, match=r"autoshard\[tpu\]"):
        compile_planned(planned, "tpu:v5e:2x2")


@needs_libtpu
def test_tpu() -> None:
    """The same collectives, with the scheduler's price, and memory as the buffers are assigned."""
    found = compile_planned(MODULE.encode(), "tpu:v5e:2x2")
    totals = {kind: (total.count, total.operand_bytes) for kind, total in found.totals().items()}
    assert totals == {"all-reduce": (1, 2048), "all-gather": (1, 2048)}
    assert found.time is not None
    assert found.time.communication_ns > 0
    assert found.memory.argument_bytes > 0


@needs_libtpu
def test_tpu_gathers_as_often_as_a_plan_has_it_written() -> None:
    """There and back twice with less memory than all weights take once gathered: up to four gathers of one weight."""
    loaded, plan = there_and_back_planned(2, tight(2))
    found = compile_planned(pipeline.write_planned(loaded, plan).encode(), "tpu:v6e:2x2")
    expected = emitted_bytes(plan.price)
    assert {total.operand_bytes for kind, total in found.totals().items() if kind == "all-gather"} == {
        expected["all_gather"]
    }


@needs_libtpu
def test_tpu_beside_the_prediction_at_the_schedulers_prices(planned: Path) -> None:
    """Products are counted alike to the nanosecond, and so is communication, an all-reduce and an all-gather of 2 kB, without latency."""
    done = CliRunner().invoke(cli, ["compile", str(planned), "--target", "tpu:v5e:2x2", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    scheduled = found["prediction"]["scheduled"]
    assert scheduled["compute_ns"] == pytest.approx(found["compiled"]["time"]["matmul_ns"], abs=1)
    assert 0 < scheduled["communication_ns"] < found["prediction"]["communication_ns"]
    text = CliRunner().invoke(cli, ["compile", str(planned), "--target", "tpu:v5e:2x2"]).stdout
    assert "predicted at its prices" in text


@needs_libtpu
def test_does_not_fit() -> None:
    """17 GB on a chip of 16: the compiler's own words and figures."""
    with pytest.raises(DoesNotFitError, match=r"HBM|hbm") as error:
        compile_planned(LARGE.encode(), "tpu:v5e:2x2")
    assert error.value.used_bytes > error.value.available_bytes > 15e9


@needs_cuda
def test_gpus_that_are_not_there() -> None:
    """The same collectives as on CPUs, without jax and without a driver."""
    compiled = compile_planned(MODULE.encode(), "gpu:h100:2x2")
    totals = {kind: (total.count, total.operand_bytes) for kind, total in compiled.totals().items()}
    assert totals == {"all-reduce": (1, 32 * 16 * 4), "all-gather": (1, 32 * 16 * 4)}
