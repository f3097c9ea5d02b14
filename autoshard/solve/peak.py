"""When nothing fits: the choice with the smallest peak, whatever it costs, and a bound on every peak.

With u_t(x) the bytes of row t beyond what is certain, multipliers l >= 0 that sum to at most one give

    min_x max_t (u_t(x) - room_t)  >=  min_x sum_t l_t (u_t(x) - room_t)

for `room` at the peak that is certain; the right side is the relaxation with all costs zero. The multipliers grow on
the rows that are highest (multiplicative weights [1]), and tree moves push the highest rows below a sinking target.

[1] S. Arora, E. Hazan, S. Kale, The multiplicative weights update method, Theory of Computing 8, 2012.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from autoshard.problem import Problem
from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, OutOfTimeError
from autoshard.solve.core import Core, flatten
from autoshard.solve.exact.cpsat import counts_bytes_exactly, solve_peak
from autoshard.solve.graph import FINITE_BELOW, FORBIDDEN, ContradictionError, Graph
from autoshard.solve.load import load
from autoshard.solve.presolve.chain import REDUCTIONS, presolve

_CPSAT_PAIRS = 2_000
_PRESOLVE_SHARE = 0.5  # of the time that is left
_QUIET_ROUNDS = 12  # without progress before the search ends
_CLOSE = 1e-3  # of the peak
_MOST_PAIRS = 100_000_000  # of a core that is searched, at some forty bytes each; alike nodes alike have been tried by then
_UNLIMITED = 2**60  # bytes: more than everything together in a valid Problem


def smallest_peak(
    problem: Problem,
    certain: int,
    clock: Clock,
    seed: int,
    starts: Sequence[Ints],
    offer: Callable[[Ints], bool],
) -> int:
    """Offer choices of ever smaller peak until one fits or the search ends; returns a bound on every peak.

    What is left of a problem may be too large to search: then nothing is offered.

    Raises:
        ContradictionError: no choice is allowed, even with all the memory in the world.
        OutOfTimeError: the clock is over before the search began.
    """
    graph = load(replace(problem, memory_limit=certain), clock)
    _forget_costs(graph)
    room = graph.room.copy()
    graph.room = room + _UNLIMITED
    with suppress(OutOfTimeError):
        presolve(graph, clock.part(_PRESOLVE_SHARE), REDUCTIONS, tighten=False)
    core = replace(flatten(graph, clock), room=graph.room - _UNLIMITED)

    def whole(choice: Ints) -> Ints:
        full = np.zeros(problem.node_count, dtype=np.int64)
        full[core.graph_nodes] = choice
        return graph.expand(full)

    if not core.node_count or (core.pair_count() <= _CPSAT_PAIRS and counts_bytes_exactly(core)):
        answer = solve_peak(core, clock, seed=seed)
        if answer.infeasible:
            raise ContradictionError("no choice is allowed")
        if answer.choice is not None:
            offer(whole(answer.choice))
        return certain + max(0, answer.lower_bound or 0)
    if core.pair_count() > _MOST_PAIRS:
        return certain
    projected = [graph.project(start)[core.graph_nodes] for start in starts]
    limit = _UNLIMITED if problem.memory_limit is None else problem.memory_limit - certain
    return certain + _descend(
        core, clock, seed, projected, lambda choice: offer(whole(choice)), limit, certain
    )


def _descend(
    core: Core,
    clock: Clock,
    seed: int,
    starts: Sequence[Ints],
    offer: Callable[[Ints], bool],
    limit: int,
    certain: int,
) -> int:
    """The search on a large core; returns a bound on the excess over the room.

    It ends early where no excess up to `limit` is possible and the best one is known closely enough to be told.
    """
    from autoshard.solve.descent import PeakDescent

    descent = PeakDescent(core, seed, clock)
    for start in starts:
        descent.consider(start)
    quiet = 0
    while not clock.over() and quiet < _QUIET_ROUNDS and descent.excess > descent.lower_bound:
        before = (descent.excess, descent.lower_bound)
        try:
            descent.round(clock)
        except KeyboardInterrupt:  # what it has found so far still counts
            clock.interrupt()
        quiet = quiet + 1 if before == (descent.excess, descent.lower_bound) else 0
        if descent.best is not None and before[0] != descent.excess and offer(descent.best):
            break
        if descent.lower_bound > limit and descent.excess - descent.lower_bound <= _CLOSE * (
            certain + descent.excess
        ):
            break
    return descent.lower_bound


def _forget_costs(graph: Graph) -> None:
    graph.cost = [np.zeros_like(cost) for cost in graph.cost]
    for node in graph.nodes:
        for other, matrix in list(graph.adjacent[node].items()):
            if node < other:
                graph.set_matrix(node, other, graph.memo.call(_only_mask, matrix))


def _only_mask(matrix: Ints) -> Ints:
    return np.where(matrix >= FINITE_BELOW, FORBIDDEN, 0)
