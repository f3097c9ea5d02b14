"""The bound rises: cuts are upper bounds, the bundle solves its master problem, threads change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.problem import ProblemBuilder, Table
from autoshard.problem.model import Ints
from autoshard.solve.anytime import Anytime
from autoshard.solve.ascent import Ascent
from autoshard.solve.bundle import Bundle
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core, flatten
from autoshard.solve.layout import lay_out
from autoshard.solve.load import load
from autoshard.solve.relaxation import Relaxation
from tests.solve.cores import copies, layered_core


def relative_entropy(at: np.ndarray, centre: np.ndarray) -> float:
    return float((at * np.log(at / centre) - at + centre).sum())


@pytest.mark.parametrize("seed", range(20))
def test_the_proposal_solves_the_master_problem(seed: int) -> None:
    """No multipliers that anyone can name do better on min(cuts) - distance / step."""
    draw = np.random.default_rng(seed)
    rows, cuts = int(draw.integers(1, 6)), int(draw.integers(1, 8))
    bundle = Bundle(rows)
    centre = draw.uniform(0.01, 1.0, rows)
    for _ in range(cuts):
        bundle.add(float(draw.integers(0, 1000)), draw.integers(-300, 300, rows).astype(float), centre)
    bundle.step = 1e-3

    def worth(at: np.ndarray) -> float:
        return float((bundle.costs + bundle.slopes @ at).min()) - relative_entropy(at, centre) / bundle.step

    proposed, promised = bundle.proposal(centre, bound=worth(centre))
    assert promised == pytest.approx((bundle.costs + bundle.slopes @ proposed).min())
    others = centre * np.exp(draw.normal(0.0, 0.3, (3000, rows)))
    near = proposed * np.exp(draw.normal(0.0, 0.02, (3000, rows)))
    best = max(worth(at) for at in np.concatenate([others, near]))
    assert worth(proposed) >= best - 0.01 * abs(best) - 1.0


@pytest.mark.parametrize("seed", range(10))
def test_no_bound_exceeds_a_cut(seed: int) -> None:
    """cost(x) + l . (bytes(x) - room) is above the exact bound at l, for every allowed x and every l."""
    core = layered_core(seed)
    relaxation = Relaxation(core, lay_out(core))
    draw = np.random.default_rng(seed)
    for _ in range(5):
        relaxation.price_rows(draw.uniform(0, 0.2, len(core.room)))
        relaxation.improve(4)
        bound, _ = relaxation.bound()
        choice = relaxation.decoded()
        cost = core.cost_of(choice)
        if cost is not None:
            slope = core.profile_of(choice) - core.room
            assert bound <= np.ceil(cost + float(relaxation.multipliers @ slope)) + 1


@pytest.mark.parametrize("seed", range(10))
def test_blocks_end_at_the_best_state(seed: int) -> None:
    """After every block the relaxation stands where it was best, and the best never sinks."""
    core = layered_core(seed)
    ascent = Ascent(Relaxation(core, lay_out(core)))
    best = -np.inf
    for _ in range(6):
        ascent.block(5, Clock(60))
        assert ascent.best >= best
        best = ascent.best
        assert ascent.relaxation.value() == pytest.approx(best, rel=1e-9, abs=1e-6)


def after_rounds(core: Core, threads: int) -> tuple[int, int | None, Ints | None]:
    engine = Anytime(core, seed=3, threads=threads)
    for _ in range(6):
        engine.round(Clock(600))
    return engine.lower_bound, engine.best_cost, engine.best


@pytest.mark.parametrize("seed", range(4))
def test_threads_change_nothing(seed: int) -> None:
    """Two threads find, in the same rounds, the same bound and the same choice as one."""
    core = layered_core(seed)
    alone, together = after_rounds(core, 1), after_rounds(core, 2)
    assert alone[:2] == together[:2]
    assert (alone[2] is None) == (together[2] is None)
    if alone[2] is not None and together[2] is not None:
        assert (alone[2] == together[2]).all()


@pytest.mark.parametrize("unit", [1, 2**20, 2**40])
def test_prices_stay_finite_where_nothing_fits(unit: int) -> None:
    """The bound rises beyond what any choice costs, and stays a number."""
    core = flatten(load(copies(40, unit=unit, limit=19)))
    engine = Anytime(core, 0)
    for _ in range(8):
        engine.round(Clock(600))
    assert engine.best is None
    assert engine.lower_bound > engine.relaxation.total
    assert np.isfinite(engine.relaxation.multipliers).all()


@pytest.mark.parametrize("largest", [10.0, 1e12, 1e18, 1e25])
@pytest.mark.parametrize("degree", [3, 300])
def test_any_messages_make_a_bound(degree: int, largest: float) -> None:
    """A hub with forbidden pairs and huge costs: no sum leaves 64 bits on the wrong side."""
    draw = np.random.default_rng(degree)
    builder = ProblemBuilder()
    dearest = 2**59 // (degree + 1)
    builder.add_node([0, 0, dearest])
    mask = np.array([[True, False], [False, False], [True, True]])
    for leaf in range(1, degree + 1):
        builder.add_node(draw.integers(0, dearest // 2, 2))
        builder.add_edge(0, leaf, Table(draw.integers(0, dearest // 2, (3, 2)), mask))
    core = flatten(load(builder.build()))
    through_hub = [
        [
            core.matrix(edge)[hub] + core.cost[core.start[leaf] :][:2]
            for edge, leaf in enumerate(range(1, degree + 1))
        ]
        for hub in (0, 2)
    ]
    costs = [
        int(core.cost[hub]) + sum(int(one.min()) for one in each)
        for hub, each in zip((0, 2), through_hub, strict=True)
    ]
    relaxation = Relaxation(core, lay_out(core))
    for sign in (1.0, -1.0, 0.0):
        relaxation.messages[:] = draw.uniform(-largest, largest, len(relaxation.messages))
        relaxation.messages[:] = abs(relaxation.messages) * sign if sign else relaxation.messages
        bound, conditional = relaxation.bound()
        assert bound <= min(costs)
        for hub, cost in zip((0, 2), costs, strict=True):
            assert not relaxation.reaches(conditional, cost + 1)[hub]
