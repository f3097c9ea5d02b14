"""Demands that clash: the set that is named cannot hold, and without any one of its members the others can, by planning anew."""

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import autoshard
from autoshard import clashes, pipeline
from autoshard.clashes import explain_read
from autoshard.errors import ClashError
from autoshard.explanations import Clashing, Explanation
from autoshard.pipeline import Request
from autoshard.problem import Problem
from autoshard.report.clash import clash_text
from autoshard.solve import Clock, Required, Status, Tied, minimal, structural_clash
from autoshard.solve.brute import brute_force
from autoshard.solve.fit import Fit

T = "tensor<8x16xf32>"
MESH = 'sdy.mesh @mesh = <["x"=2]>\n'
ON_ROWS, ON_COLUMNS, WHOLE = '[{"x"}, {}]', '[{}, {"x"}]', "[{}, {}]"
SHARDINGS = (ON_ROWS, ON_COLUMNS, WHOLE, '[{"x", ?}, {?}]', "[{}, {?}]", '[{?}, {?}], replicated={"x"}')


@dataclass(frozen=True)
class Wishes:
    """What is asked of a module of two ops; everything but `is_carried` can be left out of it."""

    a: str | None = None
    b: str | None = None
    sine: str | None = None
    result: str | None = None
    first: tuple[str, ...] = ()  # members of group 1
    second: tuple[str, ...] = ()
    memory: int | None = None
    is_carried: bool = False

    def text(self) -> str:
        groups = "".join(
            f"sdy.sharding_group {value} group_id={number} : {T}\n"
            for number, members in ((1, self.first), (2, self.second))
            for value in members
        )
        sine = (
            "" if self.sine is None else f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {self.sine}>]>}}"
        )
        return (
            f"{MESH}func.func @main(%a: {T} {_on(self.a)}, %b: {T} {_on(self.b)}) -> ({T} {_on(self.result)}) {{\n"
            f"%0 = stablehlo.sine %a {sine} : {T}\n%1 = stablehlo.add %0, %b : {T}\n{groups}return %1 : {T}\n}}\n"
        )

    def asked(self) -> frozenset[str]:
        names = ("a", "b", "sine", "result", "first", "second", "memory")
        return frozenset(name for name in names if getattr(self, name) not in (None, ()))

    def only(self, names: frozenset[str]) -> "Wishes":
        gone = self.asked() - names
        return replace(self, **{name: () if name in ("first", "second") else None for name in gone})

    def request(self) -> Request:
        carry = [(0, 1)] if self.is_carried else "none"
        return Request(memory_bytes=self.memory, form="shardy", carry=carry)

    def explained(self) -> Explanation:
        return autoshard.explain(
            self.text().encode(),
            memory_bytes=self.memory,
            form="shardy",
            carry=self.request().carry,
            time_limit_s=60,
        )


def _on(sharding: str | None) -> str:
    return "" if sharding is None else f"{{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"


@cache
def has_plan(wishes: Wishes) -> bool:
    """By trying every choice of the module as it would be planned."""
    try:
        loaded = pipeline.load_module(wishes.text().encode(), wishes.request())
        problem = pipeline.price_for_planning(loaded).problem
    except ClashError:
        return False
    return brute_force(problem).status is not Status.INFEASIBLE


SAID = {
    "argument 0": "a",
    "argument 1": "b",
    "the result of stablehlo.sine": "sine",
    "result 0": "result",
    "sharding group 1": "first",
    "sharding group 2": "second",
    "the memory budget": "memory",
}


def members(found: Explanation) -> frozenset[str]:
    return frozenset(
        next(name for begin, name in SAID.items() if one.text.startswith(begin)) for one in found.clashing
    )


def require_minimal_clash(wishes: Wishes, found: Explanation) -> None:
    named = members(found)
    assert found.is_minimal
    assert not has_plan(wishes.only(named))
    for member in named:
        assert has_plan(wishes.only(named - {member})), f"{member} is not needed for the clash"


@cache
def peaks() -> list[int]:
    """Of a few plans of the module without demands, smallest first."""
    loaded = pipeline.load_module(Wishes().text().encode(), Wishes().request())
    problem = pipeline.price(loaded).problem
    smallest = brute_force(replace(problem, memory_limit=0)).smallest_peak
    cheapest = brute_force(problem).peak
    assert smallest is not None and cheapest is not None
    return [smallest, (smallest + cheapest) // 2, cheapest, 8 * 16 * 4 * 3]


VALUES = ("%a", "%b", "%0", "%1")
GROUPS = st.sampled_from([(), *combinations(VALUES, 2), *combinations(VALUES, 3)])
DEMANDS = st.sampled_from((None, None, *SHARDINGS))
CLOSED = st.sampled_from((None, ON_ROWS, ON_COLUMNS, WHOLE))


@settings(max_examples=4, deadline=None)
@given(
    st.builds(
        Wishes,
        a=DEMANDS,
        b=DEMANDS,
        sine=DEMANDS,
        result=CLOSED,
        first=GROUPS,
        second=GROUPS,
        is_carried=st.booleans(),
    ),
    st.integers(0, 4),
    st.sampled_from((-1, 0, 1)),
)
def test_a_plan_or_a_minimal_clash(wishes: Wishes, peak: int, beside: int) -> None:
    """Random demands, groups, carried state and limits near reachable peaks: what brute force over all plans says."""
    if peak < len(peaks()):
        wishes = replace(wishes, memory=peaks()[peak] + beside)
    found = wishes.explained()
    if has_plan(wishes):
        assert found.status == "plan"
    else:
        assert found.status == "clash"
        require_minimal_clash(wishes, found)


def test_members_of_a_group() -> None:
    """Two demands and the group that ties them, each where it stands; a third demand and another group are not named."""
    wishes = Wishes(a=ON_ROWS, b=ON_COLUMNS, result=WHOLE, first=("%a", "%b"), second=("%0", "%1"))
    found = wishes.explained()
    assert [one.text for one in found.clashing] == [
        'argument 0 `arg0` must be [{"x"}, {}] (<bytes>:2)',
        'argument 1 `arg1` must be [{}, {"x"}] (<bytes>:2)',
        "sharding group 1 gives one sharding to arg0 (put there at <bytes>:5), arg1 (put there at <bytes>:6)",
    ]
    require_minimal_clash(wishes, found)


def test_a_chain_of_two_groups() -> None:
    """Groups that share a member clash as two: leaving either out is enough."""
    wishes = Wishes(a=ON_ROWS, b=ON_COLUMNS, first=("%a", "%0"), second=("%0", "%b"))
    found = wishes.explained()
    assert members(found) == {"a", "b", "first", "second"}
    require_minimal_clash(wishes, found)


def test_both_ends_of_carried_state() -> None:
    """The argument and the result that is carried to it, and that they are."""
    wishes = Wishes(b=ON_ROWS, result=ON_COLUMNS, is_carried=True)
    found = wishes.explained()
    assert members(found) == {"b", "result"}
    assert found.context == ("result 0 is carried to argument 1 `arg1` (--carry): they have one sharding",)
    assert not replace(wishes, is_carried=False).explained().clashing


def test_memory_and_demands() -> None:
    """One byte less than what whole arguments take, in rows of 128 lanes."""
    wishes = Wishes(a=WHOLE, b=WHOLE, sine=ON_ROWS, memory=2 * 8 * 128 * 4 - 1)
    found = wishes.explained()
    assert {"a", "memory"} <= members(found)
    require_minimal_clash(wishes, found)


def test_the_budget_alone() -> None:
    """No other demand is named; the smallest peak and the bound on every peak are."""
    found = Wishes(a=WHOLE, memory=peaks()[0] - 1).explained()
    assert members(found) == {"memory"}
    assert found.smallest_peak_bytes == found.peak_bound_bytes == peaks()[0]
    assert found.clashing[0].step_ns is not None


@pytest.mark.parametrize("memory", [None, 1])
def test_what_is_proved_is_not_asked_again(memory: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else changes, and no question about memory is of all demands."""
    wishes = Wishes(a=ON_ROWS, b=ON_COLUMNS, sine=WHOLE, first=("%a", "%b"), memory=memory)
    if memory is not None:
        wishes = Wishes(a=WHOLE, memory=memory)
    read = pipeline.read_module(wishes.text().encode(), wishes.request())
    expected, asked, fit = explain_read(read), list[int](), clashes.find_fit

    def counted(problem: Problem, clock: Clock, *, seed: int, threads: int) -> Fit:
        asked.append(1)
        return fit(problem, clock, seed=seed, threads=threads)

    monkeypatch.setattr(clashes, "find_fit", counted)
    again = explain_read(read)
    often = len(asked)
    assert explain_read(read, is_infeasible=True) == again == expected
    assert len(asked) - often == often - (0 if memory is None else 1)


def test_what_dropping_one_brings() -> None:
    """Each row is what planning without that demand gives, and the cheapest is the one to drop."""
    wishes = Wishes(a=ON_ROWS, b=ON_COLUMNS, sine=WHOLE, first=("%a", "%b"))
    found = wishes.explained()
    for one, name in zip(found.clashing, ("a", "b", "first"), strict=True):
        fewer = wishes.only(wishes.asked() - {name})
        loaded = pipeline.load_module(fewer.text().encode(), fewer.request())
        price = pipeline.plan_loaded(loaded, time_limit_s=20).price
        assert (one.step_ns, one.peak_bytes, one.is_proved) == (price.step_ns, price.peak_bytes, True)
    assert found.to_drop is not None
    assert found.to_drop.step_ns == min(one.step_ns for one in found.clashing if one.step_ns is not None)


def test_out_of_time() -> None:
    """Nothing is claimed that was not decided."""
    wishes = Wishes(a=ON_ROWS, memory=1)
    found = autoshard.explain(
        wishes.text().encode(), memory_bytes=1, form="shardy", carry="none", time_limit_s=0
    )
    assert (found.status, found.clashing) == ("unknown", ())


def _sets() -> Iterator[st.SearchStrategy[list[frozenset[int]]]]:
    yield st.lists(st.frozensets(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=4)


@settings(deadline=None)
@given(*_sets())
def test_minimal_subsets(forbidden: list[frozenset[int]]) -> None:
    """Of requirements that clash where they hold one of the forbidden sets: such a set, and no more."""
    found = minimal(range(8), lambda asked: not any(bad <= asked for bad in forbidden))
    named = frozenset(found.members)
    assert found.is_proved
    assert named in forbidden
    assert not any(bad < named for bad in forbidden)


def test_minimal_where_time_runs_out() -> None:
    """What is not decided is kept, and the set is not called minimal."""
    found = minimal(range(3), lambda asked: False if len(asked) == 3 else None)
    assert found.members == (0, 1, 2)
    assert not found.is_proved


@settings(deadline=None)
@given(st.data())
def test_structure_by_sat(data: st.DataObject) -> None:
    """A set that clashes where trying all choices finds none, and only there; the set itself clashes."""
    counts = np.asarray(data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4)))
    required = [_random_requirement(counts, data) for _ in range(data.draw(st.integers(1, 5)))]

    def holds(some: list[Required]) -> bool:
        return any(
            all(mask[choice[node]] for each in some for node, mask in each.masks.items())
            and all(tie.allowed[choice[tie.first], choice[tie.second]] for each in some for tie in each.ties)
            for choice in np.ndindex(*counts.tolist())
        )

    core = structural_clash(counts, required)
    assert (core is None) == holds(required)
    assert core is None or not holds([required[member] for member in core])


def _random_requirement(counts: np.ndarray, data: st.DataObject) -> Required:
    first, second = sorted(data.draw(st.permutations(range(len(counts))))[:2])

    def mask(*shape: int) -> np.ndarray:
        size = int(np.prod(shape))
        drawn = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
        return np.asarray(drawn, dtype=np.bool_).reshape(shape)

    if data.draw(st.booleans()):
        return Required({first: mask(int(counts[first]))})
    return Required({}, [Tied(first, second, mask(int(counts[first]), int(counts[second])))])


@pytest.mark.parametrize("memory", [None, 10**6])
def test_nothing_clashes(memory: int | None) -> None:
    """A module that has a plan is said to have one."""
    assert Wishes(a=ON_ROWS, b=ON_COLUMNS, memory=memory).explained() == Explanation(
        "plan", memory_bytes=memory
    )


@pytest.mark.parametrize(("peak_bytes", "says"), [(3, True), (8, False)])
def test_peaks_beside_vector_memory_are_told_apart(peak_bytes: int, says: bool) -> None:
    """A plan may state less than what no plan can peak below: what the compiler may keep in vector memory counts in the latter."""
    row = Clashing("memory", "the memory budget", 1, peak_bytes, is_proved=True)
    found = Explanation("clash", (row,), smallest_peak_bytes=7, peak_bound_bytes=6)
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(clash_text(found))
    assert ("beside vector memory" in console.export_text()) is says
