"""What a search learned survives presolve: exactly where nothing changed, as a valid start where much did."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.problem import evaluate
from autoshard.solve import brute_force
from autoshard.solve.anytime import Anytime
from autoshard.solve.carry import carried, learned
from autoshard.solve.clock import Clock
from autoshard.solve.core import flatten
from autoshard.solve.graph import ContradictionError, positions
from autoshard.solve.load import load
from autoshard.solve.presolve import presolve
from tests.problem.strategies import random_problem


@pytest.mark.parametrize("seed", range(60))
def test_prices_and_messages_find_their_place_again(seed: int) -> None:
    """The same core gets all back; a smaller one keeps the sum of the multipliers, and bounds from there hold."""
    problem = random_problem(np.random.default_rng(seed), memory=True)
    try:
        graph = load(problem)
    except ContradictionError:
        return
    core = flatten(graph)
    if not core.node_count:
        return
    engine = Anytime(core, 0)
    engine.round(Clock(60))
    relaxation = engine.relaxation
    prices = learned(graph, core, engine.layout, relaxation.multipliers, relaxation.messages)
    multipliers, messages = carried(prices, graph, core, engine.layout)
    assert multipliers.tolist() == relaxation.multipliers.tolist()
    assert messages.tolist() == relaxation.messages.tolist()

    reference = brute_force(problem)
    if reference.choice is not None:  # lose strategies that the optimum does without
        node = int(core.counts.argmax())
        keep = np.arange(int(core.counts[node])) == graph.project(reference.choice)[node]
        keep[0] = True
        graph.keep_strategies(node, np.flatnonzero(keep), positions(keep))
    try:
        presolve(graph)
    except ContradictionError:
        assert reference.choice is None
        return
    smaller = flatten(graph)
    if not smaller.node_count:
        return
    after = Anytime(smaller, 0)
    multipliers, messages = carried(prices, graph, smaller, after.layout)
    if len(multipliers):
        assert multipliers.sum() == pytest.approx(relaxation.multipliers.sum())
    after.start_from(multipliers, messages)
    for _ in range(2):
        after.round(Clock(60))
    if reference.cost is not None:
        assert after.lower_bound <= reference.cost
    if after.best is not None:
        whole = np.zeros(problem.node_count, dtype=np.int64)
        whole[smaller.graph_nodes] = after.best
        assert evaluate(problem, graph.expand(whole)).cost == after.best_cost
