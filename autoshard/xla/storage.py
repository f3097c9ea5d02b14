"""Arrays as files of raw bytes: numpy's own format forgets the types of `ml_dtypes`."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from autoshard.sharding import TensorType
from autoshard.xla.dtypes import numpy_dtype


def save_all(folder: Path, arrays: Sequence[np.ndarray]) -> None:
    folder.mkdir(parents=True)
    for i, array in enumerate(arrays):
        np.ascontiguousarray(array).tofile(folder / str(i))


def load_all(folder: Path, types: Sequence[TensorType]) -> list[np.ndarray]:
    return [
        np.fromfile(folder / str(i), numpy_dtype(type_.dtype)).reshape(type_.shape)
        for i, type_ in enumerate(types)
    ]
