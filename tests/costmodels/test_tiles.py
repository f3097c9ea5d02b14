"""Bytes of tensors in memory that is laid out in tiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodels
from costmodels.tiles import MinorPair, Tiles

TPU = Tiles(lanes=128, sublanes=8, word_bits=32, heap_slack=0.06)


def stored(shape: tuple[int, ...], bits: int, minor: MinorPair | None = None) -> int:
    return int(TPU.stored_bytes(np.asarray([shape], dtype=np.int64).reshape(1, len(shape)), bits, minor)[0])


@pytest.mark.parametrize(
    ("shape", "bits", "expected"),
    [
        ((50257, 1024), 32, 50264 * 1024 * 4),
        ((50257, 64), 32, 64 * 50304 * 4),
        ((32, 1024, 50257), 16, 32 * 1024 * 50257 * 2),
        ((256, 1000), 16, 256 * 1000 * 2),
        ((32, 16), 32, 16 * 128 * 4),
        ((2, 2880), 16, 2 * 2944 * 2),
        ((8, 1, 8192), 8, 8 * 8192),
        ((1, 1, 1, 64), 32, 128 * 4),
        ((1000,), 32, 1024 * 4),
        ((64,), 16, 256 * 2),
        ((), 32, 4),
    ],
)
def test_sizes_of_arguments(shape: tuple[int, ...], bits: int, expected: int) -> None:
    """What XLA:TPU gives arguments of these shapes: the two dimensions that pad least are minor."""
    assert stored(shape, bits) == expected


def test_minor_dimensions_that_are_not_free() -> None:
    """Attention scores of 197 positions pad both of them where neither batch nor heads can be minor: 419 MB for 318."""
    assert stored((256, 16, 197, 197), 16, ((2,), (3,))) == 256 * 16 * 200 * 256 * 2
    assert stored((256, 16, 197, 197), 16) == 256 * 16 * 197 * 197 * 2


def test_lanes_that_are_given() -> None:
    """Rows of four columns that are looked up take 128 lanes each; in either order they take no more than their elements."""
    assert stored((524288, 4), 32, ((1,), (0,), True)) == 524288 * 128 * 4
    assert stored((524288, 4), 32, ((1,), (0,))) == stored((524288, 4), 32) == 524288 * 4 * 4


@given(st.lists(st.integers(1, 300), min_size=1, max_size=4), st.sampled_from((8, 16, 32, 64)))
def test_laws(shape: list[int], bits: int) -> None:
    """Never fewer bytes than the elements, more room never less, and the choice of layout never worse than a given one."""
    found = stored(tuple(shape), bits)
    assert found >= np.prod(shape) * bits // 8
    assert stored((*shape[:-1], shape[-1] + 1), bits) >= found
    if len(shape) > 1:
        assert found <= stored(tuple(shape), bits, ((len(shape) - 1,), (len(shape) - 2,)))


def test_only_tpus_have_tiles() -> None:
    """Memory without tiles holds the elements alone, and no gaps are known of it."""
    shapes = np.asarray([[3, 5]])
    assert costmodels.load("h100").stored_bytes(shapes, 32, is_temporary=True) == 60
    assert costmodels.load("tpu-v5e").stored_bytes(shapes, 32) == 4 * 128 * 4
    assert costmodels.load("tpu-v5e").stored_bytes(shapes, 32, is_temporary=True) == 2048 + 122
