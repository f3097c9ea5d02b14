"""Every form carries the plan: what is written costs what was planned, read by itself."""

from collections import Counter

import pytest

from autoshard import pipeline
from autoshard.mlir.explicit import listed_collectives
from autoshard.mlir.source import load, resolve_mesh
from autoshard.mlir.walk import walk
from autoshard.plans import Plan
from tests.check.test_programs import data_parallel
from tests.programs import PROGRAMS

MESH = (("x", 4), ("y", 2))
QUICK = ("mlp_train", "embedding_train", "convnet_train")
LONG = ("transformer_train", "transformer_train_scan", "moe_sorted_train", "dropout_train")
EACH = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
Sent = Counter[tuple[str, tuple[str, ...], int]]


def planned(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Plan, str]:
    """Data parallelism as Shardy propagates it, and its module with explicit collectives."""
    monkeypatch.setattr(pipeline, "solve", data_parallel)
    request = pipeline.Request(MESH, memory_bytes=None, form="shardy-collectives")
    loaded = pipeline.load_module(PROGRAMS[name]().encode(), request)
    plan = pipeline.plan_loaded(loaded)
    return plan, pipeline.write_planned(loaded, plan)


def sent(plan: Plan) -> Sent:
    """Runs of each collective that moves something."""
    found: Sent = Counter()
    for c in plan.price.collectives:
        if c.kind != "all_slice":
            found[c.kind, c.axes, c.bytes] += c.repeat
    return found


def written_collectives(text: str) -> Sent:
    source = load(text.encode())
    found: Sent = Counter()
    for c in listed_collectives(walk(source.module.operation, "main"), resolve_mesh(source, None), ""):
        if c.kind != "all_slice":
            axes = tuple(str(axis).replace('"', "") for axis in c.axes)
            found[c.kind, axes, c.result_bytes if c.kind == "all_gather" else c.operand_bytes] += c.repeat
    return found


@pytest.mark.parametrize("name", EACH)
def test_the_written_collectives_are_those_that_the_plan_lists(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kind, axes and bytes of each, as often as it runs."""
    plan, text = planned(name, monkeypatch)
    assert sent(plan) == written_collectives(text)
    assert sent(plan)


@pytest.mark.parametrize("name", EACH)
def test_explicit_collectives_are_priced_as_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, text = planned(name, monkeypatch)
    request = pipeline.Request(memory_bytes=None, form="shardy-collectives")
    again = pipeline.cost_loaded(pipeline.load_module(text.encode(), request))
    assert sent(again) == sent(plan)
    assert moving_ns(again) == moving_ns(plan)


def moving_ns(plan: Plan) -> int:
    return sum(c.ns * c.repeat for c in plan.price.collectives if c.kind != "all_slice")
