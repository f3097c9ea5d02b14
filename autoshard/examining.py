"""The best plan over meshes and their placements, as they are examined one by one; those that cannot win are proved not to.

A mesh is read and its choices listed once for all its placements; only the prices of collectives differ. Then, mesh by mesh:

1. A placement on which every collective that the program may need costs as much as on another one, or more, is out (`cost.cheapest`).
2. Of those that are left, the plan at the least price of each collective bounds all; at the best plan so far, they are out.
3. The rest is planned one by one, that on which the best plan is cheapest first, until the bound reaches the best plan so far.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.baselines import BaselineChoice, baseline_choices
from autoshard.comparisons import Comparison, Examined, Verdict
from autoshard.cost import (
    AskedPrices,
    CheapestPrices,
    CollectivePrices,
    Graph,
    PricedGraph,
    assemble_at,
    read_back,
    undominated,
)
from autoshard.cost.reshard import Decompose
from autoshard.loading import Loaded
from autoshard.mlir import passes
from autoshard.plans import Plan
from autoshard.pricing import graph_of
from autoshard.problem import evaluate
from autoshard.program import largest_alike
from autoshard.progress import Progress
from autoshard.recording import baseline, plan_of
from autoshard.solve import Clock, Solution, Status, solve
from costmodels import Communication, placement_text

MeshAxes = tuple[tuple[str, int], ...]
"""Names and sizes of a mesh's axes."""
_BOUNDING_SHARE = 0.25  # of a mesh's time, for the bound of all placements at once
_PLANNING_SHARE = 0.5  # of what is left of it, for each placement but the last: the likeliest come first, the others start there


@dataclass(frozen=True, slots=True)
class Searched:
    """The best plan of all, and what it was compared with."""

    plan: Plan
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class _Found:
    """A solution, on the mesh and placement that it is for."""

    loaded: Loaded
    priced: PricedGraph
    solution: Solution
    baselines: Sequence[BaselineChoice]
    row: int

    def plan(self) -> Plan:
        hints = [choice for _, choice, _ in self.baselines if choice is not None]
        rows = tuple(baseline(self.loaded, self.priced, *one) for one in self.baselines)
        return plan_of(self.loaded, self.priced, self.solution, hints, rows, {})


@dataclass(slots=True)
class Search:
    """The best plan so far, and what is known of each mesh and placement."""

    time_limit_s: float
    seed: int
    threads: int
    progress: Progress
    clock: Clock | None = None
    """It begins when there is a first problem to solve."""
    best: _Found | None = None
    first: _Found | None = None
    rows: list[Examined] = field(default_factory=list[Examined])

    @property
    def left_s(self) -> float:
        return self.time_limit_s if self.clock is None else self.clock.left_s()

    def begin(self) -> Clock:
        """There is something to solve; nothing happens where the time has begun."""
        self.clock = self.clock if self.clock is not None else Clock(self.time_limit_s)
        return self.clock

    @contextmanager
    def ended_by_interrupt(self) -> Generator[None]:
        """An interrupt (Ctrl-C) in here ends the search where there is a plan already."""
        try:
            yield
        except KeyboardInterrupt:
            if self.clock is None or self.first is None:
                raise
            self.clock.interrupt()

    def leave(self, axes: MeshAxes, models: Sequence[Communication]) -> int:
        """Note that there was no time for these, until there was; returns the row of the first of them."""
        row = len(self.rows)
        self.rows += [
            Examined(axes, placement_text(model.placement), None, 0, "not examined") for model in models
        ]
        return row

    def examine(
        self,
        loaded: Loaded,
        models: Sequence[Communication],
        row: int,
        to_come: int,
        *,
        is_first_asked: bool = False,
    ) -> None:
        """Plan one mesh on those placements that may win.

        Args:
            row: the first of those that `leave` noted for it.
            to_come: meshes, this one among them, that share the time that is left.
        """
        _OneMesh(self, loaded, models, row, to_come).run(is_first_asked=is_first_asked)

    def step_ns(self) -> int | None:
        return None if self.best is None else self.best.solution.cost

    def result(self) -> Searched:
        found = self.best if self.best is not None else self.first
        assert found is not None, "the first mesh is always planned"
        rows = [replace(row, verdict=self._verdict(number, row)) for number, row in enumerate(self.rows)]
        return Searched(found.plan(), Comparison(tuple(rows)))

    def _verdict(self, number: int, row: Examined) -> Verdict:
        step_ns = self.step_ns()
        if self.best is not None and number == self.best.row:
            return "best"
        if row.verdict in ("not examined", "no plan") or step_ns is None:
            return row.verdict
        if row.step_ns is not None and row.step_ns <= row.lower_bound_ns:
            return "proved"
        return "pruned" if row.lower_bound_ns >= step_ns else "open"


class _OneMesh:
    """One mesh, whose choices are listed once, under the prices of each placement; rows from `row` on are its placements'."""

    def __init__(
        self, search: Search, loaded: Loaded, models: Sequence[Communication], row: int, to_come: int
    ) -> None:
        self.search, self.loaded, self.models, self.row = search, loaded, models, row
        self.to_come, self.clock = to_come, Clock(0.0)
        self.axes = tuple((axis.name, axis.size) for axis in loaded.mesh.axes)
        self.prices = [
            CollectivePrices(model, loaded.hardware, loaded.lowering, largest_alike(loaded.program))
            for model in models
        ]
        self.decompose: Decompose = passes.decompose_reshards
        self.hints: list[NDArray[np.int64]] = []
        self.baselines: list[BaselineChoice] = []
        self.bound = 0
        self.incumbent: tuple[PricedGraph, NDArray[np.int64]] | None = None

    @property
    def left_s(self) -> float:
        """Time for this mesh."""
        return self.clock.left_s()

    def run(self, *, is_first_asked: bool) -> None:
        """Fill in the rows."""
        loaded, search = self.loaded, self.search
        search.progress("pricing", None)
        self.graph: Graph = graph_of(loaded)
        asked = AskedPrices(self.models[0], loaded.hardware, loaded.lowering, self.prices[0].apart_below)
        first = self._assembled(asked)
        self.decompose = first.reshards.known
        self.baselines = baseline_choices(replace(loaded, communication=self.models[0]), first)
        self.hints = [choice for _, choice, _ in self.baselines if choice is not None]
        self.clock = search.begin().part(1 / self.to_come)
        covered = undominated([asked.again(prices) for prices in self.prices])
        open_ = [number for number, other in enumerate(covered) if other is None]
        if is_first_asked or (search.best is None and 0 in open_):
            self._plan(0, first, len({0, *open_}))
            open_ = [number for number in open_ if number]
        if len(open_) > 1 and search.best is not None:
            self._bound_all(open_)
        while open_ and not self._is_out(open_):
            number = min(open_, key=self._price_of_incumbent)
            self._plan(number, self._assembled(self.prices[number]), len(open_))
            open_.remove(number)
        for number, other in enumerate(covered):
            if other is not None and not (number == 0 and is_first_asked):
                self._note_covered(number, other)
        self._prefer_first()

    def _prefer_first(self) -> None:
        """Where the best plan of this mesh takes no longer on its first placement, which needs no order of devices, it is for that."""
        best, search = self.search.best, self.search
        if best is None or best.row <= self.row or best.solution.choice is None:
            return
        mine, other = self._price_of_incumbent(0), self._price_of_incumbent(best.row - self.row)
        if mine[0] > other[0]:
            return
        priced, row = self._assembled(self.prices[0]), search.rows[self.row]
        cost = evaluate(priced.problem, best.solution.choice).cost
        if cost is None or best.solution.cost is None or cost > best.solution.cost:
            return
        bound = min(max(row.lower_bound_ns, self.bound), cost)
        status = Status.OPTIMAL if bound == cost else Status.FEASIBLE
        solution = replace(best.solution, cost=cost, lower_bound=bound, status=status)
        loaded = replace(self.loaded, communication=self.models[0])
        search.best = _Found(loaded, priced, solution, best.baselines, self.row)
        search.rows[self.row] = replace(row, step_ns=cost, lower_bound_ns=bound, note="")

    def _is_out(self, open_: list[int]) -> bool:
        """Whether those that are left need not, or cannot, be planned; notes why."""
        step_ns = self.search.step_ns()
        if any(
            self.search.rows[self.row + number].verdict == "no plan" for number in range(len(self.models))
        ):
            for number in open_:
                self._note(number, None, 0, "no plan", "memory does not depend on the placement")
            return True
        if step_ns is not None and self.bound >= step_ns:
            for number in open_:
                self._note(number, None, self.bound, "pruned", "at the least price of each collective")
            return True
        if self.left_s <= 0 and self.search.first is not None:
            for number in open_:
                self._note(number, None, self.bound, "not examined")
            return True
        return False

    def _bound_all(self, open_: list[int]) -> None:
        """A bound for every placement that is left."""
        if self.left_s <= 0:
            return
        self.search.progress(f"bounding {len(open_)} placements at once", None)
        first, *others = (self.prices[number] for number in open_)
        least = CheapestPrices(
            first.communication, first.hardware, first.lowering, first.apart_below, others=tuple(others)
        )
        found = self._solved(self._assembled(least), _BOUNDING_SHARE)
        self.bound = found.lower_bound

    def _plan(self, number: int, priced: PricedGraph, left: int) -> None:
        search = self.search
        search.progress(f"planning on {placement_text(self.models[number].placement)}", None)
        found = self._solved(priced, 1.0 if left == 1 else _PLANNING_SHARE)
        loaded = replace(self.loaded, communication=self.models[number])
        mine = _Found(loaded, priced, found, self.baselines, self.row + number)
        search.first = search.first or mine
        if found.choice is None or found.cost is None:
            is_none = found.status is Status.INFEASIBLE
            note = "nothing fits" if is_none else ""
            self._note(number, None, found.lower_bound, "no plan" if is_none else "open", note)
            return
        self.hints.append(found.choice)
        self._note(number, found.cost, max(found.lower_bound, self.bound), "open")
        step_ns = search.step_ns()
        if step_ns is None or found.cost < step_ns:
            search.best = mine
        if self.incumbent is None or found.cost < (step_ns or found.cost + 1):
            self.incumbent = (priced, found.choice)

    def _solved(self, priced: PricedGraph, share: float) -> Solution:
        """Solved within that share of the time that is left to this mesh."""
        return solve(
            priced.problem,
            time_limit_s=max(self.left_s, 0.0) * share,
            seed=self.search.seed,
            threads=self.search.threads,
            hints=self.hints,
            progress=self.search.progress,
            cutoff=self.search.step_ns(),
            whole=self.clock,
        )

    def _price_of_incumbent(self, number: int) -> tuple[int, int]:
        """What the collectives of this mesh's best plan take on another placement; a guess of how good that is."""
        if self.incumbent is None:
            return (0, number)
        chosen = read_back(*self.incumbent).collectives
        kinds = {"halo_exchange": "collective_permute"}
        prices = self.prices[number]
        total = sum(
            prices.ns_of_one(
                kinds.get(c.collective.kind, c.collective.kind), c.collective.bytes, c.collective.axes
            )
            * c.repeat
            for c in chosen
        )
        return (total, number)

    def _note_covered(self, number: int, other: int) -> None:
        known = self.search.rows[self.row + other]
        note = f"no collective is cheaper than on {known.placement}"
        verdict = known.verdict if known.verdict in ("no plan", "not examined") else "pruned"
        self._note(number, None, known.lower_bound_ns, verdict, note)

    def _note(
        self, number: int, step_ns: int | None, bound_ns: int, verdict: Verdict, note: str = ""
    ) -> None:
        place = placement_text(self.models[number].placement)
        self.search.rows[self.row + number] = Examined(self.axes, place, step_ns, bound_ns, verdict, note)

    def _assembled(self, prices: CollectivePrices) -> PricedGraph:
        loaded = self.loaded
        return assemble_at(self.graph, prices, self.decompose, loaded.memory_bytes, loaded.overlap)
