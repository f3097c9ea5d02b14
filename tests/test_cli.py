"""The command line as a user meets it: what it prints, its exit status, and what it leaves behind."""

import gzip
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import costmodels
from autoshard.cli import cli, main
from autoshard.mlir.forms import FORMS
from autoshard.plans import read_plan
from autoshard.report import print_summary

MATMUL = """
func.func @main(%a: tensor<64x32xf32>, %b: tensor<32x16xf32>) -> tensor<64x16xf32> {
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  return %0 : tensor<64x16xf32>
}
"""
IDENTITY = "func.func @NAME(%a: tensor<8xf32>) -> tensor<8xf32> { return %a : tensor<8xf32> }\n"


@dataclass(frozen=True, slots=True)
class Done:
    status: int
    out: str
    err: str


class Terminal:
    """Runs `autoshard ARGUMENTS` in this process, in a folder of its own."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder = folder
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.chdir(folder)
        self.write("model.mlir", MATMUL)

    def write(self, name: str, text: str | bytes) -> str:
        (self.folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return name

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Done:
        self._monkeypatch.setattr(sys, "argv", ["autoshard", *arguments])
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        status = 0
        try:
            main()
        except SystemExit as done:
            status = int(done.code or 0)
        said = self._capsys.readouterr()
        return Done(status, said.out, said.err)


@pytest.fixture
def autoshard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    return Terminal(tmp_path, monkeypatch, capsys)


def profile(**replaced: str) -> str:
    """The shipped TPU v5e profile with lines that begin with these keys replaced."""
    path = Path(costmodels.__file__).parent / "hardware" / "tpu-v5e.toml"
    lines = path.read_text().splitlines()
    for key, line in replaced.items():
        (at,) = (i for i, old in enumerate(lines) if old.startswith(f"{key} "))
        lines[at] = line
    return "\n".join(lines) + "\n"


ON_X = ("--mesh", "x=4")

BAD_INPUT: dict[str, tuple[dict[str, str | bytes], tuple[str, ...], tuple[str, ...]]] = {
    "no such file": ({}, ("nothing.mlir", *ON_X), ("nothing.mlir: no such file",)),
    "a folder": ({}, (".", *ON_X), (".: is a directory",)),
    "not MLIR": ({"bad.mlir": "module {\n  oops\n}"}, ("bad.mlir", *ON_X), ("bad.mlir", "line 2", "oops")),
    "not text": ({"bad.mlir": b"\xff\xfe\x00"}, ("bad.mlir", *ON_X), ("bad.mlir", "neither MLIR text nor bytecode")),
    "empty": ({"bad.mlir": "\n"}, ("bad.mlir", *ON_X), ("bad.mlir: the model is empty",)),
    "half a gzip file": (
        {"bad.mlir.gz": gzip.compress(MATMUL.encode())[:40]},
        ("bad.mlir.gz", *ON_X),
        ("bad.mlir.gz: damaged gzip file",),
    ),
    "no function": ({"bad.mlir": "module {}"}, ("bad.mlir", *ON_X), ("the module has no function",)),
    "several functions": (
        {"bad.mlir": IDENTITY.replace("NAME", "one") + IDENTITY.replace("NAME", "two")},
        ("bad.mlir", *ON_X),
        ("no function @main among @one, @two", "name the entry function main"),
    ),
    "dynamic shapes": (
        {"bad.mlir": IDENTITY.replace("NAME", "main").replace("8xf32", "?xf32")},
        ("bad.mlir", *ON_X),
        ("tensor<?xf32>",),
    ),
    "no mesh": ({}, ("model.mlir",), ("names a mesh", "add --mesh data=4,model=4")),
    "another mesh": (
        {"bad.mlir": 'sdy.mesh @one = <["x"=2]>' + MATMUL},
        ("bad.mlir", *ON_X),
        ("is not the module's mesh",),
    ),
    "axis of size 0": ({}, ("model.mlir", "--mesh", "x=0"), ('mesh axis "x"=0 has no devices',)),
    "axis named twice": ({}, ("model.mlir", "--mesh", "x=2,x=2"), ('mesh axis "x" is named twice',)),
    "mesh that does not parse": ({}, ("model.mlir", "--mesh", "x4"), ("cannot read the mesh 'x4'", "data=4")),
    "more devices than the topology": (
        {},
        ("model.mlir", "--mesh", "x=8,y=4", "--topology", "4x4"),
        ("the mesh has 32 devices", "16"),
    ),
    "topology that does not parse": (
        {},
        ("model.mlir", *ON_X, "--topology", "4by4"),
        ("cannot read the topology '4by4'", "4x4"),
    ),
    "unknown hardware": ({}, ("model.mlir", *ON_X, "--hardware", "tpu-v99"), ("tpu-v99", *costmodels.names())),
    "profile without a figure": (
        {"chip.toml": profile(hbm_gib="")},
        ("model.mlir", *ON_X, "--hardware", "chip.toml"),
        ("chip.toml", "hbm_gb"),
    ),
    "profile with another unit": (
        {"chip.toml": profile(hbm_gb_per_s="hbm_tb_per_s = 0.819")},
        ("model.mlir", *ON_X, "--hardware", "chip.toml"),
        ("chip.toml:8", "hbm_tb_per_s is not a known key"),
    ),
    "profile with a word for a number": (
        {"chip.toml": profile(hbm_gb_per_s='hbm_gb_per_s = "fast"')},
        ("model.mlir", *ON_X, "--hardware", "chip.toml"),
        ("chip.toml:8", "hbm_gb_per_s"),
    ),
    "profile that is not TOML": (
        {"chip.toml": "[chip\n"},
        ("model.mlir", *ON_X, "--hardware", "chip.toml"),
        ("chip.toml", "line 1"),
    ),
    "memory that does not parse": (
        {},
        ("model.mlir", *ON_X, "--memory", "16 parsecs"),
        ("cannot read the memory size '16 parsecs'", "16GB", "15.75GiB"),
    ),
    "memory of nothing": ({}, ("model.mlir", *ON_X, "--memory", "0GB"), ("'0GB' holds nothing",)),
    "no carry file": ({}, ("model.mlir", *ON_X, "--carry", "pairs.json"), ("pairs.json", "carry file")),
    "carry file of another kind": (
        {"pairs.json": "[1, 2]"},
        ("model.mlir", *ON_X, "--carry", "pairs.json"),
        ("pairs.json: no list of pairs", '{"carry": [[result, argument], ...]}'),
    ),
    "carried pair that is not there": (
        {"pairs.json": '{"carry": [[0, 7]]}'},
        ("model.mlir", *ON_X, "--carry", "pairs.json"),
        ("carry [0, 7]", "1 results and 2 arguments"),
    ),
    "carried pair of two types": (
        {"pairs.json": '{"carry": [[0, 0]]}'},
        ("model.mlir", *ON_X, "--carry", "pairs.json"),
        ("carry [0, 0]", "tensor<64x16xf32>", "tensor<64x32xf32>"),
    ),
    "time limit below 0": ({}, ("model.mlir", *ON_X, "--time-limit", "-3"), ("--time-limit",)),
    "time limit that never strikes": ({}, ("model.mlir", *ON_X, "--time-limit", "nan"), ("time limit of nan",)),
    "negative seed": ({}, ("model.mlir", *ON_X, "--seed", "-1"), ("--seed", "-1 is not in the range")),
    "empty mesh": ({}, ("model.mlir", "--mesh", ""), ("cannot read the mesh ''", "data=4,model=4")),
    "unknown form": ({}, ("model.mlir", *ON_X, "--form", "gspmd"), ("--form", "xla", "shardy")),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input(case: str, autoshard: Terminal) -> None:
    """Exit status 2, one block on stderr that says what is wrong and where, and nothing written."""
    files, arguments, fragments = BAD_INPUT[case]
    for name, content in files.items():
        autoshard.write(name, content)
    before = autoshard.files()
    done = autoshard("plan", *arguments, "-o", "out.mlir", "--plan-out", "plan.json")
    assert done.status == 2
    assert done.out == ""
    assert [fragment for fragment in fragments if fragment not in done.err] == []
    assert "Traceback" not in done.err
    assert autoshard.files() == before


def test_folder_of_the_output_is_missing(autoshard: Terminal) -> None:
    """It is noticed before anything is planned."""
    done = autoshard("plan", "model.mlir", *ON_X, "-o", "no/where.mlir")
    assert done.status == 2
    assert "no: no such folder" in done.err


def test_process_ends_without_traceback(tmp_path: Path) -> None:
    """The same from outside: status 2, nothing on stdout, one block on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "autoshard", "plan", str(tmp_path / "nothing.mlir"), "--mesh", "x=2"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"autoshard: {tmp_path}/nothing.mlir: no such file\n"


def planned(autoshard: Terminal, *more: str) -> dict[str, Any]:
    done = autoshard("plan", "model.mlir", *ON_X, "--json", "--time-limit", "60", *more)
    assert done.status == 0, done.err
    return json.loads(done.out)


def test_json(autoshard: Terminal) -> None:
    """`--json` prints the summary as one JSON value, with times in ns and sizes in bytes."""
    found = planned(autoshard)
    assert found["mesh"] == {"x": 4}
    assert found["hardware"] == "tpu-v5e"
    assert found["status"] == "optimal"
    assert found["fits"] is True
    figures = found["predicted"]
    assert figures["step_ns"] == figures["compute_ns"] + figures["communication_ns"]
    assert found["lower_bound_ns"] == figures["step_ns"]
    assert [argument["name"] for argument in found["arguments"]] == ["arg0", "arg1"]
    assert set(found["baselines"]) == {"fully replicated", "data parallel", "fully sharded"}


def test_summary_for_people(autoshard: Terminal) -> None:
    """The step, its parts, the peak, the bound, the baselines and every argument and result."""
    done = autoshard("plan", "model.mlir", *ON_X)
    assert done.status == 0
    for word in ("predicted step", "compute", "communication", "peak memory", "lower bound", "gap"):
        assert word in done.out
    for word in ("fully replicated", "data parallel", "fully sharded", "arg0", "arg1", "tensor<64x16xf32>"):
        assert word in done.out
    assert done.out.count("proved to be the cheapest") == 1
    assert "planned alike" not in done.out


def test_summary_says_what_folding_lost(autoshard: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    """Where repeated layers were planned alike, that choice and its gap are stated."""
    assert autoshard("plan", "model.mlir", *ON_X, "--plan-out", "plan.json").status == 0
    plan = read_plan(Path("plan.json"))
    plan = replace(plan, statistics=plan.statistics | {"folded cost": 2_000_000, "folded loss": 0.125})
    print_summary(plan, Console(width=150))
    assert "repeated layers planned alike: 2 ms, gap 12.50%" in capsys.readouterr().out


def test_standard_input(autoshard: Terminal) -> None:
    """`-` is the module on standard input, plain or gzipped, and the plan is that of the file."""
    expected = planned(autoshard)["predicted"]
    for data in (MATMUL.encode(), gzip.compress(MATMUL.encode())):
        done = autoshard("plan", "-", *ON_X, "--json", stdin=data)
        assert done.status == 0
        assert json.loads(done.out)["predicted"] == expected


def test_memory_too_small(autoshard: Terminal) -> None:
    """Exit status 1 with the smallest peak that was found, and nothing written."""
    done = autoshard("plan", "model.mlir", *ON_X, "--memory", "1kB", "-o", "out.mlir", "--plan-out", "p.json")
    assert done.status == 1
    assert "smallest peak found" in done.out and "no plan can peak below" in done.out
    assert "beside vector memory the plan is predicted to take" in done.out
    assert "the memory budget is 1 kB a device (--memory)" in done.out
    assert autoshard.files() == {"model.mlir"}
    as_json = autoshard("plan", "model.mlir", *ON_X, "--memory", "1kB", "--json")
    assert as_json.status == 1
    found = json.loads(as_json.out)
    assert not found["fits"]
    assert found["status"] == "infeasible"
    assert [one["kind"] for one in found["clash"]["clash"]] == ["memory"]
    smallest = found["smallest_peak_bytes"]
    assert smallest > 1000
    assert planned(autoshard, "--memory", f"{smallest}B")["predicted"]["peak_bytes"] <= smallest
    assert autoshard("plan", "model.mlir", *ON_X, "--memory", f"{smallest - 1}B").status == 1


GROUPED = """sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                %b: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) -> tensor<8x16xf32> {
  sdy.sharding_group %a group_id=7 : tensor<8x16xf32>
  sdy.sharding_group %b group_id=7 : tensor<8x16xf32>
  %0 = stablehlo.add %a, %b : tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}
"""


def test_demands_that_clash(autoshard: Terminal) -> None:
    """`explain` names each with its line and what to drop, status 0; `plan` refuses the module with the same lines."""
    autoshard.write("grouped.mlir", GROUPED)
    lines = (
        'argument 0 `arg0` must be [{"x"}, {}] (grouped.mlir:2)',
        'argument 1 `arg1` must be [{}, {"x"}] (grouped.mlir:3)',
        "sharding group 7 gives one sharding to arg0 (put there at grouped.mlir:4), arg1 (put there at grouped.mlir:5)",
    )
    explained = autoshard("explain", "--infeasible", "grouped.mlir")
    assert explained.status == 0
    assert f"cheapest to drop: {lines[0]}" in explained.out
    found = json.loads(autoshard("explain", "--infeasible", "grouped.mlir", "--json").out)
    assert (found["status"], found["minimal"]) == ("clash", True)
    assert tuple(one["demand"] for one in found["clash"]) == lines
    refused = autoshard("plan", "grouped.mlir", "-o", "out.mlir")
    assert (refused.status, refused.out) == (2, "")
    assert [line for line in lines if line not in refused.err or line not in explained.out] == []
    assert "out.mlir" not in autoshard.files()


def test_no_clash_and_nothing_to_explain(autoshard: Terminal) -> None:
    """A module with a plan is said to have one, status 0; without --infeasible there is nothing to explain."""
    done = autoshard("explain", "--infeasible", "model.mlir", *ON_X)
    assert (done.status, done.out) == (0, "there is a plan: nothing clashes\n")
    assert autoshard("explain", "model.mlir", *ON_X).status == 2


@pytest.mark.parametrize(
    ("memory", "expected", "said"),
    [("none", None, " a device, no limit"), ("15.75GiB", 63 * 2**28, "of 16.9 GB a device")],
)
def test_memory(memory: str, expected: int | None, said: str, autoshard: Terminal) -> None:
    """A budget in GiB is what it says, and `none` is no limit."""
    assert planned(autoshard, "--memory", memory)["memory_bytes"] == expected
    assert said in autoshard("plan", "model.mlir", *ON_X, "--memory", memory).out


def test_mesh_of_the_module(autoshard: Terminal) -> None:
    """`--mesh` is not needed where the module has one."""
    autoshard.write("model.mlir", 'sdy.mesh @mine = <["x"=4]>' + MATMUL)
    done = autoshard("plan", "model.mlir", "--json")
    assert done.status == 0
    assert json.loads(done.out)["mesh"] == {"x": 4}


@pytest.mark.parametrize("form", FORMS)
def test_plan_check_cost(form: str, autoshard: Terminal) -> None:
    """A written plan passes the check, and the written module names its mesh and costs no more than its baselines."""
    found = planned(autoshard, "--form", form, "-o", "out.mlir", "--plan-out", "plan.json")
    assert autoshard.files() == {"model.mlir", "out.mlir", "plan.json"}
    text = (autoshard.folder / "out.mlir").read_text()
    assert re.search(r"sdy\.mesh|mesh\.mesh|shard\.grid", text)
    checked = autoshard("check", "model.mlir", "--plan", "plan.json")
    assert checked.status == 0, checked.out
    assert json.loads(autoshard("check", "model.mlir", "--plan", "plan.json", "--json").out)
    costed = autoshard("cost", "out.mlir", "--json", "--form", form)
    assert costed.status == 0
    steps = [b["step_ns"] for b in found["baselines"].values() if b["fits"]]
    assert json.loads(costed.out)["predicted"]["step_ns"] <= min(steps)


def test_upstreams_dialect_is_text(autoshard: Terminal) -> None:
    """Bytecode of it is refused before anything is planned."""
    autoshard.write("model.mlir", MATMUL)
    done = autoshard("plan", "model.mlir", *ON_X, "--form", "mesh", "-o", "out.mlirbc.gz")
    assert done.status == 2
    assert "out.mlirbc.gz: --form mesh is written as text only" in done.err
    assert autoshard.files() == {"model.mlir"}


def test_plan_of_another_module(autoshard: Terminal) -> None:
    """A plan is refused for a module that it was not made for."""
    planned(autoshard, "--plan-out", "plan.json")
    autoshard.write("other.mlir", MATMUL.replace("64x", "128x"))
    done = autoshard("check", "other.mlir", "--plan", "plan.json")
    assert done.status == 2
    assert "the plan is for another module" in done.err


@pytest.mark.parametrize(
    ("content", "fragment"),
    [(None, "cannot read the plan"), ("{}", "not a plan"), ("not JSON", "not a plan")],
)
def test_not_a_plan(content: str | None, fragment: str, autoshard: Terminal) -> None:
    """A plan file that is missing or something else is an error that names it."""
    if content is not None:
        autoshard.write("plan.json", content)
    done = autoshard("check", "model.mlir", "--plan", "plan.json")
    assert done.status == 2
    assert done.err.startswith("autoshard: plan.json: ")
    assert fragment in done.err


@pytest.mark.parametrize("name", ["out.mlirbc", "out.mlir.gz"])
def test_output_formats(name: str, autoshard: Terminal) -> None:
    """Text and bytecode, gzipped or not, by the name of the file; each can be priced again."""
    expected = planned(autoshard, "-o", name)["predicted"]["step_ns"]
    data = (autoshard.folder / name).read_bytes()
    assert data.startswith(b"\x1f\x8b") == name.endswith(".gz")
    plain = gzip.decompress(data) if name.endswith(".gz") else data
    assert plain.startswith(b"ML\xefR") == ("mlirbc" in name)
    costed = autoshard("cost", name, "--json")
    assert json.loads(costed.out)["predicted"]["step_ns"] == expected


def commands() -> list[str]:
    return sorted(cli.commands)


@pytest.mark.parametrize("command", commands())
def test_help(command: str, autoshard: Terminal) -> None:
    """Every command and each of its options say what they are for."""
    done = autoshard(command, "--help")
    assert done.status == 0
    for parameter in cli.commands[command].params:
        text: Callable[[], str] | str | None = getattr(parameter, "help", None)
        assert parameter.param_type_name == "argument" or text, f"{command}: {parameter.name} has no help"


def test_version(autoshard: Terminal) -> None:
    """`--version` names the package and its version."""
    done = autoshard("--version")
    assert (done.status, done.out.split()[0]) == (0, "autoshard,")


@pytest.mark.parametrize("command", ["plan", "explain", "why", "check", "problem", "solve"])
def test_help_imports_nothing_heavy(command: str) -> None:
    """Asking for help waits for no compiler and no solver."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "autoshard", command, "--help"],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    loaded = {
        line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line
    }
    assert "click" in loaded
    assert not loaded & {"jax", "jaxlib", "ortools", "numba", "pandas"}


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
@pytest.mark.parametrize(
    "command",
    [
        ("plan", "model.mlir"),
        ("explain", "model.mlir"),
        ("why", "plan.json", "arg0"),
        ("sensitivity", "plan.json"),
        ("solve", "p.json"),
        ("compile", "model.mlir", "--target", "cpu:4"),
        ("verify", "model.mlir", "--against", "model.mlir", "--devices", "1"),
    ],
)
def test_time_limits(command: tuple[str, ...], seconds: str, autoshard: Terminal) -> None:
    """Every command refuses a limit that is none."""
    done = autoshard(*command, "--time-limit", seconds)
    assert (done.status, done.out) == (2, "")
    assert ("is no limit" if seconds != "-1" else "--time-limit") in done.err


def test_verify_within_a_time_limit(autoshard: Terminal) -> None:
    """A loop that never ends is given up."""
    autoshard.write(
        "forever.mlir",
        """func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
          %0 = stablehlo.while(%i = %a) : tensor<8xf32>
            cond { %c = stablehlo.constant dense<true> : tensor<i1>  stablehlo.return %c : tensor<i1> }
            do { %n = stablehlo.negate %i : tensor<8xf32>  stablehlo.return %n : tensor<8xf32> }
          return %0 : tensor<8xf32>
        }""",
    )
    given = ("verify", "forever.mlir", "--against", "forever.mlir", "--devices", "1")
    done = autoshard(*given, "--time-limit", "3")
    assert (done.status, done.out) == (2, "")
    assert "XLA on 1 CPU device: not done after 3 s" in done.err


@pytest.mark.parametrize("name", ["-", "out", "out.foo", "out.mlir.txt"])
@pytest.mark.parametrize("option", ["-o", "--plan-out"])
def test_names_of_outputs(option: str, name: str, autoshard: Terminal) -> None:
    """A module's file has an ending that says its format, and neither output goes to a file called `-`."""
    before = autoshard.files()
    done = autoshard("plan", "model.mlir", *ON_X, option, name)
    is_fine = option == "--plan-out" and name != "-"
    assert done.status == (0 if is_fine else 2)
    assert autoshard.files() == before | ({name} if is_fine else set())


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (("-", *ON_X), "module {\n  oops\n}", "standard input is not a StableHLO module"),
        (("-", *ON_X), "", "standard input: the model is empty"),
        (("-", *ON_X), "module {}", "standard input: the module has no function"),
    ],
)
def test_standard_input_has_a_name(
    arguments: tuple[str, ...], stdin: str, said: str, autoshard: Terminal
) -> None:
    done = autoshard("plan", *arguments, stdin=stdin.encode())
    assert done.status == 2
    assert said in done.err and "<bytes>" not in done.err
