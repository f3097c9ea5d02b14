"""The floors called in order: module in, plan out; an annotated module in, its price out."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoshard.annotated import AsWritten, cost_loaded, price_as_written
from autoshard.baselines import baseline_choices, followed
from autoshard.check import CheckReport, Subject, check
from autoshard.cost import CollectivePrices, Operand, bound, is_gathered_in_product
from autoshard.errors import AutoshardError
from autoshard.loading import (
    Loaded,
    analyse,
    keeps_partial_sums,
    load_module,
    read_module,
    read_planned,
)
from autoshard.mlir import passes
from autoshard.mlir.emit import Gathers
from autoshard.mlir.forms import Form, form_named
from autoshard.mlir.source import load
from autoshard.mlir.turning import changed_behind
from autoshard.mlir.write import Constraints, write
from autoshard.plans import Plan
from autoshard.pricing import price, price_for_planning, repriced
from autoshard.priorities import solve_by_levels
from autoshard.problem import Problem
from autoshard.program import demands_of, gathered_as, lone_operands, priority_levels, scattered_addends
from autoshard.progress import Progress, silent
from autoshard.recording import baseline, plan_of
from autoshard.requests import Carry, Request, given_pairs
from autoshard.scheduling import is_ordered, shortest_in_order
from autoshard.sharding import TensorSharding, batch_dims
from autoshard.solve import Clock, Solution, Status, solve
from autoshard.xla import VerifyReport, verify

__all__ = [
    "WITHIN_LEVELS",
    "AsWritten",
    "Loaded",
    "Request",
    "analyse",
    "baseline_choices",
    "check_plan",
    "constraints_named",
    "cost_loaded",
    "load_module",
    "plan_loaded",
    "price",
    "price_as_written",
    "price_for_planning",
    "read_module",
    "read_planned",
    "repriced",
    "verify_modules",
    "write_planned",
]
CHEAPEST_SHARE = 0.6
"""Of the time, for the cheapest choice, where the shortest one in the scheduler's order is looked for from there."""
LEAST_SHARE = 0.05  # of the time, left for one more round of that; each takes half of what is left
WITHIN_LEVELS = "The choice is proved to be the cheapest one within what the more urgent priorities decided."


def plan_loaded(
    loaded: Loaded,
    *,
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    starts: Sequence[Mapping[int, TensorSharding]] = (),
    progress: Progress = silent,
    whole: Clock | None = None,
) -> Plan:
    """The best plan found within the time limit, with its bound; `status` says what was proved.

    Args:
        starts: shardings of values to start from, besides the baselines.
        whole: as of `solve`.
    """
    clock = _Clock()
    demands, levels = demands_of(loaded.listing), priority_levels(loaded.listing)
    open_ = price_for_planning(loaded, progress)
    priced = bound(open_, demands) if len(levels) > 1 else open_
    clock.lap("build_s")
    progress("propagating data parallelism", None)
    baselines = baseline_choices(loaded, priced)
    clock.lap("baselines_s")
    extra = [followed("", priced, given, "") for given in starts]
    hints = [choice for _, choice, _ in (*baselines, *extra) if choice is not None]
    progress("solving", None)

    solving = Clock(time_limit_s, whole=whole)

    def solved(problem: Problem, share: float, starts: Sequence[NDArray[np.int64]]) -> Solution:
        return solve(
            problem,
            time_limit_s=time_limit_s * share,
            seed=seed,
            threads=threads,
            hints=starts,
            progress=progress,
            whole=solving,
        )

    def solved_again(problem: Problem, starts: Sequence[NDArray[np.int64]]) -> Solution | None:
        left = 1 - solving.used()
        return solved(problem, left / 2, starts) if left > LEAST_SHARE else None

    familiar, by_level, proved, is_by_order = hints, (), "", False
    if len(levels) > 1:
        leveled = solve_by_levels(open_, demands, levels, hints, solved)
        solution, by_level = leveled.solution, leveled.levels
        familiar = []  # baselines do not extend what the levels decided
        is_within = not by_level[-1].note and solution.status is Status.OPTIMAL
        proved = WITHIN_LEVELS if is_within else ""
    elif is_ordered(loaded):
        cheapest = solved(priced.problem, CHEAPEST_SHARE, hints)
        solution, proved = shortest_in_order(loaded, priced, cheapest, hints, solved_again, seed)
        familiar, is_by_order = [], True  # have been looked at
    else:
        solution = solved(priced.problem, 1.0, hints)
    clock.lap("solve_s")
    rows = tuple(baseline(loaded, priced, *one) for one in baselines)
    found = plan_of(loaded, priced, solution, familiar, rows, clock.laps)
    return replace(found, levels=by_level, proved=proved or found.proved, is_by_order=is_by_order)


def write_planned(
    loaded: Loaded, found: Plan, form: Form | None = None, constraints: Constraints = "minimal"
) -> str:
    """The module with the plan in it, as text; `form` None is the one that the plan was made for."""
    form = form if form is not None else form_named(found.form)
    decisions = found.decisions()
    apart: frozenset[int] = frozenset()
    widened: frozenset[int] = frozenset()
    if form == "xla" and found.lowering == "xla-tpu":
        apart = scattered_addends(loaded.listing, decisions)
        widened = frozenset(gathered_as(loaded.program))
        decisions = changed_behind(decisions.reduced(), loaded.handles.walked, loaded.listing)
    if decisions.has_partial_sums and not keeps_partial_sums(form):
        raise AutoshardError(
            f"the plan leaves partial sums unreduced, and the {form} form cannot say so",
            fix=f"plan for that form: --form {form}",
        )
    return write(
        loaded.source,
        loaded.handles,
        loaded.listing,
        decisions,
        form,
        constraints=constraints,
        carry=found.carry,
        gathers=_gathers(loaded),
        apart=apart,
        widened=widened,
    )


def _gathers(loaded: Loaded) -> Gathers:
    """Which operands the compiler gathers while their products run."""
    prices = CollectivePrices(loaded.communication, loaded.hardware, loaded.lowering)
    listing, lone = loaded.listing, lone_operands(loaded.program)

    def is_gathered(
        number: int, position: int, held: TensorSharding, read: TensorSharding, made: TensorSharding
    ) -> bool:
        op = listing.ops[number]
        type_, first = (listing.values[op.operands[at]].type for at in (position, 0))
        if (op.operands[position], number) not in lone or type_ is None or first is None or op.manual_axes:
            return False
        assert op.rule is not None, "products have rules"
        operand = Operand(type_, batch_dims(op.rule, position), held, read, made)
        return is_gathered_in_product(operand, op.flops, first.dtype, prices, loaded.mesh)

    return is_gathered


def check_plan(
    module: str | bytes | Path,
    found: Plan,
    hardware: str | Path | None = None,
    *,
    deep: bool = False,
    progress: Progress = silent,
) -> CheckReport:
    """Check a plan against its module, independently of what made it.

    Args:
        hardware: chip profile; None takes the one that the plan names.
        deep: also compare with the collectives that Shardy's own passes make of the written module.

    Raises:
        AutoshardError: the module cannot be read, or the plan is for another one.
    """
    loaded = analyse(read_planned(module, found, hardware, progress))
    emitted = None
    if deep:
        progress("running Shardy's passes", None)
        written = write_planned(loaded, found, "shardy")
        emitted = passes.collectives(load(written.encode()), loaded.mesh)
    progress("checking", None)
    return check(Subject(loaded.program, loaded.hardware, loaded.communication), found, emitted)


def verify_modules(
    planned: str | bytes | Path,
    against: str | bytes | Path,
    devices: int,
    seed: int = 0,
    carry: Carry = "auto",
    *,
    time_limit_s: float | None = None,
    progress: Progress = silent,
) -> VerifyReport:
    """Run the planned module on `devices` CPU devices and the original on one, each within the time limit, and compare."""
    progress("compiling and running", None)
    return verify(load(planned), load(against), devices, seed, given_pairs(carry), time_limit_s)


def constraints_named(name: str) -> Constraints:
    assert name in ("minimal", "all")
    return "minimal" if name == "minimal" else "all"


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[name] = round(now - self._last, 3)
        self._last = now
