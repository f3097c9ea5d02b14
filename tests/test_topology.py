"""`--topology`, `--slices` and `--placement` from the command line to the plan and back."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import autoshard
from autoshard.cli import cli
from autoshard.errors import AutoshardError
from autoshard.plans import read_plan

MATMULS = """
func.func @main(%x: tensor<64x1024xbf16>, %a: tensor<1024x4096xbf16>, %b: tensor<4096x1024xbf16>) -> tensor<64x1024xbf16> {
  %0 = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0] : (tensor<64x1024xbf16>, tensor<1024x4096xbf16>) -> tensor<64x4096xbf16>
  %1 = stablehlo.tanh %0 : tensor<64x4096xbf16>
  %2 = stablehlo.dot_general %1, %b, contracting_dims = [1] x [0] : (tensor<64x4096xbf16>, tensor<4096x1024xbf16>) -> tensor<64x1024xbf16>
  return %2 : tensor<64x1024xbf16>
}
"""
# the sums have to go over "m", whatever that rides on
SUMS = MATMULS.replace(
    "func.func @main(%x: tensor<64x1024xbf16>, %a: tensor<1024x4096xbf16>",
    'sdy.mesh @mesh = <["d"=2, "m"=4]>\n'
    'func.func @main(%x: tensor<64x1024xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}, '
    '%a: tensor<1024x4096xbf16> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"m"}]>}',
)


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    path = tmp_path / "sums.mlir"
    path.write_text(SUMS)
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: object) -> str:
    with pytest.raises(AutoshardError) as caught:
        CliRunner().invoke(
            cli, [str(argument) for argument in arguments], catch_exceptions=False, standalone_mode=False
        )
    return str(caught.value)


@pytest.mark.parametrize(
    ("where", "order"),
    [
        pytest.param(
            ("--hardware", "tpu-v5e", "--topology", "4x2", "--placement", "d=1,m=0"),
            [],
            marks=pytest.mark.slow,
        ),
        (("--hardware", "tpu-v5e", "--topology", "2x4", "--placement", "d=0,m=1"), [0, 2, 4, 6, 1, 3, 5, 7]),
        pytest.param(
            ("--hardware", "tpu-v5e", "--topology", "2x2", "--slices", "2", "--placement", "d=slices,m=1+0"),
            [],
            marks=pytest.mark.slow,
        ),
        (
            ("--hardware", "tpu-v5e", "--topology", "2x2", "--slices", "2", "--placement", "d=0,m=slices+1"),
            [0, 2, 4, 6, 1, 3, 5, 7],
        ),
        (
            ("--hardware", "h100", "--topology", "2x4", "--placement", "d=chips:(2)2,m=nodes+chips:(1)2"),
            [0, 2, 4, 6, 1, 3, 5, 7],
        ),
        pytest.param(
            ("--hardware", "tpu7x", "--topology", "2x2", "--placement", "d=cores,m=1+0"),
            [0, 2, 4, 6, 1, 3, 5, 7],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_plan_keeps_its_placement(
    sums: Path, tmp_path: Path, where: tuple[str, ...], order: list[int]
) -> None:
    """What was asked for is in the summary, in --json and in the plan, by which `check` and `why` price it again."""
    file = tmp_path / "plan.json"
    data = json.loads(run("plan", sums, *where, "--json", "--plan-out", file))
    placement = where[-1]
    assert (data["placement"], data["device_order"]) == (placement, order)
    found = read_plan(file)
    assert found.placement == placement
    report = run("check", sums, "--plan", file)
    assert "device order" in report
    assert "passed" in report
    why = json.loads(run("why", file, "arg2", "--module", sums, "--json"))
    assert why["step_ns"] == found.price.step_ns
    priced = json.loads(run("cost", sums, *where, "--json"))
    assert (priced["placement"], priced["topology"], priced["slices"]) == (
        placement,
        data["topology"],
        data["slices"],
    )


def test_the_summary_says_which_devices(sums: Path) -> None:
    """Row-major in words, another placement with the devices to make the mesh of."""
    assert "placement d=1,m=0 (row-major" in run("cost", sums, "--topology", "4x2")
    text = run("cost", sums, "--topology", "2x2", "--slices", "2", "--placement", "d=0,m=slices+1")
    assert "on tpu-v5e 2 slices of 2x2" in text
    assert "placement d=0,m=slices+1: make the mesh of devices 0, 2, 4, 6, 1, 3, 5, 7, by their ids" in text


def test_an_axis_over_the_network_costs_more(sums: Path) -> None:
    """The same shardings, the sums over slices or nodes, or within one."""
    for where in (
        ("--topology", "2x2", "--slices", "2"),
        ("--hardware", "h100", "--topology", "2x4"),
    ):
        outer, inner = (
            ("slices", ("1", "0")) if "--slices" in where else ("nodes", ("chips:(1)2", "chips:(2)2"))
        )
        within = f"d={outer},m={'0+1' if outer == 'slices' else 'chips'}"
        across = f"d={inner[0]},m={outer}+{inner[1]}"
        cheap, dear = (
            json.loads(run("cost", sums, *where, "--placement", text, "--json"))["predicted"]
            for text in (within, across)
        )
        assert cheap["communication_ns"] < dear["communication_ns"]
        assert cheap["compute_ns"] == dear["compute_ns"]


def test_the_module_is_written_for_logical_devices(sums: Path, tmp_path: Path) -> None:
    """A placement changes prices, not the mesh: the module numbers its devices by their places in the mesh, as JAX's do."""
    for name, placement in (("a", "d=0,m=1"), ("b", "d=1:(2)2,m=0+1:(1)2")):
        run("plan", sums, "--topology", "2x4", "--placement", placement, "-o", tmp_path / f"{name}.mlir")
        assert "device_ids" not in (tmp_path / f"{name}.mlir").read_text()


def test_a_reshard_on_a_placement() -> None:
    """`cost reshard` and the Python API price with it, and say so."""
    asked = ("--shape", "8192x8192xbf16", "--from", '[{"x"}, {}]', "--to", "[{}, {}]", "--mesh", "x=4,y=4")
    text = run("cost", "reshard", *asked, "--placement", "x=0:(1)2+1:(1)2,y=0:(2)2+1:(2)2")
    assert "placement x=0:(1)2+1:(1)2,y=0:(2)2+1:(2)2" in text
    near, far = (
        autoshard.reshard(
            "8192x8192xbf16",
            '[{"x"}, {}]',
            "[{}, {}]",
            mesh={"x": 2, "y": 8},
            topology=(2, 4),
            slices=2,
            placement=placement,
        ).ns
        for placement in ("x=0,y=slices+1", "x=slices,y=0+1")
    )
    assert near < far


WRONG = {
    "an unknown axis": (("--topology", "2x4", "--placement", "d=0,n=1"), '"n" is not an axis of the mesh'),
    "a dimension twice": (
        ("--topology", "2x4", "--placement", "d=1:(1)2,m=1"),
        'dimension 1 is used by "d" and "m"',
    ),
    "sizes that do not multiply up": (
        ("--topology", "2x4", "--placement", "d=1,m=0"),
        'axis "d" has 2 devices, 1 has 4',
    ),
    "slices of nodes": (("--hardware", "h100", "--slices", "2"), "slices are for a torus, h100 has nodes"),
    "slices without a network": (("--hardware", "mi300x", "--topology", "2x4"), "Add a [network] table"),
    "more than the family has": (
        ("--topology", "1x32"),
        "A slice has up to 2 dimensions of up to 16 chips, 256 in all.",
    ),
}


@pytest.mark.parametrize(("where", "expected"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_placed(sums: Path, where: tuple[str, ...], expected: str) -> None:
    """Each is refused with what there is instead."""
    assert expected in refused("cost", sums, *where)


@pytest.mark.parametrize(("made_for", "asked"), [("tpu-v5e", "h100"), ("h100", "tpu-v5e")])
@pytest.mark.parametrize("command", ["check", "why", "sensitivity"])
def test_plans_of_another_kind_of_network(
    command: str, made_for: str, asked: str, sums: Path, tmp_path: Path
) -> None:
    """A plan on a torus has no prices on nodes, nor the other way round."""
    file = tmp_path / "plan.json"
    run("plan", sums, "--hardware", made_for, "--plan-out", file)
    of_plan = (sums, "--plan", file) if command == "check" else (file, *(["arg0"] * (command == "why")))
    said = refused(command, *of_plan, "--hardware", asked)
    kinds = {"tpu-v5e": "a torus", "h100": "nodes"}
    assert f"the plan is for {kinds[made_for]} of {made_for}, and {asked} has {kinds[asked]}" in said
