"""The contest's JSON, in and out."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.problem import Problem, ProblemBuilder, Table, evaluate, read_iopddl, write_iopddl
from autoshard.problem.model import Ints
from autoshard.solve import brute_force
from tests.problem.documents import EXAMPLE, example, plain_reader, spelled
from tests.problem.strategies import problems, random_choice, random_problem

INSTANCES = Path(__file__).parents[3] / "shared" / "iopddl"


def read(tmp_path: Path, text: str, block: int | None = None) -> Problem:
    path = tmp_path / "problem.json"
    path.write_text(text)
    return read_iopddl(path, block=block)


def lowered(problem: Problem, choice: Ints, again: Problem) -> Ints | None:
    """The choice with the one strategy that their ties leave the extra nodes; None where they leave none."""
    whole = np.concatenate([choice, np.zeros(again.node_count - problem.node_count, dtype=np.int64)])
    for node in range(problem.node_count, again.node_count):
        fits = np.ones(again.strategy_counts[node], dtype=np.bool_)
        for (u, v), index in zip(again.edge_nodes, again.edge_table, strict=True):
            allowed = again.tables[index].allowed
            if v == node and allowed is not None:
                fits &= allowed[whole[u]]
        if not fits.any():
            return None
        assert fits.sum() == 1
        whole[node] = fits.argmax()
    return whole


def test_the_contest_example_costs_what_its_readme_says() -> None:
    """[0, 0, 2, 1, 0] costs 445."""
    if not INSTANCES.exists():
        pytest.skip("the contest's instances are not here")
    assert evaluate(read_iopddl(INSTANCES / "example.json"), [0, 0, 2, 1, 0]).cost == 445


def test_large_numbers_become_masks(tmp_path: Path) -> None:
    """A sentinel is a forbidden strategy or pair, never a cost."""
    problem = read(tmp_path, json.dumps({"problem": EXAMPLE}))
    assert problem.node_mask(2).tolist() == [True, False, True]
    assert problem.node_costs(2).tolist() == [25, 0, 35]
    assert evaluate(problem, [0, 1, 0]).violations == ("edge 1: pair (1, 0) of nodes 1 and 2 is forbidden",)
    assert problem.memory_limit == 50


@st.composite
def documents(draw: st.DrawFn) -> str:
    problem = random_problem(np.random.default_rng(draw(st.integers(0, 2**32 - 1))))
    builder = ProblemBuilder()
    for node in range(problem.node_count):
        builder.add_node(problem.node_costs(node), problem.node_mask(node))
    body = {
        "nodes": {
            "intervals": [[3, 3 + node % 4] for node in range(problem.node_count)],
            "costs": [
                np.where(problem.node_mask(node), problem.node_costs(node), 10**18).tolist()
                for node in range(problem.node_count)
            ],
            "usages": [[7 * node] * int(count) for node, count in enumerate(problem.strategy_counts)],
        },
        "edges": {
            "nodes": problem.edge_nodes.tolist(),
            "costs": [problem.tables[index].cost.ravel().tolist() for index in problem.edge_table],
        },
    }
    limit = draw(st.sampled_from([None, 0, 12, 10**15]))
    return spelled(draw, {"problem": body if limit is None else body | {"usage_limit": limit}})


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(documents(), st.integers(1, 90), st.data())
def test_any_spelling_and_any_window_read_the_same(
    tmp_path: Path, text: str, block: int, data: st.DataObject
) -> None:
    """Order of keys, unknown keys, blanks and where the text is cut into windows make no difference."""
    problem, reference = read(tmp_path, text, block), plain_reader(text)
    assert problem.memory_limit == reference.memory_limit
    assert (problem.node_allowed == reference.node_allowed).all()
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for _ in range(5):
        choice = random_choice(rng, reference)
        found, wanted = evaluate(problem, choice), evaluate(reference, choice)
        assert (found.cost, found.peak, found.violations) == (wanted.cost, wanted.peak, wanted.violations)


@pytest.mark.parametrize("block", [7, 10_000])
def test_equal_matrices_share_a_table(block: int, tmp_path: Path) -> None:
    """By content, however they are spelled, but not across shapes; also where matrices come before the nodes."""
    numbers = "1,2,3,1000000000000,5,600000000000000000"
    spaced = numbers.replace(",", " , ")
    matrices = f"[[{numbers}],[{spaced}],[{numbers}],[1,2,3,4,5,6]]"
    costs = "[[0,0],[0,0,0],[0,0],[0,0,0]]"
    nodes = f'{{"costs":{costs},"usages":{costs},"intervals":[[0,1],[0,1],[0,1],[0,1]]}}'
    edges = f'{{"costs":{matrices},"nodes":[[0,1],[2,3],[1,2],[0,3]]}}'
    problem = read(tmp_path, f'{{"problem":{{"edges":{edges},"nodes":{nodes}}}}}', block)
    assert len(problem.tables) == 3
    assert problem.edge_table[0] == problem.edge_table[1]
    by_edge = [problem.tables[index] for index in problem.edge_table]
    assert [table.cost.shape for table in by_edge] == [(2, 3), (2, 3), (3, 2), (2, 3)]
    assert by_edge[2].cost.tolist() == [[1, 2], [3, 10**12], [5, 0]]
    assert by_edge[3].allowed is None


@settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(problems(), st.booleans(), st.integers(0, 1000))
def test_a_written_problem_prices_every_choice_the_same(
    tmp_path: Path, problem: Problem, packed: bool, seed: int
) -> None:
    """Cost, peak and validity of random choices survive; what has no place in the format follows the choice."""
    path = tmp_path / ("p.json.gz" if packed else "p.json")
    write_iopddl(problem, path)
    again = read_iopddl(path)
    assert again.memory_limit == problem.memory_limit
    rng = np.random.default_rng(seed)
    for _ in range(5):
        choice = random_choice(rng, problem)
        priced, whole = evaluate(problem, choice), lowered(problem, choice, again)
        if whole is None:
            assert priced.cost is None, "ties are broken only by a pair that is forbidden"
            continue
        repriced = evaluate(again, whole)
        assert (repriced.cost, repriced.feasible) == (priced.cost, priced.feasible)
        assert repriced.peak == priced.peak or priced.cost is None


@pytest.mark.parametrize("seed", range(20))
def test_round_trip_keeps_the_optimum(seed: int, tmp_path: Path) -> None:
    """Whatever is lowered to extra nodes, the cheapest choice costs the same and its head is one of the original."""
    problem = random_problem(np.random.default_rng(seed), kind="tree")
    write_iopddl(problem, tmp_path / "p.json")
    again = read_iopddl(tmp_path / "p.json")
    if np.prod(again.strategy_counts.astype(float)) > 3_000:
        return
    reference, answer = brute_force(problem), brute_force(again)
    assert (answer.status, answer.cost) == (reference.status, reference.cost)
    assert answer.smallest_peak == reference.smallest_peak
    if answer.choice is not None:
        assert evaluate(problem, answer.choice[: problem.node_count]).cost == reference.cost


def test_what_is_written_again_is_the_same_text(tmp_path: Path) -> None:
    """Once lowered, a problem is written as it was read, byte by byte."""
    problem = random_problem(np.random.default_rng(3), memory=True)
    write_iopddl(problem, tmp_path / "once.json.gz")
    write_iopddl(read_iopddl(tmp_path / "once.json.gz"), tmp_path / "twice.json.gz")
    assert (tmp_path / "once.json.gz").read_bytes() == (tmp_path / "twice.json.gz").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"once.json.gz", "twice.json.gz"}


EMPTY = {"nodes": {"intervals": [], "costs": [], "usages": []}, "edges": {"nodes": [], "costs": []}}
SINGLE = {"nodes": {"intervals": [[0, 9]], "costs": [[4, 3]], "usages": [[0, 5]]}, "edges": EMPTY["edges"]}


@pytest.mark.parametrize("block", [3, 10_000])
@pytest.mark.parametrize(
    ("body", "choice", "cost", "feasible"),
    [
        (EMPTY, [], 0, True),
        (EMPTY | {"usage_limit": 0}, [], 0, True),
        (SINGLE, [1], 3, True),
        (SINGLE | {"usage_limit": None}, [1], 3, True),
        (SINGLE | {"usage_limit": 0}, [1], 3, False),
        (SINGLE | {"usage_limit": 0}, [0], 4, True),
    ],
)
def test_small_problems(
    body: dict[str, object], choice: list[int], cost: int, feasible: bool, block: int, tmp_path: Path
) -> None:
    """No nodes, a single node, no edges, no limit, null for no limit, and a limit of zero."""
    problem = read(tmp_path, json.dumps({"problem": body}), block)
    priced = evaluate(problem, choice)
    assert (priced.cost, priced.feasible) == (cost, feasible)
    write_iopddl(problem, tmp_path / "again.json")
    assert evaluate(read_iopddl(tmp_path / "again.json"), choice) == priced


def test_several_gzip_members_and_a_pipe(tmp_path: Path) -> None:
    """A file that was packed in pieces, and one that cannot be read twice."""
    text = json.dumps(example()).encode()
    packed = gzip.compress(text[:50]) + gzip.compress(text[50:])
    (tmp_path / "p.json.gz").write_bytes(packed)
    assert read_iopddl(tmp_path / "p.json.gz").node_count == 3
    reading, writing = os.pipe()
    os.write(writing, packed)
    os.close(writing)
    assert read_iopddl(f"/dev/fd/{reading}").node_count == 3
    os.close(reading)


def test_a_cost_that_would_read_back_as_forbidden_is_refused(tmp_path: Path) -> None:
    """The format cannot say it, so it is not written; a forbidden entry may hold anything."""
    problem = ProblemBuilder()
    problem.add_node([0, 10**17], [True, False])
    problem.add_node([0])
    large = np.array([[0], [10**17]])
    problem.add_edge(0, 1, Table(large, np.array([[True], [False]])))
    write_iopddl(problem.build(), tmp_path / "p.json")
    for where, broken in (
        ("node 0", replace(problem.build(), node_allowed=np.ones(3, dtype=np.bool_))),
        ("edge 0", replace(problem.build(), tables=(Table(large),))),
    ):
        with pytest.raises(AutoshardError, match=where):
            write_iopddl(broken, tmp_path / "q.json")
    assert not (tmp_path / "q.json").exists()


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """Nowhere to write: an error that names the file."""
    with pytest.raises(AutoshardError, match=r"none/p\.json: cannot be written"):
        write_iopddl(random_problem(np.random.default_rng(0)), tmp_path / "none" / "p.json")
