"""A plan and its module in, the range of each hardware figure over which the plan stays the best out.

Scaling a figure changes prices only: choices, legality and memory are those of the same graph, so the plan and all that ever beat it
are choices of every problem, priced anew there by `problem.evaluate`, and hints to the solver. Only where none of those is cheaper is the
solver asked. What it proves is exact in whole nanoseconds; a choice that is cheaper by less than the tolerance is none, because prices of
collectives are rounded up one by one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoshard.baselines import baseline_choices
from autoshard.cost import PricedGraph, recall
from autoshard.errors import AutoshardError
from autoshard.explanations import End, FigureRange, Moved, Replacement, Sensitivity
from autoshard.loading import Loaded, ReadModule, analyse, with_figures
from autoshard.pipeline import price, repriced
from autoshard.plans import NamedSharding, Plan
from autoshard.problem import evaluate
from autoshard.program import priority_levels
from autoshard.progress import Progress, silent
from autoshard.ranging.bracket import Look, Oracle, Side, search_side
from autoshard.ranging.figures import ScaledFigure, figures_of_plan
from autoshard.recording import plan_of_choice
from autoshard.solve import Clock, solve

Ints = NDArray[np.int64]

TOLERANCE = 1e-4
"""Part of the plan's step by which another choice has to be cheaper."""
_LOOK_SHARE = 0.25  # of the time that is left for a figure, for one look


def sensitivity_of(
    read: ReadModule,
    found: Plan,
    *,
    figures: Sequence[str] = (),
    span: float = 16.0,
    precision: float = 0.01,
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    progress: Progress = silent,
) -> Sensitivity:
    """The range of each figure over which no choice is cheaper than the plan's, all other figures as in the profile.

    An interrupt (Ctrl-C) once the first solve has begun ends the search, not the caller.

    Args:
        figures: names of `FIGURES`; none: all that the plan's topology uses.
        span: factors from 1/span to span are looked at.
        precision: to which part of the factor the ends of a range are found.

    Raises:
        AutoshardError: a span or figure that is none, or a plan that does not fit, has priorities, or is no choice of this version.
    """
    if not 1 < span <= 1e6 or not 1e-6 <= precision < 1:
        raise AutoshardError(
            f"a span of {span} to a precision of {precision}",
            fix="give a span above 1, up to 1000000, and a precision below 1, as in --span 16 --precision 0.01",
        )
    progress("pricing", None)
    study = _Study.of(analyse(read), found, seed, threads)
    asked = figures_of_plan(study.loaded.hardware, study.loaded.communication, figures)
    clock = Clock(time_limit_s)
    progress("looking for a better plan", None)
    start = study.at(asked[0], 1.0).look(clock.part(1 / (len(asked) + 1)))
    ranges = [_Range.of(study, figure, start) for figure in asked]
    with clock.ended_by_interrupt():
        for number, one in enumerate(ranges):
            part = clock.part(1 / (len(asked) - number))
            one.search(span, precision, part, _Told(progress, number, len(asked)))
    return Sensitivity(
        study.loaded.hardware.name,
        start.plan_ns,
        found.price.step_ns,
        span,
        TOLERANCE,
        precision,
        tuple(one.found() for one in ranges),
        _replacement(study, asked[0], start) if start.better is not None else None,
        found.is_by_order,
        clock.interrupted,
    )


@dataclass(slots=True)
class _Study:
    """The plan's problem, the plan as a choice of it, and every choice that has beaten it at some figures."""

    loaded: Loaded
    priced: PricedGraph
    plan: Plan
    choice: Ints
    seed: int
    threads: int
    rivals: list[Ints] = field(default_factory=list[Ints])

    @staticmethod
    def of(loaded: Loaded, found: Plan, seed: int, threads: int) -> "_Study":
        if len(priority_levels(loaded.listing)) > 1:
            raise AutoshardError(
                "the module's demands have several priorities, of which the more urgent decide first, whatever the rest costs",
                fix="ask for a plan of the module without priorities",
            )
        priced = price(loaded)
        choice = recall(priced, found.decisions())
        valid = None if choice is None else evaluate(priced.problem, choice)
        if (
            choice is None
            or valid is None
            or valid.cost is None
            or not _decides(loaded, priced, choice, found)
        ):
            raise AutoshardError(
                "the plan is none that this version chooses from",
                where="the plan",
                fix="see what autoshard check says of it, or plan again with this version",
            )
        if not valid.feasible:
            raise AutoshardError(
                "the plan does not fit into its memory budget, so it is not the best at any figures",
                where="the plan",
                fix="plan with a larger --memory, or see autoshard explain --infeasible",
            )
        rivals = [other for _, other, _ in baseline_choices(loaded, priced) if other is not None]
        return _Study(loaded, priced, found, choice, seed, threads, rivals)

    def at(self, figure: ScaledFigure, factor: float) -> "_At":
        loaded = with_figures(self.loaded, figure.scaled(self.loaded.hardware, factor))
        return _At(self, factor, loaded, repriced(loaded, self.priced))


@dataclass(frozen=True, slots=True)
class _At:
    """The same problem with one figure scaled."""

    study: _Study
    factor: float
    loaded: Loaded
    priced: PricedGraph

    def look(self, clock: Clock) -> Look[Ints]:
        """Is anything cheaper than the plan? What is already known first, then the solver."""
        study = self.study
        plan_ns = self.cost(study.choice)
        assert plan_ns is not None
        least = enough(plan_ns)
        known = [(cost, -n) for n, rival in enumerate(study.rivals) if (cost := self.cost(rival)) is not None]
        cost, number = min(known, default=(plan_ns, 0))
        if cost <= least:
            return Look(self.factor, plan_ns, 0, study.rivals[-number])
        solution = solve(
            self.priced.problem,
            time_limit_s=clock.time_limit_s,
            seed=study.seed,
            threads=study.threads,
            hints=[study.choice, *study.rivals],
            whole=clock,
        )
        bound = plan_ns if solution.lower_bound > least else solution.lower_bound
        # neither is there where the search was interrupted before the hints were priced
        if solution.choice is None or solution.cost is None or solution.cost > least:
            return Look(self.factor, plan_ns, bound, None)
        study.rivals.append(solution.choice)
        return Look(self.factor, plan_ns, bound, solution.choice)

    def cost(self, choice: Ints) -> int | None:
        """None where the choice is not allowed or does not fit."""
        found = evaluate(self.priced.problem, choice)
        return found.cost if found.feasible else None


@dataclass(frozen=True, slots=True)
class _Told:
    progress: Progress
    number: int
    count: int

    def __call__(self, figure: ScaledFigure, factor: float) -> None:
        self.progress(f"{figure.name} times {factor:.3g}", self.number / self.count)


def _decides(loaded: Loaded, priced: PricedGraph, choice: Ints, found: Plan) -> bool:
    """Whether a choice is all that the plan says, and nothing else."""
    again = plan_of_choice(loaded, priced, choice, "feasible", "", 0, (), {})
    return (again.values, again.uses) == (found.values, found.uses)


def enough(plan_ns: int) -> int:
    """What a choice may cost to be better than a plan."""
    return plan_ns - max(int(TOLERANCE * plan_ns), 1)


@dataclass(slots=True)
class _Range:
    """What is known of one figure's range."""

    study: _Study
    figure: ScaledFigure
    start: Look[Ints]
    value: float
    is_linear: bool
    low: Side[Ints]
    high: Side[Ints]

    @staticmethod
    def of(study: _Study, figure: ScaledFigure, start: Look[Ints]) -> "_Range":
        loaded = study.loaded
        value = figure.value(loaded.hardware)
        assert value is not None
        is_linear = loaded.overlap == "none" and figure.is_line_on(loaded.hardware, loaded.communication)
        return _Range(study, figure, start, value, is_linear, Side([start]), Side([start]))

    def search(self, span: float, precision: float, clock: Clock, told: _Told) -> None:
        if self.start.better is not None:
            return
        study, figure = self.study, self.figure

        def look(factor: float) -> Look[Ints] | None:
            told(figure, factor)
            if clock.over():
                return None
            part = clock.part(_LOOK_SHARE)
            found = study.at(figure, factor).look(part)
            return None if part.interrupted and found.better is None else found

        def difference(factor: float, rival: Ints) -> int:
            at = study.at(figure, factor)
            mine, theirs = at.cost(study.choice), at.cost(rival)
            assert mine is not None and theirs is not None
            return enough(mine) - theirs

        oracle = Oracle(look, difference)
        for side, end in ((self.low, 1 / span), (self.high, span)):
            search_side(
                oracle, side, end, is_rate=figure.is_rate, is_linear=self.is_linear, precision=precision
            )

    def found(self) -> FigureRange:
        figure = self.figure
        if self.start.better is not None:
            return FigureRange(
                figure.name, figure.unit, self.value, None, None, self.start.gap, self.is_linear, (1.0,)
            )
        kept = [*self.low.kept, *self.high.kept]
        return FigureRange(
            figure.name,
            figure.unit,
            self.value,
            _end(self.study, figure, self.value, self.low),
            _end(self.study, figure, self.value, self.high),
            max(look.gap for look in kept),
            self.is_linear,
            tuple(sorted({look.factor for look in kept})),
        )


def _end(study: _Study, figure: ScaledFigure, value: float, side: Side[Ints]) -> End:
    last = side.kept[-1].factor
    beyond = None if side.beaten is None else _replacement(study, figure, side.beaten)
    return End(last, last * value, beyond, side.is_cut_short)


def _replacement(study: _Study, figure: ScaledFigure, look: Look[Ints]) -> Replacement:
    assert look.better is not None
    at, value = study.at(figure, look.factor), figure.value(study.loaded.hardware)
    assert value is not None
    other = plan_of_choice(at.loaded, at.priced, look.better, "feasible", "", 0, (), {})
    return Replacement(
        look.factor,
        look.factor * value,
        look.plan_ns,
        other.price.step_ns,
        other.price.peak_bytes,
        tuple(_moved(study.plan, other)),
    )


def _moved(before: Plan, after: Plan) -> Iterator[Moved]:
    def differing(mine: Sequence[NamedSharding], theirs: Sequence[NamedSharding]) -> Iterator[Moved]:
        for one, other in zip(mine, theirs, strict=True):
            if one.sharding != other.sharding:
                yield Moved(one.name, one.sharding, other.sharding)

    yield from differing(before.arguments, after.arguments)
    yield from differing(before.results, after.results)
