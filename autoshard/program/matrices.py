"""Elementwise work that products read as a matrix: XLA for TPUs fuses none into a product that a reshape is before, but stores it.

So products read norms where texts and their words are made one dimension first: GPT-2's and OPT's layers in torch, mixtures of experts,
what `addmm` is lowered from. The reshape goes away where the product's result is cut back into the same rows at once, since the product
is then made of whole texts (a layer without a bias, whose heads are not cut by the same reshape), and where all that the work is of was cut
from matrices, since it is then done on these (activation functions). What is multiplied with its rows as they are has none. Read off what
libtpu 0.0.52 fuses of 27 small training steps for v5e, some of them for v6e and v5p too: norms with and without a bias, sums, squares,
rectifiers and scales, before products with and without a bias. Dimensions of one element merge nothing; where a device has but one of
the texts there is nothing to merge either (0.83 of what is said), which is not known here. What is read once needs no more than a moment.
"""

from collections.abc import Iterator, Mapping

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, FREE_LEAVES, RESHAPE, is_elementwise
from autoshard.program.records import MOVES
from autoshard.program.repeating import merges_rows

_MATRIX_RANK = 2
_SPREAD = FREE_LEAVES | {BROADCAST}


def read_as_matrices(listing: Listing) -> frozenset[int]:
    """Elementwise results that products read through a reshape that stays."""
    made_by = {value: op for op in listing.ops for value in op.results}
    found, are_of_matrices = set[int](), dict[int, bool]()
    for op in listing.ops:
        if is_elementwise(op):
            are_of_matrices[op.results[0]] = _is_of_matrices(op, listing, made_by, are_of_matrices)
        elif op.name == RESHAPE:
            if _merges_several_rows(op, listing):
                value = _moved_from(op.operands[0], made_by)
                if value in are_of_matrices and not are_of_matrices[value] and _stays(op, listing):
                    found.add(value)
            are_of_matrices[op.results[0]] = _cuts_rows(op, listing)
    return frozenset(found)


def _merges_several_rows(op: Op, listing: Listing) -> bool:
    """Whether it is a reshape into a matrix that does more than to leave out dimensions of one element."""
    before = listing.values[op.operands[0]].type
    return before is not None and merges_rows(op, listing) and sum(size > 1 for size in before.shape[:-1]) > 1


def _is_of_matrices(op: Op, listing: Listing, made_by: Mapping[int, Op], known: Mapping[int, bool]) -> bool:
    """Whether all that is as large as the result and no broadcast was cut from matrices, or is work on such."""
    for operand in op.operands:
        value = _moved_from(operand, made_by)
        maker = made_by.get(value)
        type_ = listing.values[value].type
        is_spread = (maker is not None and maker.name in _SPREAD) or (type_ is not None and not type_.rank)
        if not (is_spread or known.get(value, False)):
            return False
    return True


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


def _moved_from(value: int, made_by: Mapping[int, Op]) -> int:
    while (maker := made_by.get(value)) is not None and maker.name in MOVES:
        (value,) = maker.operands
    return value
