"""Random inputs keep to their ranges and depend on the seed alone."""

import ml_dtypes
import numpy as np

from autoshard.sharding import TensorType
from autoshard.xla.inputs import draw_inputs, nudge
from autoshard.xla.module import Port
from autoshard.xla.ranges import Range


def port(shape: tuple[int, ...], dtype: str) -> Port:
    return Port("x", TensorType(shape, dtype))


def test_ranges_are_kept() -> None:
    """Indices below their bound, counters small and positive, positive floats away from zero, keys of all bits."""
    ports = [
        port((1000,), "i32"),
        port((), "i32"),
        port((1000,), "f32"),
        port((2,), "ui32"),
        port((9,), "i1"),
    ]
    ranges = [Range(below=7), Range(), Range(is_positive=True), Range(), Range()]
    index, counter, positive, key, mask = draw_inputs(ports, ranges, seed=1)
    assert index.min() == 0 and index.max() == 6
    assert 1 <= counter < 4
    assert positive.min() > 0.1
    assert key.dtype == np.uint32
    assert mask.dtype == np.bool_


def test_seed() -> None:
    """The same seed draws the same inputs, another one others."""
    ports, ranges = [port((50,), "bf16"), port((50,), "complex<f32>")], [Range(), Range()]
    first, again, other = (draw_inputs(ports, ranges, seed) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert not any((a == b).all() for a, b in zip(first, other, strict=True))


def test_nudge_moves_floats_by_their_rounding() -> None:
    """Every float moves by one rounding, whole numbers stay."""
    ports = [port((500,), "f32"), port((500,), "bf16"), port((500,), "i32")]
    inputs = draw_inputs(ports, [Range()] * 3, seed=1)
    f32, bf16, i32 = nudge(inputs, ports, [2.0**-7, 2.0**-7, 0.0], seed=2)
    moved = np.abs(f32 / inputs[0] - 1)
    np.testing.assert_allclose(moved, 2.0**-7, rtol=1e-4)
    assert bf16.dtype == ml_dtypes.bfloat16
    assert (bf16 != inputs[1]).mean() > 0.95
    assert (i32 == inputs[2]).all()
