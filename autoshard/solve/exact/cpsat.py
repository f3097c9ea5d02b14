"""A core -> CP-SAT, with memory rows added as they turn out to matter.

Encoding: the local polytope of the graphical model [1]. x[i, s] says that node i takes strategy s, y[e, s, t] that
edge e = (u, v) has the pair (s, t):

    sum_s x[i, s] = 1,    sum_t y[e, s, t] = x[u, s],    sum_s y[e, s, t] = x[v, t]
    minimise  sum cost[i, s] x[i, s] + sum matrix_e[s, t] y[e, s, t]

A forbidden pair has no y. Linearization level 2 lets the LP see all of it. A memory row is the sum of the bytes of
its items, over x and over y, at most the room of the row. Only violated rows are added, a round at a time; an
optimum without the others that fits is an optimum, and a bound without them is a bound.

[1] M. Wainwright, M. Jordan, Graphical models, exponential families, and variational inference, 2008, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Thread
from typing import Any

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, OutOfTimeError, watched
from autoshard.solve.core import Core
from autoshard.solve.graph import FINITE_BELOW

_ROWS_A_ROUND = 30
_PATIENCE_S = 1.0  # for a solver that has been told to stop


@dataclass(frozen=True, slots=True)
class CpSatAnswer:
    """`infeasible` and `lower_bound` are proved; `choice` fits and is optimal if `optimal`."""

    choice: Ints | None
    lower_bound: int | None
    optimal: bool
    infeasible: bool


def solve_cpsat(
    core: Core, clock: Clock, *, seed: int, hint: Ints | None = None, cutoff: int | None = None
) -> CpSatAnswer:
    """Minimise over the core; only choices cheaper than `cutoff` count, if one is given."""
    from ortools.sat.python import cp_model

    try:
        encoding = _Encoding(core, clock)
        if cutoff is not None:
            encoding.model.add(encoding.objective <= cutoff - 1 - core.constant)
        if hint is not None:
            encoding.hint(hint)
        rows = _first_rows(core)
        encoding.add_rows(rows)
    except OutOfTimeError:
        return CpSatAnswer(None, None, False, False)
    lower_bound: int | None = None
    while True:
        solver = _solver(clock.left_s(), seed)
        outcome = None if clock.over() else _run(solver, encoding.model, clock)
        if outcome is None:
            return CpSatAnswer(None, lower_bound, False, False)
        if outcome == cp_model.INFEASIBLE:
            return CpSatAnswer(None, None, False, True)
        if outcome == cp_model.MODEL_INVALID:
            raise AssertionError(encoding.model.validate())
        lower_bound = max(
            lower_bound or -(2**62), solver.response_proto.inner_objective_lower_bound + core.constant
        )
        if outcome == cp_model.UNKNOWN:
            return CpSatAnswer(None, lower_bound, False, False)
        choice = encoding.choice(solver)
        new_rows = _violated_rows(core, choice, rows)
        if not len(new_rows):
            return CpSatAnswer(choice, lower_bound, outcome == cp_model.OPTIMAL, False)
        if outcome != cp_model.OPTIMAL and clock.over():
            return CpSatAnswer(None, lower_bound, False, False)
        rows = np.concatenate([rows, new_rows])
        try:
            encoding.add_rows(new_rows)
        except OutOfTimeError:
            return CpSatAnswer(None, lower_bound, False, False)


def _run(solver: Any, model: Any, clock: Clock) -> Any:
    """Solve in a thread of its own, so that an interrupt reaches us while native code runs.

    A solver that does not stop when it is told to is left behind, and None returned.
    """
    outcome: list[Any] = []
    thread = Thread(target=lambda: outcome.append(solver.solve(model)), daemon=True)
    thread.start()
    stopped = 0.0
    while thread.is_alive() and stopped < _PATIENCE_S:
        try:
            if clock.left_s() <= 0:
                solver.stop_search()
                stopped += 0.1
            thread.join(0.1)
        except KeyboardInterrupt:
            clock.interrupt()
    clock.step()
    return outcome[0] if outcome else None


def solve_peak(core: Core, clock: Clock, *, seed: int) -> CpSatAnswer:
    """Minimise the largest excess of a row over its room, not below zero, instead of the cost."""
    from ortools.sat.python import cp_model

    try:
        encoding = _Encoding(core, clock)
        excess = encoding.model.new_int_var(0, 2**60, "")
        encoding.add_rows(np.arange(len(core.room)), excess)
    except OutOfTimeError:
        return CpSatAnswer(None, None, False, False)
    encoding.model.minimize(excess)
    solver = _solver(clock.left_s(), seed)
    outcome = _run(solver, encoding.model, clock)
    if outcome is None:
        return CpSatAnswer(None, None, False, False)
    if outcome == cp_model.INFEASIBLE:
        return CpSatAnswer(None, None, False, True)
    bound = int(solver.response_proto.inner_objective_lower_bound)
    if outcome not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return CpSatAnswer(None, bound, False, False)
    return CpSatAnswer(encoding.choice(solver), bound, outcome == cp_model.OPTIMAL, False)


def _solver(time_limit_s: float, seed: int) -> Any:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.random_seed = seed
    solver.parameters.linearization_level = 2
    solver.parameters.catch_sigint_signal = False
    solver.parameters.num_workers = 8
    solver.parameters.interleave_search = (
        True  # one deterministic order of work, whatever the number of cores
    )
    return solver


class _Encoding:
    def __init__(self, core: Core, clock: Clock) -> None:
        from ortools.sat.python import cp_model

        clock.check()
        self.core, self.clock = core, clock
        self.model = cp_model.CpModel()
        self._literals: list[list[Any]] = [self._node_literals(int(count)) for count in core.counts]
        self._pairs: dict[int, dict[tuple[int, int], Any]] = {}
        with_items = set((core.item_owner[core.item_owner >= core.node_count] - core.node_count).tolist())
        for edge in watched(clock, range(len(core.ends))):
            self._add_edge(edge, edge in with_items)
        self.objective: Any = self._objective()
        self.model.minimize(self.objective)

    def _node_literals(self, count: int) -> list[Any]:
        if count == 1:
            return [self.model.new_constant(1)]
        literals = [self.model.new_bool_var("") for _ in range(count)]
        self.model.add_exactly_one(literals)
        return literals

    def _add_edge(self, edge: int, has_items: bool) -> None:
        matrix = self.core.matrix(edge)
        u, v = self.core.ends[edge].tolist()
        allowed = matrix < FINITE_BELOW
        if not has_items and not matrix[allowed].any():
            return self._add_implications(u, v, allowed)
        pairs = {
            (s, t): self.model.new_bool_var("")
            for s, t in zip(*(side.tolist() for side in np.nonzero(allowed)), strict=True)
        }
        for s, literal in enumerate(self._literals[u]):
            row = [pairs[s, t] for t in np.flatnonzero(allowed[s]).tolist()]
            self.model.add_exactly_one([*row, literal.negated()])
        for t, literal in enumerate(self._literals[v]):
            column = [pairs[s, t] for s in np.flatnonzero(allowed[:, t]).tolist()]
            self.model.add_exactly_one([*column, literal.negated()])
        self._pairs[edge] = pairs
        return None

    def _add_implications(self, u: int, v: int, allowed: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """An edge that only forbids: each strategy needs a partner."""
        for s, literal in enumerate(self._literals[u]):
            if not allowed[s].all():
                partners = [self._literals[v][t] for t in np.flatnonzero(allowed[s]).tolist()]
                self.model.add_bool_or([literal.negated(), *partners])

    def _objective(self) -> Any:
        core, literals, costs = self.core, list[Any](), list[int]()
        for node, of_node in enumerate(self._literals):
            literals.extend(of_node)
            costs.extend(core.cost[core.start[node] : core.start[node + 1]].tolist())
        for edge, pairs in self._pairs.items():
            matrix = core.matrix(edge)
            literals.extend(pairs.values())
            costs.extend(int(matrix[pair]) for pair in pairs)
        return self._weighted(literals, costs)

    def _weighted(self, literals: list[Any], weights: list[int]) -> Any:
        from ortools.sat.python import cp_model

        used = [(literal, weight) for literal, weight in zip(literals, weights, strict=True) if weight]
        return cp_model.LinearExpr.weighted_sum([pair[0] for pair in used], [pair[1] for pair in used])

    def hint(self, choice: Ints) -> None:
        for node, of_node in enumerate(self._literals):
            for strategy, literal in enumerate(of_node if len(of_node) > 1 else []):
                self.model.add_hint(literal, int(choice[node] == strategy))
        for edge, pairs in self._pairs.items():
            u, v = self.core.ends[edge].tolist()
            for (s, t), literal in pairs.items():
                self.model.add_hint(literal, int(choice[u] == s and choice[v] == t))

    def add_rows(self, rows: Ints, excess: Any = 0) -> None:
        core = self.core
        for row in rows.tolist():
            self.clock.check()
            literals, amounts = list[Any](), list[int]()
            for item in np.flatnonzero((core.item_begin <= row) & (row < core.item_end)).tolist():
                owner, where = int(core.item_owner[item]), int(core.item_usage[item])
                if owner < core.node_count:
                    literals.extend(self._literals[owner])
                    amounts.extend(core.usage_pool[where : where + len(self._literals[owner])].tolist())
                    continue
                columns = int(core.counts[core.ends[owner - core.node_count, 1]])
                for (s, t), literal in self._pairs[owner - core.node_count].items():
                    literals.append(literal)
                    amounts.append(int(core.usage_pool[where + s * columns + t]))
            self.model.add(self._weighted(literals, amounts) <= int(core.room[row]) + excess)

    def choice(self, solver: Any) -> Ints:
        return np.array(
            [
                next(s for s, literal in enumerate(of_node) if solver.boolean_value(literal))
                for of_node in self._literals
            ],
            dtype=np.int64,
        )


def _first_rows(core: Core) -> Ints:
    """Rows where the most can go wrong, spread over the time."""
    if not len(core.room):
        return np.zeros(0, dtype=np.int64)
    owner_size = np.concatenate([core.counts, core.counts[core.ends[:, 0]] * core.counts[core.ends[:, 1]]])
    largest = [
        int(core.usage_pool[where : where + owner_size[owner]].max())
        for owner, where in zip(core.item_owner, core.item_usage, strict=True)
    ]
    delta = np.zeros(len(core.room) + 1)
    np.add.at(delta, core.item_begin, largest)
    np.subtract.at(delta, core.item_end, largest)
    pressure = np.cumsum(delta[:-1]) / np.maximum(core.room, 1)
    blocks = np.array_split(np.arange(len(pressure)), min(_ROWS_A_ROUND, len(pressure)))
    return np.array([block[pressure[block].argmax()] for block in blocks], dtype=np.int64)


def _violated_rows(core: Core, choice: Ints, known: Ints) -> Ints:
    """The worst row of each run of violated ones."""
    excess = core.profile_of(choice) - core.room
    excess[known] = 0
    violated = np.flatnonzero(excess > 0)
    runs = np.split(violated, np.flatnonzero(np.diff(violated) > 1) + 1) if len(violated) else []
    worst = sorted((run[excess[run].argmax()] for run in runs), key=lambda row: -excess[row])
    return np.array(worst[:_ROWS_A_ROUND], dtype=np.int64)
