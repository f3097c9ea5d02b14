"""Additions whose operands are sums of what devices hold, so that a compiler may add first and sum once after it.

XLA for TPUs makes `all_reduce(a + b)` of `all_reduce(a) + all_reduce(b)` where both go over the same devices (its pass
AllReduceReassociate). Seen in what libtpu 0.0.51 compiles for v5e 4x4, v5p 2x2x4 and v6e 4x4:

- each addend is read by the addition only, in the same body: itself the result of a contraction, a reduction or a scatter that adds, or
  of such an addition, so that a tree of additions is summed once;
- reshapes, and the same transpose of both, may stand between (so may constraints that change nothing, which is not looked through);
- scatters too, each behind a constraint, as a plan is written (`scattered_addends`): without one XLA scatters onto the other addend,
  unless both are scatters into zeros;
- conversions may not, nor negations, paddings, other addends that are whole (of `(whole + a) + b` both are summed), and no subtraction.
"""

from dataclasses import dataclass

from autoshard.mlir.decisions import Decisions
from autoshard.mlir.listing import Listing, Op, Site
from autoshard.program.fusion import Group
from autoshard.sharding import FactorKind, TensorMapping, TensorType

PASSED = frozenset({"stablehlo.reshape", "stablehlo.transpose"})
"""Ops that may stand between a sum and the addition."""
MAX_ADDITIONS = 4  # of a kernel that are choices of their own

_ADD, _TRANSPOSE, _SCATTER = "stablehlo.add", "stablehlo.transpose", "stablehlo.scatter"


@dataclass(frozen=True, slots=True)
class Addition:
    """Of a kernel's shape: if these operands are addends over the same axes, so is the sum, until it is summed."""

    operands: tuple[int, ...]  # of the kernel's rule
    type: TensorType
    mapping: TensorMapping  # of the sum, to the factors of the rule
    is_result: bool  # whether the sum is what the kernel leaves


@dataclass(frozen=True, slots=True)
class AddedValues:
    """What an addition of the shape is in one kernel."""

    op: int
    value: int
    inner: frozenset[int]  # sums on the way


@dataclass(frozen=True, slots=True)
class Addends:
    """Of a program: values that may be left as addends for what reads them, and the additions where they meet."""

    values: frozenset[int]
    additions: frozenset[int]  # ops
    sums: frozenset[int]  # what the last additions make, which no kernel has inside


def find_addends(listing: Listing) -> Addends:
    """All trees of additions whose leaves are sums."""
    return _Finder(listing).find()


def additions_of(
    group: Group, uses: list[int], listing: Listing, addends: Addends
) -> tuple[tuple[Addition, AddedValues], ...]:
    """Those that a kernel holds, which reads the values `uses`: the last of each tree first."""
    mine = {listing.ops[index].results[0]: index for index in group.ops if index in addends.additions}
    if not mine:
        return ()
    turned = {op.results[0]: i for i in group.ops if (op := listing.ops[i]).name == _TRANSPOSE}
    trees = {
        value: _tree(value, mine, turned, listing) for value in sorted(mine, key=lambda value: -mine[value])
    }
    below = {inner for value, (_, sums) in trees.items() for inner in sums if inner != value}
    found: list[tuple[Addition, AddedValues]] = []
    for value in sorted(trees, key=lambda value: value in below)[:MAX_ADDITIONS]:
        leaves, sums = trees[value]
        type_ = listing.values[value].type
        if type_ is not None and leaves <= set(uses):
            is_result = value in listing.ops[group.root].results
            operands = tuple(i for i, use in enumerate(uses) if use in leaves)
            addition = Addition(operands, type_, group.mapping[value], is_result)
            found.append((addition, AddedValues(mine[value], value, frozenset(sums - {value}))))
    return tuple(found)


def _tree(
    value: int, mine: dict[int, int], turned: dict[int, int], listing: Listing
) -> tuple[set[int], set[int]]:
    """The leaves below a sum, and the values in between, itself included."""
    leaves: set[int] = set()
    sums: set[int] = set()
    left = [value]
    while left:
        one = left.pop()
        index = mine.get(one, turned.get(one))
        if index is None:
            leaves.add(one)
        else:
            sums.add(one)
            left += listing.ops[index].operands
    return leaves, sums


def scattered_addends(listing: Listing, decisions: Decisions) -> frozenset[int]:
    """What scatters make that a plan leaves as addends."""
    made = (op.results[0] for op in listing.ops if op.name == _SCATTER and len(op.results) == 1)
    return frozenset(
        value for value in made if value in decisions.produced and decisions.produced[value].unreduced
    )


class _Finder:
    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._sites = listing.sites
        self._maker = {value: index for index, op in enumerate(listing.ops) for value in op.results}
        self._grouped = {member.value for group in listing.groups for member in group.members}
        self._additions: set[int] = set()

    def find(self) -> Addends:
        values: set[int] = set()
        for index, op in enumerate(self._listing.ops):
            if op.name == _ADD and len(set(op.operands)) == 2:
                paths = [self._path(value, op.region) for value in op.operands]
                turns = [
                    [r.rule for i in path if (r := self._listing.ops[self._maker[i]]).name == _TRANSPOSE]
                    for path in paths
                ]
                if all(paths) and turns[0] == turns[1]:
                    self._additions.add(index)
                    values.update(value for path in paths for value in path)
        sums = {self._listing.ops[index].results[0] for index in self._additions} - values
        return Addends(frozenset(values), frozenset(self._additions), frozenset(sums))

    def _path(self, value: int, region: int) -> list[int]:
        """The value that an addition reads, and those before it up to the sum; nothing where no sum is found."""
        path: list[int] = []
        while self._is_read_once(value):
            path.append(value)
            index = self._maker[value]
            op = self._listing.ops[index]
            if op.region != region:
                break
            if index in self._additions or _is_sum(op):
                return path
            if op.name not in PASSED:
                break
            (value, *_) = op.operands
        return []

    def _is_read_once(self, value: int) -> bool:
        sites: tuple[Site, ...] = self._sites.get(value, ())
        type_ = self._listing.values[value].type
        is_made = value in self._maker and type_ is not None and type_.rank > 0
        return is_made and len(sites) == 1 and sites[0][0] >= 0 and value not in self._grouped


def _is_sum(op: Op) -> bool:
    """Whether split reduction factors leave addends of its one result."""
    adds = op.leaves_addends or (op.name == _SCATTER and op.reducer == _ADD)
    has_sums = op.rule is not None and any(f.kind is FactorKind.REDUCTION for f in op.rule.factors)
    return adds and has_sums and len(op.results) == 1
