"""Softmaxes that products read from a buffer of their own, as a bias is added to scores whose batch and heads were one dimension.

Products of attention with one dimension for sequences and heads (torch's `matmul` is lowered to such) leave scores that are reshaped before
a bias by head is added. The bias does not lie as the product reads and writes, so XLA:TPU neither adds it as scores leave the matrix unit
nor makes the softmax anew in the products that read it: quotients are stored, beside scores without the bias or with it. So it is of a bias

- that is as large as the scores: an argument, or made of one element by element;
- by head alone that is looked up in a table (T5, BEiT, Swin), or that is learnt: what goes back to the scores is summed over sequences.

Others are added by whoever reads the scores: masks, constants and arguments by head or by sequence. With dimensions for each, as
`jax.numpy.einsum` keeps them, all are (libtpu 0.0.52, training steps of six layers for v5e, v6e and v5p: 120 modules).
"""

from collections.abc import Iterator, Mapping

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, RESHAPE, is_elementwise, is_reduction
from autoshard.program.records import MOVES

_DOT, _EXPONENTIAL, _SUBTRACT = "stablehlo.dot_general", "stablehlo.exponential", "stablehlo.subtract"
_ADD, _GATHER, _TRANSPOSE = "stablehlo.add", "stablehlo.gather", "stablehlo.transpose"
_RENAMED = MOVES | {RESHAPE, _TRANSPOSE}

Shape = tuple[int, ...]


def biased_exponentials(listing: Listing, made_by: Mapping[int, Op]) -> frozenset[int]:
    """Exponentials of scores that such a bias was added to."""
    biases = _Biases(listing, made_by)
    return frozenset(op.results[0] for op in listing.ops if op.name == _EXPONENTIAL and biases.are_before(op))


class _Biases:
    def __init__(self, listing: Listing, made_by: Mapping[int, Op]) -> None:
        self._listing, self._made_by = listing, made_by
        self._arguments = {argument.value for argument in listing.arguments}
        self._sums = {
            (self._shape(op.operands[0]), self._shape(op.results[0]))
            for op in listing.ops
            if is_reduction(op)
        }

    def are_before(self, exponential: Op) -> bool:
        less = self._made_by.get(exponential.operands[0])
        if less is None or less.name != _SUBTRACT:
            return False
        value, shape, biases = less.operands[0], self._shape(exponential.results[0]), list[int]()
        while (op := self._made_by.get(value)) is not None and op.name != _DOT:
            through = [one for one in op.operands if self._reaches_product(one)]
            if len(through) != 1 or not (op.name in _RENAMED or is_elementwise(op)):
                return False
            value = through[0]
            if op.name == _ADD and not self._is_split(shape, self._shape(value)):
                biases += [one for one in op.operands if one != value]
            elif self._is_split(shape, self._shape(value)):
                return any(self._is_apart(one, shape) for one in biases)
        return False

    @staticmethod
    def _is_split(scores: Shape, before: Shape) -> bool:
        """Whether there is one dimension before for several of the scores that are not its rows and columns."""
        one, other = ([size for size in shape[:-2] if size > 1] for shape in (scores, before))
        return scores[-2:] == before[-2:] and len(one) > len(other)

    def _is_apart(self, bias: int, scores: Shape) -> bool:
        is_learnt = (scores, scores[1:]) in self._sums
        return any(
            shape == scores or (shape in (scores[1:], (1, *scores[1:])) and (is_learnt or is_looked_up))
            for shape, is_looked_up in self._sources(bias)
        )

    def _sources(self, value: int) -> Iterator[tuple[Shape, bool]]:
        """Of what is read for a bias its greatest shape before it is broadcast, and whether it is looked up."""
        left, seen = [(value, self._shape(value))], {value}
        while left:
            one, shape = left.pop()
            op = self._made_by.get(one)
            if op is None or op.name == _GATHER:
                if op is not None or one in self._arguments:
                    yield shape, op is not None
                continue
            for operand in op.operands if op.name in _RENAMED | {BROADCAST} or is_elementwise(op) else ():
                if operand not in seen:
                    seen.add(operand)
                    is_smaller = op.name == BROADCAST and self._size(operand) < self._size(op.results[0])
                    left.append((operand, self._shape(operand) if is_smaller else shape))

    def _reaches_product(self, value: int) -> bool:
        left, seen = [value], set[int]()
        while left:
            op = self._made_by.get(left.pop())
            if op is None or op.results[0] in seen:
                continue
            if op.name == _DOT:
                return True
            seen.add(op.results[0])
            if op.name in _RENAMED or is_elementwise(op):
                left.extend(op.operands)
        return False

    def _size(self, value: int) -> int:
        type_ = self._listing.values[value].type
        return 0 if type_ is None else type_.num_elements

    def _shape(self, value: int) -> Shape:
        type_ = self._listing.values[value].type
        return () if type_ is None else type_.shape
