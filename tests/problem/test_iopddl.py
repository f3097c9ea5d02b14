"""The contest's JSON, in and out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from autoshard.errors import AutoshardError
from autoshard.problem import evaluate, read_iopddl, write_iopddl
from autoshard.solve import brute_force
from tests.problem.strategies import random_problem

INSTANCES = Path(__file__).parents[3] / "shared" / "iopddl"
EXAMPLE = {
    "nodes": {
        "intervals": [[30, 70], [40, 70], [0, 0]],
        "costs": [[15], [55, 65], [25, 10**18, 35]],
        "usages": [[10], [25, 25], [15, 20, 15]],
    },
    "edges": {"nodes": [[0, 1], [1, 2]], "costs": [[30, 40], [50, 10, 40, 10**18, 9, 8]]},
    "usage_limit": 50,
}


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(text)
    return path


def test_the_contest_example_costs_what_its_readme_says() -> None:
    """[0, 0, 2, 1, 0] costs 445."""
    if not INSTANCES.exists():
        pytest.skip("the contest's instances are not here")
    assert evaluate(read_iopddl(INSTANCES / "example.json"), [0, 0, 2, 1, 0]).cost == 445


def test_large_numbers_become_masks(tmp_path: Path) -> None:
    """A sentinel is a forbidden strategy or pair, never a cost."""
    problem = read_iopddl(written(tmp_path, json.dumps({"problem": EXAMPLE})))
    assert problem.node_mask(2).tolist() == [True, False, True]
    assert evaluate(problem, [0, 1, 0]).violations == ("edge 1: pair (1, 0) of nodes 1 and 2 is forbidden",)
    assert problem.memory_limit == 50


@pytest.mark.parametrize("name", ["p.json", "p.json.gz"])
@pytest.mark.parametrize("seed", range(20))
def test_round_trip_keeps_the_optimum(seed: int, name: str, tmp_path: Path) -> None:
    """Whatever is lowered to extra nodes, the cheapest choice costs the same and its head is one of the original."""
    problem = random_problem(np.random.default_rng(seed), kind="tree")
    write_iopddl(problem, tmp_path / name)
    again = read_iopddl(tmp_path / name)
    write_iopddl(again, tmp_path / "twice.json")
    twice = read_iopddl(tmp_path / "twice.json")
    assert (twice.node_cost == again.node_cost).all()
    if np.prod(again.strategy_counts.astype(float)) > 3_000:
        return
    reference, answer = brute_force(problem), brute_force(again)
    assert (answer.status, answer.cost) == (reference.status, reference.cost)
    assert answer.smallest_peak == reference.smallest_peak
    if answer.choice is not None:
        assert evaluate(problem, answer.choice[: problem.node_count]).cost == reference.cost


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("{}", "is no IOPDDL problem"),
        (json.dumps({"problem": EXAMPLE})[:-5], "is no JSON"),
        (json.dumps({"problem": EXAMPLE | {"edges": {"nodes": [[0, 7]], "costs": [[1]]}}}), "edge 0"),
        (json.dumps({"problem": EXAMPLE | {"edges": {"nodes": [[0, 1]], "costs": [[1]]}}}), "edge 0"),
        (json.dumps({"problem": EXAMPLE}).replace("15", '"x"'), "no whole numbers"),
        (json.dumps({"problem": EXAMPLE}).replace("[30, 70]", "[70, 30]"), "node 0"),
    ],
)
def test_malformed_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    """The error says what is wrong, with the node or edge where there is one."""
    with pytest.raises(AutoshardError) as caught:
        read_iopddl(written(tmp_path, text))
    assert message in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """No traceback for a wrong path."""
    with pytest.raises(AutoshardError):
        read_iopddl(tmp_path / "missing.json")
