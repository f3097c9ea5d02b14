"""Requests on the command line that were misread."""

import sys
from pathlib import Path

import pytest

from autoshard import cli


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--topology", "²x4"], "cannot read the topology"),
        (["--mesh", "x=²"], "cannot read the mesh"),
        (["-o", "out", "--plan-out", "./out"], "name one file"),
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
