"""Tables that are updated by what a scatter makes of the gradients of a lookup: how they lie in memory, and when.

A scatter makes its result in rows of whole slices (`minor.scattered_rows`). XLA:TPU either copies that back, or makes the update in rows
too: then it copies the table and the state of its optimizer into rows when the program begins, all tables at once, and updates each as
soon as its gradient is there. Seen in rows in what libtpu 0.0.51 compiles for v5e of a recommender and of DeBERTa, with 4, 48 and 64
columns on a device, and in 69 small programs:

- where the work compares with zeros or picks them, as Adagrad does that leaves out what was never looked up: the zeros are those that the
  scatter adds to (26 of 30; the others have four tables or eight of four columns on a device);
- where the gradient itself is added to what is kept of it (momentum): the scatter adds to that; with one table or two, the table too,
  and the gradient is nowhere else;
- with one table or two and no state (SGD);
- not in tables of split rows that are too large to be scattered into as a whole (`rowwise`): what is scattered with columns split goes to
  where the rows are before the update (numpyro's 4 million means and spreads of 32 columns, whose softplus picks zeros);
- not in the others: Adam, also where it adds a constant of zero below its root, momentum of what is scaled, Adagrad with a square root.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from autoshard.mlir.listing import Listing
from autoshard.program.fusion import is_elementwise
from autoshard.program.records import Compiler, Kernel, Lifetime, MinorDims, RowCopy
from autoshard.program.rowwise import scatters_rows

_PICKING = frozenset(f"stablehlo.{name}" for name in ("clamp", "compare", "maximum", "minimum", "select"))
FEW = 2
"""Gradients of tables in a program up to which what they are added to lies in rows."""


class Update(NamedTuple):
    """`tables`: arguments that lie in rows until then, half-open."""

    gradient: int
    dims: MinorDims
    tables: dict[int, int]
    is_whole: bool  # nothing else is read with the gradient, nor what is made of that
    is_in_state: bool  # the scatter adds to what is kept of it, in the copy of that


def updates_in_rows(
    kernels: Sequence[Kernel],
    listing: Listing,
    rows: Mapping[int, tuple[MinorDims, int]],
    zeros: frozenset[int],
) -> tuple[Update, ...]:
    """`rows`: of what scatters make, how it lies (`minor.scattered_rows`); `zeros`: values that are zero everywhere."""
    found = [
        _update(kernels, listing, gradient, dims, zeros, len(rows) <= FEW)
        for gradient, (dims, _) in rows.items()
    ]
    return tuple(one for one in found if one.tables)


def _update(
    kernels: Sequence[Kernel],
    listing: Listing,
    gradient: int,
    dims: MinorDims,
    zeros: frozenset[int],
    is_one_of_few: bool,
) -> Update:
    arguments, shape = {argument.value for argument in listing.arguments}, _shape(listing, gradient)
    made, tables, added_to = {gradient}, dict[int, int](), dict[int, int]()
    is_alone, picks_zeros = True, False
    for kernel in kernels:
        reads = [use.value for use in kernel.uses]
        if made.isdisjoint(reads):
            continue
        if not is_elementwise(listing.ops[kernel.time]) or _shape(listing, kernel.results[0]) != shape:
            is_alone = is_alone and gradient not in reads
            continue
        made.update(kernel.results)
        ops = [listing.ops[op] for op in kernel.ops]
        read = [value for value in reads if value in arguments and _shape(listing, value) == shape]
        times = dict.fromkeys(read, kernel.time + 1)
        tables |= times
        picks_zeros = picks_zeros or any(
            op.name in _PICKING and not zeros.isdisjoint(op.operands) for op in ops
        )
        if any(op.name == "stablehlo.add" and gradient in op.operands for op in ops):
            added_to |= times
    is_plain = bool(added_to) or len(tables) == 1
    is_whole = picks_zeros or (is_one_of_few and is_plain)
    is_in_state = is_whole and is_alone and bool(added_to) and not picks_zeros
    return Update(gradient, dims, tables if is_whole else added_to, is_whole and is_alone, is_in_state)


def row_copies(updates: Sequence[Update], listing: Listing, compiler: Compiler) -> dict[int, RowCopy]:
    """Of arguments that are copied into rows when the program begins."""
    return {
        table: RowCopy(
            one.dims, end, not scatters_rows(listing.values[one.gradient].type, compiler.memory_bytes)
        )
        for one in updates
        for table, end in one.tables.items()
    }


def updated_at_once(lives: Mapping[int, Lifetime], updates: Sequence[Update]) -> dict[int, Lifetime]:
    """Gradients of tables end where they are made: what is updated by them is."""
    ended = {
        one.gradient: replace(life, end=life.begin + 1)
        for one in updates
        if one.is_whole
        and (life := lives.get(one.gradient)) is not None
        and life.is_own_buffer
        and life.begin > 0
    }
    return {**lives, **ended}


def _shape(listing: Listing, value: int) -> tuple[int, ...] | None:
    type_ = listing.values[value].type
    return None if type_ is None else type_.shape
