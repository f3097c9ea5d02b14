"""Mesh axes and references to them, whole or split (`"x"`, `"x":(2)4`), in Shardy's terms and notation.

A reference `"x":(p)s` names the part of axis x that remains when x is viewed as [p, s, rest]: its size is s, and p is the
product of the sizes major to it (Shardy documentation, sharding representation, "sub-axes").
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import index

from autoshard.errors import AutoshardError

MAX_DEVICES = 1 << 20  # of a mesh; ten times the largest systems


_PLAIN = re.compile(r"[ !#-\[\]-~]+")


@dataclass(frozen=True, slots=True)
class MeshAxis:
    name: str
    size: int

    def __str__(self) -> str:
        return f'"{self.name}"={self.size}'


@dataclass(frozen=True, slots=True)
class AxisRef:
    """A whole axis (`pre_size` 0) or a sub-axis of it; sizes are resolved, so a reference knows its own size."""

    name: str
    size: int
    pre_size: int = 0

    @property
    def is_sub_axis(self) -> bool:
        return self.pre_size > 0

    @property
    def begin(self) -> int:
        """Product of the sizes major to this part within the axis."""
        return self.pre_size or 1

    @property
    def end(self) -> int:
        return self.begin * self.size

    def overlaps(self, other: "AxisRef") -> bool:
        return self.name == other.name and self.begin < other.end and other.begin < self.end

    def contains(self, other: "AxisRef") -> bool:
        return self.name == other.name and self.begin <= other.begin and other.end <= self.end

    def __str__(self) -> str:
        return f'"{self.name}":({self.pre_size}){self.size}' if self.is_sub_axis else f'"{self.name}"'


def symbol_of(name: str) -> str:
    """A reference to the mesh of this name, as MLIR writes it."""
    is_bare = re.fullmatch(r"[A-Za-z_][\w$.]*", name, re.ASCII) is not None
    return f"@{name}" if is_bare else f'@"{name}"'


def _axis(pair: tuple[str, int]) -> MeshAxis:
    try:
        name, size = pair
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller's
            raise TypeError
        return MeshAxis(name, index(size))
    except (TypeError, ValueError):
        raise AutoshardError(
            f"{pair!r} is no mesh axis",
            fix='write a name and a whole number of devices for each, as in {"data": 4, "model": 4}',
        ) from None


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes, major to minor. Devices are numbered row-major unless `device_ids` says otherwise.

    `others` are the meshes beside it that shardings of its module are on; a mesh is the same with and without them.
    """

    axes: tuple[MeshAxis, ...]
    name: str = "mesh"
    device_ids: tuple[int, ...] = ()
    others: tuple["Mesh", ...] = field(default=(), compare=False)

    @staticmethod
    def of(axes: Iterable[tuple[str, int]], name: str = "mesh") -> "Mesh":
        mesh = Mesh(tuple(map(_axis, axes)), name)
        mesh.validate()
        return mesh

    def validate(self) -> None:
        """Raises AutoshardError: an axis without devices, named twice, or with a name that has no plain notation."""
        names = self.axis_names
        for axis in self.axes:
            if not _PLAIN.fullmatch(axis.name):
                raise AutoshardError(
                    f"mesh axis {axis.name!r} has a name that Shardy's notation has to escape",
                    fix='use printable ASCII without " and \\',
                )
            if axis.size < 1:
                raise AutoshardError(
                    f"mesh axis {axis} has no devices", fix="give every axis a size of at least 1"
                )
            if names.count(axis.name) > 1:
                raise AutoshardError(
                    f'mesh axis "{axis.name}" is named twice', fix="give each axis a name of its own"
                )
        if self.num_devices > MAX_DEVICES:
            raise AutoshardError(
                f"mesh {self} has {self.num_devices} devices", fix=f"name at most {MAX_DEVICES} devices"
            )

    @property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    @property
    def symbol(self) -> str:
        """The name as MLIR writes a reference to it."""
        return symbol_of(self.name)

    @property
    def num_devices(self) -> int:
        return math.prod(axis.size for axis in self.axes)

    @property
    def is_one_device(self) -> bool:
        """Whether it is one device of the others' (Shardy: a maximal mesh), which has no axes."""
        return not self.axes and len(self.device_ids) == 1

    def named(self, name: str) -> "Mesh":
        """Itself ("" or its own name) or one of `others`."""
        for mesh in self.others:
            if mesh.name == name:
                return mesh
        if name in ("", self.name):
            return self
        raise AutoshardError(
            f"unknown mesh @{name}",
            where=f"mesh {self}",
            fix=f"its module's meshes are {', '.join(mesh.symbol for mesh in (self, *self.others))}",
        )

    def axis_size(self, name: str) -> int:
        for axis in self.axes:
            if axis.name == name:
                return axis.size
        raise AutoshardError(
            f'unknown mesh axis "{name}"',
            where=f"mesh {self}",
            fix=f"its axes are {', '.join(self.axis_names)}",
        )

    def axis(self, name: str, pre_size: int = 0, size: int = 0) -> AxisRef:
        whole = self.axis_size(name)
        if not pre_size or (pre_size == 1 and size == whole):
            return AxisRef(name, whole)
        if whole % (pre_size * size) != 0:
            raise AutoshardError(f'"{name}":({pre_size}){size} does not divide axis "{name}" of size {whole}')
        return AxisRef(name, size, pre_size)

    def order(self, axis: AxisRef) -> tuple[int, int]:
        """Sort key of Shardy's mesh order: position of the axis, then major to minor within it."""
        return (self.axis_names.index(axis.name), axis.begin)

    @property
    def definition(self) -> str:
        """What `sdy.mesh @name =` is followed by."""
        ids = f", device_ids=[{', '.join(map(str, self.device_ids))}]" if self.device_ids else ""
        return f"{str(self).removesuffix('>')}{ids}>"

    def __str__(self) -> str:
        return f"<[{', '.join(map(str, self.axes))}]>"


_AXIS = re.compile(r'"((?:[^"\\]|\\.)+)"(?::\((\d+)\)(\d+))?')


def parse_axes(text: str, mesh: Mesh) -> tuple[AxisRef, ...]:
    """`"x", "y":(1)2` as axis references of `mesh`; an unknown name or a size that does not divide is an error."""
    return tuple(mesh.axis(name, int(pre or 0), int(size or 0)) for name, pre, size in _AXIS.findall(text))


def total_size(axes: Sequence[AxisRef]) -> int:
    size = 1
    for axis in axes:
        size *= axis.size
    return size


def merge_sub_axes(axes: Sequence[AxisRef], mesh: Mesh) -> tuple[AxisRef, ...]:
    """Join consecutive references that continue each other, as Shardy requires ("two consecutive sub-axes can be merged")."""
    merged: list[AxisRef] = []
    for axis in axes:
        last = merged[-1] if merged else None
        if last is not None and last.name == axis.name and last.is_sub_axis and last.end == axis.begin:
            merged[-1] = mesh.axis(axis.name, last.begin, last.size * axis.size)
        else:
            merged.append(axis)
    return tuple(merged)


def axes_added(before: Sequence[AxisRef], after: Sequence[AxisRef]) -> tuple[AxisRef, ...] | None:
    """What `after` continues `before` with, also where a part of an axis grew in place; None where it does not continue it."""
    for position, axis in enumerate(before):
        found = after[position] if position < len(after) else None
        if found == axis:
            continue
        if (
            found is None
            or position < len(before) - 1
            or not found.contains(axis)
            or found.begin != axis.begin
        ):
            return None
        return (AxisRef(axis.name, found.size // axis.size, axis.end), *after[position + 1 :])
    return tuple(after[len(before) :])
