"""Cutting and joining are inverse for every tiling that XLA prints."""

from typing import Any

import numpy as np
import pytest

from autoshard.errors import AutoshardError
from autoshard.xla.tiles import cut, join, tiling_of


def hlo_sharding(text: str) -> Any:
    from jaxlib import xla_client

    return xla_client.HloSharding.from_string(text)


@pytest.mark.parametrize(
    ("sharding", "shape", "tile"),
    [
        ("{replicated}", (4, 6), (4, 6)),
        ("{devices=[4,2]<=[8]}", (4, 6), (1, 3)),
        ("{devices=[2,4]<=[4,2]T(1,0)}", (4, 8), (2, 2)),
        ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", (4, 6), (2, 6)),
        ("{devices=[8,1]0,7,1,6,2,5,3,4}", (16, 3), (2, 3)),
        ("{devices=[8,1]<=[8]}", (12, 3), (2, 3)),
        ("{devices=[1,8]<=[8]}", (3, 9), (3, 2)),
        ("{replicated}", (), ()),
    ],
)
def test_cut_and_join(sharding: str, shape: tuple[int, ...], tile: tuple[int, ...]) -> None:
    """Eight shards of the tile's shape, joined to what was cut, also with padding."""
    tiling = tiling_of(hlo_sharding(sharding), len(shape), 8)
    full = np.random.default_rng(0).standard_normal(shape)
    shards = cut(full, tiling)
    assert [shard.shape for shard in shards] == [tile] * 8
    joined, spread = join(shards, tiling, shape)
    assert (joined == full).all()
    assert spread == 0


def test_copies_that_differ() -> None:
    """The largest difference between copies of a part is told."""
    tiling = tiling_of(hlo_sharding("{devices=[2,1,4]<=[8] last_tile_dim_replicate}"), 2, 8)
    shards = cut(np.zeros((4, 2)), tiling)
    shards[5][0, 1] = 0.25
    assert join(shards, tiling, (4, 2))[1] == 0.25


def test_one_device() -> None:
    """What the others hold means nothing."""
    tiling = tiling_of(hlo_sharding("{maximal device=3}"), 2, 8)
    full = np.ones((4, 2))
    shards = cut(full, tiling)
    shards[0][:] = 7
    joined, spread = join(shards, tiling, (4, 2))
    assert (joined == full).all()
    assert spread == 0


def test_manual_sharding_is_refused() -> None:
    """A sharding that is no tiling cannot be joined."""
    with pytest.raises(AutoshardError, match="not cut into tiles"):
        tiling_of(hlo_sharding("{manual}"), 2, 8)
