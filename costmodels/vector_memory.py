"""Which temporary values a compiler keeps in the vector unit's own memory instead of main memory.

XLA:TPU's memory space assignment moves values there that find room for all of their lives, first those that speed the program up most by
the square root of their bytes (`xla_tpu_alternate_memory_benefit_scaling_factor_for_large_buffers`): what is read and written by kernels
that wait for memory. Lives are half-open intervals of program time. What waits long between two reads is handed out to main memory:
activations that wait for the backward pass. Of 28 training steps that libtpu 0.0.51 compiled for v5e this tells, from the values' own
sizes and times there, what takes main memory at the peak within 5 % for 26, and of twelve for v6e for eight (the others 6 to 12 % under).
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .figures import Count, Ratio

Ints = NDArray[np.int64]

LARGEST_PART = 2
"""What a loop uses in every trip takes at most one in so many parts: of values of up to 8 MiB in loops libtpu 0.0.51 for v5e, which has
112 MiB, keeps nine in ten here, of up to 64 MiB half, of more none (two recurrent networks' training steps, 44 plans)."""

LONGEST_COPIES = 8
"""What waits between two reads for longer than so many copies of the whole memory take stays out: a flag of libtpu 0.0.51
(`xla_msa_max_overlap_to_mem_size_async_copy_ratio`), which counts in its own times. On v5e a value waits for 27 sums over 32 MiB and not
for 28 (1.107 and 1.148 ms at the profile's bandwidth; eight copies of 112 MiB take 1.147), on v6e for 22 and not for 26 (0.45 and 0.53 ms;
eight copies of 96 MiB take 0.491)."""

ROUNDING = 1e-9
"""What floating point may make of a time: sums of copies of powers of two come to whole numbers of copies, and must not depend on what
else has been added."""


class VectorMemory(Struct, frozen=True, forbid_unknown_fields=True):
    """`[vector_memory]`: what of it is left to values."""

    values_mib: Count
    product_ratio: Ratio = 1.0  # of a product's time by the compiler's own times to its least
    leaves_products: bool | None = None
    """In main memory, copies and collectives too: all but what other kernels make."""

    def holds_for_ns(self, bytes_per_s: float) -> float:
        """How long a value waits here at most, beside a main memory of that bandwidth; as long as that by times added up in any order."""
        return LONGEST_COPIES * self.values_mib * 2**20 / bytes_per_s * 1e9 * (1 + ROUNDING)

    def leaves(
        self,
        begin: Ints,
        end: Ints,
        bytes: Ints,
        is_long: NDArray[np.bool_],
        saved_ns: NDArray[np.float64],
    ) -> NDArray[np.bool_]:
        """Whether each value stays in main memory; empty ones do, and what waits too long. `saved_ns`: what it saves here.

        Of those that save as much the earlier comes first, of the same life the smaller, whatever the order of the arguments.
        """
        room = self.values_mib * 2**20
        times = np.unique(np.concatenate([begin, end]))
        first, last = np.searchsorted(times, begin), np.searchsorted(times, end)
        held = np.zeros(len(times) + 1, dtype=np.int64)
        stays = np.ones(len(bytes), dtype=np.bool_)
        candidates = np.flatnonzero((begin < end) & (bytes > 0) & (bytes <= room) & ~is_long)
        worth = saved_ns[candidates] / np.sqrt(bytes[candidates])
        ties = bytes[candidates], end[candidates], begin[candidates]
        for item in candidates[np.lexsort((*ties, -worth))]:
            alive = held[first[item] : last[item]]
            if int(alive.max()) + int(bytes[item]) <= room:
                alive += bytes[item]
                stays[item] = False
        return stays

    def keeps(self, bytes: int, together: int) -> bool:
        """Whether a value of a loop stays here from trip to trip, where all that does takes no less than `together`."""
        room = self.values_mib * 2**20
        return not self.leaves_products and bytes * LARGEST_PART <= room and together <= room
