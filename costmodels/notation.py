"""Placements as text: `data=slices,x=1,y=0+2` says which physical dimensions each mesh axis rides on.

    placement = axis {"," axis}        axis = NAME "=" part {"+" part}        part = dimension [":(" pre_size ")" size]

The parts of an axis are written major to minor. A dimension alone is all of it; `0:(2)4` is the part of dimension 0 that
remains when it is viewed as [2, 4, rest], as Shardy writes sub-axes. The torus's dimensions have numbers, from 0, in the order of
the topology; beside them there are `slices` and `cores`, in nodes `nodes` and `chips`. Axes of one device ride on nothing and are
left out.
"""

import math
import re
import reprlib
from collections.abc import Sequence

from .errors import HardwareError
from .topology import MeshSizes, Piece, Placement

ROW_MAJOR = "row-major"
"""What to write for the placement that numbers devices row-major on both sides."""

_PART = re.compile(r"\s*([^\s:+,=]+)\s*(?::\s*\(\s*(\d+)\s*\)\s*(\d+)\s*)?", re.ASCII)
_WHERE = "placement"


def parse_pieces(
    text: str, mesh: MeshSizes, shape: Sequence[int], names: Sequence[str]
) -> tuple[tuple[Piece, ...], ...]:
    """The pieces of each axis, minor to major, of a placement as text.

    Raises:
        HardwareError: an axis or a dimension that there is not, one twice, or sizes that do not multiply up.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's
        raise HardwareError(
            f"{reprlib.repr(text)} is no text",
            where=_WHERE,
            fix=f"Write axes and dimensions, as in x=0,y=1+2, or {ROW_MAJOR}.",
        )
    given: dict[str, tuple[Piece, ...]] = {}
    sizes = dict(mesh)
    for item in text.split(","):
        name, equals, parts = (part.strip() for part in item.partition("="))
        if not (name and equals and parts):
            raise HardwareError(
                f"cannot read {text!r} at {item!r}",
                where=_WHERE,
                fix=f"Write axes and dimensions, as in x=0,y=1+2, or {ROW_MAJOR}.",
            )
        if name not in sizes:
            known = ", ".join(f"{axis}={size}" for axis, size in mesh)
            raise HardwareError(
                f'"{name}" is not an axis of the mesh', where=_WHERE, fix=f"Its axes are {known}."
            )
        if name in given:
            raise HardwareError(f'axis "{name}" is placed twice', where=_WHERE, fix="Join its parts with +.")
        pieces = tuple(_parse_part(part, shape, names) for part in parts.split("+"))
        product = math.prod(piece.length for piece in pieces)
        if product != sizes[name]:
            lengths = " x ".join(str(piece.length) for piece in pieces)
            raise HardwareError(
                f'axis "{name}" has {sizes[name]} devices, {parts} has {lengths}{f" = {product}" if len(pieces) > 1 else ""}',
                where=_WHERE,
                fix=f"The dimensions are {_listed(shape, names)}; 0:(2)4 is a part of one.",
            )
        given[name] = tuple(piece for piece in reversed(pieces) if piece.length > 1)
    left_out = [name for name, size in mesh if size > 1 and name not in given]
    if left_out:
        raise HardwareError(
            f"axis {', '.join(map(repr, left_out))} is left out".replace("'", '"'),
            where=_WHERE,
            fix="Say for every axis what it rides on.",
        )
    _refuse_shared(given, shape, names)
    return tuple(given.get(name, ()) for name, _ in mesh)


def placement_text(placement: Placement) -> str:
    """The notation of a placement; "" where every axis has one device."""
    return ",".join(
        f"{name}={'+'.join(_part_text(piece, placement) for piece in reversed(pieces))}"
        for (name, _), pieces in zip(placement.mesh, placement.pieces, strict=True)
        if pieces
    )


def _parse_part(text: str, shape: Sequence[int], names: Sequence[str]) -> Piece:
    found = _PART.fullmatch(text)
    if found is None:
        raise HardwareError(
            f"cannot read the part {text.strip()!r}",
            where=_WHERE,
            fix="Write a dimension, as 0, or a part of one, as 0:(2)4.",
        )
    name, pre_size, size = found.groups()
    if name not in names:
        raise HardwareError(
            f"there is no dimension {name!r}",
            where=_WHERE,
            fix=f"The topology's dimensions are {_listed(shape, names)}.",
        )
    dimension = names.index(name)
    whole = shape[dimension]
    if pre_size is None:
        return Piece(dimension, 1, whole)
    before, length = int(pre_size), int(size)
    if before < 1 or length < 1 or whole % (before * length):
        raise HardwareError(
            f"{text.strip()} is no part of dimension {name}, which has {whole}",
            where=_WHERE,
            fix=f"({before}){length} has to divide it.",
        )
    return Piece(dimension, whole // (before * length), length)


def _refuse_shared(given: dict[str, tuple[Piece, ...]], shape: Sequence[int], names: Sequence[str]) -> None:
    """Raises HardwareError: two pieces cover the same devices of a dimension."""
    seen: list[tuple[str, Piece]] = []
    for axis, pieces in given.items():
        for piece in pieces:
            for other_axis, other in seen:
                overlap = (
                    piece.stride < other.stride * other.length and other.stride < piece.stride * piece.length
                )
                if piece.dimension == other.dimension and overlap:
                    name = names[piece.dimension]
                    by = f'twice by "{axis}"' if axis == other_axis else f'by "{other_axis}" and "{axis}"'
                    raise HardwareError(
                        f"dimension {name} is used {by}",
                        where=_WHERE,
                        fix=f"It has {shape[piece.dimension]} devices, each for one axis; {name}:(1)2 is one half of it.",
                    )
            seen.append((axis, piece))


def _part_text(piece: Piece, placement: Placement) -> str:
    name, whole = placement.names[piece.dimension], placement.shape[piece.dimension]
    return (
        name if piece.length == whole else f"{name}:({whole // (piece.stride * piece.length)}){piece.length}"
    )


def _listed(shape: Sequence[int], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={size}" for name, size in as_given(shape, names) if size > 1) or "none"


def as_given(shape: Sequence[int], names: Sequence[str]) -> list[tuple[str, int]]:
    """Dimensions by name in the order of the user's topology, a torus's from the first to the last."""
    pairs = list(zip(names, shape, strict=True))
    numbered = iter(sorted(pair for pair in pairs if pair[0].isdigit()))
    return [next(numbered) if name.isdigit() else (name, size) for name, size in pairs]
