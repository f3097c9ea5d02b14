"""Random inputs for `main`: small normal floats, positive ones where needed, indices within range."""

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from autoshard.sharding import TensorType
from autoshard.xla.dtypes import is_complex, is_float, is_integer, numpy_dtype
from autoshard.xla.module import Port
from autoshard.xla.ranges import Range

FLOAT_SCALE = 0.3  # deep programs do not overflow, and updates stay large against the rounding of weights
COUNTER_BELOW = 4  # integer scalars that index nothing are counters: 1, 2 or 3
INTEGER_BELOW = 8


def draw_inputs(arguments: Sequence[Port], ranges: Sequence[Range], seed: int) -> list[np.ndarray]:
    """One array for each argument of `main`, the same for the same seed."""
    generator = np.random.default_rng(seed)
    return [_draw(port.type, range_, generator) for port, range_ in zip(arguments, ranges, strict=True)]


def _draw(type_: TensorType, range_: Range, generator: np.random.Generator) -> np.ndarray:
    shape, element = type_.shape, type_.dtype
    dtype = numpy_dtype(element)
    if element == "i1":
        return (
            generator.random(shape) < 0.75
        )  # a mask that hides most of what it could leaves nothing to compare
    if element == "ui32" and shape[-1:] in ((2,), (4,)) and range_.below is None:
        return generator.integers(0, 2**32, shape, np.uint32)  # a random generator's key
    if is_integer(element):
        return _integers(shape, range_, dtype, generator).astype(dtype)
    if is_complex(element):
        parts = generator.standard_normal((2, *shape), np.float32) * FLOAT_SCALE
        return np.asarray(parts[0] + 1j * parts[1]).astype(dtype)
    assert is_float(element), element
    if range_.is_positive:  # away from zero: it may be divided by
        return (FLOAT_SCALE * (0.5 + generator.random(shape, np.float32))).astype(dtype)
    return (FLOAT_SCALE * generator.standard_normal(shape, np.float32)).astype(dtype)


def _integers(
    shape: tuple[int, ...], range_: Range, dtype: np.dtype, generator: np.random.Generator
) -> np.ndarray:
    if range_.below is not None:
        return generator.integers(0, range_.below, shape, np.int64)
    if not shape:
        return generator.integers(1, COUNTER_BELOW, shape, np.int64)
    return generator.integers(0, min(INTEGER_BELOW, int(ml_dtypes.iinfo(dtype).max) + 1), shape, np.int64)


def nudge(
    inputs: Sequence[np.ndarray], arguments: Sequence[Port], roundings: Sequence[float], seed: int
) -> list[np.ndarray]:
    """The same inputs, each number moved by its argument's relative rounding: what that does to results is noise."""
    generator = np.random.default_rng(seed)
    return [
        _nudge(x, port.type.dtype, relative, generator)
        for x, port, relative in zip(inputs, arguments, roundings, strict=True)
    ]


def _nudge(x: np.ndarray, element: str, relative: float, generator: np.random.Generator) -> np.ndarray:
    if not (is_float(element) or is_complex(element)):
        return x
    signs = 2 * generator.integers(0, 2, x.shape, np.int8) - 1
    wide = x if is_complex(element) or element == "f64" else x.astype(np.float32)
    return np.asarray(wide + wide * (relative * signs.astype(wide.dtype))).astype(x.dtype)
