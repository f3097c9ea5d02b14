"""Plans that a compiler confirms to fit; it stands in here for the real one, which needs what its plans say and more."""

from dataclasses import replace
from typing import Any

import pytest

from autoshard import pipeline
from autoshard.confirming import MOST_TRIES, Confirmed, confirmed_target, tried
from autoshard.errors import AutoshardError
from autoshard.plans import Plan
from autoshard.xla.compiled import DoesNotFitError
from tests.programs import PROGRAMS

MESH = (("x", 4), ("y", 2))


@pytest.fixture(scope="module")
def loaded() -> pipeline.Loaded:
    request = pipeline.Request(mesh=MESH, hardware="tpu-v5e", memory_bytes=None)
    return pipeline.load_module(PROGRAMS["mlp_train"]().encode(), request)


@pytest.fixture(scope="module")
def plan(loaded: pipeline.Loaded) -> Plan:
    return pipeline.plan_loaded(loaded, time_limit_s=10)


def confirmed(plan: Plan, budget: int | None, needed: float, available: int, least: int = 0) -> Confirmed:
    """Plans take what they may, none less than `least`; a compiler needs `needed` times as much."""

    def planned(memory: int | None) -> Plan:
        peak = plan.price.peak_bytes if memory is None else min(memory, plan.price.peak_bytes)
        status = "optimal" if peak >= least else "infeasible"
        return replace(plan, price=replace(plan.price, peak_bytes=peak), memory_bytes=memory, status=status)

    def compiled(_: str, one: Plan) -> int:
        used = int(one.price.peak_bytes * needed)
        if used > available:
            raise DoesNotFitError(used, available, "too much", where="here")
        return used

    return tried(budget, planned, lambda _: "module", compiled, "tpu:v5e:2x4")


def test_a_plan_that_fits_is_the_first(plan: Plan) -> None:
    peak = plan.price.peak_bytes
    found = confirmed(plan, None, 1.0, peak)
    assert found.fits
    assert [one.budget_bytes for one in found.tries] == [None]
    assert found.data()["confirmed"]["tries"][0]["compiled_bytes"] == peak


@pytest.mark.parametrize("needed", [1.005, 1.2, 3.0])
def test_one_that_does_not_is_planned_again_with_as_much_less(plan: Plan, needed: float) -> None:
    peak = plan.price.peak_bytes
    found = confirmed(plan, 2 * peak, needed, peak)
    first, second = found.tries
    assert found.fits
    assert (first.fits, first.available_bytes) == (False, peak)
    assert second.budget_bytes is not None
    assert second.budget_bytes <= 0.99 * peak
    assert second.compiled_bytes <= peak
    assert "does not fit" in found.text().splitlines()[0]
    assert ": fits: " in found.text().splitlines()[1]


def test_it_ends_where_no_plan_takes_so_little(plan: Plan) -> None:
    peak = plan.price.peak_bytes
    found = confirmed(plan, None, 2.0, peak, least=peak * 9 // 10)
    assert not found.fits
    assert found.module is None
    assert len(found.tries) == 1


def test_it_ends_after_some_tries(plan: Plan) -> None:
    def refused(*_: Any) -> int:
        raise DoesNotFitError(1001, 1000, "too much", where="here")

    found = tried(10**9, lambda _: plan, lambda _: "module", refused, "tpu:v5e:2x4")
    assert not found.fits
    assert found.module is not None
    assert len(found.tries) == MOST_TRIES
    assert len({one.budget_bytes for one in found.tries}) > 1


@pytest.mark.parametrize(
    ("target", "words"), [("tpu:v5e:4x4", "16 devices, the mesh 8"), ("tpu:v9", "tpu:v9")]
)
def test_targets_that_are_not_what_is_planned_for(
    loaded: pipeline.Loaded, target: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(_: Any) -> None:
        return None

    monkeypatch.setattr("autoshard.confirming.require_compiler", installed)
    with pytest.raises(AutoshardError, match=words):
        confirmed_target(loaded, target)
