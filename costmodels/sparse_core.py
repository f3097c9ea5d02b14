"""Which gathers a chip's SparseCores make, apart from its TensorCores.

XLA:TPU gives them all gathers of rows but those that read rows often (more than `MOST_TIMES` each, on average) of a table that fits into
the memory which a kernel of a TensorCore may use, so says what it logs. Seen of libtpu 0.0.52: on v6e 19,000 rows of a table of 10,000 are
gathered there, 24,000 are not; 131,072 rows of a table of 34.8 MB are, of one of 31.7 MB not; on v5p those of one of 24.6 MB are.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .figures import Count

Ints = NDArray[np.int64]

MOST_TIMES = 2


class SparseCore(Struct, frozen=True, forbid_unknown_fields=True):
    """`[sparse_core]`: that the compiler gathers there; `small_table_mib`: what fits into a kernel's memory."""

    small_table_mib: Count

    def gathers(self, table_bytes: Ints, table_elements: Ints, elements: Ints) -> NDArray[np.bool_]:
        """Whether that many elements are gathered there, of tables of so many."""
        return (table_bytes > self.small_table_mib * 2**20) | (elements <= MOST_TIMES * table_elements)
