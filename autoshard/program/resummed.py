"""Residual sums that XLA adds up a second time, transposed.

Where a branch of a residual sum is transposed and what reads the sum undoes that, XLA:TPU takes the transposes up through the additions, if
all that is added is transposed already or a matrix unit makes it: beside the sum itself there is one of the branches as they are made. That
is added up where it is read, so that what is added is there from when it is made until then, and the sum before the last, if nothing else
needs that, no longer; of several readers on the way every second one stores its sum. So a ConvNeXt of torch, whose convolutions have
channels first and whose normalizations last, keeps all 27 branches of a stage until the next one (libtpu 0.0.52, v5e: forward pass, 1.19 of
what is said otherwise), and an MLP-Mixer those of two blocks (v5e 1.34, v6e 1.16). Not where the sums are stored for a backward pass.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, is_elementwise
from autoshard.program.records import Lifetime, Whole

_ADD, _TRANSPOSE = "stablehlo.add", "stablehlo.transpose"
_MOVING = frozenset({_TRANSPOSE, "stablehlo.reshape"})
_LEAVES = frozenset({BROADCAST, "stablehlo.constant"})
_OPERANDS = 2
_STORING = 2  # one of so many readers of a transposed sum stores it


class _Sum(NamedTuple):
    """What is added up, each as it was made; `order`: of the branch's dimensions where it is transposed."""

    before: int
    branch: int
    order: tuple[int, ...]


class _Reader(NamedTuple):
    time: int
    value: int  # the sum
    branches: tuple[int, ...]  # that it is of, the last one first
    sums: tuple[int, ...]  # of these


def added_up_again(
    listing: Listing, lives: Mapping[int, Lifetime]
) -> tuple[dict[int, Lifetime], list[tuple[int, Whole]]]:
    """The lives with what is added until it is, and the transposed sums that are stored, by the sums."""
    behind, found, stored = _worked_on(listing), dict(lives), list[tuple[int, Whole]]()
    made_by = {value: op for op in listing.ops for value in op.results}
    for start, readers in _readers(listing, behind, made_by).items():
        last = readers[-1]
        before = {value for reader in readers for value in reader.sums} - {last.value}
        if any(lives[value].end > last.time + 1 for value in before if value in lives):
            continue
        done = [reader for number, reader in enumerate(readers) if number % _STORING == 0]
        done += readers[-1:] if readers[-1] is not done[-1] else []
        _keep(start, done[0].time + 1, behind, made_by, found)
        added = 0
        for reader in done:
            for branch in reader.branches[: len(reader.branches) - added]:
                _keep(branch, reader.time + 1, behind, made_by, found)
            added = len(reader.branches)
        if len(last.sums) > 1 and _is_transposed_only(last.value, listing):
            _end_early(last.sums[1], listing, found)
        for one, after in pairwise(done):
            type_ = listing.values[one.value].type
            assert type_ is not None
            stored.append((one.value, Whole(one.time, after.time + 1, type_)))
    return found, stored


def _readers(
    listing: Listing, behind: Mapping[int, int], made_by: Mapping[int, Op]
) -> dict[int, list[_Reader]]:
    """What reads sums transposed, by what these begin with, in order."""
    sums = dict(_sums(listing, behind, made_by))
    given = {argument.value for argument in listing.arguments}
    made = _worked_on(listing, given)
    found: defaultdict[int, list[_Reader]] = defaultdict(list)
    for time, op in enumerate(listing.ops):
        if op.name != _TRANSPOSE:
            continue
        value = start = behind.get(op.operands[0], op.operands[0])
        order, passed, is_undone = _order(op), list[int](), False
        while start in sums:
            passed.append(start)
            is_undone |= _undoes(order, sums[start].order)
            start = sums[start].before
        known = found[start][-1].sums if start in found else ()
        branches = tuple(sums[one].branch for one in passed)
        are_free = _is_product(start, made, made_by) and all(_is_free(made_by.get(one)) for one in branches)
        if is_undone and are_free and set(passed) > set(known):
            found[start].append(_Reader(time, value, branches, tuple(passed)))
    return found


def _sums(
    listing: Listing, behind: Mapping[int, int], made_by: Mapping[int, Op]
) -> Iterator[tuple[int, _Sum]]:
    """Additions of two values, one of which is such a sum already or was there first."""
    found: set[int] = set()
    times = {value: time for time, op in enumerate(listing.ops) for value in op.results}
    for op in listing.ops:
        added = {behind.get(one, one) for one in op.operands} if op.name == _ADD else set[int]()
        if len(added) != _OPERANDS or not is_elementwise(op) or _has_leaf(op, made_by):
            continue
        known = added & found
        before = known.pop() if len(known) == 1 else min(added, key=lambda one: times.get(one, -1))
        (branch,) = added - {before}
        maker = made_by.get(branch)
        order = _order(maker) if maker is not None and maker.name == _TRANSPOSE else ()
        found.update(op.results)
        yield op.results[0], _Sum(before, branch, order)


def _is_free(op: Op | None) -> bool:
    """Whether it is transposed at no cost: by a transpose the less, or as a matrix unit makes it."""
    return op is not None and (op.name == _TRANSPOSE or op.is_matmul)


def _is_product(value: int, made: Mapping[int, int], made_by: Mapping[int, Op]) -> bool:
    """Whether a matrix unit makes it but for another shape and work with what the program is given."""
    op = made_by.get(made.get(value, value))
    while op is not None and op.name in _MOVING:
        op = made_by.get(made.get(op.operands[0], op.operands[0]))
    return op is not None and op.is_matmul


def _order(op: Op) -> tuple[int, ...]:
    """Of the operand's dimensions in what a transpose makes."""
    if op.rule is None:
        return ()
    (given,), (made,) = op.rule.operands, op.rule.results
    return tuple(given.index(dim) for dim in made) if set(made) == set(given) else ()


def _undoes(order: Sequence[int], before: Sequence[int]) -> bool:
    """Whether a transpose of what was transposed leaves it as it was."""
    return len(order) == len(before) > 0 and [before[dim] for dim in order] == list(range(len(order)))


def _worked_on(listing: Listing, given: Collection[int] | None = None) -> dict[int, int]:
    """Results of elementwise work on one value, and on what is the same along some dimensions, -> that value.

    Args:
        given: what alone may be broadcast, and what is made of it so; anything unless given.
    """
    leaves, found = set(given or ()), dict[int, int]()
    for op in listing.ops:
        is_given = leaves.issuperset(op.operands)
        if (op.name in _LEAVES and (given is None or is_given)) or (op.name in _MOVING and is_given):
            leaves.update(op.results)
        elif is_elementwise(op):
            wholes = {found.get(one, one) for one in op.operands if one not in leaves}
            if len(wholes) == 1:
                found.update(dict.fromkeys(op.results, wholes.pop()))
            elif not wholes:
                leaves.update(op.results)
    return found


def _is_transposed_only(value: int, listing: Listing) -> bool:
    readers = [op for op in listing.ops if value in op.operands]
    return bool(readers) and all(op.name == _TRANSPOSE for op in readers)


def _end_early(value: int, listing: Listing, lives: dict[int, Lifetime]) -> None:
    """With its last read but for elementwise work, as a sum that another takes the place of."""
    others = [time for time, op in enumerate(listing.ops) if value in op.operands and not is_elementwise(op)]
    if others and value in lives:
        lives[value] = replace(lives[value], end=min(lives[value].end, max(others) + 1))


def _has_leaf(op: Op, made_by: Mapping[int, Op]) -> bool:
    return any(one in made_by and made_by[one].name in _LEAVES for one in op.operands)


def _keep(
    value: int, end: int, behind: Mapping[int, int], made_by: Mapping[int, Op], lives: dict[int, Lifetime]
) -> None:
    """The value, or what it is worked out from, transposed or not; a product in a buffer of its own."""
    while not (value in lives and lives[value].is_own_buffer):
        op = made_by.get(value)
        if op is not None and op.is_matmul and value in lives:
            break
        before = op.operands[0] if op is not None and op.name == _TRANSPOSE else behind.get(value, value)
        if before == value:
            return
        value = before
    end = max(lives[value].end, end)
    lives[value] = replace(lives[value], end=end, is_own_buffer=True, within=None)
