"""How many bytes a tensor takes in memory that is laid out in tiles of its two minor dimensions.

A compiler chooses the dimensions that are minor, and among those that it may choose the smallest total; the other dimensions cost
nothing extra. Memory without tiles stores the elements and no more.
"""

import itertools
from collections.abc import Collection
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .figures import Count, Share
from .heap import alive_bytes, gap_bytes

MinorPair = tuple[Collection[int], Collection[int]] | tuple[Collection[int], Collection[int], bool]
"""Dimensions of which the two minor ones must be: one of the first kind and one of the second, in either order unless the third says that
the first is minor to the second."""


class Tiles(Struct, frozen=True, forbid_unknown_fields=True):
    """`[tiles]`: `lanes` elements of the minor dimension by `sublanes` of the next; fewer rows fill a tile of the next power of two.

    Elements below `word_bits` are packed along the rows, so that a tile has at least as many rows as fill a word. Temporary buffers
    share a heap, whose size exceeds what is alive in it by a part `heap_slack`: buffers of different lifetimes leave gaps.
    """

    lanes: Count
    sublanes: Count
    word_bits: Count
    heap_slack: Share

    def stored_bytes(
        self, shapes: NDArray[Any], element_bits: int, minor: MinorPair | None = None
    ) -> NDArray[np.int64]:
        """Bytes of tensors of these shapes (one a row), in the smallest layout with the minor dimensions of one of the `minor` kinds.

        A kind that is empty, or None for both, is any dimension.
        """
        count, rank = shapes.shape
        packed = max(1, self.word_bits // max(element_bits, 1))
        if rank == 0:
            return untiled_bytes(shapes, element_bits)
        elements = np.prod(shapes, axis=1, dtype=np.int64)
        smallest = np.full(count, np.iinfo(np.int64).max)
        for lane, row in _pairs(rank, minor):
            lanes = _up(shapes[:, lane], self.lanes if rank > 1 else self.lanes * packed)
            rows = shapes[:, row] if rank > 1 else np.ones(count, dtype=np.int64)
            held = lanes * (_up(rows, self._rows(rows, packed)) if rank > 1 else rows)
            others = elements // np.maximum(shapes[:, lane] * rows, 1)
            smallest = np.minimum(smallest, others * held)
        return np.where(elements == 0, 0, (smallest * element_bits + 7) // 8)

    def with_gaps(self, bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """What temporary buffers of these bytes make of the heap."""
        return bytes + np.floor(bytes * self.heap_slack).astype(np.int64)

    def more_gaps(self, begin: NDArray[np.int64], end: NDArray[np.int64], bytes: NDArray[np.int64]) -> int:
        """What gaps take beyond `heap_slack`, which is in the bytes, where temporary buffers of these lives are placed one by one."""
        alive, gaps = alive_bytes(begin, end, bytes), gap_bytes(begin, end, bytes)
        return max(int((alive + gaps) / (1 + self.heap_slack)) - alive, 0)

    def _rows(self, rows: NDArray[Any], packed: int) -> NDArray[np.int64]:
        """Rows of the tile: all of them, or the power of two that holds fewer."""
        full = max(self.sublanes, packed)
        power = 2 ** np.ceil(np.log2(np.clip(rows, 1, full))).astype(np.int64)
        return np.clip(power, packed, full)


def _pairs(rank: int, minor: MinorPair | None) -> list[tuple[int, int]]:
    """(minor, second minor) of every layout that is allowed."""
    if rank == 1:
        return [(0, 0)]
    first, second = ([*kind] or [*range(rank)] for kind in (minor or ((), ()))[:2])
    is_ordered = minor is not None and len(minor) > 2 and minor[2]
    chosen = [
        *itertools.product(first, second),
        *(itertools.product(second, first) if not is_ordered else ()),
    ]
    return sorted({(a, b) for a, b in chosen if a != b}) or [*itertools.permutations(range(rank), 2)]


def _up(sizes: NDArray[Any], tile: int | NDArray[Any]) -> NDArray[np.int64]:
    return -(-sizes // tile) * tile


def untiled_bytes(shapes: NDArray[Any], element_bits: int) -> NDArray[np.int64]:
    """Bytes of the elements alone."""
    return (np.prod(shapes, axis=1, dtype=np.int64) * element_bits + 7) // 8
