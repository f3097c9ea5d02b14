"""Tree moves in batches, with a look at the time between them; the random state goes on from call to call."""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core
from autoshard.solve.layout import Layout
from autoshard.solve.moves import Memory, Weights, moves_at_once, new_tree, run_moves

_TREE = 300  # nodes in the largest tree of a move


class LocalSearch:
    """On one core; two calls with the same arguments end differently."""

    def __init__(self, core: Core, layout: Layout, seed: int) -> None:
        self._core, self._layout = core, layout
        self._tree = new_tree(layout, _TREE)
        self._random = np.array([2 * seed + 88172645463325253], dtype=np.uint64)

    def moved(
        self,
        choice: Ints,
        weights: Weights,
        memory: Memory,
        moves: int,
        clock: Clock,
        *,
        temperature: float = 0.0,
        heaviest: float = 1.0,
    ) -> Ints:
        """Where that many moves end that start from a choice [n], which stays as it is. Only the time cuts them short:
        steps of the clock may be counted by others meanwhile, and how far those are must not matter."""
        choice = choice.copy()
        profile = self._core.profile_of(choice)
        at_once = moves_at_once(self._core, _TREE)
        for batch in range(0, moves, at_once):
            if clock.left_s() <= 0:
                break
            run_moves(
                self._layout,
                weights,
                memory,
                choice,
                profile,
                self._random,
                self._tree,
                min(at_once, moves - batch),
                temperature,
                heaviest,
            )
        return choice
