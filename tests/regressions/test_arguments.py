"""Values of the wrong type in the functions that Python callers use, which ended in errors from deep inside."""

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

import autoshard
import costmodels
from autoshard.arguments import TAKEN
from autoshard.plans import Plan
from tests.regressions.test_requests import MODULE

FUNCTIONS = (
    "compile_planned", "explain", "plan", "plan_meshes", "plan_placements", "price", "reshard", "resharder", "sensitivity", "why",
)  # fmt: skip
READ_LATER = {"module", "model", "carry", "form", "overlap", "full", "device_order"}
"""What is refused where it is read."""
ASKED: dict[str, Any] = {
    "module": MODULE, "model": MODULE, "mesh": {"x": 4}, "devices": 4, "value": "arg0", "target": "cpu:1",
    "shape": "8x8xf32", "before": "[{}, {}]", "after": '[{"x"}, {}]',
}  # fmt: skip


def names(function: str) -> list[str]:
    return list(inspect.signature(getattr(autoshard, function)).parameters)


@cache
def planned() -> Plan:
    return autoshard.plan(MODULE, mesh={"x": 4})


def call(function: str, **changed: object) -> None:
    asked = ASKED | ({"plan": planned()} if "plan" in names(function) else {})
    getattr(autoshard, function)(**{n: asked[n] for n in names(function) if n in asked} | changed)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_none_is_refused_by_name(function: str) -> None:
    """Each argument is known, and an object of no use says which argument it was given for."""
    for name in set(names(function)) - READ_LATER:
        assert name in {*TAKEN, "plan", "target"}
        with pytest.raises(autoshard.AutoshardError, match=rf"^autoshard\.{function}: {name} is <object"):
            call(function, **{name: object()})


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", ["module", "model", "carry", "form", "overlap"])
@pytest.mark.parametrize("given", [3, object(), ["x"]])
def test_what_is_read_later_is_refused_there(function: str, name: str, given: object) -> None:
    if name in names(function):
        with pytest.raises(autoshard.AutoshardError):
            call(function, **{name: given})


@pytest.mark.parametrize(
    "given",
    [
        {"time_limit_s": "60"}, {"time_limit_s": float("nan")}, {"time_limit_s": -1}, {"time_limit_s": None}, {"seed": 1.5},
        {"threads": 0}, {"threads": "2"}, {"memory_bytes": [16]}, {"memory_bytes": 10**30}, {"mesh": 4}, {"topology": "4x4"},
        {"mesh": {1: 4}},
        {"topology": [2.5]}, {"placement": {"x": 0}}, {"hardware": b"tpu-v5e"}, {"hardware": None}, {"slices": "1"}, {"progress": 1},
    ],
    ids=str,
)  # fmt: skip
def test_is_refused(given: Mapping[str, object]) -> None:
    with pytest.raises(autoshard.AutoshardError):
        call("plan", **given)


def test_other_types_that_mean_the_same_are_taken() -> None:
    """numpy's numbers, lists for tuples, the items of a dict, and no limit of memory."""
    given = {
        "topology": [np.int64(4)],
        "time_limit_s": np.float32(10),
        "seed": np.int32(0),
        "threads": np.int64(1),
    }
    found = autoshard.plan(MODULE, mesh={"x": 4}.items(), **given)  # pyright: ignore[reportArgumentType]
    assert found.fits


@pytest.mark.parametrize("given", [None, 3, b"tpu-v5e", ["tpu-v5e"]])
def test_profiles_have_names(given: Any) -> None:
    with pytest.raises(costmodels.HardwareError, match="no name or path"):
        costmodels.load(given)


@pytest.mark.parametrize("given", ["x", [1], object(), {"x": 1}])
def test_cost_models_refuse_what_is_none(given: Any) -> None:
    """Numbers of devices, topologies, placements and times."""
    v5e, mesh = costmodels.load("tpu-v5e"), [("x", 4)]
    asked = [
        lambda: v5e.compact_topology(given),
        lambda: v5e.placements(mesh, topology=given),
        lambda: v5e.place(mesh, placement=given),
        lambda: costmodels.whole_ns(given),
    ]
    for ask in asked:
        with pytest.raises(costmodels.HardwareError):
            ask()
