"""A core -> weighted partial MaxSAT, solved by PySAT's RC2.

Variables: x[i, s], node i takes strategy s, exactly one of them; for every function (the costs of a node, the matrix
of an edge) and each of its values c > 0 a threshold g[c], "it costs at least c", with

    x[u, s] and x[v, t]  ->  g[matrix[s, t]],        g[c] -> g[the next smaller value],
    x[u, s]  ->  g[c]  or  one of x[v, t] with matrix[s, t] < c        (and the same from v)

and a soft clause "not g[c]" of weight c less the next smaller value. A forbidden pair is a value that none may reach.
The third kind is implied; by it unit propagation sees what a strategy costs at least given those left on the other
side (support encoding [1]): measured on a transformer's core it decides between a second and never, and thresholds
need a tenth of the soft clauses that pairs would. Before, the minima of rows and columns move into the nodes and
those of the nodes into a constant, so that no value is negative. Memory rows are numbers that are added (`adder`);
an edge that uses memory has a literal for each amount.

[1] I. Gent, Arc consistency in SAT, ECAI 2002.
"""

from __future__ import annotations

from importlib import import_module
from itertools import combinations, pairwise

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, OutOfTimeError, watched
from autoshard.solve.core import Core
from autoshard.solve.exact.adder import Clauses, Number, at_most
from autoshard.solve.exact.engine import Answer, Found
from autoshard.solve.exact.usage import usage_in_row
from autoshard.solve.graph import FINITE_BELOW


class MaxSat:
    """`budget` counts calls of the SAT solver and its conflicts. Nothing is random, so the seed changes nothing."""

    def __init__(self, core: Core, seed: int) -> None:
        import_module("pysat")  # where it is missing, that shows here
        self._core = core
        self._encoding: _Encoding | None = None

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
        """As `Engine.solve` says; an interrupt ends the clock."""
        best = _Best(self._core, rows, cutoff, found)
        if hint is not None:
            best.offer_hint(hint)
        lower_bound: int | None = None
        complete = False
        try:
            if self._encoding is None:
                self._encoding = _Encoding(self._core, clock)
            lower_bound, complete = _run(self._encoding, rows, best, hint, clock, budget)
        except OutOfTimeError:
            pass
        except KeyboardInterrupt:
            clock.interrupt()
        clock.step()
        if complete:
            return Answer(best.choice, best.limit, best.choice is not None, best.choice is None)
        if lower_bound is not None and best.limit is not None:
            lower_bound = min(lower_bound, best.limit)
        return Answer(best.choice, lower_bound, False, False)


class _Best:
    """The cheapest choice so far; those to come must cost less than `limit`."""

    def __init__(self, core: Core, rows: Ints, cutoff: int | None, found: Found | None) -> None:
        self._core, self._rows, self._found = core, rows, found
        self.limit = cutoff
        self.choice: Ints | None = None

    def offer_hint(self, hint: Ints) -> None:
        cost = self._core.cost_of(hint)
        if cost is not None and self._fits(hint) and (self.limit is None or cost < self.limit):
            self.choice, self.limit = hint, cost

    def offer(self, choice: Ints) -> int:
        """Take a model of the clauses; its cost, constant included."""
        cost = self._core.cost_of(choice)
        assert cost is not None, "the clauses allow what the core forbids"
        if self.limit is None or cost < self.limit:
            assert self._fits(choice), "the clauses allow what exceeds the room"
            self.choice, self.limit = choice, cost
            if self._found is not None:
                self._found(choice)
        return cost

    def _fits(self, choice: Ints) -> bool:
        return bool((self._core.profile_of(choice)[self._rows] <= self._core.room[self._rows]).all())


def _run(
    encoding: _Encoding, rows: Ints, best: _Best, hint: Ints | None, clock: Clock, budget: int | None
) -> tuple[int, bool]:
    """A proved bound on the cost of whatever satisfies the rows and is cheaper than the limit; search complete?

    Raises:
        OutOfTimeError: the clock is over before the search has begun.
    """
    from pysat.formula import WCNF

    from autoshard.solve.exact.rc2 import Search

    hard = [clause for row in watched(clock, rows.tolist()) for clause in encoding.row(row)]
    formula = WCNF()
    formula.nv = encoding.clauses.top
    formula.hard = encoding.clauses.hard + hard
    formula.soft = [[literal] for literal in encoding.soft]
    formula.wght = list(encoding.soft.values())
    constant = encoding.constant
    with Search(
        formula,
        clock=clock,
        budget=budget,
        limit=None if best.limit is None else best.limit - constant,
        found=lambda model: best.offer(encoding.choice(model)) - constant,
    ) as search:
        if hint is not None:
            search.prefer(encoding.literals(hint))
        complete = search.run()
        return constant + search.cost, complete


class _Encoding:
    """Clauses of a core without its rows; those of a row are made when they are asked for, and kept.

    `soft` has a weight for each literal; a choice costs `constant` plus the weights of those that do not hold.
    """

    def __init__(self, core: Core, clock: Clock) -> None:
        clock.check()
        self._core = core
        self.clauses = Clauses()
        self.soft: dict[int, int] = {}
        self._x = [[self.clauses.variable() for _ in range(count)] for count in core.counts.tolist()]
        for literals in watched(clock, self._x):
            self.clauses.hard.append(literals)
            self.clauses.hard.extend([-a, -b] for a, b in combinations(literals, 2))
        node_costs, matrices, self.constant = _minima_moved(core, clock)
        for literals, cost in zip(self._x, watched(clock, node_costs), strict=True):
            threshold = self._thresholds(cost)
            self._at_least([], cost.tolist(), literals, threshold)
            for literal, value in zip(literals, cost.tolist(), strict=True):
                self._pay([-literal], value, threshold)
        for (u, v), matrix in zip(core.ends.tolist(), matrices, strict=True):
            clock.check()
            self._add_edge(self._x[u], self._x[v], matrix)
        self._rows: dict[int, list[list[int]]] = {}
        self._amounts: dict[tuple[int, bytes], Number] = {}

    def choice(self, model: list[int]) -> Ints:
        """[n] the strategies that hold; the model has variable v at v - 1."""
        return np.array(
            [next(s for s, literal in enumerate(of_node) if model[literal - 1] > 0) for of_node in self._x],
            dtype=np.int64,
        )

    def literals(self, choice: Ints) -> list[int]:
        """The choice [n] as values of all x."""
        return [
            literal if strategy == taken else -literal
            for of_node, taken in zip(self._x, choice.tolist(), strict=True)
            for strategy, literal in enumerate(of_node)
        ]

    def row(self, row: int) -> list[list[int]]:
        """Clauses that keep a memory row within its room; what they speak of is defined in `clauses`."""
        if row not in self._rows:
            numbers = [
                self._number(owner, amounts) for owner, amounts in usage_in_row(self._core, row).items()
            ]
            self._rows[row] = at_most(self.clauses, numbers, int(self._core.room[row]))
        return self._rows[row]

    def _number(self, owner: int, amounts: Ints) -> Number:
        """The bytes that a node or an edge uses."""
        if owner < self._core.node_count:
            return list(zip(self._x[owner], amounts.tolist(), strict=True))
        key = (owner, amounts.tobytes())
        if key not in self._amounts:
            u, v = self._core.ends[owner - self._core.node_count].tolist()
            self._amounts[key] = self._pair_number(self._x[u], self._x[v], amounts)
        return self._amounts[key]

    def _pair_number(self, of_u: list[int], of_v: list[int], amounts: Ints) -> Number:
        """A literal for each amount, which both strategies decide."""
        literals = {amount: self.clauses.variable() for amount in np.unique(amounts).tolist()}
        for x, row in zip(of_u, amounts.reshape(len(of_u), len(of_v)).tolist(), strict=True):
            self.clauses.hard.extend([-x, -y, literals[amount]] for y, amount in zip(of_v, row, strict=True))
            for amount, literal in literals.items():
                having = [y for y, other in zip(of_v, row, strict=True) if other == amount]
                self.clauses.hard.append([-x, -literal, *having])
        return [(literal, amount) for amount, literal in literals.items()]

    def _add_edge(self, of_u: list[int], of_v: list[int], matrix: Ints) -> None:
        threshold = self._thresholds(matrix)
        for x, row in zip(of_u, matrix.tolist(), strict=True):
            self._at_least([-x], row, of_v, threshold)
            for y, value in zip(of_v, row, strict=True):
                self._pay([-x, -y], value, threshold)
        for y, column in zip(of_v, matrix.T.tolist(), strict=True):
            self._at_least([-y], column, of_u, threshold)

    def _thresholds(self, values: Ints) -> dict[int, list[int]]:
        """Value > 0 -> a clause's part that says "it costs at least as much"; empty for a forbidden one."""
        levels = [0, *np.unique(values[(values > 0) & (values < FINITE_BELOW)]).tolist()]
        literals = [self.clauses.variable() for _ in levels[1:]]
        self.clauses.hard.extend([-higher, lower] for lower, higher in pairwise(literals))
        for literal, (lower, higher) in zip(literals, pairwise(levels), strict=True):
            self.soft[-literal] = higher - lower
        return {level: [literal] for level, literal in zip(levels[1:], literals, strict=True)}

    def _pay(self, unless: list[int], value: int, threshold: dict[int, list[int]]) -> None:
        if value:
            self.clauses.hard.append(unless + threshold.get(value, []))

    def _at_least(
        self, unless: list[int], values: list[int], literals: list[int], threshold: dict[int, list[int]]
    ) -> None:
        """One of the literals holds, so the value is one of theirs: what the cheapest left costs at least."""
        for value in sorted(set(values) - {0}):
            cheaper = [literal for literal, other in zip(literals, values, strict=True) if other < value]
            self.clauses.hard.append(unless + threshold.get(value, []) + cheaper)


def _minima_moved(core: Core, clock: Clock) -> tuple[list[Ints], list[Ints], int]:
    """The same costs with every one at least zero: of nodes, of edges, and the constant.

    Raises:
        OutOfTimeError: the clock is over.
    """
    of_node = [core.cost[begin:end].copy() for begin, end in pairwise(core.start.tolist())]
    matrices: list[Ints] = []
    for edge, (u, v) in enumerate(watched(clock, core.ends.tolist())):
        matrix = core.matrix(edge)
        allowed = matrix < FINITE_BELOW
        for node, axis in ((u, 1), (v, 0)):
            least = matrix.min(axis=axis, keepdims=True)
            least[least >= FINITE_BELOW] = 0
            of_node[node] += least.ravel()
            matrix = np.where(allowed, matrix - least, matrix)
        matrices.append(matrix)
    constant = core.constant + sum(int(cost.min()) for cost in of_node)
    return [cost - cost.min() for cost in of_node], matrices, constant
