"""Residual sums that XLA adds up a second time, transposed.

Where a branch of a residual sum is transposed and what reads the sum undoes that, XLA:TPU takes the transposes up through the additions, if
all that is added is transposed already or a matrix unit makes it: beside the sum itself there is one of the branches as they are made. That
is added up where it is read, so that what is added is there from when it is made until then, and the sum before the last, if nothing else
needs that, no longer; of several readers on the way every second one stores its sum. So a ConvNeXt of torch, whose convolutions have
channels first and whose normalizations last, keeps all 27 branches of a stage until the next one (libtpu 0.0.52, v5e: forward pass, 1.19 of
what is said otherwise), and an MLP-Mixer those of two blocks (v5e 1.34, v6e 1.16). Not where the sums are stored for a backward pass.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, RESHAPE, is_elementwise
from autoshard.program.lifetime import has_buffer
from autoshard.program.records import Kernel, Lifetime, Whole
from autoshard.program.repeating import read_times, readers_of

_ADD, TRANSPOSE = "stablehlo.add", "stablehlo.transpose"
_MOVING = frozenset({TRANSPOSE, RESHAPE})
_LEAVES = frozenset({BROADCAST, "stablehlo.constant"})
_GIVING = _LEAVES | _MOVING
_OPERANDS = 2
_STORING = 2  # one of so many readers of a transposed sum stores it


class ResidualSum(NamedTuple):
    """What is added up, each as it was made; `orders`: of the dimensions of all branches that are transposed."""

    before: int
    branch: int
    start: int
    orders: frozenset[tuple[int, ...]]
    is_free: bool  # all branches are transposed at no cost


class ResidualSums(NamedTuple):
    """Additions of two values, one of which is such a sum already or was there first; and what values are elementwise work on."""

    sums: Mapping[int, ResidualSum]
    behind: Mapping[int, int]

    @classmethod
    def of(cls, listing: Listing) -> "ResidualSums":
        behind = _behind_work(listing)
        return cls(_residual_sums(listing, behind), behind)


class _Reader(NamedTuple):
    time: int
    sum: int


def added_up_again(
    listing: Listing,
    kernels: Sequence[Kernel],
    lives: Mapping[int, Lifetime],
    added: ResidualSums,
) -> tuple[dict[int, Lifetime], list[tuple[int, Whole]]]:
    """The lives with what is added until it is, and the transposed sums that are stored, by the sums or work on them."""
    again = _Again(listing, kernels, lives, added)
    for start, readers in again.readers().items():
        again.add(start, readers)
    return again.lives, again.stored


class _Again:
    def __init__(
        self,
        listing: Listing,
        kernels: Sequence[Kernel],
        lives: Mapping[int, Lifetime],
        added: ResidualSums,
    ) -> None:
        self.lives, self.stored = dict(lives), list[tuple[int, Whole]]()
        self._listing = listing
        self._made_by = {value: op for op in listing.ops for value in op.results}
        self._made = {value: kernel for kernel in kernels for value in kernel.results}
        self._sums, self._behind = added
        self._held: dict[int, int] = {}  # sums that no kernel makes -> work on them that one does
        for value, one in self._behind.items():
            if value in self._made and one not in self._made:
                self._held.setdefault(one, value)
        self._readers, self._at = readers_of(kernels), {kernel.time: kernel for kernel in kernels}
        self._sites = listing.sites

    def readers(self) -> dict[int, list[_Reader]]:
        """What reads sums transposed as their branches were made, by what the sums begin with, in order."""
        found: defaultdict[int, list[_Reader]] = defaultdict(list)
        given = _made_of_given(self._listing)
        for time, op in enumerate(self._listing.ops):
            if op.name != TRANSPOSE:
                continue
            read, order = op.operands[0], order_of(op)
            value = self._behind.get(read, read)
            sum_ = self._sums.get(value)
            if sum_ is None or not sum_.is_free or not any(_undoes(order, one) for one in sum_.orders):
                continue
            if self._is_product(sum_.start, given):
                found[sum_.start].append(_Reader(time, value))
        return found

    def add(self, start: int, readers: Sequence[_Reader]) -> None:
        seen: set[int] = set()
        new = [(reader, passed) for reader in readers if (passed := list(self._new(reader.sum, seen)))]
        last, passed_last = new[-1]
        before = (self._held.get(one, one) for one in seen - {last.sum})
        if any(self.lives[one].end > last.time + 1 for one in before if one in self.lives):
            return
        if len(passed_last) > 1:
            self._end_early(self._sums[last.sum].before, last)
        done = [reader for number, (reader, _) in enumerate(new) if number % _STORING == 0]
        done += [last] if last is not done[-1] else []
        self._keep(start, done[0].time + 1)
        for number, (_, passed) in enumerate(new):
            until = done[(number + 1) // _STORING]
            for one in passed:
                self._keep(self._sums[one].branch, until.time + 1)
        for one, after in pairwise(done):
            value = one.sum if one.sum in self._made else self._held.get(one.sum)
            type_ = self._listing.values[one.sum].type
            if value is not None and type_ is not None and value in self.lives:
                self.stored.append((value, Whole(one.time, after.time + 1, type_)))

    def _new(self, value: int, seen: set[int]) -> Iterator[int]:
        """Sums up to one that was seen, the last one first."""
        while value in self._sums and value not in seen:
            seen.add(value)
            yield value
            value = self._sums[value].before

    def _is_product(self, value: int, given: Mapping[int, int]) -> bool:
        """Whether a matrix unit makes it but for another shape and work with what the program is given."""
        op = self._made_by.get(given.get(value, value))
        while op is not None and op.name in _MOVING:
            op = self._made_by.get(given.get(op.operands[0], op.operands[0]))
        return op is not None and op.is_matmul

    def _keep(self, value: int, end: int) -> None:
        """The value, or what it is worked out from, transposed or not; a product in a buffer of its own."""
        lives = self.lives
        while not has_buffer(value, lives):
            op = self._made_by.get(value)
            if op is not None and op.is_matmul and value in lives:
                break
            is_turned = op is not None and op.name == TRANSPOSE
            before = op.operands[0] if op is not None and is_turned else self._behind.get(value, value)
            if before == value:
                return
            value = before
        end = max(lives[value].end, end)
        lives[value] = replace(lives[value], end=end, is_own_buffer=True, within=None)

    def _end_early(self, value: int, last: _Reader) -> None:
        """With its last read but for the sum after it, of which nothing else than a transpose is read."""
        adding = self._made.get(last.sum) or self._at.get(last.time)
        if adding is None or value not in self._made or value not in self.lives:
            return
        if None in self._ops_reading(value) or self._ops_reading(last.sum) != {TRANSPOSE}:
            return
        others = read_times(value, self._readers, besides=last.sum) - {adding.time}
        is_in_loop = any(one.repeat != adding.repeat for one in self._readers.get(value, ()))
        if others and not is_in_loop and self.lives[value].end <= adding.time + 1:
            self.lives[value] = replace(self.lives[value], end=max(others) + 1)

    def _ops_reading(self, value: int) -> set[str | None]:
        """The names of ops that read it; None: what carries, hands on or returns it."""
        numbers = (number for number, _ in self._sites.get(value, ()))
        return {self._listing.ops[number].name if number >= 0 else None for number in numbers}


def _residual_sums(listing: Listing, behind: Mapping[int, int]) -> dict[int, ResidualSum]:
    found: dict[int, ResidualSum] = {}
    made_by = {value: op for op in listing.ops for value in op.results}
    times = {value: time for time, op in enumerate(listing.ops) for value in op.results}
    for op in listing.ops:
        added = {behind.get(one, one) for one in op.operands} if op.name == _ADD else set[int]()
        if len(added) != _OPERANDS or not is_elementwise(op) or _has_leaf(op, made_by):
            continue
        known = added & found.keys()
        before = known.pop() if len(known) == 1 else min(added, key=lambda one: times.get(one, -1))
        (branch,) = added - {before}
        maker, one = made_by.get(branch), found.get(before)
        is_turned = maker is not None and maker.name == TRANSPOSE
        orders = frozenset([order_of(maker)] if maker is not None and is_turned else [])
        is_free = is_turned or (maker is not None and maker.is_matmul)
        if one is not None:
            orders, is_free = orders | one.orders, is_free and one.is_free
        start = before if one is None else one.start
        found[op.results[0]] = ResidualSum(before, branch, start, orders, is_free)
    return found


def _has_leaf(op: Op, made_by: Mapping[int, Op]) -> bool:
    makers = (made_by.get(one) for one in op.operands)
    return any(maker is not None and maker.name in _LEAVES for maker in makers)


def order_of(op: Op) -> tuple[int, ...]:
    """Of the operand's dimensions in what a transpose makes."""
    if op.rule is None:
        return ()
    (given,), (made,) = op.rule.operands, op.rule.results
    return tuple(given.index(dim) for dim in made) if set(made) == set(given) else ()


def _undoes(order: Sequence[int], before: Sequence[int]) -> bool:
    """Whether a transpose of what was transposed leaves it as it was."""
    return len(order) == len(before) > 0 and [before[dim] for dim in order] == list(range(len(order)))


def _behind_work(listing: Listing) -> dict[int, int]:
    """Results of elementwise work on one value, reshaped or not, and on what is the same along some dimensions, -> that value."""
    leaves, found = set[int](), dict[int, int]()
    for op in listing.ops:
        if op.name in _LEAVES:
            leaves.update(op.results)
        else:
            _work(op, leaves, found)
    return found


def _made_of_given(listing: Listing) -> dict[int, int]:
    """As `_behind_work`, of work with nothing else than arguments, constants and what is broadcast of them."""
    leaves, found = {argument.value for argument in listing.arguments}, dict[int, int]()
    for op in listing.ops:
        if op.name in _GIVING and leaves.issuperset(op.operands):
            leaves.update(op.results)
        else:
            _work(op, leaves, found)
    return found


def _work(op: Op, leaves: set[int], found: dict[int, int]) -> None:
    wholes = {found.get(one, one) for one in op.operands if one not in leaves}
    if not (is_elementwise(op) or op.name == RESHAPE) or len(wholes) > 1:
        return
    if wholes:
        found.update(dict.fromkeys(op.results, wholes.pop()))
    else:
        leaves.update(op.results)
