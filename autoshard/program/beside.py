"""Which of two dimensions is beside the lanes, where that differs between what a product makes and what goes back to it (`turned`)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_LANES, _SUBLANES = 128, 8


class Beside(NamedTuple):
    """Where the two lie otherwise.

    What a product makes has the dimension beside the lanes that takes less to be padded to full lanes, the rows where neither does. What
    goes back has the rows, or `is_padded_least` the dimension that takes less to be padded to full tiles.
    """

    batch: int
    rows: int
    is_padded_least: bool

    def holds(self, shapes: NDArray[Any]) -> NDArray[np.bool_]:
        """[K] of shapes [K, rank] that a device has."""
        made, sent = self._are_batches(shapes, _LANES), self._are_batches(shapes, _SUBLANES)
        return made != (sent & self.is_padded_least)

    def is_of_few(self, shape: Sequence[int]) -> bool:
        """Whether it holds where a device has few of the batch of such a shape, and not only of many."""
        return self.is_padded_least and bool(shape[self.rows] % _SUBLANES)

    def _are_batches(self, shapes: NDArray[Any], multiple: int) -> NDArray[np.bool_]:
        batch, rows = shapes[:, self.batch], shapes[:, self.rows]
        return -(-batch // multiple) * multiple * rows < -(-rows // multiple) * multiple * batch
