"""Shardings as small numbers, one numbering per rank, so that tables over them are array look-ups."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from autoshard.problem.model import Bools
from autoshard.sharding import AxisRef, TensorSharding, TensorType, dtype_bits

Ints = NDArray[np.int64]


class Layouts:
    """Numbers the shardings of one rank in the order of first sight, and knows how far each splits each dimension."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.shardings: list[TensorSharding] = []
        self._ids: dict[TensorSharding, int] = {}
        self._partial: list[int] = []  # those of addends of a sum
        self._divisors: Ints | None = None

    def id_of(self, sharding: TensorSharding) -> int:
        found = self._ids.get(sharding)
        if found is None:
            found = self._ids[sharding] = len(self.shardings)
            self.shardings.append(sharding)
            self._divisors = None
            if sharding.unreduced:
                self._partial.append(found)
        return found

    def ids_of(self, shardings: Iterable[TensorSharding]) -> Ints:
        return np.asarray([self.id_of(sharding) for sharding in shardings], dtype=np.int64)

    def local_bytes(self, type_: TensorType, ids: Ints | None = None) -> Ints:
        """Bytes on one device, uneven shards included, under each sharding (`ids`, or all seen so far)."""
        elements = np.prod(self.local_shapes(type_, ids), axis=1, dtype=np.int64)
        return (elements * dtype_bits(type_.dtype) + 7) // 8

    def local_shapes(self, type_: TensorType, ids: Ints | None = None) -> Ints:
        """[sharding, dimension] sizes on one device; a dimension that does not divide is padded up."""
        divisors = self.divisors() if ids is None else self.divisors()[ids]
        return -(-np.asarray(type_.shape, dtype=np.int64) // divisors)

    def divide(self, type_: TensorType, ids: Ints) -> Bools:
        """Of each sharding, whether it splits every dimension into equal parts."""
        return (np.asarray(type_.shape, dtype=np.int64) % self.divisors()[ids] == 0).all(axis=1)

    def divisors(self) -> Ints:
        """[sharding, dimension] into how many parts each is split."""
        if self._divisors is None:
            rows = [[dim.num_shards for dim in sharding.dims] for sharding in self.shardings]
            self._divisors = np.asarray(rows, dtype=np.int64).reshape(len(rows), self.rank)
        return self._divisors

    def can_become(self, origins: Ints, targets: Ints) -> Bools:
        """[from, to] whether Shardy reshards one to the other: no axis is added to those that a value is unreduced over already."""
        before, after = (self._unreduced(ids) for ids in (origins, targets))
        if not any(before) or not any(after):
            return np.ones((len(origins), len(targets)), dtype=np.bool_)
        return np.asarray([[not a or b <= a for b in after] for a in before], dtype=np.bool_)

    def are_slices(self, origins: Ints, targets: Ints) -> Bools:
        """[from, to] whether a device needs nothing but a part of its own shard."""
        before, after = ([self.shardings[i].axes for i in ids.tolist()] for ids in (origins, targets))
        found = [
            [a != b and all(d[: len(c)] == c for c, d in zip(a, b, strict=True)) for b in after]
            for a in before
        ]
        return np.asarray(found, dtype=np.bool_).reshape(len(before), len(after))

    def reduced(self, ids: Ints) -> Ints:
        """The same splits of what is summed."""
        found = ids.copy()
        for layout in [one for one in self._partial if one in ids]:
            found[ids == layout] = self.id_of(self.shardings[layout].summed())
        return found

    def _unreduced(self, ids: Ints) -> list[frozenset[AxisRef]]:
        return [frozenset(self.shardings[layout].unreduced) for layout in ids]


class LayoutsByRank(dict[int, Layouts]):
    def __missing__(self, rank: int) -> Layouts:
        self[rank] = Layouts(rank)
        return self[rank]
