"""MaxSAT against brute force, and its memory rows against arithmetic."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from threading import Timer

import numpy as np
import pytest
from pysat.solvers import Solver

from autoshard.problem import Problem, ProblemBuilder, evaluate
from autoshard.problem.model import Ints
from autoshard.solve import Solution, Status, brute_force
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core, flatten
from autoshard.solve.exact.adder import Clauses, Number, at_most
from autoshard.solve.exact.engine import Engine
from autoshard.solve.exact.maxsat import MaxSat
from autoshard.solve.graph import ContradictionError
from autoshard.solve.load import load
from tests.problem.strategies import KINDS, all_choices, random_problem


def core_of(problem: Problem) -> Core | None:
    """The problem without any reduction; None where loading already finds a contradiction."""
    try:
        return flatten(load(problem))
    except ContradictionError:
        return None


def all_rows(core: Core) -> Ints:
    return np.arange(len(core.room))


def assert_agrees(core: Core, reference: Solution) -> None:
    engine: Engine = MaxSat(core, 0)
    answer = engine.solve(all_rows(core), clock=Clock(60))
    assert answer.infeasible == (reference.status is Status.INFEASIBLE)
    assert answer.optimal != answer.infeasible
    if answer.choice is not None:
        assert core.fits(answer.choice)
        assert core.cost_of(answer.choice) == answer.lower_bound == reference.cost


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", [False, True])
def test_equals_brute_force(kind: str, memory: bool) -> None:
    """Optimum, bound and infeasibility are those of brute force, edge usage and forbidden entries included."""
    infeasible = 0
    for seed in range(12):
        problem = random_problem(np.random.default_rng(seed), kind=kind, memory=memory)
        core = core_of(problem)
        reference = brute_force(problem)
        infeasible += reference.status is Status.INFEASIBLE
        if core is None:
            assert reference.status is Status.INFEASIBLE
        else:
            assert_agrees(core, reference)
    assert infeasible < 12


@pytest.mark.parametrize("seed", range(20))
def test_limits_within_a_byte_of_reachable_peaks(seed: int) -> None:
    """A limit one byte below, at and above every third peak that some choice has is decided exactly."""
    problem = random_problem(np.random.default_rng(seed), kind="tree", memory=True)
    peaks = sorted({evaluate(problem, choice).peak for choice in all_choices(problem)})
    for limit in {max(0, peak + more) for peak in peaks[:9:3] for more in (-1, 0, 1)}:
        limited = replace(problem, memory_limit=limit)
        core, reference = core_of(limited), brute_force(limited)
        if core is None:
            assert reference.status is Status.INFEASIBLE
        else:
            assert_agrees(core, reference)


@pytest.mark.parametrize("seed", range(30))
def test_negative_and_huge_costs(seed: int) -> None:
    """Costs from -10**12 to 10**12, as reductions leave them, are summed exactly."""
    core = core_of(random_problem(np.random.default_rng(seed), kind="sparse", memory=False))
    assert core is not None
    rng = np.random.default_rng(seed)
    scaled = replace(
        core,
        constant=-7,
        cost=rng.integers(-(10**12), 10**12, len(core.cost)),
        pool=rng.integers(-(10**12), 10**12, len(core.pool)),
    )
    answer = MaxSat(scaled, 0).solve(all_rows(core), clock=Clock(60))
    costs = [scaled.cost_of(np.array(choice)) for choice in np.ndindex(*core.counts.tolist())]
    assert answer.optimal
    assert answer.lower_bound == min(cost for cost in costs if cost is not None)


@pytest.mark.parametrize("seed", range(20))
def test_only_the_rows_asked_for(seed: int) -> None:
    """One engine asked for no row, one, all and none again answers each question as if it were the first."""
    core = core_of(random_problem(np.random.default_rng(seed), kind="grid", memory=True))
    if core is None or not len(core.room):
        return
    engine = MaxSat(core, 0)
    for rows in (all_rows(core)[:0], all_rows(core)[:1], all_rows(core), all_rows(core)[:0]):
        answer = engine.solve(rows, clock=Clock(60))
        fresh = MaxSat(replace(core, room=np.where(np.isin(all_rows(core), rows), core.room, 2**40)), 0)
        reference = fresh.solve(all_rows(core), clock=Clock(60))
        assert (answer.infeasible, answer.lower_bound) == (reference.infeasible, reference.lower_bound)


@pytest.mark.parametrize("seed", range(20))
def test_cutoff_and_hint(seed: int) -> None:
    """Only what is cheaper than the cutoff counts; the hint is an answer where it fits."""
    problem = random_problem(np.random.default_rng(seed), memory=True)
    core, optimum = core_of(problem), brute_force(problem).cost
    if core is None or optimum is None:
        return
    engine, rows = MaxSat(core, 0), all_rows(core)
    at = engine.solve(rows, clock=Clock(60), cutoff=optimum)
    assert at.infeasible and at.choice is None and at.lower_bound == optimum
    above = engine.solve(rows, clock=Clock(60), cutoff=optimum + 1)
    assert above.optimal and above.choice is not None and above.lower_bound == optimum
    hinted = engine.solve(rows, clock=Clock(60), hint=above.choice, cutoff=optimum + 1)
    assert hinted.optimal and hinted.lower_bound == optimum
    assert engine.solve(rows, clock=Clock(60), hint=above.choice, cutoff=optimum).infeasible


def hard_core() -> Core:
    """A core that takes thousands of conflicts."""
    rng = np.random.default_rng(1)
    nodes, count = 14, 4
    ends = np.array([(u, v) for v in range(nodes) for u in range(v)], dtype=np.int32)
    return Core(
        graph_nodes=np.arange(nodes),
        constant=5,
        start=np.arange(nodes + 1) * count,
        cost=rng.integers(0, 100, nodes * count),
        ends=ends,
        table=np.arange(len(ends)) * count * count,
        pool=rng.integers(0, 100, len(ends) * count * count),
        room=np.array([nodes * 40]),
        item_owner=np.arange(nodes),
        item_begin=np.zeros(nodes, dtype=np.int64),
        item_end=np.ones(nodes, dtype=np.int64),
        item_usage=np.arange(nodes) * count,
        usage_pool=rng.integers(0, 100, nodes * count),
    )


def test_clock_that_is_over() -> None:
    """Nothing is claimed, and nothing is done."""
    core = hard_core()
    answer = MaxSat(core, 0).solve(all_rows(core), clock=Clock(0.0))
    assert (answer.choice, answer.lower_bound, answer.optimal, answer.infeasible) == (
        None,
        None,
        False,
        False,
    )


def test_clock_ends_a_search() -> None:
    """A search that takes minutes ends soon after its clock, with a bound below and a choice above the optimum."""
    core = hard_core()
    clock = Clock(600)

    def end(_: Ints) -> None:
        clock.time_limit_s += 1 - clock.left_s()

    answer = MaxSat(core, 0).solve(all_rows(core), clock=clock, found=end)
    assert clock.left_s() > -20.0
    assert not answer.optimal and not answer.infeasible
    assert answer.choice is not None and core.fits(answer.choice) and answer.lower_bound is not None
    cost = core.cost_of(answer.choice)
    assert cost is not None and answer.lower_bound < cost


def test_interrupt_ends_the_clock() -> None:
    """SIGINT in the middle of the SAT solver leads to an answer, and the clock tells everybody else."""
    core = hard_core()
    clock = Clock(600)
    timer = Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))

    def interrupt(_: Ints) -> None:
        if timer.ident is None:
            timer.start()

    answer = MaxSat(core, 0).solve(all_rows(core), clock=clock, found=interrupt)
    timer.join()
    assert clock.interrupted
    assert answer.choice is not None and not answer.optimal


def test_budget_is_deterministic() -> None:
    """The same budget ends at the same bound, choice and sequence of choices; a larger one is not worse."""
    core = hard_core()
    outcomes: list[tuple[int | None, list[int | None]]] = []
    for budget in (300, 300, 1500):
        costs: list[int | None] = []
        answer = MaxSat(core, 0).solve(
            all_rows(core),
            clock=Clock(60),
            budget=budget,
            found=lambda choice, costs=costs: costs.append(core.cost_of(choice)),
        )
        assert answer.choice is not None and core.cost_of(answer.choice) == costs[-1]
        assert costs == sorted(costs, key=lambda cost: -(cost or 0))
        outcomes.append((answer.lower_bound, costs))
    assert outcomes[0] == outcomes[1]
    assert (outcomes[2][0] or 0) > (outcomes[0][0] or 0)


@pytest.mark.parametrize("seed", range(20))
def test_bound_of_a_search_cut_short(seed: int) -> None:
    """Wherever the budget ends, in whichever level of the stratification, the bound is not above the optimum."""
    problem = random_problem(np.random.default_rng(seed), kind=KINDS[seed % len(KINDS)], memory=True)
    core, optimum = core_of(problem), brute_force(problem).cost
    if core is None or optimum is None:
        return
    for budget in (1, 2, 3, 5, 8, 13, 21):
        answer = MaxSat(core, 0).solve(all_rows(core), clock=Clock(60), budget=budget)
        assert answer.lower_bound is not None and answer.lower_bound <= optimum
        assert not answer.infeasible
        if answer.optimal:
            assert answer.lower_bound == optimum


def test_empty_core() -> None:
    """No nodes cost the constant, and are not cheaper than it."""
    core = core_of(ProblemBuilder().build())
    assert core is not None
    core = replace(core, constant=3)
    answer = MaxSat(core, 0).solve(all_rows(core), clock=Clock(60))
    assert answer.optimal and answer.lower_bound == 3
    assert MaxSat(core, 0).solve(all_rows(core), clock=Clock(60), cutoff=3).infeasible


@pytest.mark.parametrize("seed", range(60))
def test_models_of_a_row(seed: int) -> None:
    """The models are the choices whose amounts fit, each once: the choice decides every other variable."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, int(rng.integers(1, 6))).tolist()
    largest = int(rng.choice([2, 20, 10**12]))
    unit = int(rng.integers(1, 7))
    amounts = [(rng.integers(0, largest, size) * unit).tolist() for size in sizes]
    reachable = sorted(
        sum(of_one[s] for of_one, s in zip(amounts, choice, strict=True)) for choice in np.ndindex(*sizes)
    )
    room = int(rng.choice(reachable)) + int(rng.integers(-1, 2))
    clauses = Clauses()
    numbers: list[Number] = []
    for of_one in amounts:
        literals = [clauses.variable() for _ in of_one]
        clauses.hard += [literals, *([-a, -b] for a in literals for b in literals if a < b)]
        numbers.append(list(zip(literals, of_one, strict=True)))
    demands = at_most(clauses, numbers, room)
    with Solver("glucose3", bootstrap_with=clauses.hard + demands) as solver:
        totals = [
            sum(amount for number in numbers for literal, amount in number if model[literal - 1] > 0)
            for model in solver.enum_models() or []
        ]
    assert sorted(totals) == [total for total in reachable if total <= room]


def test_import_is_light() -> None:
    """PySAT is loaded by who solves, not by who imports."""
    code = "import sys, autoshard, autoshard.solve.exact.maxsat as m; sys.exit('pysat' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
