"""Engines that prove, alone and in a race, against trying every choice."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock
from autoshard.solve.core import Core, flatten
from autoshard.solve.exact.cpsat import CpSat
from autoshard.solve.exact.engine import Answer, Engine, UnsuitableError
from autoshard.solve.exact.lazy import solve_lazily
from autoshard.solve.exact.member import Member
from autoshard.solve.exact.question import Question
from autoshard.solve.exact.race import race
from autoshard.solve.exact.toulbar2 import Toulbar2
from autoshard.solve.graph import ContradictionError
from autoshard.solve.load import load
from tests.problem.strategies import KINDS, random_problem

ENGINES: list[type[Engine]] = [Toulbar2, CpSat]
ROOT = Path(__file__).parents[2]
NOBODY = np.zeros(0, dtype=np.int64)


def random_core(seed: int) -> Core | None:
    """A core without any reduction, with costs below zero now and then; None where loading already fails."""
    rng = np.random.default_rng(seed)
    try:
        core = flatten(load(random_problem(rng, kind=KINDS[seed % len(KINDS)], memory=seed % 5 > 0)))
    except ContradictionError:
        return None
    if seed % 3:
        return core
    lowered = core.cost - rng.integers(0, 40, len(core.cost))
    return replace(core, cost=lowered, constant=int(rng.integers(-50, 50)))


def cheapest(core: Core, rows: Ints) -> int | None:
    """Cost of the cheapest choice that fits those rows, by trying all."""
    costs = [
        core.cost_of(choice)
        for choice in (np.array(each, dtype=np.int64) for each in product(*map(range, core.counts.tolist())))
        if (core.profile_of(choice)[rows] <= core.room[rows]).all()
    ]
    return min((cost for cost in costs if cost is not None), default=None)


def every_row(core: Core) -> Ints:
    return np.arange(len(core.room), dtype=np.int64)


def assert_proved(core: Core, answer: Answer, optimum: int | None) -> None:
    assert answer.infeasible == (optimum is None)
    if optimum is None:
        assert answer.choice is None
        return
    assert answer.choice is not None
    assert answer.optimal
    assert core.cost_of(answer.choice) == answer.lower_bound == optimum


def hard_core(seed: int, nodes: int, strategies: int) -> Core:
    """A random graph without structure, tight in memory: engines need a second or more for some forty nodes."""
    rng = np.random.default_rng(seed)
    ends = [(u, v) for u in range(nodes) for v in range(u + 1, nodes) if rng.random() < 6 / nodes]
    begin = rng.integers(0, 20, nodes)
    usage = rng.integers(0, 100, (nodes, strategies))
    core = Core(
        graph_nodes=np.arange(nodes),
        constant=0,
        start=np.arange(nodes + 1) * strategies,
        cost=rng.integers(0, 1000, nodes * strategies),
        ends=np.array(ends, dtype=np.int32),
        table=np.arange(len(ends)) * strategies**2,
        pool=rng.integers(0, 1000, len(ends) * strategies**2),
        room=np.zeros(24, dtype=np.int64),
        item_owner=np.arange(nodes),
        item_begin=begin,
        item_end=np.minimum(begin + rng.integers(2, 8, nodes), 24),
        item_usage=np.arange(nodes) * strategies,
        usage_pool=usage.ravel(),
    )
    smallest = int(core.profile_of(usage.argmin(axis=1)).max())
    return replace(core, room=core.room + smallest * 5 // 4)


@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize("seed", range(120))
def test_all_rows_at_once_or_lazily(make: type[Engine], seed: int) -> None:
    """Both ways end at the brute-force optimum, edge usage, masks and costs below zero included."""
    core = random_core(seed)
    if core is None:
        return
    optimum = cheapest(core, every_row(core))
    assert_proved(core, make(core, 0).solve(every_row(core), clock=Clock(60)), optimum)
    lazily = solve_lazily(make(core, 0), core, Clock(60)).answer
    assert_proved(core, lazily, optimum)
    assert lazily.choice is None or core.fits(lazily.choice)


@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize("seed", range(40))
def test_asked_again(make: type[Engine], seed: int) -> None:
    """The same engine answers for other rows, and for cutoffs on both sides of the optimum: cheaper than it only."""
    core = random_core(seed)
    if core is None:
        return
    engine = make(core, 0)
    for rows in (NOBODY, every_row(core)[::2], every_row(core), every_row(core)[1:]):
        optimum = cheapest(core, rows)
        assert_proved(core, engine.solve(rows, clock=Clock(60)), optimum)
        for cutoff in [] if optimum is None else [optimum - 1, optimum, optimum + 1, optimum + 9]:
            answer = engine.solve(rows, clock=Clock(60), cutoff=cutoff)
            assert_proved(core, answer, optimum if optimum is not None and optimum < cutoff else None)


@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize("seed", range(40))
def test_budgets(make: type[Engine], seed: int) -> None:
    """Whatever the budget, the bound is true and a proof is one; the same budget gives the same answer."""
    core = random_core(seed)
    if core is None:
        return
    optimum = cheapest(core, every_row(core))
    for budget in (0, 1, 4):
        first, second = (
            make(core, 0).solve(every_row(core), clock=Clock(60), budget=budget) for _ in range(2)
        )
        assert str(first) == str(second)
        assert optimum is None or first.lower_bound is None or first.lower_bound <= optimum
        if first.optimal or first.infeasible:
            assert_proved(core, first, optimum)


@pytest.mark.parametrize("make", ENGINES)
@pytest.mark.parametrize("seed", range(30))
def test_hints(make: type[Engine], seed: int) -> None:
    """A hint is counted in where it fits, harmless where it does not, and no bar to a better choice."""
    core = random_core(seed)
    if core is None:
        return
    optimum = cheapest(core, every_row(core))
    for each in (core.counts * 0, core.counts - 1):
        assert_proved(core, make(core, 0).solve(every_row(core), clock=Clock(60), hint=each), optimum)
        assert_proved(core, solve_lazily(make(core, 0), core, Clock(60), hint=each).answer, optimum)


def test_toulbar2_stops_at_its_budget() -> None:
    """A search cut short says so, with a true bound, and one that is not finds the optimum."""
    core = hard_core(0, 24, 4)
    engine = Toulbar2(core, 0)
    short = engine.solve(every_row(core), clock=Clock(60), budget=3)
    whole = engine.solve(every_row(core), clock=Clock(60))
    assert not short.optimal
    assert not short.infeasible
    assert whole.optimal
    assert short.lower_bound is not None
    assert whole.lower_bound is not None
    assert short.lower_bound < whole.lower_bound


def test_toulbar2_forgets_what_it_solved_before() -> None:
    """The library keeps settings in globals, and changes them as it searches; an answer depends on none of it."""
    core, other = hard_core(0, 24, 4), hard_core(5, 28, 4)
    rows = every_row(core)
    first = Toulbar2(core, 0).solve(rows, clock=Clock(60), budget=60)
    Toulbar2(other, 0).solve(rows, clock=Clock(60), budget=3)
    Toulbar2(other, 0).solve(rows, clock=Clock(60))
    assert str(Toulbar2(core, 0).solve(rows, clock=Clock(60), budget=60)) == str(first)


def test_toulbar2_tells_between_searches() -> None:
    """Each choice fits the rows asked for and is cheaper than the one before."""
    core = hard_core(0, 24, 4)
    told: list[Ints] = []
    answer = Toulbar2(core, 0).solve(every_row(core), clock=Clock(60), found=told.append)
    assert told
    costs = [core.cost_of(choice) or 0 for choice in told]
    assert costs == sorted(set(costs), reverse=True)
    assert costs[-1] == answer.lower_bound
    assert all(core.fits(choice) for choice in told)


def test_toulbar2_and_ctrl_c() -> None:
    """SIGINT ends a search and its clock, with the best so far; after that it is Python's again."""
    core, clock = hard_core(4, 90, 6), Clock(600)
    rows = every_row(core)[::8]
    Toulbar2(core, 0).solve(
        rows, clock=Clock(60), budget=1
    )  # what is loaded once is there, on a busy machine too
    with subprocess.Popen(
        ["sh", "-c", f"sleep 3; kill -INT {os.getpid()}"]
    ):  # no thread gets a turn meanwhile
        answer = Toulbar2(core, 0).solve(rows, clock=clock)
    assert clock.interrupted
    assert not answer.optimal
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_toulbar2_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """The library's allocation notes do not reach the user's streams, which work again afterwards."""
    core = hard_core(1, 24, 4)
    Toulbar2(core, 0).solve(every_row(core), clock=Clock(60), budget=200)
    os.write(1, b"still there")
    assert capfd.readouterr() == ("still there", "")


def test_toulbar2_refuses_what_doubles_cannot_hold() -> None:
    core = hard_core(0, 3, 2)
    with pytest.raises(UnsuitableError, match="doubles"):
        Toulbar2(replace(core, cost=core.cost + np.arange(6) * 2**52), 0).solve(NOBODY, clock=Clock(60))


def test_cp_sat_tells_what_it_finds() -> None:
    """The callback hears of choices, the last of them the answer; those that fit all rows only, through the loop."""
    core = hard_core(0, 18, 4)
    told: list[Ints] = []
    answer = solve_lazily(CpSat(core, 0), core, Clock(60), found=told.append).answer
    assert answer.choice is not None
    assert all(core.fits(choice) for choice in told)
    costs = [core.cost_of(choice) or 0 for choice in told]
    assert costs == sorted(set(costs), reverse=True)
    assert costs[-1] == answer.lower_bound


def test_race_equals_brute_force() -> None:
    """Both engines in processes, one and two at a time: the same optimum, the same choice."""
    for seed in (3, 11):
        core = random_core(seed)
        assert core is not None
        answers = [race(core, Clock(60), seed=0, threads=threads) for threads in (1, 2)]
        for answer in answers:
            assert_proved(core, answer, cheapest(core, every_row(core)))
        assert str(answers[0]) == str(answers[1])


def test_race_is_the_same_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several rounds with small budgets: the same choice, however the engines overlap; the last word told is it."""
    monkeypatch.setattr("autoshard.solve.exact.race.FIRST_BUDGET", {"toulbar2": 2, "cp-sat": 0})
    core = hard_core(2, 22, 4)
    told: list[tuple[int | None, int | None]] = []

    def tell(choice: Ints | None, bound: int | None) -> None:
        told.append((None if choice is None else core.cost_of(choice), bound))

    clocks = [Clock(60), Clock(60)]
    first, second = (
        race(core, clock, seed=0, threads=threads, tell=tell)
        for threads, clock in zip((1, 2), clocks, strict=True)
    )
    assert first.optimal
    assert str(first) == str(second)
    assert told[-1] == (first.lower_bound, first.lower_bound)
    assert clocks[0].steps == clocks[1].steps > 1


def test_race_that_nobody_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be started, a hint that fits is all that is known."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    core = hard_core(3, 6, 2)
    core = replace(core, room=core.room + 10**6)
    answer = race(core, Clock(60), seed=0, threads=2, hint=core.counts * 0)
    assert answer.choice is not None
    assert answer.choice.tolist() == [0] * 6
    assert not answer.optimal
    assert answer.lower_bound is None


def test_an_engine_that_does_not_suit_drops_out() -> None:
    """Costs beyond doubles are left to CP-SAT."""
    core = hard_core(0, 5, 2)
    core = replace(core, cost=core.cost + np.arange(10) * 2**52)
    assert_proved(core, race(core, Clock(60), seed=0, threads=2), cheapest(core, every_row(core)))


@pytest.mark.parametrize("threads", [1, 2])
def test_an_engine_that_crashes_drops_out(
    threads: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A segmentation fault in the middle of a round: the other goes on, and nothing of it is seen."""
    ask = Member.ask

    def ask_and_crash(member: Member, question: Question) -> None:
        ask(member, question)
        if member.name == "toulbar2":
            member.signal(signal.SIGSEGV)

    monkeypatch.setattr(Member, "ask", ask_and_crash)
    core = hard_core(0, 14, 3)
    answer = race(core, Clock(60), seed=0, threads=threads)
    assert answer.optimal
    assert capfd.readouterr() == ("", "")


def test_a_clock_that_strikes() -> None:
    """The best so far with a true bound, soon after the limit."""
    core = hard_core(4, 90, 6)
    least = core.usage_pool.reshape(90, 6).argmin(axis=1)
    began = time.monotonic()
    answer = race(core, Clock(2.0), seed=0, threads=2, hint=least)
    assert time.monotonic() - began < 30.0
    assert not answer.optimal
    assert answer.choice is not None
    assert core.fits(answer.choice)
    costs = [core.cost_of(choice) for choice in (answer.choice, least)]
    assert costs[0] is not None
    assert costs[1] is not None
    assert answer.lower_bound is None or answer.lower_bound < costs[0] <= costs[1]


_RACING = """
import pickle, sys
from autoshard.solve.clock import Clock
from autoshard.solve.exact.race import race

def tell(choice, bound):
    print("told", flush=True)

clock = Clock(60.0)
core, hint = pickle.load(sys.stdin.buffer)
answer = race(core, clock, seed=0, threads=2, hint=hint, tell=tell)
print("ended", clock.interrupted, answer.optimal, answer.choice is not None, flush=True)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_signals(sent: signal.Signals) -> None:
    """Ctrl-C in a terminal reaches all processes: the best so far is returned. None outlives a parent that is killed."""
    script = subprocess.Popen(
        [sys.executable, "-c", _RACING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        process_group=0,
    )
    assert script.stdin is not None
    assert script.stdout is not None
    with script:
        core = hard_core(4, 90, 6)
        pickle.dump((core, core.usage_pool.reshape(90, 6).argmin(axis=1)), script.stdin)
        script.stdin.close()
        assert script.stdout.readline() == b"told\n"
        time.sleep(1.0)  # until the workers are at it
        if sent == signal.SIGINT:
            os.killpg(script.pid, sent)
        else:
            script.send_signal(sent)
        said = script.stdout.read().split(b"\n")
    if sent == signal.SIGINT:
        assert said[-2:] == [b"ended True False True", b""]
    for _ in range(100):
        try:
            os.killpg(script.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a worker is still there")


@pytest.mark.parametrize("seed", range(12))
def test_cp_sat_proves_what_doubles_cannot_tell_apart(seed: int) -> None:
    """Costs beyond 2**53 that differ by one: the bound is the cost, to the last digit."""
    core = hard_core(seed, 6, 3)
    rng = np.random.default_rng(seed)
    core = replace(
        core,
        room=core.room + 10**6,
        cost=rng.integers(0, 2**55, len(core.cost)),
        pool=rng.integers(0, 2**55, len(core.pool)),
    )
    answer = CpSat(core, 0).solve(every_row(core), clock=Clock(60))
    assert_proved(core, answer, cheapest(core, every_row(core)))


def test_cp_sat_refuses_bytes_that_doubles_cannot_hold() -> None:
    core = hard_core(0, 6, 3)
    core = replace(core, usage_pool=core.usage_pool * 2**50, room=core.room * 2**50)
    with pytest.raises(UnsuitableError, match="doubles"):
        CpSat(core, 0).solve(every_row(core), clock=Clock(60))
