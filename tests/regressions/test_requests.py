"""Requests on the command line, and of Python callers, that were misread."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import autoshard
from autoshard import cli


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--topology", "²x4"], "cannot read the topology"),
        (["--mesh", "x=²"], "cannot read the mesh"),
        (["-o", "out", "--plan-out", "./out"], "name one file"),
        ([""], "no model is named"),
        (["--form", "shardy", "--constraints", "all"], "is for the form xla, not shardy"),
    ],
)
def test_is_refused(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["autoshard", "plan", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


MODULE = """func.func @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = stablehlo.tanh %a : tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}"""


@pytest.mark.parametrize("entry", ["plan", "price", "explain"])
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"form": "hlo"}, "no form is called 'hlo'"),
        ({"overlap": "all"}, "no overlap is called 'all'"),
        ({"carry": "all"}, "cannot read what is carried, 'all'"),
        ({"carry": [0]}, "cannot read what is carried"),
        ({"memory_bytes": "16GB"}, "'16GB' is no memory budget"),
        ({"memory_bytes": float("nan")}, "nan is no memory budget"),
        ({"memory_bytes": -1}, "-1 is no memory budget"),
        ({"mesh": {"x": 2.5}}, "('x', 2.5) is no mesh axis"),
        ({"mesh": "x=4"}, "'x' is no mesh axis"),
    ],
)
def test_is_refused_in_python(entry: str, given: Mapping[str, Any], reason: str) -> None:
    """What a type checker would find, too: a form that there is not was taken for shardy, an overlap for none."""
    with pytest.raises(autoshard.AutoshardError) as refused:
        getattr(autoshard, entry)(MODULE, **{"mesh": {"x": 4}, **given})
    assert reason in str(refused.value)


def test_numbers_of_other_types_are_numbers() -> None:
    """16e9 bytes, as people write them, are a whole number in the plan."""
    found = autoshard.plan(MODULE, mesh={"x": 4}, memory_bytes=16e9)  # pyright: ignore[reportArgumentType]
    assert repr(found.memory_bytes) == "16000000000"


def test_a_form_is_refused_for_a_reshard_too() -> None:
    with pytest.raises(autoshard.AutoshardError, match="no form is called 'hlo'"):
        autoshard.reshard("8x8xf32", "[{}, {}]", '[{"x"}, {}]', mesh={"x": 4}, form="hlo")  # pyright: ignore[reportArgumentType]


def test_a_mesh_that_is_searched_for_has_no_axes_to_place() -> None:
    """Any placement but row-major was taken for auto."""
    with pytest.raises(autoshard.AutoshardError, match="names axes"):
        autoshard.plan_meshes(MODULE, devices=4, placement="x=0")  # pyright: ignore[reportArgumentType]
