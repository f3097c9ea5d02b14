"""Which gathers a chip's SparseCores make, apart from its TensorCores.

XLA:TPU gives them all gathers of rows but those that read rows often (more than `MOST_TIMES` each, on average) of a table that fits into
the memory which a kernel of a TensorCore may use, so says what it logs. Seen of libtpu 0.0.52: on v6e 19,000 rows of a table of 10,000 are
gathered there, 24,000 are not; 131,072 rows of a table of 34.8 MB are, of one of 31.7 MB not; on v5p those of one of 24.6 MB are. A table
that is copied into rows first is for the TensorCore where the copy fits: 16,384 rows of 32 columns of one of 100,000 (25.6 MB) are gathered
there, of 8 columns of one of 250,000 (64 MB) not.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .figures import Count

Ints, Bools = NDArray[np.int64], NDArray[np.bool_]

MOST_TIMES = 2


class SparseCore(Struct, frozen=True, forbid_unknown_fields=True):
    """`[sparse_core]`: that the compiler gathers there; `small_table_mib`: what fits into a kernel's memory."""

    small_table_mib: Count

    def gathers(
        self, table_bytes: Ints, table_elements: Ints, elements: Ints, copied_bytes: Ints | int = 0
    ) -> Bools:
        """Whether that many elements are gathered there, of tables of so many; `copied_bytes`: of copies of these in rows, 0 without."""
        room = self.small_table_mib * 2**20
        is_read_seldom = elements <= MOST_TIMES * table_elements
        return np.where(
            np.greater(copied_bytes, 0), np.greater(copied_bytes, room), (table_bytes > room) | is_read_seldom
        )
