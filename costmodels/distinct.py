"""All placements of a mesh on a physical shape that can differ in price.

Each dimension is cut into its prime parts and each part given to one axis. Two placements count as one where they differ

- by a permutation of dimensions with equal figures (size, links, wraparound): the hardware is symmetric in them;
- on slices, nodes and the chips of a node, in which devices of that dimension an axis has: how many is what counts there;
- in the order of the parts of one axis, which is that of the dimensions: it changes the price of sub-axes only.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .topology import MeshSizes, Piece, Placement, lay, merged

Pieces = tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True)
class DimensionKind:
    """What prices see of a physical dimension: its figures, and whether it counts how far apart devices of a group are."""

    figures: tuple[float, ...]
    is_spaced: bool


def distinct_placements(
    mesh: MeshSizes, shape: Sequence[int], names: tuple[str, ...], kinds: Sequence[DimensionKind]
) -> list[Placement]:
    """One placement of each class, row-major first where there is one; none where the sizes do not multiply up."""
    if math.prod(size for _, size in mesh) != math.prod(shape):
        return []
    row_major = lay([size for _, size in mesh], shape)
    found: dict[Pieces, Pieces] = {}
    for pieces in itertools.chain([row_major] if row_major is not None else [], _all(mesh, shape, kinds)):
        found.setdefault(_canonical(pieces, kinds), pieces)
    return [Placement(tuple(mesh), tuple(shape), pieces, names) for pieces in found.values()]


def _all(mesh: MeshSizes, shape: Sequence[int], kinds: Sequence[DimensionKind]) -> Iterator[Pieces]:
    orders = [
        sorted(set(itertools.permutations(_primes(size)))) if kind.is_spaced else [tuple(_primes(size))]
        for size, kind in zip(shape, kinds, strict=True)
    ]
    for parts in itertools.product(*orders):
        flat: list[Piece] = []
        for dimension, lengths in enumerate(parts):
            stride = 1
            for length in lengths:
                flat.append(Piece(dimension, stride, length))
                stride *= length
        is_like_next = [
            one.dimension == other.dimension
            and one.length == other.length
            and not kinds[one.dimension].is_spaced
            for one, other in itertools.pairwise(flat)
        ]
        yield from _given(flat, [*is_like_next, False], [size for _, size in mesh], [[] for _ in mesh], 0)


def _given(
    parts: Sequence[Piece],
    is_like_next: Sequence[bool],
    left: list[int],
    taken: list[list[Piece]],
    first: int,
) -> Iterator[Pieces]:
    """Every way to give the parts to axes that have so many devices left, the next one to axis `first` or one after it; of parts that
    are like the next, each goes to an axis that is not before that of the one before.
    """
    if not parts:
        if all(size == 1 for size in left):
            yield tuple(tuple(sorted(merged(mine), key=_minor_first)) for mine in taken)
        return
    part = parts[0]
    for axis, size in enumerate(left):
        if axis >= first and size % part.length == 0:
            left[axis] //= part.length
            taken[axis].append(part)
            yield from _given(parts[1:], is_like_next[1:], left, taken, axis if is_like_next[0] else 0)
            taken[axis].pop()
            left[axis] = size


def _minor_first(piece: Piece) -> tuple[int, int]:
    return (-piece.dimension, piece.stride)


def _canonical(pieces: Pieces, kinds: Sequence[DimensionKind]) -> Pieces:
    """The least of what the symmetries make of the pieces; strides of dimensions that are not spaced say nothing."""
    alike: dict[DimensionKind, list[int]] = {}
    for dimension, kind in enumerate(kinds):
        alike.setdefault(kind, []).append(dimension)
    images: list[Pieces] = []
    for permuted in itertools.product(*(itertools.permutations(group) for group in alike.values())):
        to = dict(
            pair
            for group, image in zip(alike.values(), permuted, strict=True)
            for pair in zip(group, image, strict=True)
        )
        images.append(
            tuple(
                merged(_joined([Piece(to[p.dimension], p.stride, p.length) for p in mine], kinds))
                for mine in pieces
            )
        )
    return min(images)


def _joined(pieces: Sequence[Piece], kinds: Sequence[DimensionKind]) -> list[Piece]:
    """One piece without a stride for each dimension that is not spaced."""
    counts: dict[int, int] = {}
    for piece in pieces:
        if not kinds[piece.dimension].is_spaced:
            counts[piece.dimension] = counts.get(piece.dimension, 1) * piece.length
    spaced = [piece for piece in pieces if kinds[piece.dimension].is_spaced]
    return [*spaced, *(Piece(dimension, 0, length) for dimension, length in counts.items())]


def _primes(number: int) -> list[int]:
    found: list[int] = []
    divisor = 2
    while number > 1:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return found
