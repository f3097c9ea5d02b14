"""`autoshard problem` and `autoshard solve` as a user meets them."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoshard import solve
from autoshard.cli import solving
from autoshard.cli.solving import SOLVERS
from autoshard.problem import evaluate, read_iopddl
from tests.test_cli import ON_X, Terminal

ROOT = Path(__file__).parents[1]
EXAMPLE: dict[str, Any] = {
    "nodes": {
        "intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
        "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
        "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]],
    },
    "edges": {
        "nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
        "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]],
    },
    "usage_limit": 50,
}
"""The contest's own example: [0, 0, 2, 1, 0] costs 445."""


@pytest.fixture
def autoshard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    terminal = Terminal(tmp_path, monkeypatch, capsys)
    terminal.write("p.json", json.dumps({"problem": EXAMPLE}))
    return terminal


def test_the_last_line_is_the_contest_s(autoshard: Terminal) -> None:
    """The choice as the contest's list on stdout, figures and what was proved on stderr."""
    done = autoshard("solve", "p.json")
    assert (done.status, done.out) == (0, "[0, 0, 2, 1, 0]\n")
    figures = dict(line.split(None, 1) for line in done.err.splitlines())
    assert figures["p.json:"] == "5 nodes, 5 edges, 9 strategies, 8 time points, memory limit 50"
    assert (figures["cost"], figures["peak"], figures["gap"]) == ("445", "50 of 50", "0.0000%")
    assert figures["status"].startswith("optimal: ")


def test_solvers_are_those_of_solve() -> None:
    """The command line lists them without importing any."""
    assert solve.SOLVERS == SOLVERS


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_proves_the_example(solver: str, autoshard: Terminal) -> None:
    """`--solver` chooses who proves it; the answer is the same."""
    done = autoshard("solve", "p.json", "--json", "--solver", solver, "--threads", "1", "--seed", "7")
    found = json.loads(done.out)
    assert (done.status, found["status"], found["cost"]) == (0, "optimal", 445)


def test_json(autoshard: Terminal) -> None:
    """One document with the choice, what it costs and uses, and what was proved."""
    autoshard.write("p.json.gz", gzip.compress(json.dumps({"problem": EXAMPLE}).encode()))
    found = json.loads(autoshard("solve", "p.json.gz", "--json").out)
    assert found["choice"] == [0, 0, 2, 1, 0]
    assert (found["cost"], found["lower_bound"], found["gap"]) == (445, 445, 0)
    assert (found["peak"], found["memory_limit"]) == (50, 50)
    assert set(found["seconds"]) == {"read", "solve"}


@pytest.mark.parametrize(("memory", "limit"), [("none", None), ("1kB", 1000), ("50", 50), ("55B", 55)])
def test_memory_replaces_the_limit(memory: str, limit: int | None, autoshard: Terminal) -> None:
    """`--memory` wins over usage_limit: a plain number, a size with a unit, or none."""
    found = json.loads(autoshard("solve", "p.json", "--json", "--memory", memory).out)
    assert found["memory_limit"] == limit
    assert found["status"] == "optimal"
    assert found["peak"] <= (limit or 100)


@pytest.mark.parametrize("memory", ["0", "49"])
def test_proved_infeasible(memory: str, autoshard: Terminal) -> None:
    """Exit status 1, nothing on stdout, and the smallest peak that a larger limit would have to allow."""
    done = autoshard("solve", "p.json", "--memory", memory)
    assert (done.status, done.out) == (1, "")
    assert "proved that there is none; smallest peak 50 found (bound on the peak 50)" in done.err
    as_json = autoshard("solve", "p.json", "--memory", memory, "--json")
    found = json.loads(as_json.out)
    assert as_json.status == 1
    assert (found["choice"], found["status"], found["smallest_peak"]) == (None, "infeasible", 50)


def test_none_found(autoshard: Terminal) -> None:
    """Without time nothing is proved: the statement is only that none was found."""
    size = 12
    grid = [(a, b) for a in range(size) for b in range(a + 1, size)]
    body = {
        "nodes": {
            "intervals": [[node, node + 3] for node in range(size)],
            "costs": [[1, 2, 3]] * size,
            "usages": [[1, 5, 2]] * size,
        },
        "edges": {"nodes": grid, "costs": [[10**18, 1, 1, 1, 10**18, 2, 1, 2, 10**18]] * len(grid)},
        "usage_limit": 4,
    }
    autoshard.write("p.json", json.dumps({"problem": body}))
    done = autoshard("solve", "p.json", "--time-limit", "0")
    assert done.status == 1
    (said,) = (line for line in done.err.splitlines() if line.startswith("choice"))
    assert said.split(None, 1)[1].startswith("none found")
    assert "(bound on the peak " in said


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "no such file": (("nothing.json",), "nothing.json: cannot be read: No such file or directory"),
    "a folder": ((".",), ".: cannot be read: Is a directory"),
    "cut off": (("cut.json",), "cut.json: edge 3, costs, byte "),
    "half a gzip file": (("cut.json.gz",), "cut.json.gz: damaged gzip file"),
    "a missing node": (("edge.json",), "edge.json: edge 4: ends at node 9, which does not exist"),
    "negative seed": (("p.json", "--seed", "-1"), "Invalid value for '--seed': -1"),
    "a seed that CP-SAT cannot take": (("p.json", "--seed", str(2**31)), "Invalid value for '--seed'"),
    "no threads": (("p.json", "--threads", "0"), "Invalid value for '--threads': 0"),
    "unknown solver": (("p.json", "--solver", "magic"), "Invalid value for '--solver': 'magic'"),
    "time limit below 0": (("p.json", "--time-limit", "-1"), "--time-limit"),
    "endless time limit": (("p.json", "--time-limit", "inf"), "a time limit of inf s is no limit"),
    "memory that does not parse": (("p.json", "--memory", "-5"), "cannot read the memory size '-5'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests(case: str, autoshard: Terminal) -> None:
    """Exit status 2, nothing on stdout, and one block on stderr that says what is wrong."""
    text = json.dumps({"problem": EXAMPLE})
    autoshard.write("cut.json", text[: text.index("60, 20")])
    autoshard.write("cut.json.gz", gzip.compress(text.encode())[:-20])
    autoshard.write("edge.json", text.replace("[3, 4]]", "[3, 9]]"))
    arguments, message = BAD[case]
    done = autoshard("solve", *arguments)
    assert (done.status, done.out) == (2, "")
    assert message in done.err
    assert "Traceback" not in done.err


INTERRUPTED = """
import os, signal, sys
from contextlib import contextmanager
from autoshard.cli import main, solving

@contextmanager
def impatient():
    def report(phase, gap):
        if gap is not None and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)
    sent = []
    yield report

solving.progress_bar = impatient
sys.argv = ["autoshard", "solve", *sys.argv[1:], "--time-limit", "600"]
main()
"""


@pytest.mark.parametrize("as_json", [False, True])
def test_an_interrupt_prints_the_best_choice_so_far(as_json: bool, tmp_path: Path) -> None:
    """Ctrl-C as soon as there is a choice: exit status 0, long before the time limit, and the choice is valid."""
    side, strategies = 12, 12
    nodes = side * side
    ends = [(node, node + 1) for node in range(nodes) if (node + 1) % side] + [
        (node, node + side) for node in range(nodes - side)
    ]
    costs = [
        [(7 * e + 5 * a * b + 3 * a + 11 * b) % 97 for a in range(strategies) for b in range(strategies)]
        for e in range(len(ends))
    ]
    body = {
        "nodes": {
            "intervals": [[node, node + 9] for node in range(nodes)],
            "costs": [[(node * s) % 13 for s in range(strategies)] for node in range(nodes)],
            "usages": [[s + 1 for s in range(strategies)] for _ in range(nodes)],
        },
        "edges": {"nodes": ends, "costs": costs},
        "usage_limit": 200,
    }
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"problem": body}))
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(path), *(["--json"] if as_json else [])],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    choice = printed["choice"] if as_json else printed
    assert evaluate(read_iopddl(path), choice).feasible


def test_an_interrupt_while_printing_is_too_late(
    autoshard: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is printed whole, with exit status 0."""
    echo = solving.click.echo

    def interrupted_echo(message: str, err: bool = False) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        echo(message, err=err)

    monkeypatch.setattr(solving.click, "echo", interrupted_echo)
    done = autoshard("solve", "p.json")
    assert (done.status, done.out) == (0, "[0, 0, 2, 1, 0]\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_problem_is_what_plan_solves(autoshard: Terminal) -> None:
    """Solving the written problem gives the planned step, and the limit is the plan's budget."""
    planned = json.loads(autoshard("plan", "model.mlir", *ON_X, "--json").out)
    done = autoshard("problem", "model.mlir", *ON_X, "-o", "q.json.gz")
    assert (done.status, done.out) == (0, "")
    assert done.err.startswith("q.json.gz: ")
    assert f"memory limit {planned['memory_bytes']}" in done.err
    found = json.loads(autoshard("solve", "q.json.gz", "--json").out)
    assert found["cost"] == planned["predicted"]["step_ns"]
    assert found["memory_limit"] == planned["memory_bytes"]


def test_problem_without_a_limit(autoshard: Terminal) -> None:
    """`--memory none` writes no usage_limit."""
    done = autoshard("problem", "model.mlir", *ON_X, "--memory", "none", "-o", "q.json")
    assert done.status == 0
    assert "no memory limit" in done.err
    assert read_iopddl(autoshard.folder / "q.json").memory_limit is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model.mlir", *ON_X), "Missing option '-o'"),
        (("model.mlir", *ON_X, "-o", "no/q.json"), "no: no such folder"),
        (("model.mlir", "--mesh", "", "-o", "q.json"), "cannot read the mesh ''"),
        (("nothing.mlir", *ON_X, "-o", "q.json"), "nothing.mlir: no such file"),
    ],
)
def test_problems_that_cannot_be_written(
    arguments: tuple[str, ...], message: str, autoshard: Terminal
) -> None:
    """Exit status 2 with the reason, and no file."""
    before = autoshard.files()
    done = autoshard("problem", *arguments)
    assert done.status == 2
    assert message in done.err
    assert autoshard.files() == before
