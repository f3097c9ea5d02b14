"""Searches over placements and meshes: they find what planning each in full finds, and prove what they leave out."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import autoshard
from autoshard.cli import cli
from autoshard.errors import AutoshardError
from autoshard.hardware import load_hardware, placements_of
from autoshard.plans import read_plan
from autoshard.searching import mesh_shapes
from costmodels import placement_text
from tests.interrupts import interrupting


def mlp(batch: int, width: int, hidden: int) -> str:
    x, a, b, h = (
        f"tensor<{m}x{n}xbf16>"
        for m, n in ((batch, width), (width, hidden), (hidden, width), (batch, hidden))
    )
    return f"""
func.func @main(%x: {x}, %a: {a}, %b: {b}) -> {x} {{
  %0 = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0] : ({x}, {a}) -> {h}
  %1 = stablehlo.tanh %0 : {h}
  %2 = stablehlo.dot_general %1, %b, contracting_dims = [1] x [0] : ({h}, {b}) -> {x}
  return %2 : {x}
}}
"""


PROGRAMS = {
    "large weights": (mlp(16, 4096, 16384), "none"),
    "large batch": (mlp(8192, 512, 1024), "none"),
    "little memory": (mlp(1024, 4096, 16384), "80MB"),
}
PLACES: dict[str, dict[str, Any]] = {
    "a torus": {"hardware": "tpu-v5e", "topology": (4, 4), "mesh": (("x", 8), ("y", 2))},
    "three dimensions": {"hardware": "tpu-v5p", "topology": (2, 2, 4), "mesh": (("x", 4), ("y", 4))},
    "slices": {"hardware": "tpu-v5e", "topology": (2, 4), "slices": 2, "mesh": (("x", 4), ("y", 4))},
    "nodes": {"hardware": "h100", "topology": (2, 8), "mesh": (("x", 4), ("y", 4))},
    "two devices a chip": {"hardware": "tpu7x", "topology": (2, 4), "mesh": (("x", 4), ("y", 4))},
}
memory = {"none": None, "80MB": 80 * 10**6}


QUICK = {("little memory", "nodes"), ("large batch", "three dimensions")}


@pytest.mark.parametrize(
    ("program", "place"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in product(PROGRAMS, PLACES)
    ],
)
def test_placements_against_planning_each(program: str, place: str) -> None:
    """The best plan is that of brute force over the placements; every bound holds there; row-major is not cheaper."""
    text, limit = PROGRAMS[program]
    where = PLACES[place]
    found = autoshard.plan_placements(text.encode(), memory_bytes=memory[limit], **where)
    hardware = load_hardware(where["hardware"])
    models = placements_of(hardware, where["mesh"], where["topology"], where.get("slices"))
    each = {
        text_: autoshard.plan(text.encode(), memory_bytes=memory[limit], placement=text_, **where)
        for text_ in (placement_text(model.placement) for model in models)
    }
    assert all(plan.status == "optimal" for plan in each.values())
    assert found.plan.price.step_ns == min(plan.price.step_ns for plan in each.values())
    assert found.plan.price.step_ns <= each[placement_text(models[0].placement)].price.step_ns
    assert found.comparison.is_proved
    assert {row.placement for row in found.comparison.rows} == set(each)
    for row in found.comparison.rows:
        optimum = each[row.placement].price.step_ns
        assert row.lower_bound_ns <= optimum
        assert row.step_ns is None or row.step_ns >= optimum
        assert row.verdict in ("best", "proved", "pruned")
    assert [row.placement for row in found.comparison.rows if row.verdict == "best"] == [found.plan.placement]


@pytest.mark.parametrize(
    ("program", "most_axes"),
    [("large weights", 2), *(pytest.param(name, 3, marks=pytest.mark.slow) for name in PROGRAMS)],
)
def test_meshes_against_planning_each(program: str, most_axes: int) -> None:
    """The best plan over meshes of 8 devices is that of brute force over meshes and placements."""
    text, limit = PROGRAMS[program]
    where: dict[str, Any] = {"hardware": "tpu-v5e", "topology": (2, 4)}
    found = autoshard.plan_meshes(
        text.encode(), devices=8, most_axes=most_axes, memory_bytes=memory[limit], **where
    )
    hardware = load_hardware("tpu-v5e")
    steps: dict[tuple[object, str], int] = {}
    for mesh in mesh_shapes(8, most_axes):
        for model in placements_of(hardware, mesh, (2, 4), None):
            placement = placement_text(model.placement)
            plan = autoshard.plan(
                text.encode(), mesh=mesh, placement=placement, memory_bytes=memory[limit], **where
            )
            steps[mesh, placement] = plan.price.step_ns
    assert found.plan.price.step_ns == min(steps.values())
    assert {(row.mesh, row.placement) for row in found.comparison.rows} == set(steps)
    assert found.comparison.is_proved
    assert found.comparison.lower_bound_ns <= found.plan.price.step_ns
    assert all(row.lower_bound_ns <= steps[row.mesh, row.placement] for row in found.comparison.rows)


def test_the_first_placement_of_those_that_are_as_good() -> None:
    """A plan without a collective asks for no order of devices, on whichever mesh."""
    text = mlp(64, 128, 256).encode()
    for devices in (16, 64):
        found = autoshard.plan_meshes(text, devices=devices)
        assert not found.plan.price.collectives
        mine = [row for row in found.comparison.rows if row.mesh == found.plan.mesh]
        assert found.plan.placement == mine[0].placement
        assert [row.verdict for row in mine].count("best") == 1
        assert mine[0].verdict == "best"


def test_mesh_shapes() -> None:
    """Every product once, few axes and even sizes first."""
    sizes = [[size for _, size in mesh] for mesh in mesh_shapes(16, 3)]
    assert sizes == [[16], [4, 4], [8, 2], [4, 2, 2]]
    assert [[size for _, size in mesh] for mesh in mesh_shapes(12, 2)] == [[12], [4, 3], [6, 2]]
    assert mesh_shapes(1, 2) == [(("x", 1),)]


def test_the_same_again() -> None:
    """A search that no limit strikes gives the same twice."""
    first, second = (
        autoshard.plan_meshes(mlp(64, 1024, 4096).encode(), devices=8, topology=(2, 4)) for _ in range(2)
    )
    assert first.comparison == second.comparison
    assert first.plan.values == second.plan.values


def test_no_time() -> None:
    """What was not examined is said; the first mesh always is."""
    found = autoshard.plan_meshes(mlp(64, 1024, 4096).encode(), devices=16, time_limit_s=0)
    assert found.plan.fits
    assert {row.verdict for row in found.comparison.rows[1:]} == {"not examined"}
    assert "before 6 of 7 were examined" in found.comparison.proved


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mlp.mlir"
    path.write_text(mlp(16, 2048, 8192))
    return path


def run(*arguments: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result.stdout


def test_from_the_command_line(model: Path, tmp_path: Path) -> None:
    """The winner is printed, written and checked; `--json` has the rows."""
    plan, planned = tmp_path / "plan.json", tmp_path / "planned.mlir"
    data = json.loads(
        run("plan", model, "--mesh", "auto", "--devices", 16, "--json", "--plan-out", plan, "-o", planned)
    )
    rows = data["comparison"]["rows"]
    assert data["comparison"]["is_proved"]
    assert [row["mesh"] for row in rows if row["verdict"] == "best"] == [data["mesh"]]
    assert data["topology"] == [4, 4]
    assert read_plan(plan).mesh == tuple(data["mesh"].items())
    assert "passed" in run("check", model, "--plan", plan, "--deep")
    assert "sdy.mesh" in planned.read_text()
    where = ("--mesh", "x=4,y=4", "--hardware", "tpu-v5p", "--topology", "2x2x4")
    text = run("plan", model, *where, "--placement", "auto")
    assert "4 compared: It is proved that none of the others has a cheaper plan." in text


def test_nothing_fits(model: Path) -> None:
    """Memory does not depend on the placement: one proof is enough, and what clashes is said."""
    where = ("--mesh", "x=4,y=4", "--hardware", "tpu-v5p", "--topology", "2x2x4", "--memory", "1kB")
    text = run("plan", model, *where, "--placement", "auto", exit_code=1)
    assert text.count("no plan") >= 4
    assert "memory does not depend on the placement" in text


WITH_MESH = 'sdy.mesh @mesh = <["d"=2, "m"=4]>\n' + mlp(16, 2048, 8192)
WRONG = {
    "a mesh of its own": (
        WITH_MESH,
        ("--mesh", "auto", "--devices", "8"),
        'the module names its meshes itself: @mesh = <["d"=2, "m"=4]>',
    ),
    "no devices": (None, ("--mesh", "auto"), "--mesh auto of how many devices?"),
    "devices of a mesh that is named": (
        None,
        ("--mesh", "x=8", "--devices", "8"),
        "--devices 8 is for --mesh auto",
    ),
    "axes of a mesh that is named": (None, ("--mesh", "x=8", "--axes", "3"), "--axes 3 is for --mesh auto"),
    "a placement of axes that are searched": (
        None,
        ("--mesh", "auto", "--devices", "8", "--placement", "x=0,y=1"),
        "names axes, and --mesh auto looks for them",
    ),
    "devices that the family has not": (
        None,
        ("--mesh", "auto", "--devices", "1000", "--hardware", "mi300x"),
        "1000 devices are more than one node",
    ),
    "a number that is no shape": (
        None,
        ("--mesh", "auto", "--devices", "37", "--slices", "1"),
        "37 devices are no 1 slices of this torus",
    ),
    "another number than the topology's": (
        None,
        ("--mesh", "auto", "--devices", "8", "--topology", "4x4"),
        "has no placement on",
    ),
}


@pytest.mark.parametrize(("text", "options", "expected"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_searched(
    model: Path, text: str | None, options: tuple[str, ...], expected: str
) -> None:
    """Each is refused with what to do."""
    if text is not None:
        model.write_text(text)
    with pytest.raises(AutoshardError) as caught:
        CliRunner().invoke(cli, ["plan", str(model), *options], catch_exceptions=False, standalone_mode=False)
    assert expected in str(caught.value)


@pytest.mark.parametrize("command", [("cost",), ("problem", "-o", "p.json"), ("explain", "--infeasible")])
def test_auto_is_for_plan(model: Path, command: tuple[str, ...]) -> None:
    """Commands that search nothing refuse it."""
    for options in (("--mesh", "auto"), ("--mesh", "x=8", "--placement", "auto")):
        with pytest.raises(AutoshardError, match="auto is for"):
            CliRunner().invoke(
                cli,
                [command[0], str(model), *command[1:], *options],
                catch_exceptions=False,
                standalone_mode=False,
            )


@pytest.mark.parametrize(
    "command", [("cost", "module"), ("cost", "reshard"), ("problem",), ("explain",), ("plan",)]
)
def test_help_speaks_of_auto_where_it_is_taken(command: tuple[str, ...]) -> None:
    said = CliRunner().invoke(cli, [*command, "--help"]).output
    assert ("|auto" in said, "auto: the best" in said) == (command == ("plan",),) * 2


@pytest.mark.parametrize("calls", [1, 2])
def test_an_interrupt_ends_the_search(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a mesh or a placement is planned: nothing is planned after it, and the best plan so far is the answer."""
    text, limit = PROGRAMS["large weights"]
    solved = interrupting(calls, monkeypatch)
    found = autoshard.plan_meshes(
        text.encode(), devices=8, memory_bytes=memory[limit], hardware="tpu-v5e", topology=(2, 4)
    )
    assert len(solved) == calls
    assert [row.verdict for row in found.comparison.rows].count("best") == 1
    assert "not examined" in [row.verdict for row in found.comparison.rows]
