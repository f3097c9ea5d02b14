"""Tables that are updated by what a scatter makes of the gradients of a lookup: how they lie in memory, and when.

A scatter makes its result in rows of whole slices (`minor.scattered_rows`). XLA:TPU either copies that back, or makes the update in rows
too: it copies the table and the state of its optimizer into rows right before, writes both there, and copies the table back; of several
results all but the table stay in rows until the program ends, and are copied back then. Seen in what libtpu 0.0.52 compiles for v5e and
v6e of 80 small recommenders of one to eight tables, most of 4 columns on a device. (0.0.51 made all these copies when the program began.)
In rows is an update

- where the work compares with zeros or picks them, as Adagrad does that leaves out what was never looked up: the zeros are those that the
  scatter adds to;
- of a chain of work on one element after the other that reads nothing twice and adds the gradient to arguments themselves: SGD, and sums
  of gradients that are updated by. Momentum and weight decay, whose gradient is added to what is computed, where the scatter can add to
  that: not where the gradient is narrower. Of gradients as wide as the tables one table or two, of narrower ones any number;
- of one table or two without any state otherwise, as where gradients are clipped by their norm;
- not in tables of split rows that are too large to be scattered into as a whole (`rowwise`): what is scattered with columns split goes to
  where the rows are before the update (numpyro's 4 million means and spreads of 32 columns, whose softplus picks zeros);
- not in the others: Adam, also where it adds a constant of zero below its root, Nesterov's momentum, moving averages, Adagrad with a square
  root.

What the gradient itself is added to the scatter adds to: one value in rows. So is the sum of several lookups' gradients, which are one
scatter (`merging`) or scattered one onto the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import is_elementwise
from autoshard.program.records import Compiler, Kernel, Lifetime, RowCopy, ScatteredRows
from autoshard.program.rowwise import scatters_rows

_PICKING = frozenset(f"stablehlo.{name}" for name in ("clamp", "compare", "maximum", "minimum", "select"))
_ADD, _CONVERT = "stablehlo.add", "stablehlo.convert"
_SUMS = frozenset({_ADD, "stablehlo.subtract"})
_SPREAD = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.constant"})
FEW = 2
"""Gradients of tables in a program up to which what they are added to lies in rows."""


class Update(NamedTuple):
    """In rows; half-open times.

    Attributes:
        time: when the update runs: as soon as it can, where nothing else reads the gradient or what is made of it (`is_alone`).
        tables: arguments that are copied into rows then; all but the last stay so until the program ends.
        is_in_state: the scatter adds to what is returned.
    """

    gradient: int
    rows: ScatteredRows
    time: int
    tables: tuple[int, ...]
    is_alone: bool
    is_in_state: bool


class _Chain(NamedTuple):
    """From a gradient on, of work that reads nothing twice.

    Attributes:
        added: arguments that it is added to, but for what the scatter adds to (`is_onto`).
        is_widened: it is converted first, so that the scatter can add to nothing.
    """

    added: tuple[int, ...]
    is_onto: bool
    is_widened: bool


class _Ops:
    """What reads and makes values of a table's shape."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self.arguments = {argument.value for argument in listing.arguments}
        self.readers, self.makers = dict[int, list[Op]](), dict[int, Op]()
        for op in listing.ops:
            self.makers.update(dict.fromkeys(op.results, op))
            for value in dict.fromkeys(op.operands):
                self.readers.setdefault(value, []).append(op)

    def shape(self, value: int) -> tuple[int, ...] | None:
        type_ = self._listing.values[value].type
        return None if type_ is None else type_.shape

    def start(self, gradient: int, times: Mapping[int, int]) -> int | None:
        """The sum of the gradient and those that are there when it is made; None where a later one is added to that.

        Args:
            times: when scatters run, by what they make.
        """
        value = gradient
        while True:
            readers = self.readers.get(value, ())
            others = [operand for op in readers for operand in op.operands if operand != value]
            if len(readers) != 1 or readers[0].name != _ADD or not others or others[0] not in times:
                return value
            if times[others[0]] > times[gradient]:
                return None
            value = readers[0].results[0]

    def chain(self, start: int) -> _Chain | None:
        """None where something is read twice, or added to what is computed and not by the scatter."""
        value, added, is_onto, is_widened = start, list[int](), False, False
        while readers := self.readers.get(value):
            (op, *others), read = readers, value
            is_twice = bool(others) or len(set(op.operands)) < len(op.operands)
            if is_twice or not is_elementwise(op) or self.shape(op.results[0]) != self.shape(start):
                return None
            value, rest = op.results[0], [operand for operand in op.operands if operand != read]
            if read == start and op.name == _ADD:
                is_onto = True
            elif op.name in _SUMS and self.arguments.issuperset(rest):
                added += rest
            elif not all(self._is_spread(operand) for operand in rest):
                return None
            is_widened = is_widened or (read == start and op.name == _CONVERT)
        return _Chain(tuple(added), is_onto, is_widened) if added or is_onto else None

    def _is_spread(self, value: int) -> bool:
        return value in self.makers and self.makers[value].name in _SPREAD

    def is_added_wider(self, gradient: int) -> bool:
        """Whether a gradient is added to what is computed, as wide as that."""
        wide = {op.results[0] for op in self.readers.get(gradient, ()) if op.name == _CONVERT}
        sums = (op for value in wide for op in self.readers.get(value, ()) if op.name in _SUMS)
        return any(operand not in self.arguments | wide for op in sums for operand in op.operands)


def updates_in_rows(
    kernels: Sequence[Kernel],
    listing: Listing,
    rows: Mapping[int, ScatteredRows],
    zeros: frozenset[int],
    merged: Mapping[int, int],
) -> tuple[Update, ...]:
    """Of tables that XLA:TPU updates.

    Args:
        rows: of what scatters make, how it lies (`minor.scattered_rows`).
        zeros: values that are zero everywhere.
        merged: scatters that are part of a later one (`merging`).
    """
    if not rows:
        return ()
    ops, apart = _Ops(listing), rows.keys() - merged.keys()
    made = {value: kernel.time for kernel in kernels for value in kernel.results}
    times = {value: made[value] for value in rows}
    found = (
        _update(kernels, listing, ops, gradient, start, rows[gradient], made, zeros, len(apart) <= FEW)
        for gradient in sorted(apart)
        if (start := ops.start(gradient, times)) is not None
    )
    return tuple(one for one in found if one is not None)


def _update(
    kernels: Sequence[Kernel],
    listing: Listing,
    ops: _Ops,
    gradient: int,
    start: int,
    rows: ScatteredRows,
    times: Mapping[int, int],
    zeros: frozenset[int],
    is_one_of_few: bool,
) -> Update | None:
    shape, begin = ops.shape(gradient), times[gradient]
    made, tables, is_alone, picks_zeros = {gradient}, dict[int, int](), True, False
    for kernel in kernels:
        reads = [use.value for use in kernel.uses]
        if made.isdisjoint(reads):
            continue
        if not is_elementwise(listing.ops[kernel.time]) or ops.shape(kernel.results[0]) != shape:
            is_alone = False
            continue
        made.update(kernel.results)
        alike = [value for value in reads if ops.shape(value) == shape and value not in made]
        tables |= {value: kernel.time for value in alike if value in ops.arguments}
        begin = max([begin, *(times[value] for value in alike if value in times)])
        picks_zeros = picks_zeros or any(
            op.name in _PICKING and not zeros.isdisjoint(op.operands)
            for op in (listing.ops[number] for number in kernel.ops)
        )
    if not tables:
        return None
    chain = ops.chain(start)
    if chain is not None and not (is_one_of_few or chain.is_widened):
        chain = None
    is_plain = is_one_of_few and len(tables) == 1 and not ops.is_added_wider(start)
    if chain is None and not picks_zeros and not is_plain:
        return None
    is_onto = chain is not None and chain.is_onto and not picks_zeros
    copied = chain.added if chain is not None and is_onto else sorted(tables, key=lambda table: tables[table])
    is_in_state = is_onto and 0 < len(copied) < len(tables)
    time = begin if is_alone else max(tables.values())
    return Update(gradient, rows, time, tuple(copied), is_alone, is_in_state)


def scattered_for(updates: Sequence[Update], num_times: int) -> dict[int, ScatteredRows]:
    """How gradients lie that are read in rows."""
    return {
        one.gradient: one.rows._replace(end=num_times if one.is_in_state else one.time + 1) for one in updates
    }


def row_copies(
    updates: Sequence[Update], listing: Listing, compiler: Compiler, num_times: int
) -> dict[int, RowCopy]:
    """Of arguments that are copied into rows for their update."""
    found: dict[int, RowCopy] = {}
    for one in updates:
        type_, slices = listing.values[one.gradient].type, one.rows.slices
        is_of_whole = not scatters_rows(type_, compiler.memory_bytes, slices)
        for table in one.tables:
            end = one.time + 1 if table == one.tables[-1] else num_times
            found[table] = RowCopy(one.rows.dims, one.time, end, slices, is_of_whole)
    return found


def updated_at_once(lives: Mapping[int, Lifetime], updates: Sequence[Update]) -> dict[int, Lifetime]:
    """Gradients of tables end where these are updated, however late the program says so."""
    ended = {
        one.gradient: replace(life, end=one.time + 1)
        for one in updates
        if one.is_alone
        and (life := lives.get(one.gradient)) is not None
        and life.is_own_buffer
        and 0 < life.begin <= one.time < life.end
    }
    return {**lives, **ended}
