"""Thousands of random problems against all their choices: the portfolio, every reduction alone, every engine alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import autoshard.solve.peak as peak
import autoshard.solve.reduce as reduce
from autoshard.problem import Problem, evaluate
from autoshard.problem.model import Ints
from autoshard.solve import Solution, Status, brute_force, solve
from autoshard.solve.anytime import Anytime
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core, flatten
from autoshard.solve.exact.cpsat import CpSat
from autoshard.solve.exact.dynamic import eliminate_all, elimination_order
from autoshard.solve.exact.engine import Answer, Engine
from autoshard.solve.exact.lazy import solve_lazily
from autoshard.solve.exact.maxsat import MaxSat
from autoshard.solve.exact.toulbar2 import Toulbar2
from autoshard.solve.graph import ContradictionError, Graph
from autoshard.solve.load import certain_peak, load
from autoshard.solve.peak import smallest_peak
from autoshard.solve.presolve import presolve
from autoshard.solve.presolve.binding import tighten_memory
from autoshard.solve.presolve.chain import REDUCTIONS, Reduction
from autoshard.solve.presolve.consistency import drop_unsupported
from tests.solve.problems import Priced, PricedCore, problem_of

_A_BLOCK = 250  # problems


def blocks(quick: int, slow: int) -> pytest.MarkDecorator:
    """`quick` problems in the default suite, `slow` others in blocks that are marked slow."""
    begins = range(10_000, 10_000 + slow, _A_BLOCK)
    many = [pytest.param(range(begin, begin + _A_BLOCK), marks=pytest.mark.slow) for begin in begins]
    return pytest.mark.parametrize(
        "seeds", [pytest.param(range(quick)), *many], ids=lambda seeds: str(seeds[0])
    )


def test_the_oracle() -> None:
    """All choices at once are worth what `evaluate` says of one after the other."""
    for seed in range(40):
        problem = problem_of(seed)
        priced, reference = Priced(problem), brute_force(problem)
        assert (priced.optimum, priced.smallest_peak) == (reference.cost, reference.smallest_peak)
        for number in range(0, len(priced.choices), 7):
            one = evaluate(problem, priced.choices[number])
            assert one.peak == priced.peak[number]
            assert one.cost == (int(priced.cost[number]) if priced.allowed[number] else None)
            assert priced.number(priced.choices[number]) == number


def assert_true(seed: int, priced: Priced, answer: Solution) -> None:
    """Nothing claimed that is not so."""
    optimum, smallest = priced.optimum, priced.smallest_peak
    assert optimum is None or answer.lower_bound <= optimum, seed
    assert smallest is None or answer.peak_lower_bound <= smallest, seed
    assert answer.status is not Status.INFEASIBLE or optimum is None, seed
    if answer.choice is not None:
        number = priced.number(answer.choice)
        assert priced.valid[number], seed
        assert (priced.cost[number], priced.peak[number]) == (answer.cost, answer.peak), seed
    if answer.status is Status.OPTIMAL:
        assert answer.cost == optimum, seed
    if answer.smallest_peak_choice is not None:
        assert priced.peak[priced.number(answer.smallest_peak_choice)] == answer.smallest_peak, seed
        assert priced.allowed[priced.number(answer.smallest_peak_choice)], seed


@blocks(quick=200, slow=5000)
def test_the_portfolio(seeds: range) -> None:
    """Proved, and where nothing fits the smallest peak, whatever it is given to start from."""
    for seed in seeds:
        problem = problem_of(seed)
        priced, rng = Priced(problem), np.random.default_rng(seed)
        hints = [rng.integers(0, problem.strategy_counts) for _ in range(seed % 3)]
        answer = solve(problem, time_limit_s=60, seed=seed, hints=hints, threads=1 + seed % 2)
        assert_true(seed, priced, answer)
        assert answer.status is (Status.INFEASIBLE if priced.optimum is None else Status.OPTIMAL), seed
        assert answer.cost is None or answer.lower_bound == answer.cost, seed
        if answer.cost is None and priced.smallest_peak is not None:
            assert answer.smallest_peak == answer.peak_lower_bound == priced.smallest_peak, seed


def nothing(*_: object) -> None:
    """A presolve that leaves all to the engines."""


@pytest.mark.parametrize("presolved", [True, False])
@blocks(quick=30, slow=2000)
def test_search_alone(seeds: range, presolved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Message passing, moves, shrinking and the search for the smallest peak: whatever they claim is so."""
    monkeypatch.setattr(peak, "_CPSAT_PAIRS", -1)
    if not presolved:
        monkeypatch.setattr(reduce, "presolve", nothing)
    for seed in seeds:
        problem = problem_of(seed)
        answer = solve(problem, time_limit_s=60, seed=seed, solver="search", work_limit=150)
        assert_true(seed, Priced(problem), answer)


@pytest.mark.parametrize("impatient", [False, True])
@pytest.mark.parametrize("presolved", [True, False])
@blocks(quick=30, slow=2000)
def test_every_stage_of_the_portfolio(
    seeds: range, presolved: bool, impatient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory first, then folded, perhaps without memory again, then search on the whole, as if the problems were large.

    The impatient leave what is without memory early, to come back to it, and presolve the whole last.
    """
    if impatient:
        monkeypatch.setattr("autoshard.solve.portfolio._STALLED", 0)
        monkeypatch.setattr("autoshard.solve.portfolio._LARGE", -1)
    if not presolved:
        monkeypatch.setattr(reduce, "presolve", nothing)
    monkeypatch.setattr(reduce, "_TINY", -1)
    monkeypatch.setattr(reduce, "_RACE_AT_ONCE", -1)
    monkeypatch.setattr(reduce, "_RACE_LATER", -1)
    monkeypatch.setattr("autoshard.solve.portfolio._FOLD_FROM", 2)
    monkeypatch.setattr("autoshard.solve.portfolio._FOLDED_TO", 1.0)
    for seed in seeds:
        problem = problem_of(seed)
        answer = solve(problem, time_limit_s=60, seed=seed, work_limit=150)
        assert_true(seed, Priced(problem), answer)


def only_memory(graph: Graph) -> None:
    tighten_memory(graph)


def chain_of(reductions: tuple[Reduction, ...], tighten: bool) -> Callable[[Graph], None]:
    return lambda graph: presolve(graph, reductions=reductions, tighten=tighten)


CHAINS = {
    **{reduction.__name__: chain_of((drop_unsupported, reduction), False) for reduction in REDUCTIONS},
    "tighten_memory": only_memory,
    "all": chain_of(REDUCTIONS, True),
    "for peaks": chain_of(REDUCTIONS, False),
}


@pytest.mark.parametrize("name", CHAINS)
@blocks(quick=100, slow=5000)
def test_reductions(name: str, seeds: range) -> None:
    """The optimum stays. Every choice that is left expands to one of its cost that fits if and only if it fits itself;
    every valid choice projects to a valid one that costs no more."""
    for seed in seeds:
        problem = problem_of(seed)
        priced = Priced(problem)
        try:
            graph = load(problem)
            CHAINS[name](graph)
        except ContradictionError:
            assert priced.optimum is None, seed
            continue
        assert_equivalent(seed, priced, graph)


def assert_equivalent(seed: int, priced: Priced, graph: Graph) -> None:
    core = flatten(graph)
    left = PricedCore(core)
    assert left.optimum == priced.optimum, seed
    whole = np.zeros(priced.problem.node_count, dtype=np.int64)
    for number in np.flatnonzero(left.allowed)[:200].tolist():
        whole[core.graph_nodes] = left.choices[number]
        expanded = priced.number(graph.expand(whole))
        assert priced.allowed[expanded] and priced.cost[expanded] == left.cost[number], seed
        assert priced.valid[expanded] == left.valid[number], seed
    for number in np.flatnonzero(priced.valid)[:200].tolist():
        projected: Ints = graph.project(priced.choices[number])[core.graph_nodes]
        cost = core.cost_of(projected)
        assert cost is not None and core.fits(projected) and cost <= priced.cost[number], seed


ENGINES: dict[str, type[Engine]] = {"toulbar2": Toulbar2, "cp-sat": CpSat, "maxsat": MaxSat}


@pytest.mark.parametrize("name", ENGINES)
@blocks(quick=100, slow=5000)
def test_engines(name: str, seeds: range) -> None:
    """Each proves the optimum of what is loaded and of what presolve leaves, or that there is none: so they agree."""
    for seed in seeds:
        for core in cores_of(problem_of(seed)):
            optimum = PricedCore(core).optimum
            answer = solve_lazily(ENGINES[name](core, seed), core, Clock(60)).answer
            assert_proved(seed, core, answer, optimum)


def cores_of(problem: Problem) -> list[Core]:
    """Before presolve and after, where that leaves anything."""
    cores: list[Core] = []
    try:
        graph = load(problem)
        cores.append(flatten(graph))
        presolve(graph)
        cores.append(flatten(graph))
    except ContradictionError:
        pass
    return [core for core in cores if core.node_count]


def assert_proved(seed: int, core: Core, answer: Answer, optimum: int | None) -> None:
    assert answer.infeasible == (optimum is None), seed
    assert answer.optimal == (optimum is not None), seed
    if answer.choice is not None:
        assert core.fits(answer.choice), seed
        assert core.cost_of(answer.choice) == answer.lower_bound == optimum, seed


@blocks(quick=200, slow=5000)
def test_dynamic_programming(seeds: range) -> None:
    """The optimum of the core without its rows."""
    for seed in seeds:
        for core in cores_of(problem_of(seed)):
            priced = PricedCore(core)
            order = elimination_order(core)
            assert order is not None
            if priced.allowed.any():
                choice = eliminate_all(core, order)
                assert core.cost_of(choice) == priced.cost[priced.allowed].min(), seed
            else:
                with pytest.raises(ContradictionError):
                    eliminate_all(core, order)


@blocks(quick=60, slow=2000)
def test_message_passing(seeds: range) -> None:
    """The bound stays below, choices above the optimum; a strategy that goes is in no cheaper choice than the best."""
    for seed in seeds:
        for core in cores_of(problem_of(seed)):
            priced, engine = PricedCore(core), Anytime(core, seed)
            optimum = priced.optimum
            for _ in range(3):
                engine.round(Clock(60))
                assert optimum is None or engine.lower_bound <= optimum, seed
                assert engine.best is None or core.cost_of(engine.best) == engine.best_cost, seed
                if engine.best_cost is None:
                    assert not engine.removable.any(), seed
                    continue
                assert optimum is not None and engine.best_cost >= optimum, seed
                used = engine.removable[core.start[:-1] + priced.choices].any(axis=1)
                assert not (used & priced.valid & (priced.cost < engine.best_cost)).any(), seed


@pytest.mark.parametrize("pairs", [-1, 2000], ids=["descent", "cp-sat"])
@blocks(quick=60, slow=2000)
def test_the_smallest_peak(pairs: int, seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is offered is allowed, no bound is above the smallest peak, and CP-SAT proves it."""
    monkeypatch.setattr(peak, "_CPSAT_PAIRS", pairs)
    for seed in seeds:
        problem = problem_of(seed)
        priced = Priced(problem)
        peaks: list[int] = []

        def offer(choice: Ints, priced: Priced = priced, peaks: list[int] = peaks) -> bool:
            number = priced.number(choice)
            assert priced.allowed[number]
            peaks.append(int(priced.peak[number]))
            return False

        try:
            bound = smallest_peak(problem, certain_peak(problem), Clock(60, 300), seed, [], offer)
        except ContradictionError:
            assert priced.smallest_peak is None, seed
            continue
        assert priced.smallest_peak is None or bound <= priced.smallest_peak <= min(peaks, default=2**62), (
            seed
        )
        if pairs > 0:
            assert bound == min(peaks) == priced.smallest_peak, seed


@blocks(quick=60, slow=1000)
def test_bytes_beyond_doubles(seeds: range) -> None:
    """Usage of 2**49 bytes and more, where every last one counts: nothing false is claimed of cost or peak."""
    for seed in seeds:
        problem, rng = problem_of(seed), np.random.default_rng(seed)
        if problem.memory_limit is None:
            continue
        unit = 2 ** int(rng.integers(49, 52))
        problem = replace(
            problem,
            node_usage=problem.node_usage * unit + rng.integers(0, 2, len(problem.node_usage)),
            usage_tables=tuple(usage * unit for usage in problem.usage_tables),
            memory_limit=problem.memory_limit * unit + int(rng.integers(0, 3)),
        )
        priced = Priced(problem)
        assert_true(seed, priced, solve(problem, time_limit_s=60, seed=seed, work_limit=100))
        if priced.smallest_peak is not None:
            certain = certain_peak(problem)
            bound = smallest_peak(problem, certain, Clock(60, 100), seed, [], lambda _: False)
            assert certain <= bound <= priced.smallest_peak, seed
