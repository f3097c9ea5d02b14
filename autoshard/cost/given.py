"""The shardings that a module comes with, as what is made and what is read.

A sharding constraint or reshard that somebody wrote is an op of the listing. Where a plan can say the same of the value and its readers,
the op is looked through: one that changes nothing is gone, one that changes something is the sharding in which its readers read the
value. So a written module has the kernels of the module that was planned. An op stays where that would say something else:

- where its readers and what makes the value would be one kernel, in which nothing is moved;
- where several ops each move one value for several readers: a value has one copy that is shared (see `cost.graph`), beside which others
  read it as it is where prices know of that (`cost.sharing`);
- where it moves a value more or less often than its readers read it;
- where a chain of them is not what Shardy makes of its ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoshard.cost.loops import Loops, Place
from autoshard.cost.reshard import Decompose
from autoshard.cost.sharing import tells_settled
from autoshard.mlir.linearity import zero_values
from autoshard.mlir.listing import RESULT_SITE, Listing, Op, Site
from autoshard.program import MOVES, KernelReads, free_values, kernel_reads
from autoshard.sharding import AxisRef, TensorSharding, factor_axes_of
from autoshard.space import Strategy, reduced_axes

SHARED_SITE = -1
"""In place of an operand's number."""


@dataclass(frozen=True, slots=True)
class Given:
    """What each value is made as, and how it is read where that differs.

    Attributes:
        values: closed shardings; a value that is not among them is whole.
        reads: of operands of ops, as (op, operand), that are read in another sharding than their value is made in.
        shared: of values that are brought to one sharding for several readers, by a move of its own: that sharding.
        scattered: values that are moved once, right where they are made, to a sharding over the axes that are summed over.
        moves: the ops that were looked through to a read, in order; for readers that share a copy (value, SHARED_SITE).
    """

    values: Mapping[int, TensorSharding]
    reads: Mapping[Site, TensorSharding] = field(default_factory=dict[Site, TensorSharding])
    shared: Mapping[int, TensorSharding] = field(default_factory=dict[int, TensorSharding])
    scattered: Mapping[int, TensorSharding] = field(default_factory=dict[int, TensorSharding])
    moves: Mapping[Site, tuple[int, ...]] = field(default_factory=dict[Site, tuple[int, ...]])


def look_through(
    listing: Listing,
    values: Mapping[int, TensorSharding],
    decompose: Decompose,
    *,
    merges_slices: bool = False,
) -> tuple[Listing, Given]:
    """The listing without the ops that only say how values are read, at the same times, and what they said.

    An op that is annotated with what its rule makes of its operands, constants left out, has no demand any more, nor has one that hands on
    partial sums: it fuses as if it were not annotated.

    Args:
        values: as in `Given`, of the listing with those ops.
        merges_slices: whether the compiler makes a reduce-scatter of a sum and the slice that its change of sharding begins with.
    """
    grouped = frozenset(member.value for group in listing.groups for member in group.members)
    moves = {
        number
        for number, op in enumerate(listing.ops)
        if op.name in MOVES
        and _may_be_read_so(op, values)
        and grouped.isdisjoint((*op.operands, *op.results))
    }
    while True:
        found = _Reading(listing, values, moves, decompose, merges_slices)
        stripped = _without_followed_demands(found.listing(), values, found.reads, grouped)
        in_the_way = found.unsayable(kernel_reads(stripped))
        if not in_the_way:
            return stripped, Given(values, found.reads, found.shared, found.scattered, found.moves)
        moves -= in_the_way


def _may_be_read_so(op: Op, values: Mapping[int, TensorSharding]) -> bool:
    ends = [values.get(value) for value in (*op.operands, *op.results)]
    return all(end is not None and not end.is_foreign for end in ends)


class _Reading:
    """One pass through a listing in program order; `moves` are the ops that may be looked through."""

    def __init__(
        self,
        listing: Listing,
        values: Mapping[int, TensorSharding],
        moves: set[int],
        decompose: Decompose,
        merges_slices: bool,
    ) -> None:
        self._listing, self._values, self._moves = listing, values, moves
        self._decompose, self._merges_slices = decompose, merges_slices
        self._loops = Loops(listing)
        self._readers = listing.sites
        self._sequences: dict[tuple[TensorSharding, TensorSharding], tuple[TensorSharding, ...]] = {}
        self._stands_for: dict[int, int] = {}  # result of an op that is gone -> what is read in its place
        self._confirmed: set[int] = set()  # values that a move says the sharding of
        self.reads: dict[Site, TensorSharding] = {}
        self.shared: dict[int, TensorSharding] = {}
        self.scattered: dict[int, TensorSharding] = {}
        self.moves: dict[Site, tuple[int, ...]] = {}
        self._first: dict[Site, int] = {}  # of the moves to a read, which others share
        arguments = [argument.value for argument in listing.arguments]
        for value in (*arguments, *(flow.target for flow in listing.data_flows)):
            self._read(value, None)
        for number, op in enumerate(listing.ops):
            for value in op.results:
                if value not in self._stands_for:
                    self._read(value, number)

    def unsayable(self, kernels: KernelReads) -> set[int]:
        """The moves whose readers do not read what they make by themselves, or read the value as it is too."""
        found = {self._first[site] for site in kernels.inner if site in self.reads}
        for sites in kernels.joint:
            if len({self.reads.get(site) for site in sites}) > 1:
                found |= {self._first[site] for site in sites if site in self.reads}
        return found

    def listing(self) -> Listing:
        """The listing without the moves that were looked through."""
        listing, stands_for = self._listing, self._stands_for
        if not stands_for:
            return listing
        ops = tuple(map(self._rewritten, listing.ops))
        flows = tuple(
            replace(
                flow,
                sources=tuple(replace(s, value=stands_for.get(s.value, s.value)) for s in flow.sources),
            )
            for flow in listing.data_flows
        )
        results = tuple(
            replace(
                result,
                value=stands_for[result.value],
                demand=result.demand if result.demand is not None else self._values[result.value],
            )
            if result.value in stands_for
            else result
            for result in listing.results
        )
        return replace(listing, ops=ops, data_flows=flows, results=results)

    def _rewritten(self, op: Op) -> Op:
        stands_for = self._stands_for
        if not stands_for.keys().isdisjoint(op.results):
            return Op(op.name, (), (), None, 0, False, op.repeat, op.region, op.location)
        if op.demand is None and len(op.results) == 1 and op.results[0] in self._confirmed:
            op = replace(op, demand=self._values[op.results[0]])
        if stands_for.keys().isdisjoint(op.operands):
            return op
        return replace(op, operands=tuple(stands_for.get(value, value) for value in op.operands))

    def _read(self, value: int, maker: int | None) -> None:
        """Decide what becomes of the moves behind a value."""
        settled = self._values.get(value)
        if settled is None or all(site[0] not in self._moves for site in self._readers.get(value, ())):
            return
        ends = self._ends(value, value)
        moves_on = ends[0][0] if len(ends) == 1 and ends[0][0] in self._moves else None
        part = self._scattered(maker, moves_on) if maker is not None and moves_on is not None else None
        if part is not None and moves_on is not None:
            settled = self.scattered[value] = part
            if part == self._made(moves_on):
                ends = self._pass(moves_on, value)
                self._note(ends, settled, moves_on)
        moving = [site[0] for site in ends if site[0] in self._moves]
        path = self._path(moving[0]) if len(moving) == 1 else []
        if (
            path
            and self._is_direct(settled, path)
            and self._is_shared_copy(value, path, others=len(ends) - 1)
            and (len(ends) == 1 or tells_settled(settled, self._made(path[-1]), self._listing.mesh))
        ):
            settled = self.shared[value] = self._made(path[-1])
            for move in path:
                ends = self._pass(move, value)
            self._note(ends, settled, path[0])
            self.moves[value, SHARED_SITE] = tuple(path)
        for site in ends:
            if site[0] in self._moves:
                path = self._path(site[0])
                if self._is_direct(settled, path) and self._is_read_once(path):
                    for move in path:
                        ends = self._pass(move, value)
                    self._note(ends, self._made(path[-1]), path[0])
                    self.moves.update(dict.fromkeys(ends, tuple(path)))

    def _pass(self, move: int, value: int) -> list[Site]:
        """Look through a move; who reads what it makes."""
        (result,) = self._listing.ops[move].results
        self._stands_for[result] = value
        return self._ends(result, value)

    def _note(self, ends: Sequence[Site], sharding: TensorSharding, move: int) -> None:
        for site in ends:
            self.reads[site] = sharding
            self._first[site] = move

    def _ends(self, value: int, root: int) -> list[Site]:
        """Who reads a value, looking through moves that change nothing."""
        found: list[Site] = []
        for site in self._readers.get(value, ()):
            if site[0] in self._moves and self._made(site[0]) == self._values[value]:
                self._stands_for[self._listing.ops[site[0]].results[0]] = root
                self._confirmed.update([value] if value == root else [])
                found += self._ends(self._listing.ops[site[0]].results[0], root)
            else:
                found.append(site)
        return found

    def _path(self, move: int) -> list[int]:
        """The move, and those behind it as far as each is the only one to read the one before."""
        path = [move]
        while True:
            (result,) = self._listing.ops[path[-1]].results
            ends = self._peek(result)
            if len(ends) != 1 or ends[0][0] not in self._moves:
                return path
            path.append(ends[0][0])

    def _peek(self, value: int) -> list[Site]:
        """`_ends`, and nothing is decided."""
        found: list[Site] = []
        for site in self._readers.get(value, ()):
            is_idle = site[0] in self._moves and self._made(site[0]) == self._values[value]
            found += self._peek(self._listing.ops[site[0]].results[0]) if is_idle else [site]
        return found

    def _made(self, move: int) -> TensorSharding:
        return self._values[self._listing.ops[move].results[0]]

    def _scattered(self, maker: int, move: int) -> TensorSharding | None:
        """How a sum is found behind the reduce-scatter that is made of it and the move of its result; None where none is."""
        op = self._listing.ops[maker]
        if op.rule is None or len(op.results) != 1 or op.repeat != self._listing.ops[move].repeat:
            return None
        operands = tuple(
            self.reads.get((maker, position)) or self._values.get(value) or _whole(self._listing, value)
            for position, value in enumerate(op.operands)
        )
        made = self._values[op.results[0]]
        rule, mesh = op.rule, self._listing.mesh
        axes = factor_axes_of(rule, (*rule.operands, *rule.results), (*operands, made), mesh)
        if axes is None:
            return None
        reduced = tuple(axis for axis in reduced_axes(rule, axes, mesh) if axis not in made.unreduced)
        if Strategy(axes, operands, (made,), (self._made(move),), reduced).is_scattered:
            return self._made(move)
        merges = self._merges_slices and reduced
        return self._sliced_behind(made, self._made(move), reduced) if merges else None

    def _sliced_behind(
        self, made: TensorSharding, sliced: TensorSharding, reduced: tuple[AxisRef, ...]
    ) -> TensorSharding | None:
        """What a sum over these axes is scattered to on the way."""
        if made.unreduced or made == sliced:
            return None
        (steps,) = self._decompose(
            self._listing.mesh, [(made.rank, replace(made, unreduced=reduced), sliced)]
        )
        return steps[0].out_sharding if steps[0].kind == "reduce_scatter" else None

    def _is_read_once(self, path: Sequence[int]) -> bool:
        ops = self._listing.ops
        ends = self._peek(ops[path[-1]].results[0])
        runs = {ops[move].repeat for move in path}
        return not ends or (len(ends) == 1 and runs == {self._repeat(ends[0])})

    def _is_shared_copy(self, value: int, path: Sequence[int], *, others: int) -> bool:
        """Whether what the last of these makes is read by several, and as often made as a copy that they share; so many read the value
        as it is.
        """
        ops = self._listing.ops
        ends = self._peek(ops[path[-1]].results[0])
        if len(ends) < 2:
            return False
        beside = self._peek(value) if others else []
        reads = [(self._place(site), self._place(site).time + 1) for site in (*ends, *beside)]
        return {ops[move].repeat for move in path} == {self._loops.shared_copy(value, reads).repeat}

    def _is_direct(self, start: TensorSharding, path: Sequence[int]) -> bool:
        """Whether these are what Shardy makes of the move from the first sharding to the last; one is, whatever it takes."""
        if len(path) == 1:
            return True
        ends = (start, self._made(path[-1]))
        if ends not in self._sequences:
            (steps,) = self._decompose(self._listing.mesh, [(start.rank, *ends)])
            self._sequences[ends] = tuple(step.out_sharding for step in steps)
        return self._sequences[ends] == tuple(map(self._made, path))

    def _place(self, site: Site) -> Place:
        number, position = site
        if number >= 0:
            return self._loops.around_op(number)
        if number == RESULT_SITE:
            return self._loops.at_end(len(self._listing.ops))
        return self._loops.around_source(self._listing.data_flows[-1 - number], position)

    def _repeat(self, site: Site) -> int:
        number, position = site
        if number >= 0:
            return self._listing.ops[number].repeat
        return 1 if number == RESULT_SITE else self._listing.data_flows[-1 - number].sources[position].repeat


def _without_followed_demands(
    listing: Listing,
    values: Mapping[int, TensorSharding],
    reads: Mapping[Site, TensorSharding],
    grouped: frozenset[int],
) -> Listing:
    def read(number: int, op: Op) -> list[TensorSharding | None]:
        is_recomputed = [value in free for value in op.operands]
        return [
            None if is_free and not all(is_recomputed) else reads.get((number, i)) or values.get(value)
            for i, (value, is_free) in enumerate(zip(op.operands, is_recomputed, strict=True))
        ]

    def follows(number: int, op: Op) -> bool:
        if op.rule is None:
            return False
        ends = (*read(number, op), *map(values.get, op.results))
        mappings = (*op.rule.operands, *op.rule.results)
        pairs = [(m, end) for m, end in zip(mappings, ends, strict=True) if end is not None]
        mapped, shardings = [m for m, _ in pairs], [end for _, end in pairs]
        return factor_axes_of(op.rule, mapped, shardings, listing.mesh) is not None

    def is_whole_or_handed_on(number: int, op: Op, demand: TensorSharding) -> bool:
        if not demand.unreduced or zeros.issuperset(op.results):
            return True
        return any(end is not None and end.unreduced == demand.unreduced for end in read(number, op))

    zeros = zero_values(listing)
    free = free_values(listing, grouped)
    following = [follows(number, op) for number, op in enumerate(listing.ops)]
    split = {  # read by what may be in one kernel with what makes it
        value
        for op, is_one in zip(listing.ops, following, strict=True)
        if not is_one and not op.is_matmul and op.name not in MOVES
        for value in op.operands
    }
    ops = tuple(
        replace(op, demand=None, other_demands=())
        if op.demand is not None
        and is_whole_or_handed_on(number, op, op.demand)
        and op.name not in MOVES
        and is_one
        and not split.intersection(op.results)
        else op
        for number, (op, is_one) in enumerate(zip(listing.ops, following, strict=True))
    )
    return replace(listing, ops=ops)


def _whole(listing: Listing, value: int) -> TensorSharding:
    type_ = listing.values[value].type
    return TensorSharding.replicated_closed(type_.rank if type_ is not None else 0)
