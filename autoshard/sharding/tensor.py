"""Tensor types and shardings: which axes split which dimension, in Shardy's notation.

`<@mesh, [{"x", "y"}, {}, {"z", ?}p1], replicated={"w"}, unreduced={"u"}>`: axes of a dimension are listed major to minor; `?` marks
an open dimension, which may be split further; `pN` is the priority of the user's demand. A sharding on another mesh than the plan's is
foreign and says so, `@other [{"x"}, {}]`; on one device (Shardy writes `<@device, []>`) it has a whole dimension for each of the tensor's.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from autoshard.errors import AutoshardError
from autoshard.sharding.mesh import AxisRef, Mesh, parse_axes, symbol_of, total_size

_BITS = {"i1": 8, "index": 64}  # a predicate takes a byte on every device


@cache
def dtype_bits(dtype: str) -> int:
    """Storage bits of an MLIR element type; `complex<f32>` is two f32, quantised types count their storage type."""
    if dtype in _BITS:
        return _BITS[dtype]
    if dtype.startswith("complex<"):
        return 2 * dtype_bits(dtype[len("complex<") : -1])
    if dtype.startswith("!quant.uniform<"):
        return dtype_bits(dtype[len("!quant.uniform<") :].split(":")[0].split("<")[0])
    digits = re.search(r"(\d+)", dtype)
    if digits is None:
        return 0  # tokens and other types without storage
    return int(digits.group(1))


@dataclass(frozen=True, slots=True)
class TensorType:
    shape: tuple[int, ...]
    dtype: str

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return (self.num_elements * dtype_bits(self.dtype) + 7) // 8

    @property
    def is_complex(self) -> bool:
        return self.dtype.startswith("complex<")

    def __str__(self) -> str:
        return f"tensor<{'x'.join([*map(str, self.shape), self.dtype])}>"


@dataclass(frozen=True, slots=True)
class DimSharding:
    axes: tuple[AxisRef, ...] = ()
    is_closed: bool = True
    priority: int | None = None
    num_shards: int = field(init=False, repr=False, compare=False)  # asked for millions of times

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_shards", total_size(self.axes))

    def as_closed(self) -> "DimSharding":
        """The same axes, final: without a priority."""
        return self if self.is_closed and self.priority is None else DimSharding(self.axes)

    def __str__(self) -> str:
        items = [*map(str, self.axes), *([] if self.is_closed else ["?"])]
        return "{" + ", ".join(items) + "}" + ("" if self.priority is None else f"p{self.priority}")


REPLICATED_DIM = DimSharding()


@dataclass(frozen=True, slots=True)
class TensorSharding:
    dims: tuple[DimSharding, ...]
    replicated: tuple[AxisRef, ...] = ()
    unreduced: tuple[AxisRef, ...] = ()
    mesh: str = ""  # the name of the mesh that it is on, where that is not the plan's

    @staticmethod
    def closed(axes: Sequence[Sequence[AxisRef]]) -> "TensorSharding":
        return TensorSharding(tuple(DimSharding(tuple(dim)) if dim else REPLICATED_DIM for dim in axes))

    @staticmethod
    @cache
    def replicated_closed(rank: int) -> "TensorSharding":
        return TensorSharding((REPLICATED_DIM,) * rank)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def is_foreign(self) -> bool:
        return bool(self.mesh)

    @property
    def axes(self) -> tuple[tuple[AxisRef, ...], ...]:
        """Axes of each dimension, major to minor."""
        return tuple(dim.axes for dim in self.dims)

    @property
    def num_shards(self) -> int:
        return math.prod(dim.num_shards for dim in self.dims)

    @property
    def is_fully_replicated(self) -> bool:
        return not any(dim.axes for dim in self.dims)

    @property
    def is_fully_closed(self) -> bool:
        return all(dim.is_closed for dim in self.dims)

    @property
    def says_nothing(self) -> bool:
        """Whether as a demand it leaves all open, as that of a scalar does."""
        is_open = not any(dim.axes or dim.is_closed for dim in self.dims)
        return is_open and not (self.replicated or self.unreduced or self.mesh)

    def used_axes(self) -> Iterator[AxisRef]:
        for dim in self.dims:
            yield from dim.axes

    def as_closed(self) -> "TensorSharding":
        """The same split, final: no open dimension, no priority, no explicit replication."""
        return TensorSharding(tuple(dim.as_closed() for dim in self.dims), (), self.unreduced, self.mesh)

    def summed(self) -> "TensorSharding":
        """The same split with every sum made."""
        return replace(self, unreduced=()) if self.unreduced else self

    def on_mesh(self, name: str) -> "TensorSharding":
        """The same axes of another mesh."""
        return replace(self, mesh=name)

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape on one device; a dimension that does not divide is padded up."""
        return tuple(-(-size // dim.num_shards) for size, dim in zip(shape, self.dims, strict=True))

    def local_bytes(self, type_: TensorType) -> int:
        return TensorType(self.local_shape(type_.shape), type_.dtype).num_bytes

    def divides(self, shape: Sequence[int]) -> bool:
        return all(size % dim.num_shards == 0 for size, dim in zip(shape, self.dims, strict=True))

    def satisfies(self, demand: "TensorSharding") -> bool:
        """Whether this closed sharding is one that `demand` allows: closed exact, open prefix, replicated axes unused, unreduced exact."""
        return (
            self.rank == demand.rank
            and self.unreduced == demand.unreduced
            and self.mesh == demand.mesh
            and all(_dim_satisfies(mine, wanted) for mine, wanted in zip(self.dims, demand.dims, strict=True))
            and not any(mine.overlaps(banned) for mine in self.used_axes() for banned in demand.replicated)
        )

    def refines(self, other: "TensorSharding") -> bool:
        """Whether every dimension is split as in `other`, and perhaps further."""
        return all(mine[: len(first)] == first for mine, first in zip(self.axes, other.axes, strict=True))

    def definition(self, mesh: Mesh) -> str:
        """As an sdy attribute has it, `<@mesh, [{"x"}, {}]>`; `mesh` is the plan's."""
        mine = mesh.named(self.mesh)
        return f"<{mine.symbol}, {'[]' if mine.is_one_device else self._axes_text()}>"

    def __str__(self) -> str:
        return f"{symbol_of(self.mesh)} {self._axes_text()}" if self.mesh else self._axes_text()

    def _axes_text(self) -> str:
        parts = [f"[{', '.join(map(str, self.dims))}]"]
        for key, axes in (("replicated", self.replicated), ("unreduced", self.unreduced)):
            if axes:
                parts.append(f"{key}={{{', '.join(map(str, axes))}}}")
        return ", ".join(parts)


def _dim_satisfies(mine: DimSharding, wanted: DimSharding) -> bool:
    if wanted.is_closed:
        return mine.axes == wanted.axes
    return mine.axes[: len(wanted.axes)] == wanted.axes


_DIM = re.compile(r"\{([^{}]*)\}(?:p(\d+))?")
_FOREIGN = re.compile(r'@("[^"]*"|[\w$.]+) \[')
_LIST = re.compile(r"(replicated|unreduced)\s*=\s*\{([^{}]*)\}")


def parse_sharding(text: str, mesh: Mesh) -> TensorSharding:
    """Parse `[{"x"}, {?}], replicated={"y"}` (also inside `#sdy.sharding<@mesh, ...>`), or `@other [{"z"}, {}]`.

    Raises:
        AutoshardError: no dimension list, an axis that its mesh lacks, or another mesh that `mesh` does not know.
    """
    foreign = _FOREIGN.match(text)
    if foreign is not None:
        name = foreign[1].strip('"')
        return parse_sharding(text[foreign.end() - 1 :], mesh.named(name)).on_mesh(name)
    begin, end = text.find("["), text.rfind("]")
    if begin < 0 or end < begin:
        raise AutoshardError(f"not a sharding: {text}", fix='write one entry a dimension, as in [{"x"}, {}]')
    dims = tuple(
        DimSharding(
            parse_axes(axes, mesh), not axes.rstrip().endswith("?"), int(priority) if priority else None
        )
        for axes, priority in _DIM.findall(text[begin : end + 1])
    )
    lists = {key: parse_axes(axes, mesh) for key, axes in _LIST.findall(text[end:])}
    return TensorSharding(dims, lists.get("replicated", ()), lists.get("unreduced", ()))
