"""Elementwise work that products read as a matrix: XLA for TPUs fuses none into a product that a reshape is before, but stores it.

So products read norms where texts and their words are made one dimension first: GPT-2's and OPT's layers in torch, mixtures of experts,
what `addmm` is lowered from. The reshape goes away where the product's result is cut back into the same rows at once, since the product
is then made of whole texts (a layer without a bias, whose heads are not cut by the same reshape), and where all that the work is of was cut
from matrices, since it is then done on these (activation functions). What is multiplied with its rows as they are has none. Read off what
libtpu 0.0.52 fuses of 27 small training steps for v5e, some of them for v6e and v5p too: norms with and without a bias, sums, squares,
rectifiers and scales, before products with and without a bias. Dimensions of one element merge nothing; where a device has but one of
the texts there is nothing to merge either (0.83 of what is said), which is not known here. What is read once needs no more than a moment.
"""

from collections.abc import Iterator

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, FREE_LEAVES, RESHAPE, is_elementwise
from autoshard.program.records import MOVES
from autoshard.program.repeating import merges_rows

_MATRIX_RANK = 2
_SPREAD = FREE_LEAVES | {BROADCAST}


def read_as_matrices(listing: Listing) -> frozenset[int]:
    """Elementwise results that products read through a reshape that stays."""
    found, worked_out, behind = set[int](), set[int](), dict[int, int]()
    are_of_matrices: dict[int, bool] = {}  # cut from them, spread, or work on such alone
    for op in listing.ops:
        if op.name in _SPREAD:
            are_of_matrices |= dict.fromkeys(op.results, True)
        elif op.name in MOVES:
            for value, moved in zip(op.operands, op.results, strict=True):
                behind[moved] = behind.get(value, value)
                are_of_matrices[moved] = are_of_matrices.get(value, False)
        elif is_elementwise(op):
            are_of_matrices[op.results[0]] = all(
                are_of_matrices.get(value, False) or _is_scalar(value, listing) for value in op.operands
            )
            worked_out.update(op.results)
        elif op.name == RESHAPE:
            value = behind.get(op.operands[0], op.operands[0])
            is_work = value in worked_out and not are_of_matrices[value]
            if is_work and _merges_several_rows(op, listing) and _stays(op, listing):
                found.add(value)
            are_of_matrices[op.results[0]] = _cuts_rows(op, listing)
    return frozenset(found)


def _is_scalar(value: int, listing: Listing) -> bool:
    type_ = listing.values[value].type
    return type_ is not None and not type_.rank


def _merges_several_rows(op: Op, listing: Listing) -> bool:
    """Whether it is a reshape into a matrix that does more than to leave out dimensions of one element."""
    before = listing.values[op.operands[0]].type
    return before is not None and merges_rows(op, listing) and sum(size > 1 for size in before.shape[:-1]) > 1


def _cuts_rows(op: Op, listing: Listing) -> bool:
    """A reshape of a matrix into one of as many columns and more dimensions, on which only elementwise work is done."""
    before, after = (listing.values[values[0]].type for values in (op.operands, op.results))
    if before is None or after is None or not after.rank > before.rank == _MATRIX_RANK:
        return False
    return before.shape[-1] == after.shape[-1] and all(
        is_elementwise(reader) for reader, _ in _read_by(op.results[0], listing)
    )


def _stays(reshape: Op, listing: Listing) -> bool:
    """Whether the result of a product whose rows are those of a reshape's matrix is not cut into the same rows at once."""
    (merged,), before = reshape.results, listing.values[reshape.operands[0]].type
    for product, operand in _read_by(merged, listing):
        if before is None or not product.is_matmul or product.rule is None:
            continue
        rows, (made,) = product.rule.operands[operand][0], product.rule.results
        has_rows = any(factor in rows for dim in made for factor in dim)
        if has_rows and (made[0] != rows or _cut_at_once(product, listing) != before.shape[:-1]):
            return True
    return False


def _cut_at_once(product: Op, listing: Listing) -> tuple[int, ...] | None:
    """Into which rows a product's result is cut where all ops that read it do so: all dimensions but the last, its columns."""
    (value,), cut = product.results, None
    while (reshape := _only_reshape(value, listing)) is not None:
        (value,) = reshape.results
        cut = value
    type_ = None if cut is None else listing.values[cut].type
    columns = listing.values[product.results[0]].type
    if type_ is None or columns is None or type_.shape[-1:] != columns.shape[-1:]:
        return None
    return type_.shape[:-1]


def _only_reshape(value: int, listing: Listing) -> Op | None:
    """The reshape, or one of equal ones, that alone reads a value."""
    readers = [reader for reader, _ in _read_by(value, listing)]
    shapes = {listing.values[reader.results[0]].type for reader in readers if reader.name == RESHAPE}
    are_equal = len(shapes) == 1 and all(reader.name == RESHAPE for reader in readers)
    return readers[0] if are_equal else None


def _read_by(value: int, listing: Listing) -> Iterator[tuple[Op, int]]:
    """The ops that read it, as which operand; also as it is moved. What is handed on or returned is not counted."""
    for number, operand in listing.sites.get(value, ()):
        if number < 0:
            continue
        op = listing.ops[number]
        if op.name in MOVES:
            yield from _read_by(op.results[0], listing)
        else:
            yield op, operand
