"""Which temporary values a compiler keeps in the vector unit's own memory instead of main memory.

XLA:TPU's memory space assignment moves values there that find room for all of their lives, first those that speed the program up most.
Here those come first that take the least room times time; of several simple orders none predicts the memory of compiled programs better.
Lives are half-open intervals of program time. What waits long is handed out to main memory: activations that wait for the backward pass.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .figures import Count

Ints = NDArray[np.int64]

LARGEST_PART = 2
"""What a loop uses in every trip takes at most one in so many parts: of values of up to 8 MiB in loops libtpu 0.0.51 for v5e, which has
112 MiB, keeps nine in ten here, of up to 64 MiB half, of more none (two recurrent networks' training steps, 44 plans)."""

LONGEST_COPIES = 8
"""What waits for longer than so many copies of the whole memory take stays out: a flag of libtpu 0.0.51, which counts in its own times."""

SCHEDULED_PRODUCT = 4
"""How long a product takes by the compiler's own times, which it makes before tiles are chosen, of the least it can take; what streams
takes as long as its bytes do. Of 31 compiled training steps of 0.3 to 1.2 GB a device 24 take within 10 % of what is predicted, 23 if
products take no longer, 20 with 8; of 42 plans of programs of real size 35 each. Two copies by least times: 21 and 33 (and of 109 older
plans of real size 92, 86 with 8)."""


class VectorMemory(Struct, frozen=True, forbid_unknown_fields=True):
    """`[vector_memory]`: what of it is left to values, and the tables in main memory with which values are handed to and fro."""

    values_mib: Count
    table_kib: Count  # of each temporary value

    def holds_for_ns(self, bytes_per_s: float) -> float:
        """How long a value waits here at most, beside a main memory of that bandwidth."""
        return LONGEST_COPIES * self.values_mib * 2**20 / bytes_per_s * 1e9

    def waiting_ns(self, product_ns: float, memory_ns: float) -> float:
        """How long values wait for a kernel, by the least times of its product and of what it moves."""
        return max(SCHEDULED_PRODUCT * product_ns, memory_ns)

    def leaves(self, begin: Ints, end: Ints, bytes: Ints, is_long: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether each value stays in main memory; empty ones do, and what waits too long."""
        room = self.values_mib * 2**20
        times = np.unique(np.concatenate([begin, end]))
        first, last = np.searchsorted(times, begin), np.searchsorted(times, end)
        held = np.zeros(len(times) + 1, dtype=np.int64)
        stays = np.ones(len(bytes), dtype=np.bool_)
        candidates = np.flatnonzero((begin < end) & (bytes > 0) & (bytes <= room) & ~is_long)
        area = bytes[candidates].astype(np.float64) * (end - begin)[candidates]
        for item in candidates[np.lexsort((end[candidates], begin[candidates], area))]:
            alive = held[first[item] : last[item]]
            if int(alive.max()) + int(bytes[item]) <= room:
                alive += bytes[item]
                stays[item] = False
        return stays

    def keeps(self, bytes: int, together: int) -> bool:
        """Whether a value of a loop stays here from trip to trip, where all that does takes no less than `together`."""
        room = self.values_mib * 2**20
        return bytes * LARGEST_PART <= room and together <= room

    def tables_bytes(self, values: int) -> int:
        return values * self.table_kib * 2**10
