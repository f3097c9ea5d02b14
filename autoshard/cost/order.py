"""In which order XLA's latency-hiding scheduler takes the tasks of one computation, and what it waits for in that order.

It goes from the end of the computation to its beginning. Of the tasks that only such as are taken already wait for, it takes next

1. the end of an asynchronous collective, unless as many of its kind are on their way as may be (`AT_ONCE`),
2. the beginning of one that is through, if an end of its kind could then be taken,
3. a beginning of one that is through or other work: first what takes no time, then what the most asynchronous time comes before, then what
   comes latest in the program,
4. the beginning of the one that is through first, for which it waits.

Rules and limits are those of XLA's sources and of the flags in libtpu's dumps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

AT_ONCE: Mapping[str, int] = {"all_gather": 1, "collective_permute": 5}
"""Asynchronous collectives of a kind that are on their way together (`xla_max_concurrent_async_*`)."""

_Rank = tuple[bool, int, int, int]


class Run(NamedTuple):
    """One run of a computation; its length has what is waited for, which `waits` has by the task that begins it."""

    waited_ns: int
    length_ns: int
    waits: Mapping[int, int]


@dataclass(slots=True)
class Task:
    """`place` grows along the program; `before`: tasks that this one waits for.

    kind: of an asynchronous collective, one of `AT_ONCE`, of which this is the beginning or, `latency_ns` later, the end.
    """

    place: int
    ns: int = 0
    kind: str = ""
    latency_ns: int = 0
    is_end: bool = False
    before: list[int] = field(default_factory=list[int])


class Computation:
    """Tasks of the entry or of a body; each waits only for what comes before it in the program, so that there is an order."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def run(self) -> Run:
        """As the scheduler lays it out."""
        return _Order(self.tasks).run()

    def add(self, task: Task, before: int | None = None) -> int:
        self.tasks.append(task)
        number = len(self.tasks) - 1
        if before is not None:
            self.wait(number, before)
        return number

    def wait(self, task: int, before: int) -> None:
        """`task` waits for `before`, unless that comes later: what a loop hands to its next trip."""
        if (self.tasks[before].place, before) < (self.tasks[task].place, task):
            self.tasks[task].before.append(before)


class _Order:
    """One pass from the end of a computation to its beginning; times count from the end."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._tasks = tasks
        self._waiting = [0] * len(tasks)  # of each task, how many wait for it that are not taken
        for task in tasks:
            for before in task.before:
                self._waiting[before] += 1
        self._rank = self._ranked()
        self._ready_ns = [0] * len(tasks)
        self._now_ns = 0
        self._waits: dict[int, int] = {}
        self._on_way = dict.fromkeys(AT_ONCE, 0)
        self._ends: dict[str, list[tuple[_Rank, int]]] = {kind: [] for kind in AT_ONCE}
        self._through: dict[str, list[tuple[_Rank, int]]] = {kind: [] for kind in AT_ONCE}
        self._not_through: list[tuple[int, _Rank, int]] = []
        self._others: list[tuple[_Rank, int]] = []

    def run(self) -> Run:
        for number, waiting in enumerate(self._waiting):
            if not waiting:
                self._offer(number)
        while (number := self._next()) is not None:
            self._take(number)
        return Run(sum(self._waits.values()), self._now_ns, self._waits)

    def _ranked(self) -> list[_Rank]:
        """What is taken first has the least: what takes no time, then what most asynchronous time comes before, then the latest."""
        depth = [0] * len(self._tasks)
        for number in sorted(range(len(self._tasks)), key=lambda one: (self._tasks[one].place, one)):
            task = self._tasks[number]
            depth[number] = max((depth[before] for before in task.before), default=0) + task.latency_ns
        return [
            (task.ns > 0 or bool(task.kind), -depth[number], -task.place, -number)
            for number, task in enumerate(self._tasks)
        ]

    def _offer(self, number: int) -> None:
        task, rank = self._tasks[number], self._rank[number]
        if task.kind and task.is_end:
            heappush(self._ends[task.kind], (rank, number))
        elif task.kind:
            heappush(self._not_through, (self._ready_ns[number], rank, number))
        else:
            heappush(self._others, (rank, number))

    def _next(self) -> int | None:
        while self._not_through and self._not_through[0][0] <= self._now_ns:
            _, rank, number = heappop(self._not_through)
            heappush(self._through[self._tasks[number].kind], (rank, number))
        room = [kind for kind, ends in self._ends.items() if ends and self._on_way[kind] < AT_ONCE[kind]]
        if room:
            return heappop(min((self._ends[kind] for kind in room), key=lambda ends: ends[0]))[1]
        through = [kind for kind, starts in self._through.items() if starts]
        wanted = [self._through[kind] for kind in through if self._ends[kind]]
        offered = wanted or [self._through[kind] for kind in through] + (
            [self._others] if self._others else []
        )
        if offered:
            return heappop(min(offered, key=lambda heap: heap[0]))[1]
        return heappop(self._not_through)[2] if self._not_through else None

    def _take(self, number: int) -> None:
        task = self._tasks[number]
        waited = max(0, self._ready_ns[number] - self._now_ns)
        if waited:
            self._waits[number] = waited
        self._now_ns += waited + task.ns
        if task.kind:
            self._on_way[task.kind] += 1 if task.is_end else -1
        for before in task.before:
            self._ready_ns[before] = max(self._ready_ns[before], self._now_ns + task.latency_ns)
            self._waiting[before] -= 1
            if not self._waiting[before]:
                self._offer(before)
