"""`solve` against brute force."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autoshard.solve.peak as peak
import autoshard.solve.reduce as reduce
from autoshard.errors import AutoshardError
from autoshard.problem import Problem, ProblemBuilder, Table, evaluate
from autoshard.problem.model import Ints
from autoshard.solve import Status, brute_force, solve
from autoshard.solve.clock import Clock
from autoshard.solve.descent import PeakDescent
from autoshard.solve.load import certain_peak
from autoshard.solve.peak import smallest_peak
from tests.problem.strategies import random_problem
from tests.solve.cores import copies
from tests.solve.problems import crowded

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(150))
def test_solve_equals_brute_force(seed: int) -> None:
    """Cost, status and bound agree with trying everything, and the choice is worth what is said."""
    problem = random_problem(np.random.default_rng(seed))
    reference = brute_force(problem)
    answer = solve(problem, time_limit_s=60)
    assert answer.status is reference.status
    assert answer.cost == reference.cost
    if answer.choice is not None:
        priced = evaluate(problem, answer.choice)
        assert priced.feasible
        assert (priced.cost, priced.peak) == (answer.cost, answer.peak)
        assert answer.lower_bound == answer.cost
    if answer.status is Status.INFEASIBLE and reference.smallest_peak is not None:
        assert answer.peak_lower_bound == reference.smallest_peak == answer.smallest_peak


@pytest.mark.parametrize("seed", range(60))
def test_infeasible_is_said_exactly_where_nothing_fits(seed: int) -> None:
    """Near the limit, with memory on edges and several items each; and without time only what is proved."""
    problem = crowded(np.random.default_rng(seed))
    reference = brute_force(problem)
    answer, hasty = solve(problem, time_limit_s=60), solve(problem, time_limit_s=0)
    assert (answer.status, answer.cost) == (reference.status, reference.cost)
    assert hasty.status is not Status.INFEASIBLE or reference.status is Status.INFEASIBLE
    if reference.smallest_peak is not None:
        assert max(answer.peak_lower_bound, hasty.peak_lower_bound) <= reference.smallest_peak


@pytest.mark.parametrize("seed", range(30))
def test_a_cutoff_takes_nothing_cheaper_away(seed: int) -> None:
    """Below it the optimum is found and proved; from it on the bound says so, holds, and nothing more is claimed."""
    problem = random_problem(np.random.default_rng(seed))
    reference = brute_force(problem)
    if reference.cost is None:
        return
    for cutoff in (reference.cost + 1, reference.cost, reference.cost - 1):
        answer = solve(problem, time_limit_s=60, cutoff=cutoff)
        assert answer.status is not Status.INFEASIBLE
        assert min(cutoff, reference.cost) <= answer.lower_bound <= reference.cost
        assert answer.status is not Status.OPTIMAL or answer.cost == reference.cost
        assert cutoff <= reference.cost or answer.cost == reference.cost


def test_the_empty_problem_is_optimal() -> None:
    """No nodes, nothing to choose, cost zero."""
    answer = solve(ProblemBuilder().build(), time_limit_s=10)
    assert (answer.status, answer.cost, answer.lower_bound) == (Status.OPTIMAL, 0, 0)


def test_a_single_node_takes_its_cheapest_strategy_that_fits() -> None:
    """The limit is inclusive, to the byte."""
    builder = ProblemBuilder()
    builder.add_node([1, 5, 9])
    builder.add_node_usage(0, 0, 1, [12, 11, 10])
    costs = {12: 1, 11: 5, 10: 9}
    for limit, cost in costs.items():
        assert solve(builder.build(limit), time_limit_s=10).cost == cost
    answer = solve(builder.build(9), time_limit_s=10)
    assert answer.status is Status.INFEASIBLE
    assert (answer.smallest_peak, answer.peak_lower_bound) == (10, 10)


@pytest.mark.parametrize("seed", range(30))
def test_a_hint_is_never_worsened(seed: int) -> None:
    """With no time at all the answer is the best valid hint; the bound still holds."""
    problem = random_problem(np.random.default_rng(seed))
    reference = brute_force(problem)
    if reference.choice is None:
        return
    answer = solve(problem, time_limit_s=0, hints=[reference.choice])
    assert answer.cost == reference.cost
    assert reference.cost is not None and answer.lower_bound <= reference.cost


@pytest.mark.parametrize("seed", range(10))
def test_no_time_is_no_error(seed: int) -> None:
    """A time limit of zero gives an answer that claims nothing false."""
    problem = random_problem(np.random.default_rng(seed))
    reference, answer = brute_force(problem), solve(problem, time_limit_s=0)
    if answer.status is Status.INFEASIBLE:
        assert reference.status is Status.INFEASIBLE
    if answer.cost is not None:
        assert reference.cost is not None and answer.cost >= reference.cost


def ladder(rungs: int, seed: int) -> Problem:
    """A wide grid with memory that no exact engine takes at once."""
    rng = np.random.default_rng(seed)
    builder = ProblemBuilder()
    width, strategies = 6, 6
    for node in range(rungs * width):
        builder.add_node(rng.integers(0, 1000, strategies))
        usage = rng.integers(0, 100, strategies)
        builder.add_node_usage(node, node, node + 9, usage)
    tables = [Table(rng.integers(0, 1000, (strategies, strategies))) for _ in range(20)]
    for node in range(rungs * width):
        for other in (node + 1, node + width):
            if other < rungs * width:
                builder.add_edge(node, other, tables[int(rng.integers(len(tables)))])
    return builder.build(300)


def test_the_same_seed_gives_the_same_answer() -> None:
    """A work limit, not the clock, ends the run; then it is deterministic."""
    problem = ladder(30, 1)
    first, second = (
        solve(problem, time_limit_s=600, seed=3, work_limit=52, threads=threads) for threads in (1, 2)
    )
    assert first.choice is not None and second.choice is not None
    assert first.choice.tolist() == second.choice.tolist()
    assert (first.cost, first.lower_bound) == (second.cost, second.lower_bound)
    assert first.lower_bound <= (first.cost or 0)


def choice_of_a_fresh_process(hash_seed: str) -> str:
    """What a process with that hash seed answers to a problem with memory and edge usage."""
    code = (
        "import numpy as np\nfrom autoshard.solve import solve\n"
        "from tests.problem.strategies import random_problem\nfrom tests.solve.test_solve import ladder\n"
        "for p in [*(random_problem(np.random.default_rng(s), memory=True) for s in range(6)), ladder(8, 4)]:\n"
        "    a = solve(p, time_limit_s=600, seed=1, work_limit=30)\n"
        "    print(a.status, a.cost, a.lower_bound, None if a.choice is None else a.choice.tolist())"
    )
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment, cwd=ROOT
    )
    return done.stdout


def test_hash_seeds_do_not_change_the_answer() -> None:
    """Nothing depends on the order of a set of strings or on where objects lie."""
    first, second = choice_of_a_fresh_process("1"), choice_of_a_fresh_process("2")
    assert first == second
    assert len(first.splitlines()) == 7


def wide(seed: int) -> Problem:
    """Few nodes with many strategies, items on every edge, and a limit that no choice meets: presolve takes long."""
    rng = np.random.default_rng(seed)
    builder = ProblemBuilder()
    nodes, strategies = 60, 150
    for node in range(nodes):
        builder.add_node(rng.integers(0, 1000, strategies))
        builder.add_node_usage(node, node, node + 9, rng.integers(50, 100, strategies))
    for node in range(nodes):
        for other in (node + 1, node + 7):
            if other < nodes:
                edge = builder.add_edge(node, other, Table(rng.integers(0, 1000, (strategies, strategies))))
                usage = rng.integers(0, 100, (strategies, strategies))
                builder.add_edge_usage(edge, node, node + 9, usage)
    return builder.build(600)


@pytest.mark.parametrize("limit_s", [0.0, 0.3, 1.0])
def test_the_clock_is_looked_at_in_every_stage(limit_s: float) -> None:
    """Where the answer is nowhere near, it comes in time; one that does not look takes minutes."""
    solve(ladder(4, 1), time_limit_s=2, work_limit=20)  # compiles
    problem = wide(1)
    began = time.monotonic()
    answer = solve(problem, time_limit_s=limit_s)
    assert time.monotonic() - began < 30
    assert answer.status is not Status.OPTIMAL


def test_an_interrupt_during_presolve_returns_the_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before any engine has run."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reduce, "presolve", interrupted)
    problem = ladder(6, 1)
    assert solve(problem, time_limit_s=60).status is Status.NOT_FOUND
    free = replace(problem, memory_limit=None)
    answer = solve(free, time_limit_s=60, hints=[np.zeros(free.node_count, dtype=np.int64)])
    assert answer.status is Status.FEASIBLE
    assert answer.choice is not None and answer.choice.tolist() == [0] * free.node_count


def test_an_interrupt_returns_the_best_so_far() -> None:
    """Ctrl-C in the middle of the search ends it with an answer."""
    problem = ladder(30, 2)
    told: list[str] = []

    def interrupt(phase: str, gap: float | None) -> None:
        told.append(phase)
        if gap is not None and phase == "message passing":
            raise KeyboardInterrupt

    answer = solve(problem, time_limit_s=20, progress=interrupt)
    assert answer.status is Status.FEASIBLE
    assert answer.cost is not None and answer.lower_bound <= answer.cost


def test_an_interrupt_keeps_the_bound_on_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while nothing fits: what is known of the smallest peak is told."""
    search = PeakDescent.round

    def interrupted(descent: PeakDescent, clock: Clock) -> None:
        search(descent, clock)
        raise KeyboardInterrupt

    monkeypatch.setattr(peak, "_CPSAT_PAIRS", -1)
    monkeypatch.setattr(PeakDescent, "round", interrupted)
    problem, clock = copies(100, limit=149), Clock(60)
    peaks: list[int] = []

    def offer(choice: Ints) -> bool:
        peaks.append(evaluate(problem, choice).peak)
        return False

    certain = certain_peak(problem)
    bound = smallest_peak(problem, certain, clock, 0, [], offer)
    assert clock.interrupted
    assert certain < bound <= min(peaks)


def test_a_core_that_is_too_large_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is offered, and the bound is what is certain."""
    monkeypatch.setattr(peak, "_CPSAT_PAIRS", -1)
    monkeypatch.setattr(peak, "_MOST_PAIRS", 100)
    problem = copies(100, limit=149)
    certain = certain_peak(problem)

    def offer(choice: Ints) -> bool:
        raise AssertionError(choice)

    assert smallest_peak(problem, certain, Clock(60), 0, [], offer) == certain


def test_a_peak_of_half_of_all_that_can_be_counted() -> None:
    """The only strategy that is left uses 2**59 bytes: a peak like any other."""
    builder = ProblemBuilder()
    first, second = builder.add_node([0, 0]), builder.add_node([0])
    builder.add_edge(first, second, Table(np.zeros((2, 1), dtype=np.int64), np.array([[False], [True]])))
    builder.add_node_usage(first, 0, 1, [0, 2**59 + 1])
    problem, offered = builder.build(5), list[list[int]]()
    bound = smallest_peak(problem, 0, Clock(60), 0, [], lambda choice: bool(offered.append(choice.tolist())))
    assert (bound, offered) == (2**59 + 1, [[1, 0]])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"hints": [np.zeros(3, dtype=np.int64)]}, "(3,) of int64; the problem has 36 nodes"),
        ({"hints": [np.full(36, 99)]}, "node 0 has no strategy 99"),
        ({"hints": [np.zeros(36)]}, "float64"),
        ({"time_limit_s": math.nan}, "is no limit"),
        ({"time_limit_s": -1.0}, "is no limit"),
        ({"seed": -1}, "out of range"),
        ({"seed": 2**63}, "out of range"),
        ({"solver": "glpk"}, "no solver is called 'glpk'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], reason: str) -> None:
    """Whoever calls from Python is told what is wrong with what."""
    request: dict[str, Any] = {"time_limit_s": 1.0} | arguments
    with pytest.raises(AutoshardError, match=re.escape(reason)):
        solve(ladder(6, 1), **request)


def test_importing_solve_imports_no_engine() -> None:
    """The command line starts fast: numba and ortools load when they are needed."""
    code = "import sys, autoshard.solve; sys.exit(any(m in sys.modules for m in ('numba', 'ortools')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("where", ["load", "shorten"])
def test_an_interrupt_ends_the_work_that_it_is_a_part_of(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes on after a search sees that it was interrupted."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"autoshard.solve.portfolio.{where}", interrupted)
    whole = Clock(60)
    solve(ladder(6, 1), time_limit_s=30, whole=whole)
    assert whole.interrupted and whole.over()


def test_a_search_ends_with_the_work_that_it_is_a_part_of() -> None:
    answer = solve(ladder(30, 2), time_limit_s=60, whole=Clock(0))
    assert answer.status is not Status.OPTIMAL
