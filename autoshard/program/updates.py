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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import is_elementwise
from autoshard.program.records import Compiler, Kernel, Lifetime, RowCopy, ScatteredRows
from autoshard.program.repeating import readers_of
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


class _Tables:
    """What is made of the gradients of a program's tables.

    Args:
        zeros: values that are zero everywhere.
    """

    def __init__(self, kernels: Sequence[Kernel], listing: Listing, zeros: frozenset[int]) -> None:
        self._listing, self._zeros, self._sites = listing, zeros, listing.sites
        self.arguments = {argument.value for argument in listing.arguments}
        self.kernels = readers_of(kernels)
        self.times = {value: kernel.time for kernel in kernels for value in kernel.results}
        self._spread = {op.results[0] for op in listing.ops if op.name in _SPREAD}

    def readers(self, value: int) -> list[Op]:
        """The ops that read a value, each once."""
        numbers = dict.fromkeys(number for number, _ in self._sites.get(value, ()) if number >= 0)
        return [self._listing.ops[number] for number in numbers]

    def shape(self, value: int) -> tuple[int, ...] | None:
        type_ = self._listing.values[value].type
        return None if type_ is None else type_.shape

    def start(self, gradient: int, scattered: Collection[int]) -> int | None:
        """The sum of the gradient and what else is `scattered` and there when it is made; None where a later one is added to that."""
        value = gradient
        while True:
            readers = self.readers(value)
            others = [operand for op in readers for operand in op.operands if operand != value]
            if len(readers) != 1 or readers[0].name != _ADD or not others or others[0] not in scattered:
                return value
            if self.times[others[0]] > self.times[gradient]:
                return None
            value = readers[0].results[0]

    def chain(self, start: int) -> _Chain | None:
        """None where something is read twice, or added to what is computed and not by the scatter."""
        value, added, is_onto, is_widened = start, list[int](), False, False
        while readers := self.readers(value):
            (op, *others), read = readers, value
            is_twice = bool(others) or len(set(op.operands)) < len(op.operands)
            if is_twice or not is_elementwise(op) or self.shape(op.results[0]) != self.shape(start):
                return None
            value, rest = op.results[0], [operand for operand in op.operands if operand != read]
            if read == start and op.name == _ADD:
                is_onto = True
            elif op.name in _SUMS and self.arguments.issuperset(rest):
                added += rest
            elif not self._spread.issuperset(rest):
                return None
            is_widened = is_widened or (read == start and op.name == _CONVERT)
        return _Chain(tuple(added), is_onto, is_widened) if added or is_onto else None

    def is_added_wider(self, gradient: int) -> bool:
        """Whether a gradient is added to what is computed, as wide as that."""
        wide = {op.results[0] for op in self.readers(gradient) if op.name == _CONVERT}
        sums = (op for value in wide for op in self.readers(value) if op.name in _SUMS)
        return any(operand not in self.arguments | wide for op in sums for operand in op.operands)

    def work(self, gradient: int) -> "_Work":
        """What kernels make of a gradient, element by element, and what they read besides."""
        shape, time = self.shape(gradient), self.times[gradient]
        made, tables, is_alone, picks_zeros = {gradient}, dict[int, int](), True, False
        waiting = {kernel.time: kernel for kernel in self.kernels.get(gradient, ())}
        while waiting:
            kernel = waiting.pop(min(waiting))
            if not is_elementwise(self._listing.ops[kernel.time]) or self.shape(kernel.results[0]) != shape:
                is_alone = False
                continue
            made.update(kernel.results)
            waiting |= {one.time: one for value in kernel.results for one in self.kernels.get(value, ())}
            alike = [
                use.value for use in kernel.uses if use.value not in made and self.shape(use.value) == shape
            ]
            tables |= {value: kernel.time for value in alike if value in self.arguments}
            time = max([time, *(self.times[value] for value in alike if value in self.times)])
            ops = (self._listing.ops[number] for number in kernel.ops)
            picks_zeros |= any(op.name in _PICKING and not self._zeros.isdisjoint(op.operands) for op in ops)
        return _Work(tables, max(tables.values()) if tables and not is_alone else time, is_alone, picks_zeros)


class _Work(NamedTuple):
    """`tables`: arguments that it reads, by when the last does; `time`: when it runs."""

    tables: dict[int, int]
    time: int
    is_alone: bool
    picks_zeros: bool


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
    tables, apart = _Tables(kernels, listing, zeros), rows.keys() - merged.keys()
    found = (
        _update(tables, gradient, start, rows[gradient], are_few=len(apart) <= FEW)
        for gradient in sorted(apart)
        if (start := tables.start(gradient, rows)) is not None
    )
    return tuple(one for one in found if one is not None)


def _update(
    tables: _Tables, gradient: int, start: int, rows: ScatteredRows, *, are_few: bool
) -> Update | None:
    """`start`: the gradient, or the sum of several (`_Tables.start`)."""
    work = tables.work(gradient)
    if not work.tables:
        return None
    chain = tables.chain(start)
    if chain is not None and not (are_few or chain.is_widened):
        chain = None
    is_plain = are_few and len(work.tables) == 1 and not tables.is_added_wider(start)
    if chain is None and not work.picks_zeros and not is_plain:
        return None
    is_onto = chain is not None and chain.is_onto and not work.picks_zeros
    copied = (
        chain.added
        if chain is not None and is_onto
        else tuple(sorted(work.tables, key=work.tables.__getitem__))
    )
    is_in_state = is_onto and 0 < len(copied) < len(work.tables)
    return Update(gradient, rows, work.time, copied, work.is_alone, is_in_state)


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
