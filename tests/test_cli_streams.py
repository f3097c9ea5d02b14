"""The standard streams of the command line from outside: closed, full, of another encoding, and interrupts at any time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_cli import MATMUL, ON_X

ROOT = Path(__file__).parents[1]
NEEDS_FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
COMMANDS = {
    "help": ("plan", "--help"),
    "hardware": ("hardware",),
    "plan": ("plan", "model.mlir", *ON_X),
    "cost": ("cost", "model.mlir", *ON_X, "--json"),
}


def run(
    folder: Path,
    arguments: tuple[str, ...],
    streams: str = "",
    *,
    encoding: str = "utf-8",
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """`autoshard ARGUMENTS STREAMS` in a shell, `streams` being what it makes of them."""
    (folder / "model.mlir").write_text(MATMUL)
    return subprocess.run(
        ["bash", "-c", f'"$@" {streams}', "bash", sys.executable, "-m", "autoshard", *arguments],
        capture_output=True,
        encoding=encoding,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    ("streams", "reason"),
    [
        pytest.param(">/dev/full", "No space left on device", marks=NEEDS_FULL),
        (">&-", "it is closed"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_output_that_cannot_be_written(
    command: str, streams: str, reason: str, unbuffered: str, tmp_path: Path
) -> None:
    """One line on stderr, and exit status 2."""
    done = run(tmp_path, COMMANDS[command], streams, PYTHONUNBUFFERED=unbuffered)
    said = f"autoshard: cannot write to standard output: {reason}\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize("command", COMMANDS)
def test_messages_may_have_nowhere_to_go(command: str, tmp_path: Path) -> None:
    """The answer is printed where standard error is closed."""
    done = run(tmp_path, COMMANDS[command], "2>&-")
    assert done.returncode == 0 and done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("command", ["hardware", "plan", "cost"])
def test_every_encoding_will_do(command: str, encoding: str, tmp_path: Path) -> None:
    """What an encoding has not got stands there as the nearest that it has."""
    done = run(tmp_path, COMMANDS[command], encoding=encoding, PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    if command == "plan":
        assert ("us = compute" if encoding == "ascii" else "µs = compute") in done.stdout


def test_standard_input_is_closed(tmp_path: Path) -> None:
    done = run(tmp_path, ("plan", "-", *ON_X), "<&-")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("autoshard: standard input: is closed\n")


INTERRUPTED = """
import importlib.abc, os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the shell ignores

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from autoshard.__main__ import main
sys.argv = ["autoshard", "hardware"]
main()
"""


@pytest.mark.parametrize("name", ["autoshard.cli", "autoshard.cli.planning", "numpy", "rich.table"])
def test_an_interrupt_while_modules_are_imported(name: str) -> None:
    """Exit status 130 and no traceback."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(name=name)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout, done.stderr.lstrip()) == (130, "", "autoshard: interrupted\n")
