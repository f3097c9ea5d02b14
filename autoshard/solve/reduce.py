"""A presolved graph -> proved, or as far as the clock goes: prove what is small, shrink what is large.

A core without memory rows that is narrow goes to dynamic programming. A small one goes to the exact engines at once. The
others go to message passing with search until that stalls or until its bound rules out enough strategies for presolve to
bite again; a core that is small enough by then goes to the exact engines too, with the best choice so far.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from autoshard.problem import evaluate
from autoshard.problem.model import Bools, Ints
from autoshard.solve.carry import Prices, carried, learned
from autoshard.solve.clock import Clock, OutOfTimeError
from autoshard.solve.core import Core, flatten
from autoshard.solve.exact.cpsat import CpSat
from autoshard.solve.exact.dynamic import eliminate_all, elimination_order
from autoshard.solve.exact.engine import Answer, UnsuitableError
from autoshard.solve.exact.lazy import solve_lazily
from autoshard.solve.exact.race import race
from autoshard.solve.graph import ContradictionError, Graph, positions
from autoshard.solve.presolve import presolve
from autoshard.solve.record import Record

if TYPE_CHECKING:
    from autoshard.solve.anytime import Anytime

_PRESOLVE_SHARE = 0.5  # of the time that is left
_TINY = 2_000  # pairs of a core that CP-SAT solves in no time
_RACE_AT_ONCE = 60_000  # pairs of a core that the exact engines may try before anything else, for a round
_RACE_LATER = 200_000  # pairs of a core that they may try when the search has stalled
_RACE_SHARE = 0.25  # of the time that is left, for a round: an engine may hang in propagation
_SHARE_AT_ONCE = 0.5  # the same for the first round on a small core, which has to start a process in it
_WORTH_SHRINKING = 0.1  # of the strategies
_GIVE_UP_AFTER = 0.6  # of the time, to look for the smallest peak if nothing fits so far
_STALLED = 4  # rounds of search without progress: time for the exact engines; the double next time


class Reducer:
    """Solves one presolved graph of a Record's problem within a clock, which may be a part of the Record's."""

    def __init__(
        self,
        record: Record,
        clock: Clock,
        *,
        engines: tuple[str, ...] | None = None,
        patience: int | None = None,
        far_over: int | None = None,
    ) -> None:
        """`engines` None: whichever suits; else only these, none of them being search alone. `patience`:
        rounds without progress that end the search; None: it takes its time. `far_over`: a peak, in bytes, of the
        cheapest choice so far that makes it pointless to go on."""
        self.record, self.clock = record, clock
        self._chosen, self._patience, self._far_over = engines, patience, far_over
        self._engines = ("toulbar2", "cp-sat") if engines is None else engines
        self._incumbent: Ints | None = (
            None  # [N] the best choice for this graph, which may lack the memory rows
        )
        self._first = True
        self._taken: Ints | None = None  # of the engine's, the last one that was settled
        self._learned: Prices | None = None

    def solve(self, graph: Graph) -> None:
        """Until proved, out of time or exhausted.

        Raises:
            ContradictionError: no choice is valid.
            OutOfTimeError: the clock is over.
        """
        core = flatten(graph, self.clock)
        while not self._exactly(graph, core):
            smaller = self._search(graph, core)
            if smaller is None:
                return
            core = smaller

    def fits(self) -> bool:
        """Does the cheapest choice so far, of a graph without memory or of all, fit into memory?"""
        if self._incumbent is None:
            return False
        found, best = evaluate(self.record.problem, self._incumbent), self.record.best.cost
        return found.feasible or (best is not None and found.cost is not None and best <= found.cost)

    def go_on(self, graph: Graph, clock: Clock, patience: int | None) -> None:
        """From where it is, as long as the cheapest choice fits; `patience` as of the Reducer.

        Raises:
            OutOfTimeError: the clock is over.
        """
        self.clock, self._patience, self._far_over = clock, patience, self.record.problem.memory_limit
        self.solve(graph)

    def is_small(self, graph: Graph) -> bool:
        """Is it worth to try the exact engines on the presolved graph before anything else?"""
        return graph.pair_count() <= _RACE_AT_ONCE

    def _exactly(self, graph: Graph, core: Core) -> bool:
        """By what proves, where the core is narrow or small; is it solved?"""
        self._note(graph, core)
        record = self.record
        if not core.node_count:
            record.settle(graph, core, core.cost, core.constant)
            return True
        if self._chosen:
            return self._race(graph, core, self._engines, rounds=None)
        order = None if len(core.room) or self._chosen == () else elimination_order(core, self.clock)
        if order is not None:
            record.statistics["engine"] = "dynamic programming"
            choice = eliminate_all(core, order, self.clock)
            record.settle(graph, core, choice, core.cost_of(choice))
            return True
        if self._chosen is None and core.pair_count() <= _TINY:
            return self._cp_sat(graph, core)
        at_once = self._first and core.pair_count() <= _RACE_AT_ONCE
        self._first = False
        return at_once and self._race(graph, core, self._engines[:1], share=_SHARE_AT_ONCE)

    def _cp_sat(self, graph: Graph, core: Core) -> bool:
        """In this process: it takes less time than to start another."""
        record = self.record
        record.statistics["engine"] = "CP-SAT"
        engine = CpSat(core, record.seed)
        with suppress(UnsuitableError):
            answer = solve_lazily(engine, core, self.clock, hint=self._hint(graph, core)).answer
            return self._settled(graph, core, answer)
        return False

    def _settled(self, graph: Graph, core: Core, answer: Answer) -> bool:
        """Take over what exact engines say; is it solved?"""
        if answer.infeasible:
            raise ContradictionError("the exact engines prove that nothing fits")
        known = self.record.settle(graph, core, answer.choice, answer.lower_bound)
        self._incumbent = self._incumbent if known is None else known
        return answer.optimal

    def _race(
        self,
        graph: Graph,
        core: Core,
        engines: tuple[str, ...],
        rounds: int | None = 1,
        growth: int = 1,
        share: float = _RACE_SHARE,
    ) -> bool:
        """The exact engines, for some rounds; is it solved?"""
        if not engines:
            return False
        record = self.record
        record.statistics["engine"] = " and ".join(engines)
        record.tell("proving with " + " and ".join(engines))

        def tell(choice: Ints | None, bound: int | None) -> None:
            known = record.settle(graph, core, choice, bound)
            self._incumbent = self._incumbent if known is None else known

        answer = race(
            core,
            self.clock if rounds is None else self.clock.part(share),
            seed=record.seed,
            threads=record.threads,
            engines=engines,
            hint=self._hint(graph, core),
            tell=tell,
            rounds=rounds,
            growth=growth,
        )
        return self._settled(graph, core, answer)

    def _hint(self, graph: Graph, core: Core) -> Ints | None:
        starts = [start for start in (self._incumbent, self.record.best.choice) if start is not None]
        return graph.project(starts[0])[core.graph_nodes] if starts else None

    def _search(self, graph: Graph, core: Core) -> Core | None:
        """Rounds of message passing and moves; a smaller core to go on with, or None at the end."""
        from autoshard.solve.anytime import Anytime

        record, clock = self.record, self.clock
        record.warming.wait(clock.left_s())
        record.statistics["engine"] = "message passing"
        engine = Anytime(core, record.seed, clock, record.threads)
        if self._learned is not None:
            engine.start_from(*carried(self._learned, graph, core, engine.layout))
        mine = record.hints if self._incumbent is None else [self._incumbent]
        starts = [*mine, record.best.choice]
        for start in starts:
            if start is not None:
                engine.consider(graph.project(start)[core.graph_nodes])
        self._take_over(graph, core, engine)  # a projection may be cheaper than what it is one of
        if engine.best is None and len(core.room):
            self._fit(graph, core, engine)
        try:
            smaller = self._turn(graph, core, engine)
        finally:
            relaxation = engine.relaxation
            self._learned = learned(graph, core, engine.layout, relaxation.multipliers, relaxation.messages)
        if not smaller:
            return None
        self._shrink(graph, core, engine.removable)
        return flatten(graph, clock)

    def _turn(self, graph: Graph, core: Core, engine: Anytime) -> bool:
        """Round after round; does it end because much of the core can be left out?"""
        record, clock = self.record, self.clock
        patience, growth = _STALLED, 1
        while not (clock.over() or record.done()):
            self._round(graph, core, engine)
            if engine.proved() or self._pointless():
                return False
            if engine.removable.mean() > _WORTH_SHRINKING:
                return True
            if engine.quiet_rounds >= patience and core.pair_count() <= _RACE_LATER:
                if self._race(graph, core, self._engines, growth=growth):
                    return False
                if self._incumbent is not None:
                    engine.consider(graph.project(self._incumbent)[core.graph_nodes])
                    self._take_over(graph, core, engine)
                patience, growth = 2 * patience, 4 * growth
                engine.quiet_rounds = 0
            if self._patience is not None and engine.quiet_rounds >= self._patience:
                return False
        return False

    def _fit(self, graph: Graph, core: Core, engine: Anytime) -> None:
        """Any choice that fits, to have one: the search rarely starts from it."""
        from autoshard.solve.descent import fitting_choice

        self.record.tell("looking for a choice that fits")
        choice = fitting_choice(core, self.record.seed, self.clock)
        if choice is not None and engine.consider(choice):
            self._take_over(graph, core, engine)

    def _take_over(self, graph: Graph, core: Core, engine: Anytime) -> None:
        """The engine's best choice, if it is another one than last time."""
        if engine.best is not None and engine.best is not self._taken:
            self._taken = engine.best
            self._incumbent = self.record.settle(graph, core, engine.best, None)

    def _round(self, graph: Graph, core: Core, engine: Anytime) -> None:
        try:
            engine.round(self.clock)
        finally:  # also after Ctrl-C in the middle of it
            self.record.settle(graph, core, None, engine.lower_bound)
            self._take_over(graph, core, engine)
        if engine.lower_bound > core.constant + engine.relaxation.total:
            raise ContradictionError("the bound is above the cost of every choice")
        self.record.tell("message passing")

    def _pointless(self) -> bool:
        """Nothing fits and the time is better spent on the smallest peak, or the owner of the graph says so."""
        if self._incumbent is None:
            return self.record.best.choice is None and self.record.clock.used() > _GIVE_UP_AFTER
        far_over = self._far_over
        return far_over is not None and evaluate(self.record.problem, self._incumbent).peak > far_over

    def _shrink(self, graph: Graph, core: Core, removable: Bools) -> None:
        """Take strategies of the core out of the graph and presolve it again."""
        for index in np.unique(
            np.searchsorted(core.start, np.flatnonzero(removable), side="right") - 1
        ).tolist():
            stays = ~removable[core.start[index] : core.start[index + 1]]
            graph.keep_strategies(int(core.graph_nodes[index]), np.flatnonzero(stays), positions(stays))
        shorten(graph, self.clock)

    def _note(self, graph: Graph, core: Core) -> None:
        """What presolve left, for the report."""
        kind = "with memory" if len(core.room) else "without memory"
        self.record.note_core(f"{graph.size()}, {len(core.room)} rows, {kind}")
        self.record.tell(f"presolved to {graph.size()}")


def shorten(graph: Graph, clock: Clock) -> None:
    """Presolve as far as a share of the clock allows.

    Raises:
        ContradictionError: no choice is valid.
        OutOfTimeError: the whole clock is over.
    """
    with suppress(OutOfTimeError):
        presolve(graph, clock.part(_PRESOLVE_SHARE))
    clock.check()
