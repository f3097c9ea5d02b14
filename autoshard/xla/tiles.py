"""Cuts full arrays into the shards that an executable takes and joins those that it returns (XLA tilings)."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard.errors import AutoshardError


@dataclass(frozen=True, slots=True)
class Tiling:
    """`shards[d]`: number of parts of dimension d; `positions[p]`: the part of each that device p holds.

    With `owner`, what the other devices hold means nothing.
    """

    shards: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...]
    owner: int | None = None

    def tile_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape on a device; a dimension that does not divide is padded up."""
        return tuple(-(-size // count) for size, count in zip(shape, self.shards, strict=True))

    def slices(self, shape: tuple[int, ...], device: int) -> tuple[slice, ...]:
        tile = self.tile_shape(shape)
        return tuple(
            slice(at * size, (at + 1) * size) for at, size in zip(self.positions[device], tile, strict=True)
        )


def tiling_of(sharding: Any, rank: int, num_devices: int) -> Tiling:
    """Of an `HloSharding` (None where XLA gives none: one device), for a tensor of `rank` dimensions."""
    if sharding is None or sharding.is_replicated():
        return Tiling((1,) * rank, ((0,) * rank,) * num_devices)
    if sharding.is_maximal():
        (owner,) = sharding.tile_assignment_devices()
        return Tiling((1,) * rank, ((0,) * rank,) * num_devices, int(owner))
    if not sharding.is_tiled() or len(sharding.subgroup_types()) > 0:
        raise AutoshardError(f"XLA gave main an argument or result that is not cut into tiles: {sharding}")
    dims = list(sharding.tile_assignment_dimensions())
    order = list(sharding.tile_assignment_devices())
    shards = tuple(dims[:rank])
    positions: list[tuple[int, ...]] = [()] * num_devices
    copies = math.prod(dims[rank:])
    for index, device in enumerate(order):
        positions[device] = tuple(int(at) for at in np.unravel_index(index // copies, shards)) if rank else ()
    return Tiling(shards, tuple(positions))


def cut(full: np.ndarray, tiling: Tiling) -> list[np.ndarray]:
    """The shard of every device in memory of its own, padded with zeros where the dimension does not divide."""
    tile_shape = tiling.tile_shape(full.shape)
    return [
        _padded(full[tiling.slices(full.shape, device)], tile_shape)
        for device in range(len(tiling.positions))
    ]


def _padded(part: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if part.shape == shape:
        return np.array(part, order="C")
    padded = np.zeros(shape, part.dtype)
    padded[tuple(slice(0, size) for size in part.shape)] = part
    return padded


def join(shards: list[np.ndarray], tiling: Tiling, shape: tuple[int, ...]) -> tuple[np.ndarray, float]:
    """The full array, and the largest difference between copies of one part that several devices hold."""
    full = np.empty(shape, shards[0].dtype)
    filled: set[tuple[int, ...]] = set()
    spread = 0.0
    held = enumerate(shards) if tiling.owner is None else ((tiling.owner, shards[tiling.owner]),)
    for device, shard in held:
        part = tiling.slices(shape, device)
        cropped = shard[tuple(slice(0, size) for size in full[part].shape)]
        if tiling.positions[device] in filled:
            spread = max(spread, _largest_difference(full[part], cropped))
        else:
            filled.add(tiling.positions[device])
            full[part] = cropped
    return full, spread


def _largest_difference(a: np.ndarray, b: np.ndarray) -> float:
    if a.tobytes() == b.tobytes():
        return 0.0
    wide = np.complex128 if np.iscomplexobj(a) else np.float64
    with np.errstate(invalid="ignore"):
        differences = np.abs(a.astype(wide) - b.astype(wide))
    return float(differences.max()) if np.isfinite(differences).all() else float("inf")
