"""Plans that a compiler confirms to fit; it stands in here for the real one, which needs what its plans say and more."""

import json
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from autoshard import pipeline
from autoshard.cli import main
from autoshard.confirming import MOST_TRIES, Confirmed, confirmed_target, require_same, tried
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
        price = replace(plan.price, peak_bytes=peak)
        return replace(plan, price=price, memory_bytes=memory, status=status, smallest_peak_bytes=least)

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
    assert second.compiled_bytes is not None
    assert second.compiled_bytes <= peak
    assert "; does not fit, " in found.text().splitlines()[0]
    assert "; fits, " in found.text().splitlines()[1]


def test_it_ends_where_no_plan_takes_so_little(plan: Plan) -> None:
    peak = plan.price.peak_bytes
    found = confirmed(plan, None, 2.0, peak, least=peak * 999 // 1000)
    assert not found.fits
    assert found.module is None
    assert len(found.tries) == 1
    assert "to which the budget was cut" in found.text()


def test_the_smallest_plan_is_tried_where_the_cut_leaves_none(plan: Plan) -> None:
    peak = plan.price.peak_bytes
    found = confirmed(plan, None, 1.0, peak * 9 // 10, least=peak * 89 // 100)
    assert found.fits
    assert confirmed(plan, None, 1.2, peak * 9 // 10, least=peak * 7 // 10).tries[-1].fits
    stuck = confirmed(plan, None, 1.5, peak * 9 // 10, least=peak * 8 // 10)
    assert [one.budget_bytes for one in stuck.tries] == [None, peak * 8 // 10]
    assert not stuck.fits


def test_it_ends_after_some_tries(plan: Plan) -> None:
    def refused(*_: Any) -> int:
        raise DoesNotFitError(1001, 1000, "too much", where="here")

    found = tried(10**9, lambda _: plan, lambda _: "module", refused, "tpu:v5e:2x4")
    assert not found.fits
    assert found.module is not None
    assert len(found.tries) == MOST_TRIES
    assert len({one.budget_bytes for one in found.tries}) > 1


def test_a_refusal_is_told(plan: Plan) -> None:
    def refused(*_: Any) -> int:
        raise AutoshardError("UNIMPLEMENTED", where="XLA")

    found = tried(None, lambda _: plan, lambda _: "module", refused, "tpu:v5e:2x4")
    assert not found.fits
    assert "refused: UNIMPLEMENTED" in found.text()
    assert found.data()["confirmed"]["tries"][0]["refused"] == "UNIMPLEMENTED"


def installed(_: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("tpu:v5e:4x4", "16 devices, the mesh 8"),
        ("tpu:v6e:2x4", "another chip"),
        ("tpu:v5e:4x2", "laid on 2x4"),
        ("tpu:v9:2x4", "v9"),
        ("cpu:8", "no memory of their own"),
    ],
)
def test_targets_that_are_not_what_is_planned_for(
    loaded: pipeline.Loaded, target: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoshard.confirming.require_compiler", installed)
    with pytest.raises(AutoshardError, match=words):
        require_same(loaded, confirmed_target(target))


@dataclass(frozen=True, slots=True)
class Memory:
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Stub:
    memory: Memory


@pytest.mark.parametrize(("refusals", "status"), [(0, 0), (1, 0), (MOST_TRIES, 1)])
def test_what_the_command_prints_and_writes(
    refusals: int,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A plan is written where one compiles, in the order of devices that it was placed for; status 1 where none does."""
    orders: list[tuple[int, ...]] = []

    def compiled(_: bytes, target: object, *, device_order: tuple[int, ...], progress: object) -> Stub:
        orders.append(tuple(device_order))
        if len(orders) <= refusals:
            raise DoesNotFitError(1010, 1000, "too much", where="here")
        return Stub(Memory(7))

    monkeypatch.setattr("autoshard.confirming.require_compiler", installed)
    monkeypatch.setattr("autoshard.confirming.compile_planned", compiled)
    model, output = tmp_path / "model.mlir", tmp_path / "planned.mlir"
    model.write_text(PROGRAMS["mlp_train"]())
    words = ["plan", str(model), "--mesh", "x=4,y=2", "--topology", "2x4", "--placement", "x=1,y=0"]
    words += [
        "--confirm",
        "tpu:v5e:2x4",
        "--memory",
        "none",
        "--time-limit",
        "20",
        "-o",
        str(output),
        "--json",
    ]
    monkeypatch.setattr("sys.argv", ["autoshard", *words])
    with pytest.raises(SystemExit) if status else nullcontext():
        main()
    said = json.loads(capsys.readouterr().out)["confirmed"]
    assert said["fits"] == (status == 0) == output.exists()
    assert len(set(orders)) == 1
    assert sorted(orders[0]) in ([], list(range(8)))


@pytest.mark.parametrize(
    "words", [("--mesh", "auto", "--devices", "8"), ("--mesh", "x=4,y=2", "--form", "shardy")]
)
def test_what_it_does_not_go_with(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["autoshard", "plan", "--confirm", "tpu:v5e:2x4", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--confirm compiles plans of one mesh" in capsys.readouterr().err
