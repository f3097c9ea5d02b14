"""The edge of a manual computation, where a tensor's sharding on all axes becomes that of each shard on the free axes, and back.

Outside, each dimension is split by manual axes first and then by free ones; inside, the dimension is the shard that the manual axes
leave, and only the free ones split it further. `[{"m", "x"}, {}]` of 8x16 outside with `"m"`=2 manual is `[{"x"}, {}]` of 4x16 inside.
"""

from dataclasses import dataclass, replace

from autoshard.sharding.mesh import AxisRef
from autoshard.sharding.tensor import DimSharding, TensorSharding


@dataclass(frozen=True, slots=True)
class Crossing:
    """How one tensor enters or leaves a manual computation: the manual axes of each dimension outside, without those of one device."""

    axes: tuple[tuple[AxisRef, ...], ...]
    is_entering: bool

    @property
    def least(self) -> TensorSharding | None:
        """What is demanded of the tensor that is found, whatever else is asked: outside, manual axes first; inside, nothing."""
        if self.is_entering:
            return None
        return TensorSharding(tuple(DimSharding(axes, is_closed=False) for axes in self.axes))

    def handed(self, found: TensorSharding) -> TensorSharding:
        """What is handed over for it to be found as `found` behind the edge; both are closed, and partial over the same axes."""
        dims = list(zip(self.axes, found.axes, strict=True))
        if not self.is_entering:
            assert all(axes[: len(manual)] == manual for manual, axes in dims), "manual axes come first"
        handed = ((*manual, *axes) if self.is_entering else axes[len(manual) :] for manual, axes in dims)
        return replace(TensorSharding.closed(list(handed)), unreduced=found.unreduced)


def without_axes(sharding: TensorSharding, names: frozenset[str]) -> TensorSharding:
    """The sharding, open where it is open, on the other axes only."""
    dims = tuple(
        DimSharding(tuple(a for a in dim.axes if a.name not in names), dim.is_closed, dim.priority)
        for dim in sharding.dims
    )
    replicated, unreduced = (
        tuple(a for a in axes if a.name not in names) for axes in (sharding.replicated, sharding.unreduced)
    )
    return replace(sharding, dims=dims, replicated=replicated, unreduced=unreduced)
