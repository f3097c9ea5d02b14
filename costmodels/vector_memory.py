"""Which temporary values a compiler keeps in the vector unit's own memory instead of main memory.

XLA:TPU's memory space assignment moves values there that find room for all of their lives, first those that speed the program up most.
Here those come first that take the least room times time; of several simple orders none predicts the memory of compiled programs better.
Lives are half-open intervals of program time.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .figures import Count

Ints = NDArray[np.int64]


class VectorMemory(Struct, frozen=True, forbid_unknown_fields=True):
    """`[vector_memory]`: what of it is left to values, and the tables in main memory with which values are handed to and fro."""

    values_mib: Count
    table_kib: Count  # of each temporary value

    def leaves(self, begin: Ints, end: Ints, bytes: Ints) -> NDArray[np.bool_]:
        """Whether each value stays in main memory; empty ones do."""
        room = self.values_mib * 2**20
        times = np.unique(np.concatenate([begin, end]))
        first, last = np.searchsorted(times, begin), np.searchsorted(times, end)
        held = np.zeros(len(times) + 1, dtype=np.int64)
        stays = np.ones(len(bytes), dtype=np.bool_)
        candidates = np.flatnonzero((begin < end) & (bytes > 0) & (bytes <= room))
        area = bytes[candidates].astype(np.float64) * (end - begin)[candidates]
        for item in candidates[np.lexsort((end[candidates], begin[candidates], area))]:
            alive = held[first[item] : last[item]]
            if int(alive.max()) + int(bytes[item]) <= room:
                alive += bytes[item]
                stays[item] = False
        return stays

    def tables_bytes(self, values: int) -> int:
        return values * self.table_kib * 2**10
