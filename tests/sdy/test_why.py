"""Why a value is sharded as it is: what binds it, and what another sharding costs by planning anew."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import autoshard
from autoshard.cli.explaining import why as command
from autoshard.errors import AutoshardError
from autoshard.explanations import Why
from autoshard.plans import Plan
from tests.interrupts import interrupting
from tests.sdy.test_clashes import ON_COLUMNS, ON_ROWS, WHOLE, Wishes
from tests.test_cli import Terminal
from tests.test_cli import autoshard as _terminal

terminal = _terminal
MODULE = Wishes(b=ON_ROWS)


def planned(wishes: Wishes) -> Plan:
    return autoshard.plan(
        wishes.text().encode(),
        memory_bytes=wishes.memory,
        form="shardy",
        carry=wishes.request().carry,
        time_limit_s=20,
    )


def why(wishes: Wishes, value: str) -> Why:
    return autoshard.why(wishes.text().encode(), planned(wishes), value, time_limit_s=40)


@pytest.mark.parametrize("sharding", [ON_ROWS, ON_COLUMNS, WHOLE])
@pytest.mark.parametrize(
    ("value", "name"), [("arg0", "a"), ("stablehlo.sine", "sine"), ("result0", "result")]
)
def test_differences_are_those_of_planning_with_the_annotation(value: str, name: str, sharding: str) -> None:
    """Step, peak and proof are those of the module in which the user asks for the sharding."""
    asked = value if name != "sine" else "%2"
    asking = {
        "a": replace(MODULE, a=sharding),
        "sine": replace(MODULE, sine=sharding),
        "result": replace(MODULE, result=sharding),
    }
    found = why(MODULE, f"{asked}={sharding}")
    plan = planned(asking[name])
    (row,) = found.alternatives
    assert (row.step_ns, row.peak_bytes, row.is_proved) == (plan.price.step_ns, plan.price.peak_bytes, True)
    assert found.step_ns == planned(MODULE).price.step_ns


def test_what_binds_a_value() -> None:
    """Its own demand, its groups with the demands on other members, and carried state with what is asked of its other end."""
    wishes = Wishes(a=ON_ROWS, b=ON_ROWS, result=ON_ROWS, first=("%a", "%0"), is_carried=True)
    bound = why(wishes, 'arg1=[{"x"}, {}]').bound_by
    assert [text.split(" must be ")[0] for text in bound] == [
        "argument 1 `arg1`",
        "result 0 is carried to argument 1 `arg1`: they have one sharding",
        "result 0 `result0` of the function",
    ]
    assert (
        why(wishes, 'arg0=[{"x"}, {}]').bound_by[1].startswith("sharding group 1 gives one sharding to arg0")
    )


def test_others_are_tried() -> None:
    """All other shardings of an argument, each once, with what planning with it gives."""
    found = why(MODULE, "arg0")
    assert {row.sharding for row in found.alternatives} | {found.sharding} == {ON_ROWS, ON_COLUMNS, WHOLE}
    assert len(found.alternatives) == 2
    assert not found.bound_by
    for row in found.alternatives:
        assert row.step_ns is not None and row.step_ns >= found.step_ns


def test_what_moves() -> None:
    """The values whose sharding is another in the plan with the demand, and the collectives."""
    asked = f"arg0={ON_COLUMNS}"
    (row,) = why(MODULE, asked).alternatives
    plan, other = planned(MODULE), planned(Wishes(a=ON_COLUMNS, b=ON_ROWS))
    moved = {
        value
        for value, mine in plan.values.items()
        if (theirs := other.values.get(value)) is not None
        and (mine.settled or mine.produced) != (theirs.settled or theirs.produced)
    }
    results = sum(a.sharding != b.sharding for a, b in zip(plan.results, other.results, strict=True))
    assert len(row.moved) == len(moved - {0}) + results
    assert {(c.kind, c.count[1]) for c in row.changed} == {
        (c.kind, 1) for c in other.price.collectives if c.kind not in {d.kind for d in plan.price.collectives}
    }


def test_a_sharding_that_cannot_be() -> None:
    """The demands that it clashes with are named."""
    wishes = Wishes(a=ON_ROWS, first=("%a", "%b"))
    (row,) = why(wishes, f"arg1={ON_COLUMNS}").alternatives
    assert row.step_ns is None
    assert row.clash is not None
    assert [one.kind for one in row.clash.clashing] == ["sharding", "sharding", "group"]


@pytest.mark.parametrize(
    ("value", "fragment"),
    [
        ("arg", "near to it: arg0, arg1"),
        ("line 99", "no value"),
        ('arg0=[{"x"}]', "has 1 dimensions"),
        ('arg0=[{"x"}, {"x"}]', 'uses "x" twice'),
        ('arg0=[{"q"}, {}]', "unknown mesh axis"),
        ("2", "2 values are called '2'"),
    ],
)
def test_refusals(value: str, fragment: str) -> None:
    """What is not known or ambiguous is refused with what is near; a sharding that is none with the reason."""
    with pytest.raises(AutoshardError) as refused:
        why(MODULE, value)
    assert fragment in str(refused.value)


MANUAL = """sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%a: tensor<16x16xf32>) -> tensor<16x16xf32> {
  %0 = sdy.manual_computation(%a) in_shardings=[<@mesh, [{"x", ?}, {?}]>] out_shardings=[<@mesh, [{"x", ?}, {?}]>]
      manual_axes={"x"} (%b: tensor<4x16xf32>) {
    %1 = stablehlo.tanh %b : tensor<4x16xf32>
    sdy.return %1 : tensor<4x16xf32>
  } : (tensor<16x16xf32>) -> tensor<16x16xf32>
  %2 = stablehlo.negate %0 : tensor<16x16xf32>
  return %2 : tensor<16x16xf32>
}"""
ENTERING, LEAVING, INSIDE = "%1", "%2", "%3"


@pytest.mark.parametrize(
    ("value", "fragment"),
    [
        (f'{INSIDE}=[{{"x"}}, {{}}]', 'uses axis "x", which is manual there'),
        (f'{INSIDE}=[{{}}, {{}}], unreduced={{"x"}}', 'uses axis "x", which is manual there'),
        (f'{ENTERING}=[{{"x"}}, {{}}]', 'uses axis "x", which is manual there'),
        (
            f'{LEAVING}=[{{"y", "x"}}, {{}}]',
            'does not begin with the manual axes of what it leaves, [{"x"}, {}]',
        ),
        (f"{LEAVING}=[{{}}, {{}}]", "does not begin with the manual axes"),
        (f'{INSIDE}=[{{"y"}}, {{}}]', ""),
        (f'{LEAVING}=[{{"x", "y"}}, {{}}]', ""),
    ],
)
def test_manual_axes_stay_the_users(value: str, fragment: str) -> None:
    """Within a manual computation no value is split over them, and what leaves it begins with them."""
    plan = autoshard.plan(MANUAL.encode(), form="shardy", carry="none")
    if fragment:
        with pytest.raises(AutoshardError, match=re.escape(fragment)):
            autoshard.why(MANUAL.encode(), plan, value)
    else:
        (row,) = autoshard.why(MANUAL.encode(), plan, value).alternatives
        assert row.is_proved


def test_forms_that_have_no_partial_sums_are_asked_for_none() -> None:
    """The xla form cannot say that a value is one."""
    text = MODULE.text().encode()
    plan = autoshard.plan(text, carry="none")
    with pytest.raises(AutoshardError, match="the form xla cannot say"):
        autoshard.why(text, plan, 'arg0=[{}, {}], unreduced={"x"}')


def test_command(terminal: Terminal) -> None:
    """The plan remembers its module; text and JSON say the same; a module that is gone has to be named."""
    text = MODULE.text()
    terminal.write("wishes.mlir", text)
    assert terminal("plan", "wishes.mlir", "--plan-out", "plan.json", "--carry", "none").status == 0
    done = terminal("why", "plan.json", f"arg0={ON_COLUMNS}")
    assert done.status == 0, done.err
    assert "collectives that change" in done.out and "nothing binds it" in done.out
    data = json.loads(terminal("why", "plan.json", f"arg0={ON_COLUMNS}", "--json").out)
    (row,) = data["alternatives"]
    assert row["step_difference_ns"] == row["step_ns"] - data["step_ns"] > 0
    Path("wishes.mlir").rename("moved.mlir")
    gone = terminal("why", "plan.json", "arg0")
    assert gone.status == 2 and "--module" in gone.err
    assert terminal("why", "plan.json", "arg0", "--module", "moved.mlir").status == 0
    Path("moved.mlir").write_text(text + "\n")
    assert terminal("why", "plan.json", "arg0", "--module", "moved.mlir").status == 2
    assert command.help is not None


@pytest.mark.parametrize("calls", [1, 2])
def test_an_interrupt_ends_the_plans(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while a plan is looked for: the shardings that come after it are told to be left out."""
    plan, text = planned(MODULE), MODULE.text().encode()
    everything = autoshard.why(text, plan, "arg0", time_limit_s=40)
    solved = interrupting(calls, monkeypatch)
    found = autoshard.why(text, plan, "arg0", time_limit_s=40)
    assert len(solved) == len(found.alternatives) == calls
    assert found.left_out == everything.left_out + len(everything.alternatives) - calls


@pytest.mark.parametrize("calls", [1, 2])
def test_an_interrupt_between_plans(calls: int) -> None:
    """Ctrl-C while prices are made for a sharding: those before it are told, and without any there is no answer."""
    plan, text = planned(MODULE), MODULE.text().encode()
    begun: list[str] = []

    def interrupt(phase: str, fraction: float | None) -> None:
        if phase.startswith("planning with"):
            begun.append(phase)
            if len(begun) == calls:
                raise KeyboardInterrupt

    def ask() -> Why:
        return autoshard.why(text, plan, "arg0", time_limit_s=40, progress=interrupt)

    if calls == 1:
        with pytest.raises(KeyboardInterrupt):
            ask()
    else:
        assert len(ask().alternatives) == calls - 1
