"""The fewest demands that clash: a first set by SAT or CP-SAT on one graph in which demands may be met or not, then made minimal by
asking, for fewer and fewer of them, whether the module with only those has a plan.

Demands are shardings, sharding groups and the memory budget. Whether some of them hold together is decided as planning would: the
module is analysed anew as if the user had written no others. Carried state and data flow are part of the program.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise

import numpy as np

from autoshard.cost import (
    Graph,
    Tie,
    Ties,
    Wanted,
    build_graph,
    find_ties,
    requirement,
    tie_table,
)
from autoshard.errors import ClashError
from autoshard.explanations import Clashing, Explanation
from autoshard.loading import Loaded, ReadModule, analyse, compiler_of, loaded_with
from autoshard.mlir.listing import Listing
from autoshard.pipeline import plan_loaded, price
from autoshard.program import (
    Demand,
    GroupDemand,
    both,
    build_program,
    demands_of,
    group_demands_of,
    restricted,
)
from autoshard.progress import Progress, silent
from autoshard.report.units import bytes_text
from autoshard.sharding import TensorSharding
from autoshard.solve import (
    Clock,
    Minimal,
    Required,
    Tied,
    clash_with_memory,
    find_fit,
    minimal,
    solve,
    structural_clash,
)

_SEARCH_SHARE = 0.6  # of the time; the rest is for plans without one of the demands
_NO_TIME = "no plan found in the time"
_QUESTION_SHARE = 0.25  # of the time that is left for the search, for one question about memory


@dataclass(frozen=True, slots=True)
class Budget:
    """The memory limit, as a demand."""

    memory_bytes: int

    def __str__(self) -> str:
        return f"the memory budget is {bytes_text(self.memory_bytes)} a device (--memory)"


AnyDemand = Demand | GroupDemand | Budget


def explain_read(
    read: ReadModule,
    *,
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    progress: Progress = silent,
    whole: Clock | None = None,
    is_infeasible: bool = False,
) -> Explanation:
    """Why the module has no plan as it is asked for, or that it has one.

    Args:
        whole: as of `solve`.
        is_infeasible: whether it is proved already that it has none, with all demands and the budget.
    """
    clock = Clock(time_limit_s, whole=whole)
    asked = _Asked(read, _demands(read), clock.part(_SEARCH_SHARE), seed, threads)
    if is_infeasible:
        asked.known[frozenset(range(len(asked.demands)))] = False
    progress("looking for demands that clash", None)
    found = _clash(asked)
    if isinstance(found, Explanation):
        return found
    clashing = [asked.demands[member] for member in found.members]
    alone = _alone(asked, found, clock.part(0.5))
    progress("planning without one of them", None)
    rows = tuple(
        _without(asked, demand, clock, 1 / (len(clashing) - done)) for done, demand in enumerate(clashing)
    )
    return Explanation("clash", rows, found.is_proved, _context(read, clashing), read.memory_bytes, *alone)


@dataclass(slots=True)
class _Asked:
    """Questions about parts of the demands, by number."""

    read: ReadModule
    demands: tuple[AnyDemand, ...]
    clock: Clock
    seed: int
    threads: int
    known: dict[frozenset[int], bool] = field(default_factory=dict[frozenset[int], bool])

    @property
    def budget(self) -> int | None:
        """The number of the budget, which is the last."""
        return len(self.demands) - 1 if self.read.memory_bytes is not None else None

    def holds(self, members: frozenset[int]) -> bool | None:
        """Do these demands, and no others, have a plan?"""
        if members not in self.known:
            answer = self._answer(members)
            if answer is None:
                return None
            self.known[members] = answer
        return self.known[members]

    def _answer(self, members: frozenset[int]) -> bool | None:
        if self.clock.over():
            return None
        try:
            loaded = _loaded(self.read, [self.demands[member] for member in sorted(members)])
            if self.budget not in members:
                return _structure_holds(loaded)
            priced = price(loaded)
        except ClashError:
            return False
        part = self.clock.part(_QUESTION_SHARE)
        return find_fit(priced.problem, part, seed=self.seed, threads=self.threads).fits


def _demands(read: ReadModule) -> tuple[AnyDemand, ...]:
    budget = () if read.memory_bytes is None else (Budget(read.memory_bytes),)
    return (*demands_of(read.as_written), *group_demands_of(read.as_written), *budget)


def _clash(asked: _Asked) -> Minimal | Explanation:
    """A clash without the budget if there is one; a minimal set by test, or a set that clashes if time is short."""
    everything = frozenset(range(len(asked.demands)))
    others = everything - {asked.budget}
    structure = asked.holds(others)
    if structure is False:
        return minimal(_first_guess(asked, sorted(others)), asked.holds)
    held = structure if asked.budget is None else asked.holds(everything)
    if held is not False or asked.budget is None:
        return Explanation("unknown" if held is None else "plan", memory_bytes=asked.read.memory_bytes)
    return _clash_with_budget(asked, asked.budget, sorted(others))


def _first_guess(asked: _Asked, others: list[int]) -> Sequence[int]:
    """Demands that SAT finds to clash, where they do by themselves; else all."""
    graph = _open_graph(_open(asked.read), asked.read)
    numbered = [(n, r) for n, r in zip(others, _required(graph, asked), strict=True) if r is not None]
    counts = np.asarray([node.choices.count for node in graph.nodes], dtype=np.int64)
    core = structural_clash(counts, [r for _, r in numbered])
    return _confirmed(asked, None if core is None else [numbered[i][0] for i in core], others)


def _clash_with_budget(asked: _Asked, budget: int, others: list[int]) -> Minimal:
    with_budget = frozenset({budget})
    if asked.holds(with_budget) is False:
        return Minimal((budget,), True)
    guess = _confirmed(asked, _guess_with_memory(asked, others), others, with_budget)
    found = minimal(guess, lambda members: asked.holds(members | with_budget))
    members = (*found.members, budget)
    return Minimal(members, found.is_proved and asked.holds(frozenset(found.members)) is True)


def _guess_with_memory(asked: _Asked, others: list[int]) -> list[int] | None:
    loaded = _open(asked.read)
    priced = price(loaded, _wanted(asked.read))
    numbered = [(n, r) for n, r in zip(others, _required(priced.graph, asked), strict=True) if r is not None]
    part = asked.clock.part(_QUESTION_SHARE)
    core = clash_with_memory(priced.problem, [r for _, r in numbered], part, asked.seed)
    return None if core is None else [numbered[i][0] for i in core]


def _confirmed(
    asked: _Asked, guess: list[int] | None, others: list[int], background: frozenset[int] = frozenset()
) -> list[int]:
    """The guess where planning with only it fails too: its graph has a little more to choose from than that of each plan."""
    is_clash = guess is not None and asked.holds(frozenset(guess) | background) is False
    return guess if guess is not None and is_clash else others


def _loaded(read: ReadModule, demands: Sequence[AnyDemand]) -> Loaded:
    """The module with these demands only.

    Raises:
        ClashError: some of them contradict each other.
    """
    shardings = [demand for demand in demands if isinstance(demand, Demand)]
    groups = [demand for demand in demands if isinstance(demand, GroupDemand)]
    limit = read.memory_bytes if any(isinstance(demand, Budget) for demand in demands) else None
    return analyse(
        replace(read, as_written=restricted(read.as_written, shardings, groups), memory_bytes=limit)
    )


def _structure_holds(loaded: Loaded) -> bool:
    """Raises ClashError: what the graph's own checks refuse."""
    graph = build_graph(loaded.program, loaded.mesh)
    ties = find_ties(graph)
    counts = np.asarray([node.choices.count for node in graph.nodes], dtype=np.int64)
    return structural_clash(counts, [_of_ties(graph, ties)]) is None


def _of_ties(graph: Graph, ties: Ties) -> Required:
    return Required(ties.allowed, [_tied(graph, tie) for tie in ties.pairs])


def _tied(graph: Graph, tie: Tie) -> Tied:
    allowed = tie_table(graph, tie).allowed
    assert allowed is not None, "a tie forbids pairs"
    return Tied(tie.first[0], tie.second[0], allowed)


def _open(read: ReadModule) -> Loaded:
    """The program with all demands in it, none of which is spread over groups or has to be met."""
    compiler = compiler_of(read.form, read.hardware, read.mesh.num_devices)
    program = build_program(read.as_written, read.carry, compiler)
    listing = replace(read.as_written, groups=())
    return loaded_with(read, listing, replace(program, listing=listing))


def _open_graph(loaded: Loaded, read: ReadModule) -> Graph:
    return build_graph(loaded.program, loaded.mesh, wanted=_wanted(read))


def _wanted(read: ReadModule) -> Wanted:
    """For every value, what is demanded of it, of the other members of its groups and of what is carried to it."""
    listing = read.as_written
    wanted: dict[int, dict[TensorSharding, None]] = {}
    for value, sharding in _on_values(listing, read):
        wanted.setdefault(value, {})[sharding] = None
    for group in listing.groups:
        each = {s: None for member in group.members for s in wanted.get(member.value, ())}
        if not each:
            continue
        together = reduce(lambda a, b: None if a is None else both(a, b), list(each)[1:], next(iter(each)))
        if together is not None:
            each[together] = None
        wanted.update((member.value, each) for member in group.members)
    return {value: tuple(shardings) for value, shardings in wanted.items()}


def _on_values(listing: Listing, read: ReadModule) -> Iterator[tuple[int, TensorSharding]]:
    carried = dict(read.carried_pairs())
    for demand in demands_of(listing):
        yield demand.value, demand.sharding
        if demand.result is not None and demand.result in carried:
            yield listing.arguments[carried[demand.result]].value, demand.sharding


def _required(graph: Graph, asked: _Asked) -> list[Required | None]:
    """What each demand but the budget means for the nodes; None for those that mean nothing."""
    found: list[Required | None] = []
    for demand in asked.demands:
        if isinstance(demand, Demand):
            met = requirement(graph, demand)
            found.append(None if met is None else Required({met.node: met.mask}))
        elif isinstance(demand, GroupDemand):
            found.append(_of_group(graph, demand))
    return found


def _of_group(graph: Graph, group: GroupDemand) -> Required:
    ends = sorted({graph.provider[member.value] for member in group.members})
    masks = {
        one[0]: graph.nodes[one[0]].choices.supplies[one[1]] == graph.nodes[one[0]].choices.supplies[other[1]]
        for one, other in pairwise(ends)
        if one[0] == other[0]
    }
    ties = [_tied(graph, Tie(one, other)) for one, other in pairwise(ends) if one[0] != other[0]]
    return Required(masks, ties)


def _without(asked: _Asked, demand: AnyDemand, clock: Clock, share: float) -> Clashing:
    """The cheapest plan without one of the clashing demands, with all others that the user wrote."""
    kind = (
        "sharding" if isinstance(demand, Demand) else "group" if isinstance(demand, GroupDemand) else "memory"
    )
    others = [other for other in asked.demands if other is not demand]
    if clock.interrupted:
        return Clashing(kind, str(demand), note=_NO_TIME)
    try:
        loaded = _loaded(asked.read, others)
        seconds = clock.part(share).time_limit_s
        plan = plan_loaded(loaded, time_limit_s=seconds, seed=asked.seed, threads=asked.threads, whole=clock)
    except ClashError:
        return Clashing(kind, str(demand), note="without it, others still clash")
    if plan.status not in ("optimal", "feasible"):
        proved = plan.status == "infeasible"
        note = "without it, others still clash" if proved else _NO_TIME
        return Clashing(kind, str(demand), note=note)
    is_by_order = plan.is_by_order
    step_ns = plan.price.compared_ns(is_by_order=is_by_order)
    figures = (step_ns, plan.price.peak_bytes, plan.status == "optimal" and not is_by_order)
    return Clashing(kind, str(demand), *figures)


def _context(read: ReadModule, clashing: Sequence[AnyDemand]) -> tuple[str, ...]:
    """Carried state between the clashing demands, which is nothing that the user wrote on a value."""
    results = {d.result for d in clashing if isinstance(d, Demand) and d.result is not None}
    listing = read.as_written
    return tuple(
        f"result {result} is carried to argument {argument} `{listing.arguments[argument].name}` (--carry): they have one sharding"
        for result, argument in read.carried_pairs()
        if result in results
    )


def _alone(asked: _Asked, found: Minimal, clock: Clock) -> tuple[int | None, int | None]:
    """Where the budget clashes with the program alone: the smallest peak found, and the bound on every peak."""
    if found.members != (asked.budget,):
        return None, None
    problem = price(_loaded(asked.read, [asked.demands[-1]])).problem
    known = solve(
        problem, time_limit_s=clock.time_limit_s, seed=asked.seed, threads=asked.threads, whole=clock
    )
    return known.smallest_peak, known.peak_lower_bound
