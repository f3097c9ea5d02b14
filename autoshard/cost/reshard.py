"""What it costs to bring a value from one sharding to another: Shardy's own sequence of collectives (or `cost.meshes`'s), priced.

The sequence depends on rank and axes only, so it is asked of Shardy once per pair of shardings and mesh; the price depends on the
local bytes at every step, which come from the tensor type.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoshard.cost.layouts import Ints, LayoutsByRank
from autoshard.cost.loops import made_inside
from autoshard.cost.lowering import ALONG_LANES, CollectivePrices, Emitted, is_short_vector
from autoshard.cost.meshes import crossing, is_crossing
from autoshard.cost.padding import scattered
from autoshard.cost.relaid import passes
from autoshard.cost.uneven import emitted_step, has_long_columns, is_along_lanes
from autoshard.mlir.collective import LOCAL, CollectiveStep
from autoshard.problem.model import Bools
from autoshard.program import MinorDims
from autoshard.sharding import (
    AxisRef,
    Mesh,
    TensorSharding,
    TensorType,
    is_scatter,
    total_size,
)

Request = tuple[int, TensorSharding, TensorSharding]
_SIZED_BY_RESULT = ("all_gather", *LOCAL)
Decompose = Callable[[Mesh, Sequence[Request]], list[tuple[CollectiveStep, ...]]]


def sized_steps(
    before: TensorSharding, steps: Sequence[CollectiveStep]
) -> Iterator[tuple[CollectiveStep, TensorSharding]]:
    """Each step with the sharding whose local bytes its price goes by: its result's or its operand's."""
    current = before
    for step in steps:
        yield step, step.out_sharding if step.kind in _SIZED_BY_RESULT else current
        current = step.out_sharding


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as a plan pays for it.

    `bytes` is of the result on one device for an all-gather and an all-slice, of the operand on one device for the others. Beside Shardy's
    kinds there is `halo_exchange`: a permute of rows that windows need, which Shardy leaves to the partitioner.
    """

    kind: str
    axes: tuple[AxisRef, ...]
    bytes: int
    ns: int  # that a step pays for one run
    hidden_ns: int = 0  # of one run behind compute, beside that
    waited_ns: int = 0  # of `ns`, what cannot run behind compute
    copies: int = 0  # how often what is gathered along several dimensions is written anew
    emitted: tuple[Emitted, ...] = ()  # what the compiler makes of it


class _Ends(NamedTuple):
    """The shardings that were announced of a shape, and the steps of its rank between them."""

    ids: Ints  # in order
    step: Ints  # of `_Steps`: those of pairs of them,
    origin: Ints  # whose places in `ids` are these
    target: Ints

    def places(self, layouts: Ints) -> Ints:
        """In tables of these shardings, whose last row and column are of others."""
        found = np.searchsorted(self.ids, layouts)
        is_mine = np.append(self.ids, -1)[found] == layouts
        return np.where(is_mine, found, len(self.ids))

    def table(self, dtype: type[np.generic], nothing: int = 0) -> NDArray[Any]:
        """[from, to] of these shardings and of others."""
        return np.full((len(self.ids) + 1, len(self.ids) + 1), nothing, dtype=dtype)

    def between(self, table: NDArray[Any], origins: Ints, targets: Ints) -> NDArray[Any]:
        """[from, to] of such a table."""
        return table[np.ix_(self.places(origins), self.places(targets))]


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of all pairs of one rank, flat, and the distinct ones among them, which many pairs share."""

    origin: Ints
    target: Ints
    is_inside: Bools  # whether it is made in every trip of a loop that does not change the value
    which: Ints  # of the distinct ones
    group: Ints  # of each distinct one: what prices it,
    before: Ints  # the sharding it starts from,
    after: Ints  # it ends with,
    sized_by: Ints  # and whose bytes count


class _Wanted:
    """Pairs of shardings of one rank, in a table of those that were named."""

    def __init__(self) -> None:
        self._place: Ints = np.zeros(0, dtype=np.int64)  # in the table, -1 of those not named
        self._pairs: Bools = np.zeros((0, 0), dtype=np.bool_)

    def add(self, origins: Ints, targets: Ints) -> None:
        """One origin for each target."""
        ends = np.concatenate([origins, targets])
        more = int(ends.max(initial=-1)) + 1 - len(self._place)
        self._place = np.pad(self._place, (0, max(more, 0)), constant_values=-1)
        new = np.unique(ends[self._place[ends] < 0])
        self._place[new] = len(self._pairs) + np.arange(len(new))
        self._pairs = np.pad(self._pairs, (0, len(new)))
        self._pairs[self._place[origins], self._place[targets]] = True

    def pairs(self) -> list[tuple[int, int]]:
        """In order."""
        ids = np.flatnonzero(self._place >= 0)
        places = self._place[ids]
        return list(map(tuple, ids[np.argwhere(self._pairs[np.ix_(places, places)])].tolist()))


class ReshardPrices:
    """Prices of reshards; ask for pairs with `want`, then `resolve`, then read prices.

    A rank has the shardings that sequences pass through beside those that its shapes are announced with: tables are of a shape's alone.
    """

    def __init__(
        self, mesh: Mesh, prices: CollectivePrices, layouts: LayoutsByRank, decompose: Decompose
    ) -> None:
        self._mesh = mesh
        self._prices = prices
        self._layouts = layouts
        self._decompose = decompose
        self._wanted: dict[int, _Wanted] = {}  # by rank
        self._announced: dict[tuple[int, ...], set[int]] = {}  # by shape: its shardings
        self._ends: dict[tuple[int, ...], _Ends] = {}
        self._sequences: dict[tuple[int, int, int], tuple[CollectiveStep, ...]] = {}
        self._groups: dict[tuple[str, tuple[AxisRef, ...]], int] = {}
        self._steps: dict[int, _Steps] = {}
        self._tables: dict[tuple[TensorType, frozenset[str] | None, bool, int], Ints] = {}
        self._runs: dict[tuple[TensorType, int], _Runs] = {}
        self._laid_out: dict[tuple[TensorType, int], Bools] = {}
        self._scattered: dict[tuple[int, ...], Ints] = {}

    def want(self, shape: tuple[int, ...], origins: Ints, targets: Ints) -> None:
        """Announce that every pair of these shardings may be asked for of such values; those that are not possible are left out."""
        origins, targets = np.unique(origins), np.unique(targets)
        i, j = np.nonzero(self._can_become(len(shape), origins, targets))
        self._want_pairs(shape, origins[i], targets[j])

    def want_pairs(self, shape: tuple[int, ...], origins: Ints, targets: Ints) -> None:
        """The same of these pairs alone, one origin for each target."""
        froms, i = np.unique(origins, return_inverse=True)
        tos, j = np.unique(targets, return_inverse=True)
        possible = self._can_become(len(shape), froms, tos)[i, j]
        self._want_pairs(shape, origins[possible], targets[possible])

    def _want_pairs(self, shape: tuple[int, ...], origins: Ints, targets: Ints) -> None:
        rank = len(shape)
        self._announced.setdefault(shape, set()).update(origins.tolist(), targets.tolist())
        is_move = origins != targets
        origins, targets = origins[is_move], targets[is_move]
        wanted = self._wanted.setdefault(rank, _Wanted())
        wanted.add(origins, targets)
        if self._prices.sums_first:
            wanted.add(self._layouts[rank].reduced(origins), targets)

    def possible(self, rank: int, origins: Ints, targets: Ints) -> Bools | None:
        """[from, to] which pairs can be resharded; None where all can."""
        found = self._can_become(rank, origins, targets)
        return None if found.all() else found

    def _can_become(self, rank: int, origins: Ints, targets: Ints) -> Bools:
        """XLA makes no addends of what is whole, and leaves those that there are over the same axes."""
        layouts = self._layouts[rank]
        if not self._prices.sums_first:
            return layouts.can_become(origins, targets)
        is_partial = layouts.reduced(targets) != targets
        return np.asarray(~is_partial[None, :] | (origins[:, None] == targets[None, :]), dtype=np.bool_)

    def resolve(self) -> None:
        """Ask for the sequences of all pairs announced since the last call, in one go."""
        missing = [
            (rank, a, b)
            for rank, wanted in self._wanted.items()
            for a, b in wanted.pairs()
            if a != b and (rank, a, b) not in self._sequences
        ]
        self._wanted.clear()
        partial = [key for key in missing if self._is_summed_first(*key[:2])]
        whole = [key for key in missing if not self._is_summed_first(*key[:2])]
        requests = [
            (rank, self._layouts[rank].shardings[a], self._layouts[rank].shardings[b]) for rank, a, b in whole
        ]
        crosses = [is_crossing(self._mesh, before, after) for _, before, after in requests]
        shardys = [request for request, is_ours in zip(requests, crosses, strict=True) if not is_ours]
        decomposed = iter(self._decompose(self._mesh, shardys))
        for key, (_, before, after), is_ours in zip(whole, requests, crosses, strict=True):
            steps = crossing(self._mesh, before, after) if is_ours else next(decomposed)
            self._sequences[key] = steps
        for key in partial:
            self._sequences[key] = self._sum_first(*key)
        for rank in {rank for rank, _, _ in missing}:
            self._steps[rank] = self._flatten(rank)
        for known in (self._ends, self._tables, self._runs, self._laid_out, self._scattered):
            known.clear()

    def _is_summed_first(self, rank: int, origin: int) -> bool:
        return self._prices.sums_first and bool(self._layouts[rank].shardings[origin].unreduced)

    def _sum_first(self, rank: int, origin: int, target: int) -> tuple[CollectiveStep, ...]:
        """XLA sums addends that are not read as such, and changes the sharding of the sum."""
        before, after = (self._layouts[rank].shardings[layout] for layout in (origin, target))
        summed = before.summed()
        if is_scatter(summed, after, before.unreduced):
            return (CollectiveStep("reduce_scatter", before.unreduced, after),)
        rest = self._sequences.get((rank, self._layouts[rank].id_of(summed), target), ())
        return CollectiveStep("all_reduce", before.unreduced, summed), *rest

    def known(self, mesh: Mesh, requests: Sequence[Request]) -> list[tuple[CollectiveStep, ...]]:
        """A `Decompose` that knows what was resolved here, for the same layouts at other prices."""
        assert mesh == self._mesh
        found: list[tuple[CollectiveStep, ...]] = []
        for rank, before, after in requests:
            layouts = self._layouts[rank]
            found.append(self._sequences[rank, layouts.id_of(before), layouts.id_of(after)])
        return found

    def ns(
        self,
        type_: TensorType,
        origins: Ints,
        targets: Ints,
        kinds: frozenset[str] | None = None,
        only_inside: bool = False,
        widening: int = 1,
    ) -> Ints:
        """[from, to] ns of what is sent between shardings; of pairs not announced of the shape it is 0 and means nothing.

        Args:
            kinds: of the collectives to count; None counts all.
            only_inside: of the steps that are made in every trip of a loop that does not change the value (`cost.loops`).
            widening: as of `CollectivePrices.ns`.
        """
        key = (type_, kinds, only_inside, widening)
        found = self._tables.get(key)
        if found is None:
            found = self._tables[key] = self._price(*key)
        return self._ends_of(type_.shape).between(found, origins, targets)

    def collectives(
        self, type_: TensorType, origin: int, target: int, travels: TensorType | None = None
    ) -> list[Collective]:
        """The priced sequence from one sharding to another; `travels` is what may be sent in place of `type_`."""
        if origin == target:
            return []
        before = self._layouts[type_.rank].shardings[origin]
        steps = self._sequences[type_.rank, origin, target]
        return priced_steps(self._prices, before, steps, type_, travels)

    def scattered(
        self,
        axes: tuple[AxisRef, ...],
        whole: TensorSharding,
        part: TensorSharding,
        type_: TensorType,
        minor: MinorDims | None,
    ) -> tuple[Emitted, ...]:
        """What is emitted for a sum of which devices keep parts (`cost.padding`)."""
        return scattered(self._prices, axes, whole, part, type_, minor)

    @property
    def merges_equal(self) -> bool:
        """Whether the compiler carries out once what several readers ask for alike."""
        return self._prices.merges_equal

    def are_laid_out(self, type_: TensorType, origins: Ints, targets: Ints, widening: int) -> Bools:
        """[from, to] whether what is sent so is gathered along several dimensions on the way, and laid out anew behind that."""
        ends, key = self._ends_of(type_.shape), (type_, widening)
        found = self._laid_out.get(key)
        if found is None:
            found = self._laid_out[key] = ends.table(np.bool_)
            steps = self._steps.get(type_.rank)
            if steps is not None:
                copies = self._runs_of(steps, type_, widening).copies[steps.which[ends.step]]
                found[ends.origin[copies > 0], ends.target[copies > 0]] = True
        return ends.between(found, origins, targets)

    def _passes(self, rank: int, before: Ints, after: Ints) -> Ints:
        """How often what is gathered from one sharding to another is written anew; between meshes never."""
        parts = self._layouts[rank].divisors()
        foreign = np.asarray([one.is_foreign for one in self._layouts[rank].shardings], dtype=np.bool_)
        return np.where(foreign[before] | foreign[after], 0, passes(parts[before], parts[after]))

    def path(self, rank: int, origin: int, target: int) -> tuple[TensorSharding, ...]:
        """The sharding that it starts from, and those after each step."""
        steps = self._sequence(rank, origin, target)
        return (self._layouts[rank].shardings[origin], *(step.out_sharding for step in steps))

    def kinds(self, rank: int, origin: int, target: int) -> list[str]:
        """Of those steps."""
        return [step.kind for step in self._sequence(rank, origin, target)]

    def scattered_first(self, shape: tuple[int, ...], origins: Ints, targets: Ints) -> Ints:
        """[from, to] what a reduce-scatter, the first of the steps, leaves; -1 where there is none."""
        ends = self._ends_of(shape)
        found = self._scattered.get(shape)
        if found is None:
            found = self._scattered[shape] = ends.table(np.int64, -1)
            steps = self._steps.get(len(shape))
            if steps is not None:
                which = steps.which[ends.step]
                are_scatters = np.asarray(
                    [kind == "reduce_scatter" for kind, _ in self._groups], dtype=np.bool_
                )
                mine = are_scatters[steps.group[which]]
                found[ends.origin[mine], ends.target[mine]] = steps.after[which[mine]]
        return ends.between(found, origins, targets)

    def _ends_of(self, shape: tuple[int, ...]) -> _Ends:
        found = self._ends.get(shape)
        if found is None:
            assert shape in self._announced, f"no reshard of a tensor of {shape} was announced"
            ids = np.asarray(sorted(self._announced[shape]), dtype=np.int64)
            steps = self._steps.get(len(shape))
            place = np.full(len(self._layouts[len(shape)].shardings), -1, dtype=np.int64)
            place[ids] = np.arange(len(ids))
            ends = np.empty((2, 0), dtype=np.int64) if steps is None else place[[steps.origin, steps.target]]
            step = np.flatnonzero((ends >= 0).all(axis=0))
            found = self._ends[shape] = _Ends(ids, step, *ends[:, step])
        return found

    def _sequence(self, rank: int, origin: int, target: int) -> tuple[CollectiveStep, ...]:
        return self._sequences[rank, origin, target] if origin != target else ()

    def _flatten(self, rank: int) -> _Steps:
        rows: list[tuple[int, int, int, int, int, int, int]] = []
        layouts = self._layouts[rank]
        numbers: dict[int, int] = {}  # by identity: equal steps share their shardings

        def number(sharding: TensorSharding) -> int:
            found = numbers.get(id(sharding))
            if found is None:
                found = numbers[id(sharding)] = layouts.id_of(sharding)
            return found

        for (other, a, b), steps in self._sequences.items():
            if other != rank:
                continue
            before = a
            inside = made_inside([step.kind for step in steps])
            for is_inside, (step, sized) in zip(
                inside, sized_steps(layouts.shardings[a], steps), strict=True
            ):
                group = self._groups.setdefault((step.kind, step.axes), len(self._groups))
                after = number(step.out_sharding)
                rows.append((a, b, is_inside, group, before, after, number(sized)))
                before = after
        flat = np.asarray(rows, dtype=np.int64).reshape(-1, 7).T
        scale = (len(self._groups) or 1, *[len(layouts.shardings) or 1] * 3)
        _, seen, which = np.unique(
            np.ravel_multi_index(tuple(flat[3:]), scale), return_index=True, return_inverse=True
        )
        (origin, target, is_inside), (group, start, end, sized_by) = flat[:3], flat[3:, seen]
        return _Steps(origin, target, is_inside != 0, which, group, start, end, sized_by)

    def _price(
        self, type_: TensorType, kinds: frozenset[str] | None, only_inside: bool, widening: int
    ) -> Ints:
        ends = self._ends_of(type_.shape)
        prices: Ints = ends.table(np.int64)
        steps = self._steps.get(type_.rank)
        if steps is None:
            return prices
        ns, waited_ns, _ = self._runs_of(steps, type_, widening)
        if kinds is not None:
            counts = np.asarray([kind in kinds for kind, _ in self._groups], dtype=np.bool_)
            ns = np.where(counts[steps.group], ns - waited_ns, 0)
        run_ns = ns[steps.which[ends.step]]
        if only_inside:
            run_ns = np.where(steps.is_inside[ends.step], run_ns, 0)
        np.add.at(prices, (ends.origin, ends.target), run_ns)
        return prices

    def _runs_of(self, steps: _Steps, type_: TensorType, widening: int) -> "_Runs":
        """Of each distinct step that is on the way between shardings which were announced of the shape; of others nothing."""
        found = self._runs.get((type_, widening))
        if found is None:
            layouts, names = self._layouts[type_.rank], list(self._groups)
            is_taken = np.zeros(len(steps.group), dtype=np.bool_)
            is_taken[steps.which[self._ends_of(type_.shape).step]] = True
            is_uneven = self._is_uneven(steps, type_)
            bytes_ = layouts.local_bytes(type_)[steps.sized_by]
            often = self._passes(type_.rank, steps.before, steps.after)
            found = _Runs(*np.zeros((3, len(bytes_)), dtype=np.int64))
            even = np.flatnonzero(is_taken & ~is_uneven)
            groups = steps.group[even]
            for group in np.unique(groups):
                chosen = even[groups == group]
                kind, axes = names[group]
                runs = steps_run(
                    self._prices, kind, axes, bytes_[chosen], often[chosen], type_.num_elements, widening
                )
                for every, of_group in zip(found, runs, strict=True):
                    every[chosen] = of_group
            for index in np.flatnonzero(is_taken & is_uneven):
                before, after = (layouts.shardings[ids[index]] for ids in (steps.before, steps.after))
                kind, axes = names[steps.group[index]]
                step = CollectiveStep(kind, axes, after)
                run = _carried_out(self._prices, step, before, int(bytes_[index]), type_, widening)
                for every, one in zip(found, (run.ns, run.waited_ns, run.copies), strict=True):
                    every[index] = one
            self._runs[type_, widening] = found
        return found

    def _is_uneven(self, steps: _Steps, type_: TensorType) -> Bools:
        """[N] whether the compiler may send something else than the step's bytes."""
        is_padded = sends_otherwise(self._prices, type_, self._layouts[type_.rank].divisors())
        return is_padded[steps.before] | is_padded[steps.after]


class _Runs(NamedTuple):
    """[N] of steps as they run, once."""

    ns: Ints
    waited_ns: Ints  # of that, what never runs behind compute
    copies: Ints  # how often what is gathered along several dimensions is written anew


def steps_run(
    prices: CollectivePrices,
    kind: str,
    axes: tuple[AxisRef, ...],
    bytes_: Ints,
    often: Ints,
    num_elements: int,
    widening: int = 1,
) -> _Runs:
    """Of steps where shapes divide.

    Args:
        bytes_, widening: as of `CollectivePrices.ns`.
        often: `cost.relaid`'s passes of each.
    """
    ns = prices.ns(kind, bytes_, axes, widening)
    nothing = np.zeros_like(ns)
    if kind != "all_gather":
        return _Runs(ns, nothing, nothing)
    copies = prices.relaid(bytes_, often, total_size(axes), widening)
    laid_ns, waited_ns = _laid_out(prices, num_elements, ns, bytes_, copies)
    return _Runs(ns + laid_ns, waited_ns, copies)


def sends_otherwise(prices: CollectivePrices, type_: TensorType, shards: Ints) -> Bools:
    """[N] whether a step from or to parts of so many shards [N, dimension] may send something else than its bytes: for parts that do not
    divide, or are short, or lie along the lanes.
    """
    is_other = is_short_vector(type_) or (prices.sums_little and has_long_columns(type_))
    if prices.lowering != "xla-tpu" or is_other:
        return np.full(len(shards), prices.lowering == "xla-tpu", dtype=np.bool_)
    remainders = np.asarray(type_.shape, dtype=np.int64) % shards
    return np.asarray(remainders.any(axis=1), dtype=np.bool_)


def priced_steps(
    prices: CollectivePrices,
    before: TensorSharding,
    steps: Sequence[CollectiveStep],
    type_: TensorType,
    travels: TensorType | None = None,
) -> list[Collective]:
    """The steps of a reshard from `before`, priced; `travels` is what may be sent in place of `type_`."""
    found: list[Collective] = []
    sent = prices.sent(type_, type_ if travels is None else travels)
    widening = prices.widening(type_, sent)
    for step, sized_by in sized_steps(before, steps):
        run = _carried_out(prices, step, before, sized_by.local_bytes(sent), sent, widening)
        emitted = run.emitted
        if step.kind == "reduce_scatter":
            emitted = scattered(prices, step.axes, before, step.out_sharding, sent)
        bytes_ = sized_by.local_bytes(type_)
        found.append(
            Collective(
                step.kind,
                step.axes,
                bytes_,
                run.ns,
                waited_ns=run.waited_ns,
                copies=run.copies,
                emitted=emitted,
            )
        )
        before = step.out_sharding
    return found


class _Run(NamedTuple):
    """One step as it runs, and what is emitted for it."""

    ns: int
    emitted: tuple[Emitted, ...]
    waited_ns: int = 0
    copies: int = 0


def _carried_out(
    prices: CollectivePrices,
    step: CollectiveStep,
    before: TensorSharding,
    bytes_: int,
    sent: TensorType,
    widening: int,
) -> _Run:
    if prices.lowering != "xla-tpu" or _is_between_meshes(step, before):
        ns = prices.ns_of_one(step.kind, bytes_, step.axes, widening)
        emitted = prices.emitted(step.kind, bytes_, step.axes, widening)
    elif prices.sums_little and is_along_lanes(step, before, sent, widening):
        emitted = tuple(emitted_step(step, before, sent, widening))
        ns = sum(_ns_along_lanes(prices, one) for one in emitted)
    else:
        emitted = tuple(
            prices.carried_out(one, widening) for one in emitted_step(step, before, sent, widening)
        )
        copied = prices.ns_of_one(step.kind, bytes_, step.axes) if step.kind in LOCAL else 0
        ns = copied + sum(prices.ns_of_emitted(one, widening) for one in emitted)
    is_gather = step.kind == "all_gather" and any(one.kind == "all_gather" for one in emitted)
    if prices.lowering != "xla-tpu" or not is_gather:
        return _Run(ns, emitted)
    copies = times_laid_out(before, step.out_sharding)
    laid_ns, waited_ns = _laid_out(prices, sent.num_elements, np.asarray(ns), np.asarray(bytes_), copies)
    return _Run(ns + int(laid_ns), emitted, int(waited_ns), int(copies))


def times_laid_out(before: TensorSharding, after: TensorSharding) -> Ints:
    """How often what is gathered from one sharding to another is written anew; between meshes never."""
    if before.is_foreign or after.is_foreign:
        return np.asarray(0)
    old, new = (np.asarray([dim.num_shards for dim in one.dims], dtype=np.int64) for one in (before, after))
    return passes(old, new)


def _laid_out(
    prices: CollectivePrices, num_elements: int, ns: Ints, bytes_: Ints, copies: Ints
) -> tuple[Ints, Ints]:
    """What gathers of so many ns take for being written anew so often, and what of both never runs behind compute."""
    laid_ns = prices.copies_ns(bytes_, copies)
    is_apart = prices.gathers_ahead and num_elements < prices.apart_below
    return laid_ns, np.where((copies > 0) & is_apart, ns + laid_ns, laid_ns)


def _ns_along_lanes(prices: CollectivePrices, one: Emitted) -> int:
    if one.kind != "all_gather":
        return prices.ns_of_emitted(one)
    return prices.ns_of_one(ALONG_LANES, one.bytes * total_size(one.axes), one.axes)


def _is_between_meshes(step: CollectiveStep, before: TensorSharding) -> bool:
    """Whether it stands for what Shardy has no collective for: over another mesh, or over more devices than hold a part."""
    after = step.out_sharding
    is_wider = step.kind == "all_gather" and total_size(step.axes) * after.num_shards != before.num_shards
    return before.is_foreign or after.is_foreign or is_wider
