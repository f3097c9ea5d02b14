"""Exponentials of a softmax that are stored beside its scores, which they otherwise replace.

XLA:TPU works out a softmax of float32 scores as these leave the matrix unit, with the maximum of each row by a window over all of it:
only the exponentials are stored. Where it does not, the same window keeps it from writing the exponentials over the scores. Seen of a
layer of attention with and without groups of queries (libtpu 0.0.52, 500 modules for v5e, v5p and v6e). Where rows lie across the lanes, as
they do unless they are longer than there are queries and queries are in no groups, it does not

- on v5e and v5p (`Compiler.masks_apart`) for scores that read a mask or a bias by query and key, of an argument or made of one element by
  element: that is copied first, as it does not lie so (a transposed argument is not);
- on both for rows longer than `_LONGEST` has, by whether heads fill the lanes, scores are masked and keys are worked out in the product:
  rotated behind the reshape that makes heads of them (one op, a bias say, leaves the product before that), so written into a cache, or
  repeated for groups of queries. Of a batch whose heads fill the lanes such keys keep rows of any length apart, however few the queries,
  and so does a reshape into 16 heads or more, of rows that are not too long for that (`_are_always_apart`);
- on v6e (`Compiler.stores_masks`) for masked rows of 3072 and more, 3328 where heads are of less than 96 elements, and then what scores are
  scaled, masked and biased by is stored too, as large as they are: all of it up to 5120, of 6144 not what a mask puts in, beyond 6144 the
  masks alone; of rows beyond 5120 that are not masked what they are scaled by.

Other rows of more than 4096 scores are worked out apart, of groups of queries that are not masked those of more than 6656; of masked groups
whose keys are a product as it is those of more than 3072.

Scores that are widened behind the product are worked out with it all the same, unless their reshape or their keys keep them apart, or masks
are stored; they are narrow beside their exponentials then. Logits, of a product of one matrix, are none: of a loss they are kept, and no
exponentials. Nor are scores of one sequence whose queries all read the same keys, of which XLA makes a product of one
matrix: there is one buffer (8192 queries, one head, and four that share their keys, on v5e).
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoshard.mlir.listing import Listing, Op
from autoshard.program.biased import RENAMED, of_products
from autoshard.program.fusion import BROADCAST, RESHAPE, is_elementwise
from autoshard.program.records import Compiler, Kernel, Lifetime, Whole
from autoshard.sharding import TensorType

_DOT, _EXPONENTIAL, _SUBTRACT = "stablehlo.dot_general", "stablehlo.exponential", "stablehlo.subtract"
_ADD, _SELECT, _CONVERT = "stablehlo.add", "stablehlo.select", "stablehlo.convert"
_CONCATENATE = "stablehlo.concatenate"
_UPDATE = "stablehlo.dynamic_update_slice"
_PARTS = frozenset({_CONCATENATE, "stablehlo.slice"})
_MASKING = frozenset({_SELECT, _ADD})
_ORDERED = RENAMED | {BROADCAST}
_LONGEST_LONE, _LONGEST_MASKED = 4096, 3072
_LONGEST = {
    (False, "reshaped"): (4096, 3072),
    (False, "direct"): (3072, 2048),
    (False, "made"): (2048, 2048),
    (True, "reshaped"): (3072, 2048),
    (True, "direct"): (2048, 2048),
    (True, "made"): (1024, 1024),
}
"""Rows as they are and masked, by whether heads fill the lanes and how keys came about: see `_Keys`; of made ones that are masked in heads
that do not fill the lanes see `_FEWEST_MADE`."""
_FEWEST_MADE = 2**17  # elements of keys
_FEWEST_NARROW, _MOST_PICKED, _MOST_SCALED = 3200, 5632, 6656
_REPEATED = 2  # as much work as makes keys that are "made"
_LANES, _TILE_ROWS, _FEWEST_HEADS = 128, 8, 16
_FREE_DIMS = 2  # of a product's result: of groups of queries there are more


@dataclass(frozen=True, slots=True)
class _Read:
    """What elementwise work on scores reads beside them, where it is smaller: of what type, and what for."""

    dtype: str
    is_mask: bool
    is_picked: bool  # where a mask says so


@dataclass(frozen=True, slots=True)
class _Scores:
    queries: int
    row: int
    in_groups: bool
    masks: frozenset[int]  # what is read beside the product, by query and key
    width: int  # of a head
    heads: int
    is_batch: bool  # of several sequences, whose keys lie apart
    keys: "_Keys"
    reads: tuple[_Read, ...]
    dtype: str  # as the product makes them

    def are_apart(self, compiler: Compiler, copied: bool) -> bool:
        if self.in_groups and not self.is_batch:
            return False
        if self.dtype != "f32":
            return self._are_always_apart() or (compiler.stores_masks and self._stores_masks())
        if compiler.masks_apart and self.keys.are_narrow and self._are_always_apart():
            return True
        if (self.queries < self.row and not self.in_groups) or not self.keys.are_narrow:
            return self.row > _LONGEST_LONE or (copied and (self.in_groups or self.queries >= self.row))
        if compiler.stores_masks:
            return self._stores_masks() or self.row > (_MOST_SCALED if self.in_groups else _LONGEST_LONE)
        fills_lanes = self.width % _LANES == 0
        if copied:
            return True
        if self.in_groups:
            longest = _LONGEST_MASKED if self.keys.kind == "direct" else _LONGEST_LONE
            return self.row > (longest if self.masks else _MOST_SCALED)
        if self.masks and self.keys.kind == "made" and not fills_lanes:
            return self.row * self.width >= _FEWEST_MADE
        return self.row > _LONGEST[fills_lanes, self.keys.kind][bool(self.masks)]

    def stored(self, compiler: Compiler) -> list[str]:
        """The types of what is stored as large as the scores."""
        if not compiler.stores_masks or not self.keys.are_narrow or self.queries < self.row:
            return []
        found: list[str] = []
        if self._stores_masks():
            reads = [one for one in self.reads if one.is_mask or self.row < _MOST_SCALED]
            found = [one.dtype for one in reads if not one.is_picked or self.row < _MOST_PICKED]
        elif not self.in_groups and not self.masks and self.row >= _MOST_PICKED:
            found = [one.dtype for one in self.reads]
        return found

    def _stores_masks(self) -> bool:
        if self.queries < self.row or not self.keys.are_narrow:
            return False
        is_wide = self.width >= _LANES * 3 // 4 or (self.keys.kind == "made" and self.in_groups)
        return bool(self.masks) and self.row >= (_LONGEST_MASKED if is_wide else _FEWEST_NARROW)

    def _are_always_apart(self) -> bool:
        if self.width % _LANES or not self.is_batch:
            return False
        if self.keys.kind == "made":
            return not self.in_groups or bool(self.masks)
        has_many = self.heads >= _FEWEST_HEADS and self.heads * _LANES * 2 >= 3 * self.row
        is_even = self.row % _TILE_ROWS == 0 and self.queries >= self.row
        return self.keys.kind == "reshaped" and has_many and not self.in_groups and is_even


def windowed_exponentials(
    kernels: Sequence[Kernel], listing: Listing, lives: Mapping[int, Lifetime], compiler: Compiler
) -> Iterator[tuple[int, Whole]]:
    """A second buffer for each such exponential that is written over its scores otherwise, while it is made, and what else is stored.

    Beside constants of float32 the heap has a gap as large, where there are several.
    """
    made_by = {value: op for op in listing.ops for value in op.results}
    arguments, products = {argument.value for argument in listing.arguments}, of_products(listing)
    found: list[tuple[Kernel, list[str], list[str]]] = []
    for kernel in kernels:
        root = listing.ops[kernel.time]
        if root.name != _EXPONENTIAL or kernel.is_alias or not lives[kernel.results[0]].is_own_buffer:
            continue
        is_wide = kernel.shape.results[0].dtype == "f32"
        scores = _scores_of(root, listing, made_by, products) if is_wide else None
        if scores is None:
            continue
        copied = compiler.masks_apart and any(
            _is_of_argument(mask, (scores.queries, scores.row), listing, made_by, arguments)
            for mask in scores.masks
        )
        if scores.are_apart(compiler, copied):
            found.append((kernel, [] if _is_kept(kernel, lives) else [scores.dtype], scores.stored(compiler)))
    has_gaps = sum("f32" in beside for _, _, beside in found) > 1
    for kernel, own, beside in found:
        gap = ["f32"] if has_gaps and "f32" in beside else []
        for dtype in (*own, *beside, *gap):
            shape = kernel.shape.results[0].shape
            yield kernel.results[0], Whole(kernel.time, kernel.time + 1, TensorType(shape, dtype))


def _is_kept(kernel: Kernel, lives: Mapping[int, Lifetime]) -> bool:
    """Whether the scores are kept anyway."""
    shape = kernel.shape.results[0].shape
    return any(
        type_.shape == shape and use.value in lives and lives[use.value].end > kernel.time
        for use, type_ in zip(kernel.uses, kernel.shape.operands, strict=True)
    )


def _scores_of(
    exponential: Op, listing: Listing, made_by: Mapping[int, Op], products: frozenset[int]
) -> _Scores | None:
    """What is known of the float32 scores of a product that an exponential is of, less their maximum."""
    less = made_by.get(exponential.operands[0])
    if less is None or less.name != _SUBTRACT:
        return None
    value = less.operands[0]
    shape = _shape(value, listing)
    masks: set[int] = set()
    reads: list[_Read] = []
    dtype = "f32"
    while (op := made_by.get(value)) is not None and op.name != _DOT:
        if op.name in RENAMED:
            value = op.operands[0]
            continue
        if op.name == _CONVERT and _dtype(op.operands[0], listing) == "bf16":
            value, dtype = op.operands[0], "bf16"
            continue
        if not is_elementwise(op) or _dtype(op.results[0], listing) != dtype:
            return None
        through = [one for one in op.operands if one in products]
        if len(through) != 1:
            return None
        masks.update({*op.operands} - {*through} if op.name in _MASKING else ())
        reads += _reads(op, through[0], listing, made_by)
        value = through[0]
    if op is None or op.rule is None or _dtype(value, listing) != dtype or len(shape) < _FREE_DIMS:
        return None
    dims = [dim for dim in op.rule.results[0] if math.prod(op.rule.factors[f].size for f in dim) > 1]
    free = [dim for dim in dims if not all(_has(dim, operand) for operand in op.rule.operands)]
    if len(free) == len(dims):
        return None
    batch = [math.prod(op.rule.factors[f].size for f in dim) for dim in dims if dim not in free]
    lengths = _shape(op.operands[1], listing)
    summed = [dim for dim in op.rule.operands[1] if not _has(dim, op.rule.results[0])]
    width = math.prod(op.rule.factors[f].size for dim in summed for f in dim)
    is_batch = lengths[0] > 1 and all(
        _has(op.rule.operands[1][0], one) for one in (op.rule.results[0], op.rule.operands[0])
    )
    return _Scores(
        shape[-2],
        shape[-1],
        len(free) > _FREE_DIMS,
        frozenset(masks),
        width,
        batch[-1],
        is_batch,
        _Keys(op.operands[1], listing, made_by),
        tuple(reads),
        dtype,
    )


def _reads(op: Op, through: int, listing: Listing, made_by: Mapping[int, Op]) -> Iterator[_Read]:
    for position, value in enumerate(op.operands):
        if value != through and _is_small(value, made_by):
            is_mask = op.name == _ADD or (op.name == _SELECT and position == 0)
            yield _Read(_dtype(value, listing) or "", is_mask, op.name == _SELECT and position > 0)


class _Keys:
    """How the operand of a product came about that has the keys, from the product or what else is stored before.

    `kind`: "made" in the product that reads them, by work of several ops on each element, behind the reshape that makes heads; "reshaped"
    into heads behind the product before, or that and one op but for a sum; else "direct".
    """

    def __init__(self, value: int, listing: Listing, made_by: Mapping[int, Op]) -> None:
        self._listing, self._made_by = listing, made_by
        works, last, left, seen = 0, "", [value], set[int]()
        is_reshaped = False
        while left and works <= 1:
            op = made_by.get(left.pop())
            if op is None or op.results[0] in seen:
                continue
            seen.add(op.results[0])
            if op.name == RESHAPE and self._splits(op):
                is_reshaped |= works <= (last != _ADD) and self._is_product(op.operands[0])
                works += _REPEATED * self._is_repeated(op.operands[0])
            elif op.name in RENAMED or op.name in _PARTS or op.name == _CONVERT:
                left.append(op.operands[0])
                left.extend(op.operands[1:] if op.name == _CONCATENATE else ())
            elif op.name == _UPDATE and op.repeat == 1:  # of a cache
                left.append(op.operands[1])
            elif op.name == BROADCAST:  # keys that are repeated
                works += _REPEATED
            elif is_elementwise(op):
                works, last = works + 1, op.name
                left.extend(one for one in op.operands if not _is_small(one, made_by))
        self.kind = "made" if works > 1 else "reshaped" if is_reshaped else "direct"
        self.are_narrow = _dtype(value, listing) == "bf16"

    def _splits(self, op: Op) -> bool:
        """Whether it is more than another name for the same dimensions."""
        sides = (op.results[0], op.operands[0])
        before, after = ([d for d in _shape(side, self._listing) if d > 1] for side in sides)
        return before != after

    def _is_repeated(self, value: int) -> bool:
        op = self._made_by.get(value)
        return op is not None and op.name == BROADCAST and bool(_shape(op.operands[0], self._listing))

    def _is_product(self, value: int) -> bool:
        """Also as it leaves the matrix unit, and a part of it."""
        while (op := self._made_by.get(value)) is not None and op.name != _DOT:
            if op.name not in _PARTS | {_ADD, _CONVERT} and op.name not in RENAMED:
                return False
            value = next((one for one in op.operands if not _is_small(one, self._made_by)), op.operands[0])
        return op is not None


def _is_small(value: int, made_by: Mapping[int, Op]) -> bool:
    """Whether it is made of fewer elements."""
    op = made_by.get(value)
    return op is not None and op.name in (BROADCAST, "stablehlo.constant")


def _has(dim: Sequence[int], mapping: Sequence[Sequence[int]]) -> bool:
    return any(factor in other for factor in dim for other in mapping)


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
        if op is not None and (is_elementwise(op) or _keeps_order(op)):
            left.extend(op.operands)
    return False


def _keeps_order(op: Op) -> bool:
    """A new name for a value, or copies of it, whose last two dimensions stay the last."""
    if op.name not in _ORDERED or op.rule is None:
        return False
    return op.rule.results[0][-2:] == op.rule.operands[0][-2:]


def _shape(value: int, listing: Listing) -> tuple[int, ...]:
    type_ = listing.values[value].type
    return () if type_ is None else type_.shape


def _dtype(value: int, listing: Listing) -> str | None:
    type_ = listing.values[value].type
    return None if type_ is None else type_.dtype
