"""Every reduction alone, and all of them together: the optimum stays, and a choice expands to one of its cost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoshard.problem import Problem, evaluate
from autoshard.problem.model import Ints
from autoshard.solve import brute_force
from autoshard.solve.clock import Clock
from autoshard.solve.core import flatten
from autoshard.solve.exact.cpsat import CpSat
from autoshard.solve.exact.lazy import solve_lazily
from autoshard.solve.graph import ContradictionError, Graph
from autoshard.solve.load import load
from autoshard.solve.presolve import presolve
from autoshard.solve.presolve.chain import REDUCTIONS, Reduction
from autoshard.solve.presolve.consistency import drop_unsupported
from autoshard.solve.presolve.dominance import Above
from autoshard.solve.rows import RangeMinimum
from tests.problem.strategies import KINDS, random_problem

ALONE = {reduction.__name__: (drop_unsupported, reduction) for reduction in REDUCTIONS}
CHAINS: dict[str, tuple[Reduction, ...]] = ALONE | {"all": REDUCTIONS}


def optimum_through(problem: Problem, reductions: tuple[Reduction, ...]) -> tuple[int | None, Graph | None]:
    """The optimum found on what the reductions leave, checked against the oracle."""
    try:
        graph = load(problem)
        presolve(graph, reductions=reductions)
    except ContradictionError:
        return None, None
    core = flatten(graph)
    answer = solve_lazily(CpSat(core, 0), core, Clock(60)).answer
    if answer.choice is None:
        assert answer.infeasible
        return None, graph
    whole = np.zeros(problem.node_count, dtype=np.int64)
    whole[core.graph_nodes] = answer.choice
    priced = evaluate(problem, graph.expand(whole))
    assert priced.feasible
    assert priced.cost == core.cost_of(answer.choice)
    return priced.cost, graph


@pytest.mark.parametrize("seed", range(21))
@pytest.mark.parametrize("name", CHAINS)
def test_reductions_keep_the_optimum(name: str, seed: int) -> None:
    """The expanded optimum of the reduced problem is the optimum, infeasible stays infeasible."""
    problem = random_problem(np.random.default_rng(1000 + seed), kind=KINDS[seed % len(KINDS)])
    cost, _ = optimum_through(problem, CHAINS[name])
    assert cost == brute_force(problem).cost


@pytest.mark.parametrize("seed", range(40))
def test_projecting_never_makes_a_valid_choice_dearer(seed: int) -> None:
    """A valid choice, projected through all reductions and expanded again, is valid and costs no more."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    try:
        graph = load(problem)
        presolve(graph)
    except ContradictionError:
        return
    for _ in range(20):
        choice: Ints = rng.integers(0, problem.strategy_counts)
        before = evaluate(problem, choice)
        if not before.feasible or before.cost is None:
            continue
        after = evaluate(problem, graph.expand(graph.project(choice)))
        assert after.feasible
        assert after.cost is not None and after.cost <= before.cost


def test_a_chain_without_memory_disappears() -> None:
    """Trees and cycles of any length are solved by presolve alone."""
    problem = random_problem(np.random.default_rng(3), kind="tree", memory=False)
    graph = load(problem)
    presolve(graph)
    assert graph.nodes == []


def test_a_limit_that_cannot_bind_leaves_no_rows() -> None:
    """A limit above everything together is no limit."""
    problem = replace(random_problem(np.random.default_rng(5), memory=True), memory_limit=10**9)
    assert not len(load(problem).room)


def test_range_minimum_is_the_minimum() -> None:
    """Over every range of a row."""
    values = np.random.default_rng(0).integers(0, 100, 37)
    table = RangeMinimum(values)
    for begin in range(37):
        for end in range(begin + 1, 38):
            assert table.over(begin, end) == values[begin:end].min()


@pytest.mark.parametrize("rows", [20, 200])
def test_what_dominance_keeps_of_a_matrix(rows: int) -> None:
    """Presolve keeps it for every matrix that there was: a number for each pair of strategies, and the matrix once at most."""
    matrix = np.random.default_rng(0).integers(0, 100, (rows, 10 * rows))
    kept = sum(array.size for array in vars(Above(matrix)).values() if isinstance(array, np.ndarray))
    assert kept <= rows * rows + rows + (matrix.size if rows > 20 else 0)
