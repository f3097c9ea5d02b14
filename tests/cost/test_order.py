"""The order in which a scheduler takes tasks from the end of a computation, and what it waits for."""

from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost.order import AT_ONCE, Computation, Task

GATHER, PERMUTE = "all_gather", "collective_permute"


def send(computation: Computation, place: int, ns: int, before: int | None = None, kind: str = GATHER) -> int:
    """Both halves of an asynchronous collective; the second."""
    begin = computation.add(Task(place, kind=kind), before)
    return computation.add(Task(place, kind=kind, latency_ns=ns, is_end=True), begin)


def lasts(computation: Computation) -> tuple[int, int]:
    """What it waits for, and how long it takes."""
    run = computation.run()
    return run.waited_ns, run.length_ns


def test_a_chain_waits_for_what_it_sends() -> None:
    """Nothing else is there to be done meanwhile."""
    computation = Computation()
    first = computation.add(Task(0, 100))
    last = send(computation, 1, 30, first)
    computation.add(Task(2, 100), last)
    assert lasts(computation) == (30, 230)


def test_what_is_there_ahead_of_time_comes_behind_the_work_in_front() -> None:
    """And is waited for as far as that is shorter."""
    for work, waited in ((100, 0), (20, 10), (0, 30)):
        computation = Computation()
        first = computation.add(Task(0, work))
        product = computation.add(Task(2, 100), first)
        computation.wait(product, send(computation, 1, 30))
        assert lasts(computation) == (waited, work + 100 + waited)


def test_gathers_come_one_at_a_time_and_permutes_together() -> None:
    """Two for one task, behind work that takes as long as one of them."""
    for kind, waited in ((GATHER, 30), (PERMUTE, 0)):
        computation = Computation()
        first = computation.add(Task(0, 30))
        last = computation.add(Task(3, 10), first)
        for place in (1, 2):
            computation.wait(last, send(computation, place, 30, kind=kind))
        assert lasts(computation) == (waited, 40 + waited)


def test_what_only_the_end_waits_for_runs_beside_the_chain() -> None:
    """Gradients of weights beside what is sent for the next layer's."""
    computation = Computation()
    first = computation.add(Task(0, 10))
    computation.add(Task(1, 50), first)  # a gradient
    computation.add(Task(3, 10), send(computation, 2, 40, first))
    assert lasts(computation) == (0, 70)


def test_what_comes_later_is_not_waited_for() -> None:
    """What a loop hands to its next trip."""
    computation = Computation()
    first, last = computation.add(Task(0, 10)), computation.add(Task(1, 10))
    computation.wait(first, last)
    assert computation.tasks[first].before == []
    assert lasts(computation) == (0, 20)


@st.composite
def computations(draw: st.DrawFn) -> Computation:
    """Work and collectives that wait for any that are there already."""
    computation = Computation()
    ends: list[int] = []
    for place in range(draw(st.integers(1, 14))):
        before = draw(st.lists(st.sampled_from(ends), max_size=3, unique=True)) if ends else []
        ns = draw(st.integers(0, 50))
        kind = draw(st.sampled_from(["", GATHER, PERMUTE]))
        if kind:
            ends.append(send(computation, place, ns, before[0] if before else None, kind))
        else:
            ends.append(computation.add(Task(place, ns)))
            for one in before:
                computation.wait(ends[-1], one)
    return computation


@given(computations())
def test_laws(computation: Computation) -> None:
    """A run takes its work and what it waits for; no less than any chain of tasks, and no longer than all one after another."""
    tasks = computation.tasks
    run = computation.run()
    assert run.length_ns == sum(task.ns for task in tasks) + run.waited_ns
    assert run.waited_ns == sum(run.waits.values())
    for begin, ns in run.waits.items():
        assert tasks[begin].kind
        assert not tasks[begin].is_end
        assert 0 < ns <= tasks[begin + 1].latency_ns
    longest = [0] * len(tasks)
    for number, task in enumerate(tasks):
        ahead = max((longest[before] for before in task.before), default=0)
        longest[number] = ahead + task.ns + task.latency_ns
    assert run.length_ns >= max(longest)
    gathers = sum(task.latency_ns for task in tasks if task.kind == GATHER)
    assert run.length_ns >= gathers / AT_ONCE[GATHER]


@given(computations())
def test_without_collectives_nothing_is_waited_for(computation: Computation) -> None:
    for task in computation.tasks:
        task.kind, task.latency_ns, task.is_end = "", 0, False
    assert computation.run().waited_ns == 0
