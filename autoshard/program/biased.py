"""Softmaxes that products read from a buffer of their own, as a bias is added to scores whose batch and heads were one dimension.

Products of attention with one dimension for sequences and heads (torch's `matmul` is lowered to such) leave scores that are reshaped before
a bias by head is added. The bias does not lie as the product reads and writes, so XLA:TPU neither adds it as scores leave the matrix unit
nor makes the softmax anew in the products that read it: quotients are stored, beside scores without the bias or with it. So it is of a bias

- that is as large as the scores: an argument, or made of one element by element;
- by head alone that is looked up in a table (T5, BEiT, Swin), or that is learnt: what goes back to the scores is summed over sequences.

Others are added by whoever reads the scores: masks, constants and arguments by head or by sequence. With dimensions for each, as
`jax.numpy.einsum` keeps them, all are (libtpu 0.0.52, training steps for v5e, v6e and v5p: `experiments/fidelity/biases.py`, and attention
by torch). What loops carry, and what is put together of parts, is not known for a bias.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, RESHAPE, is_elementwise, is_reduction
from autoshard.program.records import MOVES

_DOT, _EXPONENTIAL, _SUBTRACT = "stablehlo.dot_general", "stablehlo.exponential", "stablehlo.subtract"
_ADD, _GATHER, _TRANSPOSE = "stablehlo.add", "stablehlo.gather", "stablehlo.transpose"
RENAMED = MOVES | {RESHAPE, _TRANSPOSE}

Shape = tuple[int, ...]


def biased_exponentials(listing: Listing, made_by: Mapping[int, Op]) -> frozenset[int]:
    """Exponentials of scores that such a bias was added to."""
    biases = _Biases(listing, made_by)
    return frozenset(op.results[0] for op in listing.ops if op.name == _EXPONENTIAL and biases.are_before(op))


class _Source(NamedTuple):
    """What a bias is made of."""

    is_whole: bool  # with all elements of the scores
    is_by_head: bool  # the same for all sequences, and all of them for one
    is_looked_up: bool


class _Biases:
    def __init__(self, listing: Listing, made_by: Mapping[int, Op]) -> None:
        self._listing, self._made_by = listing, made_by
        self._arguments = {argument.value for argument in listing.arguments}
        self._of_products = of_products(listing)
        self._summed_first = {
            self._shape(op.operands[0]) for op in listing.ops if is_reduction(op) and self._sums_first(op)
        }

    def are_before(self, exponential: Op) -> bool:
        """Whether such a bias was added to its scores behind the reshape that parted sequences and heads."""
        less = self._made_by.get(exponential.operands[0])
        if less is None or less.name != _SUBTRACT:
            return False
        value, biases = less.operands[0], list[int]()
        shape = self._shape(value)
        while (op := self._made_by.get(value)) is not None and op.name != _DOT:
            through = [one for one in op.operands if one in self._of_products]
            if len(through) != 1 or not (op.name in RENAMED or is_elementwise(op)):
                return False
            value = through[0]
            if op.name == RESHAPE and self._parts(self._shape(value), shape):
                return any(self._is_apart(one, shape) for one in biases)
            if op.name == _ADD:
                biases += [one for one in op.operands if one != value]
            elif op.name == _EXPONENTIAL:  # scores of other scores
                return False
        return False

    @staticmethod
    def _parts(before: Shape, scores: Shape) -> bool:
        """Whether one dimension becomes several of the scores that are not their rows and columns."""
        one, other = ([size for size in shape[:-2] if size > 1] for shape in (before, scores))
        return scores[-2:] == before[-2:] and len(one) < len(other)

    def _is_apart(self, bias: int, scores: Shape) -> bool:
        is_learnt = scores in self._summed_first
        return any(
            source.is_whole or (source.is_by_head and (is_learnt or source.is_looked_up))
            for source in self._sources(bias, scores)
        )

    def _sources(self, bias: int, scores: Shape) -> Iterator[_Source]:
        """Of arguments, and what is looked up, that a bias is made of element by element."""
        left, seen = [(bias, self._size(bias), False)], {bias}
        while left:
            value, elements, is_by_head = left.pop()
            op = self._made_by.get(value)
            if value in self._arguments or (op is not None and op.name == _GATHER):
                is_whole = op is None and elements == self._size(bias)
                yield _Source(is_whole, is_by_head, op is not None)
            elif op is not None and (op.name in RENAMED or op.name == BROADCAST or is_elementwise(op)):
                is_by_head |= self._is_spread(op, scores)
                for operand in op.operands:
                    if operand not in seen:
                        seen.add(operand)
                        least = min(elements, self._size(operand)) if op.name == BROADCAST else elements
                        left.append((operand, least, is_by_head))

    def _is_spread(self, op: Op, scores: Shape) -> bool:
        """Whether it broadcasts what is by head, query and key along the first dimension of the scores, and no other."""
        if op.name != BROADCAST or op.rule is None or self._shape(op.results[0]) != scores:
            return False
        given = {factor for dim in op.rule.operands[0] for factor in dim if op.rule.factors[factor].size > 1}
        has = [not given.isdisjoint(dim) for dim in op.rule.results[0]]
        return not has[0] and all(has[1:])

    def _sums_first(self, op: Op) -> bool:
        """Whether it sums over the first dimension alone."""
        before, after = self._shape(op.operands[0]), self._shape(op.results[0])
        if op.rule is None or len(before) < 2 or before[1:] != after:
            return False
        left = {factor for dim in op.rule.results[0] for factor in dim}
        return left.isdisjoint(op.rule.operands[0][0])

    def _size(self, value: int) -> int:
        type_ = self._listing.values[value].type
        return 0 if type_ is None else type_.num_elements

    def _shape(self, value: int) -> Shape:
        type_ = self._listing.values[value].type
        return () if type_ is None else type_.shape


def of_products(listing: Listing) -> frozenset[int]:
    """What products make, and elementwise work on that."""
    found: set[int] = set()
    for op in listing.ops:
        is_work = op.name in RENAMED or is_elementwise(op)
        if op.name == _DOT or (is_work and not found.isdisjoint(op.operands)):
            found.update(op.results)
    return frozenset(found)
