"""Exponentials of a softmax that are stored beside its scores, which they otherwise replace.

XLA:TPU works out a softmax of float32 scores as these leave the matrix unit, with the maximum of each row by a window over all of it:
only the exponentials are stored. Where it does not, the same window keeps it from writing the exponentials over the scores. Seen of a
layer of attention with and without groups of queries, 128 to 8192 queries and keys (libtpu 0.0.52, 198 modules for v5e, of which 13 are
otherwise than said here; a few for v5p and v6e):

- rows of more than 4096 scores are worked out apart, and of groups of queries those of more than 2048 where they are masked;
- on v5e and v5p (`Compiler.masks_apart`) so are scores that read a mask or a bias by query and key, of an argument or made of one
  element by element, where rows lie across the lanes: that is copied first, as it does not lie so. Rows lie along the lanes where they
  are longer than there are queries and queries are in no groups. A transposed argument is not copied.

Scores that are widened behind the product are worked out with it all the same. Logits, of a product of one matrix, are none: of a loss
they are kept, and no exponentials. Nor are scores of one sequence whose queries all read the same keys, of which XLA makes a product of one
matrix: there is one buffer (8192 queries, one head, and four that share their keys, on v5e).
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoshard.mlir.listing import Listing, Op
from autoshard.program.fusion import BROADCAST, is_elementwise
from autoshard.program.records import MOVES, Compiler, Kernel, Lifetime, Whole

_DOT, _EXPONENTIAL, _SUBTRACT = "stablehlo.dot_general", "stablehlo.exponential", "stablehlo.subtract"
_RENAMED = MOVES | {"stablehlo.reshape", "stablehlo.transpose"}
_MASKING = frozenset({"stablehlo.select", "stablehlo.add"})
_LONGEST, _LONGEST_OF_GROUPS = 4096, 2048
_FREE_DIMS = 2  # of a product's result: of groups of queries there are more


@dataclass(frozen=True, slots=True)
class _Scores:
    queries: int
    row: int
    in_groups: bool
    masks: frozenset[int]  # what is read beside the product, by query and key

    def are_apart(self, copied: bool) -> bool:
        lies_across = self.in_groups or self.queries >= self.row
        longest = _LONGEST_OF_GROUPS if self.in_groups and self.masks else _LONGEST
        return self.row > longest or (copied and lies_across)


def windowed_exponentials(
    kernels: Sequence[Kernel], listing: Listing, lives: Mapping[int, Lifetime], compiler: Compiler
) -> Iterator[tuple[int, Whole]]:
    """A second buffer for each such exponential that is written over its scores otherwise, while it is made."""
    made_by = {value: op for op in listing.ops for value in op.results}
    arguments = {argument.value for argument in listing.arguments}
    for kernel in kernels:
        root = listing.ops[kernel.time]
        if root.name != _EXPONENTIAL:
            continue
        (value,), (type_,) = kernel.results, kernel.shape.results
        is_stored = lives[value].is_own_buffer and not kernel.is_alias
        scores = _scores_of(root, listing, made_by) if type_.dtype == "f32" and is_stored else None
        if scores is None or _is_kept(kernel, lives):
            continue
        copied = compiler.masks_apart and any(
            _is_of_argument(mask, (scores.queries, scores.row), listing, made_by, arguments)
            for mask in scores.masks
        )
        if scores.are_apart(copied):
            yield value, Whole(kernel.time, kernel.time + 1, type_)


def _is_kept(kernel: Kernel, lives: Mapping[int, Lifetime]) -> bool:
    """Whether the scores are kept anyway."""
    shape = kernel.shape.results[0].shape
    return any(
        type_.shape == shape and use.value in lives and lives[use.value].end > kernel.time
        for use, type_ in zip(kernel.uses, kernel.shape.operands, strict=True)
    )


def _scores_of(exponential: Op, listing: Listing, made_by: Mapping[int, Op]) -> _Scores | None:
    """What is known of the float32 scores of a product that an exponential is of, less their maximum."""
    less = made_by.get(exponential.operands[0])
    if less is None or less.name != _SUBTRACT:
        return None
    value = less.operands[0]
    shape = _shape(value, listing)
    masks: set[int] = set()
    while (op := made_by.get(value)) is not None and op.name != _DOT:
        if op.name in _RENAMED:
            value = op.operands[0]
            continue
        if not is_elementwise(op) or _dtype(op.results[0], listing) != "f32":
            return None
        through = [one for one in op.operands if _reaches_product(one, made_by)]
        if len(through) != 1:
            return None
        masks.update({*op.operands} - {*through} if op.name in _MASKING else ())
        value = through[0]
    if op is None or op.rule is None or _dtype(value, listing) != "f32" or len(shape) < _FREE_DIMS:
        return None
    dims = [dim for dim in op.rule.results[0] if math.prod(op.rule.factors[f].size for f in dim) > 1]
    free = [dim for dim in dims if not all(_has(dim, operand) for operand in op.rule.operands)]
    if len(free) == len(dims):
        return None
    in_groups = len(free) > _FREE_DIMS
    return _Scores(shape[-2], shape[-1], in_groups, frozenset(masks))


def _has(dim: Sequence[int], mapping: Sequence[Sequence[int]]) -> bool:
    return any(factor in other for factor in dim for other in mapping)


def _reaches_product(value: int, made_by: Mapping[int, Op]) -> bool:
    """Whether a product is behind a value by work on its elements."""
    left, seen = [value], set[int]()
    while left:
        op = made_by.get(left.pop())
        if op is None or op.results[0] in seen:
            continue
        if op.name == _DOT:
            return True
        seen.add(op.results[0])
        if op.name in _RENAMED or is_elementwise(op):
            left.extend(op.operands)
    return False


def _is_of_argument(
    value: int,
    last: tuple[int, int],
    listing: Listing,
    made_by: Mapping[int, Op],
    arguments: Collection[int],
) -> bool:
    """Whether a value is an argument with these last dimensions, or made of one element by element."""
    left, seen = [value], set[int]()
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in arguments and _shape(one, listing)[-2:] == last:
            return True
        op = made_by.get(one)
        if op is not None and (op.name == BROADCAST or is_elementwise(op) or _keeps_order(op)):
            left.extend(op.operands)
    return False


def _keeps_order(op: Op) -> bool:
    """A new name for a value whose last two dimensions stay the last."""
    if op.name not in _RENAMED or op.rule is None:
        return False
    return op.rule.results[0][-2:] == op.rule.operands[0][-2:]


def _shape(value: int, listing: Listing) -> tuple[int, ...]:
    type_ = listing.values[value].type
    return () if type_ is None else type_.shape


def _dtype(value: int, listing: Listing) -> str | None:
    type_ = listing.values[value].type
    return None if type_ is None else type_.dtype
