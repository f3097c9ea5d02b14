"""Recombination takes what is better of two choices, exactly priced, within memory."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from autoshard.solve.recombine import pieces, recombined
from tests.solve.cores import layered_core


@pytest.mark.parametrize("seed", range(40))
def test_no_piece_taken_or_left_alone_does_better(seed: int) -> None:
    """The result fits, costs no more than the first choice, and no single further piece would gain and fit."""
    core = layered_core(seed, room=0.6)
    draw = np.random.default_rng(seed)
    choice = np.zeros(core.node_count, dtype=np.int64)
    for row in range(core.node_count):  # the least memory, so that it fits
        items = np.flatnonzero(core.item_owner == row)
        usage = [core.usage_pool[core.item_usage[items] + s].sum() for s in range(int(core.counts[row]))]
        choice[row] = int(np.argmin(usage)) if len(items) else 0
    if not core.fits(choice) or core.cost_of(choice) is None:
        return
    other = np.where(draw.random(core.node_count) < 0.3, draw.integers(0, core.counts), choice)
    if core.cost_of(other) is None:
        return
    result = recombined(core, choice, other)
    cost, before = core.cost_of(result), core.cost_of(choice)
    assert cost is not None and before is not None
    assert core.fits(result) and cost <= before
    piece = pieces(core, choice != other)
    assert ((result == choice) | (result == other)).all()
    for number in range(int(piece.max()) + 1):
        further = np.where(piece == number, other, result)
        changed = core.cost_of(further)
        assert changed is not None
        assert changed >= cost or not core.fits(further)


@pytest.mark.parametrize("seed", range(20))
def test_without_memory_it_is_the_best_of_all_mixtures(seed: int) -> None:
    """Pieces are independent: no mixture of the two choices by piece is cheaper."""
    core = layered_core(seed, layers=4, room=1.0)
    draw = np.random.default_rng(seed)
    choice, other = draw.integers(0, core.counts), draw.integers(0, core.counts)
    other = np.where(draw.random(core.node_count) < 0.4, other, choice)
    piece = pieces(core, choice != other)
    costs = [
        core.cost_of(np.where(np.isin(piece, np.flatnonzero(taken)), other, choice))
        for taken in product((False, True), repeat=int(piece.max()) + 1)
    ]
    assert core.cost_of(recombined(core, choice, other)) == min(cost for cost in costs if cost is not None)
