"""Arbitrary legal plans of a small module, held against the checker, Shardy's passes and a run on eight devices."""

from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import numpy as np

from autoshard import pipeline
from autoshard.mlir.isolated import run_isolated
from autoshard.mlir.read import read
from autoshard.mlir.source import load, resolve_mesh
from autoshard.mlir.write import Form
from autoshard.plans import Plan
from autoshard.problem import evaluate
from autoshard.solve import Solution, Status
from autoshard.space import Strategy

Wish = Callable[[Strategy], bool]
INSERT = "sdy-close-shardings,func.func(sdy-insert-explicit-reshards{enable-full-version=true})"


@dataclass(frozen=True, slots=True)
class Written:
    plan: Plan
    module: str
    text: str  # the planned module


def arbitrary(module: str, wish: Wish, seed: int, form: Form = "shardy") -> Written:
    """Strategies drawn at random, of those that `wish` likes where a kernel has any; everything else as it comes."""
    loaded = pipeline.load_module(module.encode(), pipeline.Request(memory_bytes=None, form=form))
    priced = pipeline.price(loaded)
    draw = np.random.default_rng(seed)
    choice = draw.integers(0, priced.problem.strategy_counts)
    for number, node in enumerate(priced.graph.nodes):
        liked = [i for i, s in enumerate(node.space.strategies) if wish(s)] if node.space else []
        if liked:
            choice[number] = draw.choice(liked)
    found = evaluate(priced.problem, choice)
    solution = Solution(Status.FEASIBLE, choice, found.cost, found.peak, 0, found.peak, choice, 0)
    with mock.patch.object(pipeline, "solve", return_value=solution):
        plan = pipeline.plan_loaded(loaded)
    return Written(plan, module, pipeline.write_planned(loaded, plan))


def complaints(written: Written, *, deep: bool = True) -> str:
    """What the checker, and Shardy's passes, have against the plan."""
    report = pipeline.check_plan(written.module.encode(), written.plan, deep=deep)
    return "" if report.passed else report.to_text()


def added_reshards(written: Written) -> int:
    """How many reshards Shardy's own pass adds to the written module."""
    source = load(written.text.encode())
    _, handles = read(source, resolve_mesh(source, None))
    done = str(run_isolated(handles.walked.module, INSERT))
    return done.count("sdy.reshard ") - written.text.count("sdy.reshard ")


def differences(written: Written, devices: int = 8) -> str:
    """How the numbers on devices differ from those of the module on one."""
    report = pipeline.verify_modules(written.text.encode(), written.module.encode(), devices)
    return "" if report.passed else report.to_text()
