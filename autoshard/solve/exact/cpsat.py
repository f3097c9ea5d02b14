"""A core -> CP-SAT.

Encoding: the local polytope of the graphical model [1]. x[i, s] says that node i takes strategy s, y[e, s, t] that
edge e = (u, v) has the pair (s, t):

    sum_s x[i, s] = 1,    sum_t y[e, s, t] = x[u, s],    sum_s y[e, s, t] = x[v, t]
    minimise  sum cost[i, s] x[i, s] + sum matrix_e[s, t] y[e, s, t]

Numbers of 2**53 and more are beyond the doubles of its LP and of its gap: rows of so many bytes are refused, and of so
large costs an optimum counts only when a search for a cheaper one has ended (a gap of 1 may be none in doubles).

A forbidden pair has no y, and all costs are less their minima: a bound of zero, which CP-SAT reports before it has
any, is then true. Linearization level 2 lets the LP see all of it. A memory row is the sum of the bytes of its items,
over x and over y, at most the room of the row. A cutoff is the upper end of the objective's domain.

One worker, no probing and no symmetry: proofs on cores of 200 to 300 nodes take a third of what eight interleaved
workers need. The peak, where good choices matter more than proofs, keeps the eight.

[1] M. Wainwright, M. Jordan, Graphical models, exponential families, and variational inference, 2008, section 4.1.
"""

from __future__ import annotations

from importlib import import_module
from threading import Thread
from typing import Any

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, OutOfTimeError, watched
from autoshard.solve.core import Core
from autoshard.solve.exact.engine import Answer, Found, UnsuitableError
from autoshard.solve.exact.shift import Shifted, shifted
from autoshard.solve.exact.usage import owner_size, usage_in_row
from autoshard.solve.graph import FINITE_BELOW

_PATIENCE_S = 1.0  # for a solver that has been told to stop
_LOWEST = -(2**62)
_EXACT_BELOW = 2**53  # whole numbers that a double holds
_NOTHING = Answer(None, None, False, False)


class CpSat:
    """`budget` is CP-SAT's deterministic time, about seconds of work."""

    def __init__(self, core: Core, seed: int) -> None:
        import_module("ortools.sat.python.cp_model")  # where it is missing, that shows here
        self._costs, self._seed = shifted(core), seed
        self._exact_rows = counts_bytes_exactly(core)
        self._encoding: _Encoding | None = None
        self._rows: set[int] = set()

    def solve(
        self,
        rows: Ints,
        *,
        clock: Clock,
        budget: int | None = None,
        hint: Ints | None = None,
        cutoff: int | None = None,
        found: Found | None = None,
    ) -> Answer:
        """As `Engine.solve` says.

        Raises:
            UnsuitableError: costs or bytes are too large.
        """
        from ortools.sat.python import cp_model

        if not self._exact_rows:
            raise UnsuitableError("a row of memory is too large for doubles")
        try:
            encoding = self._encode(rows, clock)
        except OutOfTimeError:
            return _NOTHING
        encoding.limit(cutoff)
        encoding.hint(hint)
        solver = _solver(clock.left_s(), self._seed)
        solver.parameters.num_workers = 1
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.symmetry_level = 0
        if budget is not None:
            solver.parameters.max_deterministic_time = budget
        outcome = None if clock.over() else _run(solver, encoding.model, clock, _reporter(encoding, found))
        if outcome is None:
            return _NOTHING
        if outcome == cp_model.INFEASIBLE:
            return Answer(None, cutoff, False, True)
        if outcome == cp_model.MODEL_INVALID:
            raise UnsuitableError(encoding.model.validate())
        bound = self._costs.least + max(0, solver.response_proto.inner_objective_lower_bound)
        if outcome == cp_model.UNKNOWN:
            return Answer(None, bound, False, False)
        choice = encoding.choice(solver.boolean_value)
        cost = self._costs.core.cost_of(choice)
        assert cost is not None, "the model allows what the core forbids"
        if outcome != cp_model.OPTIMAL or bound >= cost:
            return Answer(choice, bound, outcome == cp_model.OPTIMAL, False)
        cheaper = self.solve(rows, clock=clock, budget=budget, hint=choice, cutoff=cost, found=found)
        if cheaper.choice is not None:
            return cheaper
        return Answer(choice, cost if cheaper.infeasible else bound, cheaper.infeasible, False)

    def _encode(self, rows: Ints, clock: Clock) -> _Encoding:
        """The model with these very rows: that of last time if rows have only been added."""
        wanted = set(rows.tolist())
        encoding = self._encoding if self._rows <= wanted else None
        if encoding is None:
            encoding, self._rows = _Encoding(self._costs, clock), set()
        self._encoding = None
        encoding.add_rows(np.array(sorted(wanted - self._rows), dtype=np.int64), clock)
        self._encoding, self._rows = encoding, wanted
        return encoding


def counts_bytes_exactly(core: Core) -> bool:
    """Does no row of the core sum up to more than doubles hold?"""
    most = np.zeros(len(core.room) + 1)
    largest = [
        float(core.usage_pool[where : where + owner_size(core, owner)].max())
        for owner, where in zip(core.item_owner.tolist(), core.item_usage.tolist(), strict=True)
    ]
    np.add.at(most, core.item_begin, largest)
    np.subtract.at(most, core.item_end, largest)
    highest = np.abs(core.room).max(initial=0) + np.cumsum(most).max(initial=0)
    return bool(highest < _EXACT_BELOW)


def solve_peak(core: Core, clock: Clock, *, seed: int) -> Answer:
    """Minimise the largest excess of a row over its room, not below zero, instead of the cost."""
    from ortools.sat.python import cp_model

    try:
        encoding = _Encoding(shifted(core), clock)
        excess = encoding.model.new_int_var(0, 2**60, "")
        encoding.add_rows(np.arange(len(core.room)), clock, excess)
    except OutOfTimeError:
        return _NOTHING
    encoding.model.minimize(excess)
    solver = _solver(clock.left_s(), seed)
    solver.parameters.num_workers = 8
    solver.parameters.interleave_search = True  # one order of work, whatever the number of cores
    outcome = _run(solver, encoding.model, clock, None)
    if outcome is None:
        return _NOTHING
    if outcome == cp_model.INFEASIBLE:
        return Answer(None, None, False, True)
    bound = int(solver.response_proto.inner_objective_lower_bound)
    if outcome not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer(None, bound, False, False)
    return Answer(encoding.choice(solver.boolean_value), bound, outcome == cp_model.OPTIMAL, False)


def _run(solver: Any, model: Any, clock: Clock, callback: Any) -> Any:
    """Solve in a thread of its own, so that an interrupt reaches us while native code runs.

    A solver that does not stop when it is told to is left behind, and None returned.
    """
    outcome: list[Any] = []
    thread = Thread(target=lambda: outcome.append(solver.solve(model, callback)), daemon=True)
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


def _solver(time_limit_s: float, seed: int) -> Any:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.random_seed = seed
    solver.parameters.linearization_level = 2
    solver.parameters.catch_sigint_signal = False
    return solver


def _reporter(encoding: _Encoding, found: Found | None) -> Any:
    """A callback that tells `found` every solution."""
    from ortools.sat.python import cp_model

    if found is None:
        return None

    class Reporter(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            found(encoding.choice(self.boolean_value))

    return Reporter()


class _Encoding:
    def __init__(self, costs: Shifted, clock: Clock) -> None:
        from ortools.sat.python import cp_model

        clock.check()
        self.core, self._costs = costs.core, costs
        core = costs.core
        self.model = cp_model.CpModel()
        self._literals: list[list[Any]] = [self._node_literals(int(count)) for count in core.counts]
        self._pairs: dict[int, dict[tuple[int, int], Any]] = {}
        with_items = set((core.item_owner[core.item_owner >= core.node_count] - core.node_count).tolist())
        for edge in watched(clock, range(len(core.ends))):
            self._add_edge(edge, edge in with_items)
        self.model.minimize(self._objective())

    def _node_literals(self, count: int) -> list[Any]:
        if count == 1:
            return [self.model.new_constant(1)]
        literals = [self.model.new_bool_var("") for _ in range(count)]
        self.model.add_exactly_one(literals)
        return literals

    def _add_edge(self, edge: int, has_items: bool) -> None:
        matrix = self._costs.matrix(edge)
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
        literals, costs = list[Any](), list[int]()
        for node, of_node in enumerate(self._literals):
            literals.extend(of_node)
            costs.extend(self._costs.node_cost(node).tolist())
        for edge, pairs in self._pairs.items():
            matrix = self._costs.matrix(edge)
            literals.extend(pairs.values())
            costs.extend(int(matrix[pair]) for pair in pairs)
        return self._weighted(literals, costs)

    def _weighted(self, literals: list[Any], weights: list[int]) -> Any:
        from ortools.sat.python import cp_model

        used = [(literal, weight) for literal, weight in zip(literals, weights, strict=True) if weight]
        return cp_model.LinearExpr.weighted_sum([pair[0] for pair in used], [pair[1] for pair in used])

    def limit(self, cutoff: int | None) -> None:
        """Only choices cheaper than the cutoff count."""
        domain = self.model.proto.objective.domain
        domain.clear()
        if cutoff is not None:
            domain.extend([_LOWEST, cutoff - 1 - self._costs.least])

    def hint(self, choice: Ints | None) -> None:
        self.model.clear_hints()
        if choice is None:
            return
        for node, of_node in enumerate(self._literals):
            for strategy, literal in enumerate(of_node if len(of_node) > 1 else []):
                self.model.add_hint(literal, int(choice[node] == strategy))
        for edge, pairs in self._pairs.items():
            u, v = self.core.ends[edge].tolist()
            for (s, t), literal in pairs.items():
                self.model.add_hint(literal, int(choice[u] == s and choice[v] == t))

    def add_rows(self, rows: Ints, clock: Clock, excess: Any = 0) -> None:
        for row in rows.tolist():
            clock.check()
            literals, amounts = list[Any](), list[int]()
            for owner, usage in usage_in_row(self.core, row).items():
                of_owner, used = self._literals_of(owner, usage)
                literals.extend(of_owner)
                amounts.extend(used)
            self.model.add(self._weighted(literals, amounts) <= int(self.core.room[row]) + excess)

    def _literals_of(self, owner: int, usage: Ints) -> tuple[list[Any], list[int]]:
        """The literals of a node's strategies or of an edge's allowed pairs, and the bytes of each."""
        if owner < self.core.node_count:
            return self._literals[owner], usage.tolist()
        edge = owner - self.core.node_count
        columns = int(self.core.counts[self.core.ends[edge, 1]])
        pairs = self._pairs[edge]
        return list(pairs.values()), [int(usage[s * columns + t]) for s, t in pairs]

    def choice(self, value: Any) -> Ints:
        """[n] strategies, from the solver's value of a literal."""
        return np.array(
            [next(s for s, literal in enumerate(of_node) if value(literal)) for of_node in self._literals],
            dtype=np.int64,
        )
