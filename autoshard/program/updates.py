"""Tables that are updated by what a scatter makes of the gradients of a lookup: how they lie in memory, and when.

A scatter makes its result in rows of whole slices (`minor.scattered_rows`). XLA:TPU either copies that back, or makes the update in rows
too: it copies the table and the state of its optimizer into rows right before, writes both there, and copies the table back; of several
results all but the table stay in rows until the program ends, and are copied back then. Seen in what libtpu 0.0.52 compiles for v5e and
v6e of 80 small recommenders of one to eight tables, most of 4 columns on a device. (0.0.51 made all these copies when the program began.)
In rows is an update

- where the work compares with zeros or picks them, as Adagrad does that leaves out what was never looked up: the zeros are those that the
  scatter adds to;
- of a chain that reads nothing twice and adds the gradient, scaled or not, to arguments themselves: SGD, and sums of gradients that are
  updated by. Momentum, or weight decay, whose gradient is added to what is computed, where the scatter can add to that: not where the
  gradient is narrower than it. Of gradients as wide as the tables one table or two, of narrower ones any number;
- of one table or two without any state otherwise, as where gradients are clipped by their norm;
- not in tables of split rows that are too large to be scattered into as a whole (`rowwise`): what is scattered with columns split goes to
  where the rows are before the update (numpyro's 4 million means and spreads of 32 columns, whose softplus picks zeros);
- not in the others: Adam, also where it adds a constant of zero below its root, Nesterov's momentum, moving averages, Adagrad with a square
  root.

What the gradient itself is added to the scatter adds to: one value in rows.
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
        time: when the update runs: as soon as the gradient is there, where nothing else reads that (`is_alone`).
        tables: arguments that are copied into rows then, the last for no longer.
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

    def chain(self, gradient: int) -> _Chain | None:
        """None where something is read twice, or added to what is computed and not by the scatter."""
        value, added, is_onto, is_widened = gradient, list[int](), False, False
        while readers := self.readers.get(value):
            (op, *others), read = readers, value
            if others or not is_elementwise(op) or self.shape(op.results[0]) != self.shape(gradient):
                return None
            value, rest = op.results[0], [operand for operand in op.operands if operand != read]
            if read == gradient and op.name == _ADD:
                is_onto = bool(rest)
            elif op.name in _SUMS and rest and self.arguments.issuperset(rest):
                added += rest
            elif not all(self._is_spread(operand) for operand in rest):
                return None
            is_widened = is_widened or (read == gradient and op.name == _CONVERT)
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
) -> tuple[Update, ...]:
    """`rows`: of what scatters make, how it lies (`minor.scattered_rows`); `zeros`: values that are zero everywhere."""
    if not rows:
        return ()
    ops = _Ops(listing)
    times = {value: kernel.time for kernel in kernels for value in kernel.results}
    found = (
        _update(kernels, listing, ops, gradient, times[gradient], one, zeros, len(rows) <= FEW)
        for gradient, one in rows.items()
    )
    return tuple(one for one in found if one is not None)


def _update(
    kernels: Sequence[Kernel],
    listing: Listing,
    ops: _Ops,
    gradient: int,
    begin: int,
    rows: ScatteredRows,
    zeros: frozenset[int],
    is_one_of_few: bool,
) -> Update | None:
    shape = ops.shape(gradient)
    made, tables, is_alone, picks_zeros = {gradient}, dict[int, int](), True, False
    for kernel in kernels:
        reads = [use.value for use in kernel.uses]
        if made.isdisjoint(reads):
            continue
        if not is_elementwise(listing.ops[kernel.time]) or ops.shape(kernel.results[0]) != shape:
            is_alone = is_alone and gradient not in reads
            continue
        made.update(kernel.results)
        read = [value for value in reads if value in ops.arguments and ops.shape(value) == shape]
        tables |= dict.fromkeys(read, kernel.time)
        picks_zeros = picks_zeros or any(
            op.name in _PICKING and not zeros.isdisjoint(op.operands)
            for op in (listing.ops[number] for number in kernel.ops)
        )
    if not tables:
        return None
    chain = ops.chain(gradient)
    if chain is not None and not (is_one_of_few or chain.is_widened):
        chain = None
    is_plain = is_one_of_few and len(tables) == 1 and not ops.is_added_wider(gradient)
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
    """Gradients of tables end where they are made: what is updated by them is."""
    ended = {
        one.gradient: replace(life, end=life.begin + 1)
        for one in updates
        if one.is_alone
        and (life := lives.get(one.gradient)) is not None
        and life.is_own_buffer
        and life.begin > 0
    }
    return {**lives, **ended}
