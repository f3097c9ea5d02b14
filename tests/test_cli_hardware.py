"""`autoshard hardware`: the profiles as a user reads them."""

import json
import tomllib
from pathlib import Path

import pytest

import costmodels
from autoshard.cli import main
from costmodels import load, names
from costmodels.listing import unit
from tests.test_cli import Terminal, autoshard, profile

__all__ = ["autoshard"]  # the fixture


def test_every_profile_is_listed(autoshard: Terminal) -> None:
    """One line each, in order."""
    done = autoshard("hardware")
    assert done.status == 0
    assert [line.split()[0] for line in done.out.splitlines()[1 : len(names()) + 1]] == names()


@pytest.mark.parametrize("name", names())
def test_every_figure_of_the_file_is_there(name: str, autoshard: Terminal) -> None:
    """Each key of the TOML file with its value, unit and source; nothing that the file does not say."""
    done = autoshard("hardware", name, "--json")
    assert done.status == 0
    listed = json.loads(done.out)["figures"]
    tables = tomllib.loads((Path(costmodels.__file__).parent / "hardware" / f"{name}.toml").read_text())
    written = {
        f"{table}.{key}": value
        for table, rows in tables.items()
        if table != "calibration"
        for key, value in rows.items()
        if not key.endswith("source")
    }
    assert {figure: row["value"] for figure, row in listed.items()} == written
    for figure, row in listed.items():
        assert len(row["source"]) > 10
        assert row["unit"] == unit(figure)
    table = autoshard("hardware", name).out
    assert [figure for figure in listed if figure not in table] == []


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("hbm_gib", "GiB"),
        ("hbm_gb", "GB"),
        ("hbm_gb_per_s", "GB/s"),
        ("latency_us", "µs"),
        ("elementwise_gflop_per_s", "GFLOP/s"),
        ("matrix_efficiency", ""),
        ("max_chips", "chips"),
    ],
)
def test_units(key: str, expected: str) -> None:
    """The unit is that of the key's name."""
    assert unit(key) == expected


def test_a_profile_of_the_users_own(autoshard: Terminal) -> None:
    """By its path, with what its file says."""
    autoshard.write("mine.toml", profile(hbm_gib="hbm_gib = 24"))
    listed = json.loads(autoshard("hardware", "mine.toml", "--json").out)
    assert listed["name"] == "mine"
    assert listed["figures"]["chip.hbm_gib"]["value"] == 24
    assert load("tpu-v5e").figures() != load(autoshard.folder / "mine.toml").figures()


def test_unknown_profile(autoshard: Terminal) -> None:
    """Exit status 2 with those that there are."""
    done = autoshard("hardware", "tpu-v99")
    assert (done.status, done.out) == (2, "")
    assert all(name in done.err for name in names())


def test_prices_of_a_scheduler(autoshard: Terminal) -> None:
    """A plan keeps the name, and what reads the plan understands it; of a profile of one's own it takes the file."""
    shown = autoshard("hardware", "tpu-v5e:scheduler")
    assert "Times are those of the compiler's scheduler" in shown.out
    assert "Times are those" not in autoshard("hardware", "tpu-v5e").out
    assert json.loads(autoshard("hardware", "tpu-v5e:scheduler", "--json").out)["priced_by"] == "scheduler"
    assert "NAME:scheduler" in autoshard("hardware").out
    autoshard.write("mine.toml", profile())
    for name in ("tpu-v5e:scheduler", "mine.toml:scheduler"):
        asked = ("--mesh", "x=4", "--hardware", name, "--plan-out", "plan.json")
        assert autoshard("plan", "model.mlir", *asked).status == 0
        given = ("--hardware", name) if name.startswith("mine") else ()
        for command in (
            ("check", "model.mlir", "--plan", "plan.json"),
            ("why", "plan.json", "arg0"),
            ("sensitivity", "plan.json"),
        ):
            done = autoshard(*command, *given)
            assert done.status == 0, (command, done)
    unknown = autoshard("check", "model.mlir", "--plan", "plan.json")
    assert (unknown.status, unknown.out) == (2, "")
    assert "the plan is for 'mine'" in unknown.err and "--hardware FILE.toml:scheduler" in unknown.err


@pytest.mark.parametrize("width", [20, 40, 60, 80, 150])
def test_narrow_terminals_cut_no_figures(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names and texts go on in the next line; every figure is whole in one."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr("sys.argv", ["autoshard", "hardware"])
    main()
    said = capsys.readouterr().out
    assert "…" not in said
    words = said.split()
    for name in costmodels.names():
        chip = costmodels.load(name).chip
        assert {f"{chip.hbm_gb_per_s:g}", f"{chip.bf16_tflop_per_s:g}"} <= set(words)
    assert max(map(len, said.splitlines()[:9])) <= max(width, 72)
