"""What is made of constants alone and stored whole, though a part of it is all that is read.

Masks of all positions that a model can have are cut to those that there are. XLA:TPU makes the cut alone where it is of elementwise work,
and where it is at an index that the program works out. A slice behind a reshape of elementwise work (a mask of rows and columns that gets
dimensions of one element for batch and heads) it does not move to the other side of that reshape: the operand is written, on every device
whole, and then sliced, with casts left for the part. Where the work is on broadcasts that keep a dimension of one element, the reshape
goes first: so Llama's mask in transformers' Flax models is cut, those of Mistral and GPT-Neo, which take a band out of it, are written,
17 GB for 131072 positions. Seen in what libtpu 0.0.51 compiles for v5e of 38 small programs.
"""

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, RESHAPING, is_elementwise
from autoshard.program.records import Whole

_SLICE = "stablehlo.slice"
_CAST = "stablehlo.convert"


def generated_wholes(listing: Listing, free: frozenset[int]) -> tuple[Whole, ...]:
    """Each once, when it is first cut.

    Args:
        free: constants and what is made of them.
    """
    work = _Work(listing)
    found: dict[int, Whole] = {}
    for index, op in enumerate(listing.ops):
        if op.results and op.results[0] in free:
            work.add(op)
        if op.name == _SLICE and work.is_reshaped(op.operands[0]):
            value = work.before_casts(op.operands[0])
            type_ = listing.values[value].type
            assert type_ is not None, "slices are of tensors"
            found.setdefault(value, Whole(index, index + 1, type_))
    return tuple(found.values())


class _Work:
    """Free values, by op in program order."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._makers: dict[int, Op] = {}
        self._reshaped: set[int] = set()  # elementwise work that a reshape inside keeps from being cut
        self._moves: set[int] = set()  # work on whose operands a reshape behind it can be carried out

    def is_reshaped(self, value: int) -> bool:
        return value in self._reshaped

    def before_casts(self, value: int) -> int:
        while self._makers[value].name == _CAST:
            (value,) = self._makers[value].operands
        return value

    def add(self, op: Op) -> None:
        (value,), mine = op.results, op.operands
        self._makers[value] = op
        is_work, is_reshape = bool(mine) and is_elementwise(op), self._has_other_unit_dims(op)
        if _keeps_unit_dims(op) or ((is_work or is_reshape) and self._moves.issuperset(mine)):
            self._moves.add(value)
        is_blocked = is_reshape and mine[0] not in self._moves and self._is_work(mine[0])
        if is_blocked or ((is_work or is_reshape) and not self._reshaped.isdisjoint(mine)):
            self._reshaped.add(value)

    def _is_work(self, value: int) -> bool:
        maker = self._makers[value]
        return bool(maker.operands) and is_elementwise(maker)

    def _has_other_unit_dims(self, op: Op) -> bool:
        """Whether it does nothing else."""
        if op.name != BROADCAST and op.name not in RESHAPING:
            return False
        given, made = (self._shape(values[0]) for values in (op.operands, op.results))
        return [size for size in given if size > 1] == [size for size in made if size > 1]

    def _shape(self, value: int) -> tuple[int, ...]:
        type_ = self._listing.values[value].type
        return () if type_ is None else type_.shape


def _keeps_unit_dims(op: Op) -> bool:
    """A broadcast of one element, or of what has a dimension of one element that stays so."""
    if op.name != BROADCAST or op.rule is None:
        return False
    given, made = op.rule.operands[0], {factor for dim in op.rule.results[0] for factor in dim}
    return not given or any(
        factor in made and op.rule.factors[factor].size == 1 for dim in given for factor in dim
    )
