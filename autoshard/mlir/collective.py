"""sdy collective ops as plain records, in Shardy's terms; no MLIR objects."""

import math
from dataclasses import dataclass

from autoshard.sharding import AxisRef, TensorSharding

KINDS = ("all_gather", "all_slice", "all_to_all", "collective_permute", "all_reduce", "reduce_scatter")
TO_UNREDUCED = ("replicated_to_unreduced", "sharded_to_unreduced")
LOCAL = ("all_slice", *TO_UNREDUCED)
"""These send nothing: each device reads its own part and keeps it, the rest zero where the result is a partial sum."""


@dataclass(frozen=True, slots=True)
class CollectiveStep:
    """One collective of a reshard."""

    kind: str  # one of KINDS or TO_UNREDUCED
    axes: tuple[AxisRef, ...]
    """All axes that move, are gathered, sliced or reduced; per dimension major to minor."""
    out_sharding: TensorSharding
    moves: tuple[tuple[tuple[AxisRef, ...], int, int], ...] = ()
    """Of an all_to_all: axes, source and target dimension."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of a program, with what one device holds before and after."""

    kind: str
    axes: tuple[AxisRef, ...]
    operand_bytes: int
    result_bytes: int
    repeat: int
    location: str

    @property
    def group_size(self) -> int:
        return math.prod(axis.size for axis in self.axes)
