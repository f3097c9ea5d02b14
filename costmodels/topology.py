"""Laying a logical device mesh on physical dimensions.

An axis of the mesh, or a part of one, covers evenly spaced devices of one physical dimension, or of several. `lay`
numbers devices row-major on both sides; `notation` reads what the user writes instead. Terms: a *dimension* is physical, an *axis* is the
mesh's, a *sub-axis* is Shardy's `"x":(pre)size`. Knows nothing of bandwidth.
"""

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .amounts import as_list, as_whole
from .errors import HardwareError

MeshSizes = Sequence[tuple[str, int]]
"""Names and sizes of a mesh's axes, major to minor."""

_PAIR = 2

Axis = str | tuple[str, int, int]
"""An axis by name, or the sub-axis (name, pre_size, size): `"x":(2)4` is ("x", 2, 4)."""


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """`length` devices along one physical dimension, each `stride` after the one before."""

    dimension: int
    stride: int
    length: int


def lay(sizes: Sequence[int], shape: Sequence[int]) -> tuple[tuple[Piece, ...], ...] | None:
    """The pieces of each axis, minor to major; None where an axis does not divide the dimensions it meets.

    `lay((8, 2), (4, 4))`: the axis of 2 is every device of half of dimension 1; the axis of 8 is the two
    halves of dimension 1 times dimension 0.
    """
    dimension, stride, pieces = len(shape) - 1, 1, list[tuple[Piece, ...]]()
    for size in reversed(sizes):
        axis: list[Piece] = []
        while size > 1:
            while dimension >= 0 and stride == shape[dimension]:
                dimension, stride = dimension - 1, 1
            length = math.gcd(size, shape[dimension] // stride) if dimension >= 0 else 1
            if length == 1:
                return None
            axis.append(Piece(dimension, stride, length))
            size, stride = size // length, stride * length
        pieces.append(tuple(axis))
    return tuple(reversed(pieces))


def cut(pieces: Sequence[Piece], skip: int, take: int) -> tuple[Piece, ...] | None:
    """The `take` devices of an axis that lie `skip` apart; None where a piece cannot be cut like that."""
    chosen: list[Piece] = []
    for piece in pieces:
        skipped = math.gcd(skip, piece.length)
        skip //= skipped
        if skip > 1 and skipped < piece.length:
            return None
        taken = math.gcd(take, piece.length // skipped) if skip == 1 else 1
        take //= taken
        if taken > 1:
            chosen.append(Piece(piece.dimension, piece.stride * skipped, taken))
        if take > 1 and skip == 1 and skipped * taken < piece.length:
            return None
    return tuple(chosen)


def merged(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """The same devices in the fewest pieces, by dimension and stride."""
    result: list[Piece] = []
    for piece in sorted(pieces):
        last = result[-1] if result else None
        if last and last.dimension == piece.dimension and last.stride * last.length == piece.stride:
            result[-1] = Piece(last.dimension, last.stride, last.length * piece.length)
        else:
            result.append(piece)
    return tuple(result)


@dataclass(frozen=True, slots=True)
class Route:
    """The pieces that a group of devices covers, by dimension and stride; none for a group of one.

    `copies` is 1 where the pieces are the group. Where no pieces are, they are those of the smallest group
    around it that has some, made of `copies` groups: a collective over them with the bytes of all of those
    does the work of each, so that its time is an upper bound.
    """

    pieces: tuple[Piece, ...]
    copies: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A mesh laid on a physical shape: `pieces[i]` are those of axis i, minor to major."""

    mesh: tuple[tuple[str, int], ...]
    shape: tuple[int, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    names: tuple[str, ...] = ()
    """Of the dimensions; the numbers of a torus's count from 0 after the slices."""

    def is_row_major(self) -> bool:
        """Whether devices are numbered alike in the mesh and in the shape."""
        return self.pieces == lay([size for _, size in self.mesh], self.shape)

    def device_order(self) -> list[int]:
        """For each place of the mesh, row-major, the number of its device in the physical shape, row-major too."""
        strides = [math.prod(self.shape[index + 1 :]) for index in range(len(self.shape))]
        order = np.zeros(1, dtype=np.int64)
        for pieces in self.pieces:
            for piece in reversed(pieces):
                steps = np.arange(piece.length) * (piece.stride * strides[piece.dimension])
                order = np.add.outer(order, steps).ravel()
        return order.tolist()

    def route(self, axes: Sequence[Axis]) -> Route:
        """What a group along `axes` covers.

        Raises:
            HardwareError: what are no axes, an axis that the mesh has not, a sub-axis that does not divide its axis, or the
                same devices twice.
        """
        spans: dict[str, list[tuple[int, int]]] = {}
        for axis in as_list("axes", axes, 'as in ["x"]'):
            name, start, end = self._span(axis)
            taken = spans.setdefault(name, [])
            if any(start < other_end and other_start < end for other_start, other_end in taken):
                raise HardwareError(f'"{name}" is covered twice', where=f"axes {list(axes)}")
            taken.append((start, end))
        pieces: list[Piece] = []
        copies = 1
        for (name, _), axis_pieces in zip(self.mesh, self.pieces, strict=True):
            chosen, around = _covered(axis_pieces, spans.get(name, []))
            pieces += chosen
            copies *= around
        return Route(merged(pieces), copies)

    def covers_pairs(self, axes: Sequence[Axis]) -> bool:
        """Whether a group along `axes` is two whole dimensions of a torus, two devices each."""
        pieces = self.route(axes).pieces
        return len(pieces) == _PAIR and all(
            piece.length == _PAIR == self.shape[piece.dimension] and self.names[piece.dimension].isdecimal()
            for piece in pieces
        )

    def _span(self, axis: Axis) -> tuple[str, int, int]:
        match axis:
            case str(name):
                pre_size, size = 1, None
            case (str(name), first, second):
                pre_size, size = (
                    as_whole(f'"{name}" is cut by', each, where="axes") for each in (first, second)
                )
            case _:
                raise HardwareError(
                    f"{reprlib.repr(axis)} is no axis",
                    where="axes",
                    fix='Write a name, or of a sub-axis ("x", 2, 4).',
                )
        total = dict(self.mesh).get(name)
        if total is None:
            known = ", ".join(known for known, _ in self.mesh)
            raise HardwareError(f'"{name}" is not an axis of the mesh', fix=f"It has {known}.")
        size = total if size is None else size
        if pre_size < 1 or size < 1 or total % (pre_size * size):
            raise HardwareError(f'({pre_size}){size} does not divide "{name}", which has {total} devices')
        return name, total // (pre_size * size), total // pre_size

    def __str__(self) -> str:
        return "\n".join(
            f'"{name}"={size}: ' + (" x ".join(map(_described, reversed(pieces))) or "one device")
            for (name, size), pieces in zip(self.mesh, self.pieces, strict=True)
        )


def _covered(pieces: Sequence[Piece], spans: Sequence[tuple[int, int]]) -> tuple[list[Piece], int]:
    """The pieces of one axis that `spans`, (distance of neighbours, of groups), cover, and their copies."""
    spans = [(start, end) for start, end in spans if start < end]
    cuts = [cut(pieces, start, end // start) for start, end in spans]
    if all(chosen is not None for chosen in cuts):
        return [piece for chosen in cuts for piece in chosen or ()], 1
    total = math.prod(piece.length for piece in pieces)
    first, last = min(start for start, _ in spans), max(end for _, end in spans)
    around = sorted(
        (end // start, start)
        for start in range(1, first + 1)
        for end in range(last, total + 1)
        if first % start == 0 and end % last == 0 and total % end == 0
    )
    size, chosen = next(
        (size, found) for size, start in around if (found := cut(pieces, start, size)) is not None
    )
    return list(chosen), size // math.prod(end // start for start, end in spans)


def _described(piece: Piece) -> str:
    apart = f", every {piece.stride}" if piece.stride > 1 else ""
    return f"{piece.length} of dimension {piece.dimension}{apart}"
