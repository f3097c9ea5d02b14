"""Elementwise work that products read as a matrix, which is stored: XLA for TPUs fuses no work into a product that a reshape is before.

So products read norms where texts and their words are made one dimension first: GPT-2's and OPT's layers in torch, mixtures of experts,
what `addmm` is lowered from. The reshape goes away where the product's result is cut back into the same rows at once, since the product
is then made of whole texts (a layer without a bias, whose heads are not cut by the same reshape), and where all that the work is of was cut
from matrices, since it is then done on these (activation functions). What is multiplied with its rows as they are has none. Read off what
libtpu 0.0.52 fuses of 27 small training steps for v5e, some of them for v6e and v5p too: norms with and without a bias, sums, squares,
rectifiers and scales, before products with and without a bias.
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
        elif merges_rows(op, listing):
            value = _moved_from(op.operands[0], made_by)
            if are_of_matrices.get(value) is False and any(_keep_rows(op, listing)):
                found.add(value)
    return frozenset(found)


def _is_of_matrices(op: Op, listing: Listing, made_by: Mapping[int, Op], known: Mapping[int, bool]) -> bool:
    """Whether all that is as large as the result and no broadcast was cut from matrices, or is work on such."""
    for operand in op.operands:
        value = _moved_from(operand, made_by)
        maker = made_by.get(value)
        type_ = listing.values[value].type
        is_spread = (maker is not None and maker.name in _SPREAD) or (type_ is not None and not type_.rank)
        is_cut = maker is not None and _cuts_rows(maker, listing)
        if not (is_spread or is_cut or known.get(value, False)):
            return False
    return True


def _cuts_rows(op: Op, listing: Listing) -> bool:
    """A reshape of a matrix into one of as many columns and more dimensions, on which only elementwise work is done."""
    if op.name != RESHAPE:
        return False
    before, after = (listing.values[values[0]].type for values in (op.operands, op.results))
    if (
        before is None
        or after is None
        or before.rank != _MATRIX_RANK
        or before.shape[-1:] != after.shape[-1:]
    ):
        return False
    return all(is_elementwise(reader) for reader, _ in _read_by(op.results[0], listing))


def _keep_rows(reshape: Op, listing: Listing) -> Iterator[bool]:
    """Of each product whose rows are those of a reshape's matrix: whether its result is not cut into the same rows at once."""
    (merged,), before = reshape.results, listing.values[reshape.operands[0]].type
    assert before is not None
    for product, operand in _read_by(merged, listing):
        if not product.is_matmul or product.rule is None:
            continue
        rows, (made,) = product.rule.operands[operand][0], product.rule.results
        if any(factor in rows for dim in made for factor in dim):
            yield made[0] != rows or _cut_at_once(product, listing) != before.shape[:-1]


def _cut_at_once(product: Op, listing: Listing) -> tuple[int, ...] | None:
    """Into which rows a product's result is cut where that alone is done with it: all dimensions but the last, its columns."""
    (value,), cut = product.results, None
    while len(readers := list(_read_by(value, listing))) == 1 and readers[0][0].name == RESHAPE:
        (value,) = readers[0][0].results
        cut = value
    type_ = None if cut is None else listing.values[cut].type
    columns = listing.values[product.results[0]].type
    if type_ is None or columns is None or type_.shape[-1:] != columns.shape[-1:]:
        return None
    return type_.shape[:-1]


def _read_by(value: int, listing: Listing) -> Iterator[tuple[Op, int]]:
    """The ops that read it, as which operand; also as it is moved."""
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
