"""Every engine alone against brute force, on what it is made for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import autoshard.solve.peak as peak
import autoshard.solve.reduce as reduce
from autoshard.problem import Problem, ProblemBuilder, Table, evaluate
from autoshard.solve import Status, brute_force, solve
from autoshard.solve.anytime import Anytime
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core, flatten
from autoshard.solve.descent import PeakDescent, fitting_choice
from autoshard.solve.exact.cpsat import CpSat
from autoshard.solve.exact.dynamic import eliminate_all, elimination_order
from autoshard.solve.exact.lazy import solve_lazily
from autoshard.solve.graph import FINITE_BELOW, ContradictionError
from autoshard.solve.load import certain_peak, load
from autoshard.solve.portfolio import Portfolio
from autoshard.solve.presolve import presolve
from autoshard.solve.presolve.consistency import drop_unsupported
from autoshard.solve.presolve.dominance import drop_dominated
from autoshard.solve.record import Record
from tests.problem.strategies import KINDS, random_problem
from tests.solve.cores import copies


def random_core(seed: int, *, memory: bool) -> tuple[Problem, Core] | None:
    """A problem and its core without any reduction but arc consistency; None where that already fails."""
    problem = random_problem(np.random.default_rng(seed), memory=memory)
    try:
        graph = load(problem)
        presolve(graph, reductions=[drop_unsupported])
    except ContradictionError:
        return None
    return problem, flatten(graph)


@pytest.mark.parametrize("seed", range(50))
def test_dynamic_programming_equals_brute_force(seed: int) -> None:
    """Bucket elimination finds the optimum of every problem without memory."""
    pair = random_core(seed, memory=False)
    if pair is None:
        return
    problem, core = pair
    reference = brute_force(problem)
    order = elimination_order(core)
    assert order is not None
    if reference.status is Status.INFEASIBLE:
        with pytest.raises(ContradictionError):
            eliminate_all(core, order)
    else:
        assert core.cost_of(eliminate_all(core, order)) == reference.cost


@pytest.mark.parametrize("choices", [1, 2])
def test_dynamic_programming_of_a_node_without_choice_and_many_neighbours(choices: int) -> None:
    """It is no dimension of a table: arrays have 64 at most, and two strategies each of 70 neighbours would be 2^70 entries."""
    builder = ProblemBuilder()
    hub = builder.add_node([5])
    for number in range(70):
        leaf = builder.add_node([number, 1000][:choices])
        builder.add_edge(hub, leaf, Table(np.array([[1, 2][:choices]])))
    core = flatten(load(builder.build()))
    order = elimination_order(core)
    assert order is not None
    assert core.cost_of(eliminate_all(core, order)) == 5 + sum(number + 1 for number in range(70))


@pytest.mark.parametrize("seed", range(50))
def test_cp_sat_equals_brute_force(seed: int) -> None:
    """The encoding with lazily added rows is exact with memory, edge usage included."""
    pair = random_core(seed, memory=True)
    if pair is None:
        return
    problem, core = pair
    reference = brute_force(problem)
    answer = solve_lazily(CpSat(core, 0), core, Clock(60)).answer
    assert answer.infeasible == (reference.status is Status.INFEASIBLE)
    if answer.choice is not None:
        assert core.fits(answer.choice)
        assert core.cost_of(answer.choice) == answer.lower_bound == reference.cost


@pytest.mark.parametrize("seed", range(80))
def test_anytime_brackets_the_optimum(seed: int) -> None:
    """The bound is never above the optimum, a choice never below, and what is removable is in no better choice."""
    pair = random_core(seed, memory=seed % 3 > 0)
    if pair is None or not pair[1].node_count:
        return
    problem, core = pair
    reference = brute_force(problem)
    engine = Anytime(core, seed)
    for _ in range(4):
        engine.round(Clock(60))
        if reference.cost is None:
            assert engine.best is None
            continue
        assert engine.lower_bound <= reference.cost
        if engine.best_cost is not None:
            assert engine.best_cost >= reference.cost
            assert engine.best is not None
            assert core.cost_of(engine.best) == engine.best_cost
            rest = without(core, engine.removable)
            assert rest == reference.cost


def without(core: Core, removable: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int | None:
    """The optimum among the choices that use no removed strategy."""
    changed = replace(core, cost=np.where(removable, 2**50, core.cost))
    answer = solve_lazily(CpSat(changed, 0), changed, Clock(60)).answer
    return None if answer.choice is None else core.cost_of(answer.choice)


@pytest.mark.parametrize("seed", range(50))
def test_descent_brackets_the_smallest_peak(seed: int) -> None:
    """Its bound is never above the smallest peak and what it finds never below."""
    problem = random_problem(np.random.default_rng(seed), memory=True)
    reference = brute_force(problem)
    certain = certain_peak(problem)
    if reference.smallest_peak is None:
        return
    core = flatten(load(replace(problem, memory_limit=certain)))
    if not core.node_count:
        return
    only_mask = np.where(core.pool >= FINITE_BELOW, core.pool, 0)
    engine = PeakDescent(replace(core, cost=core.cost * 0, pool=only_mask), seed)
    for _ in range(3):
        engine.round(Clock(60))
        assert certain + engine.lower_bound <= reference.smallest_peak
        assert engine.best is None or certain + engine.excess >= reference.smallest_peak


def out_of_reach(core: Core, clock: Clock) -> list[int] | None:
    """An elimination order for nothing but the empty core."""
    clock.check()
    return None if core.node_count else []


@pytest.mark.parametrize("seed", range(80))
def test_search_path_of_the_portfolio(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search, bounds and shrinking alone claim nothing that is not so."""
    for pairs in ("_TINY", "_RACE_AT_ONCE", "_RACE_LATER"):
        monkeypatch.setattr(reduce, pairs, -1)
    monkeypatch.setattr(reduce, "elimination_order", out_of_reach)
    monkeypatch.setattr(peak, "_CPSAT_PAIRS", -1)
    problem = random_problem(np.random.default_rng(seed), kind=KINDS[seed % len(KINDS)])
    reference = brute_force(problem)
    answer = solve(problem, time_limit_s=60, work_limit=200)
    assert reference.cost is None or answer.lower_bound <= reference.cost
    if answer.status is Status.OPTIMAL:
        assert answer.cost == reference.cost
    if answer.status is Status.INFEASIBLE:
        assert reference.status is Status.INFEASIBLE
    if answer.choice is not None:
        assert reference.cost is not None
        assert evaluate(problem, answer.choice).cost == answer.cost
        assert answer.cost is not None and answer.cost >= reference.cost
    if reference.smallest_peak is not None:
        assert answer.peak_lower_bound <= reference.smallest_peak
        assert answer.smallest_peak is None or answer.smallest_peak >= reference.smallest_peak


def test_a_part_that_stalls_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it goes on without memory because the cheapest choice fits: it leaves its clock to the whole."""
    for pairs in ("_TINY", "_RACE_AT_ONCE", "_RACE_LATER"):
        monkeypatch.setattr(reduce, pairs, -1)
    monkeypatch.setattr(reduce, "elimination_order", out_of_reach)
    draw, builder, nodes = np.random.default_rng(0), ProblemBuilder(), 12
    most = 0
    for node in range(nodes):
        usage = draw.integers(0, 10, 4)
        builder.add_node(draw.integers(0, 10, 4))
        builder.add_node_usage(node, 0, 1, usage)
        most += int(usage.max())
        for other in range(node):
            builder.add_edge(other, node, Table(draw.integers(0, 100, (4, 4))))
    clock = Clock(600, work_limit=2_000)
    record = Record(builder.build(most - 1), clock, seed=0, threads=1, progress=None)
    Portfolio(record, folding=False).run()
    assert sum(name.startswith("core ") for name in record.statistics) >= 3, "free, free again, and the whole"
    assert not record.proved()
    assert not clock.over()


@pytest.mark.parametrize("constant", [0, -(10**9), 10**9])
def test_a_choice_that_fits_or_the_proof_that_there_is_none(constant: int) -> None:
    """What presolve has taken out of the costs has nothing to do with memory."""
    core = replace(flatten(load(copies(40, limit=149))), constant=constant)
    with pytest.raises(ContradictionError):
        fitting_choice(core, 0, Clock(60))
    core = replace(flatten(load(copies(40, limit=150))), constant=constant)
    choice = fitting_choice(core, 0, Clock(60))
    assert choice is not None and core.fits(choice)


@pytest.mark.parametrize("seed", range(40))
def test_what_a_projected_hint_gains_is_kept(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Presolve may make a hint cheaper; a search that starts at its optimum hands that on, not the hint."""
    for pairs in ("_TINY", "_RACE_AT_ONCE", "_RACE_LATER"):
        monkeypatch.setattr(reduce, pairs, -1)
    monkeypatch.setattr(reduce, "elimination_order", out_of_reach)
    monkeypatch.setattr(reduce, "presolve", partial(presolve, reductions=[drop_dominated]))
    draw = np.random.default_rng(seed)
    problem = random_problem(draw, kind="tree", memory=False)
    reference = brute_force(problem)
    if reference.choice is None:
        return
    hint = reference.choice.copy()
    hint[0] = int(draw.integers(problem.strategy_counts[0]))
    answer = solve(problem, time_limit_s=20, work_limit=200, hints=[hint])
    assert answer.status is Status.OPTIMAL
    assert answer.cost == reference.cost
