"""Requirements on a Problem that cannot hold together: masks of nodes, ties of two nodes, and the memory limit.

Structure is a question to a SAT solver: x[i, s] says that node i takes strategy s, exactly one of them; requirement r has a selector
a[r], and

    a[r] -> not x[i, s]                        where r's mask forbids s,
    a[r] and x[u, s] -> some x[v, t]           over the t that r's tie allows beside s, and the same from v.

Where memory takes part, the same in CP-SAT with the bytes of every row that can bind, under the selector of the limit; its
assumptions are the selectors. Both give a set that clashes, not yet a minimal one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autoshard.problem import Problem
from autoshard.problem.model import Bools, Ints
from autoshard.solve.clock import Clock, OutOfTimeError
from autoshard.solve.core import Core, flatten
from autoshard.solve.exact.cpsat import counts_bytes_exactly
from autoshard.solve.exact.usage import usage_in_row
from autoshard.solve.graph import ContradictionError
from autoshard.solve.load import load

_ASSUMED_PAIRS = 20_000  # up to which CP-SAT is asked with memory


@dataclass(frozen=True, slots=True, eq=False)
class Tied:
    """Node `first` and node `second` may take pairs [Ku, Kv] that are allowed."""

    first: int
    second: int
    allowed: Bools


@dataclass(frozen=True, slots=True, eq=False)
class Required:
    """What holds where a requirement does: [K] masks of some nodes, and ties."""

    masks: Mapping[int, Bools] = field(default_factory=dict[int, Bools])
    ties: Sequence[Tied] = ()

    def touched(self) -> Iterator[int]:
        yield from self.masks
        for tie in self.ties:
            yield from (tie.first, tie.second)


def structural_clash(counts: Ints, required: Sequence[Required]) -> tuple[int, ...] | None:
    """Requirements that no choice of strategies (`counts` [N] of each node) meets together; None: some choice meets all."""
    from pysat.solvers import Cadical153

    literals, clauses, unused = _node_clauses(counts, required)
    selectors = list(range(unused, unused + len(required)))
    with Cadical153(bootstrap_with=clauses) as solver:
        for selector, each in zip(selectors, required, strict=True):
            for node, mask in each.masks.items():
                for strategy in np.flatnonzero(~mask).tolist():
                    solver.add_clause([-selector, -literals[node][strategy]])
            for tie in each.ties:
                _add_tie(solver, selector, literals[tie.first], literals[tie.second], tie.allowed)
                _add_tie(solver, selector, literals[tie.second], literals[tie.first], tie.allowed.T)
        if solver.solve(assumptions=selectors):
            return None
        core = solver.get_core() or []
    return tuple(sorted(selectors.index(selector) for selector in core))


def _node_clauses(
    counts: Ints, required: Sequence[Required]
) -> tuple[dict[int, list[int]], list[list[int]], int]:
    """(x of each node that is spoken of, clauses that it takes exactly one strategy, first unused variable)"""
    from pysat.card import CardEnc, EncType

    literals: dict[int, list[int]] = {}
    clauses: list[list[int]] = []
    unused = 1
    for node in sorted({node for each in required for node in each.touched()}):
        literals[node] = list(range(unused, unused + int(counts[node])))
        unused += int(counts[node])
    for mine in literals.values():
        clauses.append(mine)
        at_most = CardEnc.atmost(mine, 1, top_id=unused - 1, encoding=EncType.seqcounter)
        clauses += at_most.clauses
        unused = max(unused, at_most.nv + 1)
    return literals, clauses, unused


def _add_tie(solver: Any, selector: int, mine: list[int], theirs: list[int], allowed: Bools) -> None:
    for strategy, literal in enumerate(mine):
        if not allowed[strategy].all():
            partners = [theirs[other] for other in np.flatnonzero(allowed[strategy]).tolist()]
            solver.add_clause([-selector, -literal, *partners])


def clash_with_memory(
    problem: Problem, required: Sequence[Required], clock: Clock, seed: int
) -> tuple[int, ...] | None:
    """Requirements that cannot hold together within the problem's memory limit; None: they can, or it is not known.

    The problem is without the requirements. Small problems only: others are not asked.
    """
    from ortools.sat.python import cp_model

    try:
        core = flatten(load(problem, clock), clock)
    except ContradictionError:
        return ()
    except OutOfTimeError:
        return None
    if core.pair_count() > _ASSUMED_PAIRS or not counts_bytes_exactly(core):
        return None
    model = cp_model.CpModel()
    literals = [[model.new_bool_var("") for _ in range(int(count))] for count in core.counts]
    for mine in literals:
        model.add_exactly_one(mine)
    selectors = [model.new_bool_var("") for _ in required]
    for selector, each in zip(selectors, required, strict=True):
        for node, mask in each.masks.items():
            for strategy in np.flatnonzero(~mask).tolist():
                model.add_implication(selector, literals[node][strategy].negated())
        for tie in each.ties:
            _tie_in(model, selector, literals[tie.first], literals[tie.second], tie.allowed)
            _tie_in(model, selector, literals[tie.second], literals[tie.first], tie.allowed.T)
    _add_rows(model, core, literals)
    model.add_assumptions(selectors)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(clock.left_s(), 0.0)
    solver.parameters.random_seed, solver.parameters.num_workers = seed, 1
    solver.parameters.catch_sigint_signal = False
    if solver.solve(model) != cp_model.INFEASIBLE:
        return None
    core_of = set(solver.sufficient_assumptions_for_infeasibility())
    return tuple(i for i, selector in enumerate(selectors) if selector.index in core_of)


def _tie_in(model: Any, selector: Any, mine: list[Any], theirs: list[Any], allowed: Bools) -> None:
    for strategy, literal in enumerate(mine):
        if not allowed[strategy].all():
            partners = [theirs[other] for other in np.flatnonzero(allowed[strategy]).tolist()]
            model.add_bool_or([selector.negated(), literal.negated(), *partners])


def _add_rows(model: Any, core: Core, literals: list[list[Any]]) -> None:
    """The bytes of every row; an edge's are those of its pair, by a literal that its two strategies imply."""
    from ortools.sat.python import cp_model

    pairs: dict[tuple[int, int, int], Any] = {}
    for row in range(len(core.room)):
        used, amounts = list[Any](), list[int]()
        for owner, usage in usage_in_row(core, row).items():
            if owner < core.node_count:
                used += literals[owner]
                amounts += usage.tolist()
                continue
            u, v = core.ends[owner - core.node_count].tolist()
            columns = int(core.counts[v])
            for position in np.flatnonzero(usage).tolist():
                key = (owner, *divmod(position, columns))
                if key not in pairs:
                    pairs[key] = model.new_bool_var("")
                    both = [literals[u][key[1]].negated(), literals[v][key[2]].negated(), pairs[key]]
                    model.add_bool_or(both)
                used.append(pairs[key])
                amounts.append(int(usage[position]))
        model.add(cp_model.LinearExpr.weighted_sum(used, amounts) <= int(core.room[row]))
