"""Bytes of tensors in memory that is laid out in tiles."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import costmodels
from costmodels import HardwareError
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


@given(st.tuples(*[st.integers(1, 300)] * 3), st.sampled_from([8, 16, 32]))
def test_paired_dimensions_are_each_with_their_own(shape: tuple[int, ...], bits: int) -> None:
    """Whichever of the two layouts takes less, and no third one."""
    pairs = [
        stored(shape, bits, ((lanes,), (rows,), True)) for lanes, rows in ((2, 1), (1, 0)) if shape[lanes] > 1
    ]
    if len(pairs) > 1:  # where a kind has one element only, any may be minor
        assert stored(shape, bits, ((2, 1), (1, 0), "paired")) == min(pairs)


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


def test_slices_of_one_element_lie_flat() -> None:
    """Rows of one column, asked for along the lanes, take no lanes for each; rows of two do."""
    rows = ((1,), (0,), True)
    assert stored((4096, 1), 32, rows) == 4096 * 4
    assert stored((4096, 2), 32, rows) == 4096 * 128 * 4
    assert stored((4096, 1), 32, ((1,), (0,))) == 4096 * 4


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((16, 256, 2048), 256 * 2048 * 2),
        ((8, 256, 2048), 256 * 2048),
        ((24, 256, 2048), 256 * 2048 * 4),
        ((33, 256, 2048), 0),
        ((1, 4096, 2048), 0),
        ((64, 32, 2048), 0),
        ((4, 16, 64, 2048), 4 * 64 * 2048 * 2),
        ((64, 8, 8, 2048), 64 * 8 * 2048),
        ((16, 2048), 0),
    ],
)
def test_packed_comparisons(shape: tuple[int, ...], expected: int) -> None:
    """The words that XLA:TPU (libtpu 0.0.52) makes of comparisons of these shapes, seen in its modules for v5e 8x8."""
    assert TPU.comparison_bytes(np.asarray([shape])).tolist() == [expected]


@pytest.mark.parametrize(
    ("shape", "minor", "expected"),
    [
        ((256, 64, 28, 28), ((1,), (0,), False), 256 * 64 * 28 * 4),  # images: channels and images are minor
        ((32, 64, 56, 56), ((1,), (0,), False), 0),
        ((32, 56, 56, 64), ((3,), (0,), False), 0),
        (
            (8, 512, 2048),
            ((2,), (0, 1), False),
            512 * 2048,
        ),  # rows in two dimensions: as if nothing were known
    ],
)
def test_packed_comparisons_of_images(shape: tuple[int, ...], minor: MinorPair, expected: int) -> None:
    """Seen in what XLA:TPU (libtpu 0.0.52) compiles for v5e of convolutions of float32 with rectifiers."""
    assert TPU.comparison_bytes(np.asarray([shape]), minor).tolist() == [expected]


@pytest.mark.parametrize("name", ["tpu-v5e", "h100"])
@pytest.mark.parametrize(
    ("shapes", "bits", "expected"),
    [
        ([[3, -5]], 16, "a dimension of -5"),
        ([[3.5, 5]], 16, "a dimension of 3.5"),
        ([[math.nan, 5]], 16, "a dimension of nan"),
        ([[3, 5]], 0, "element_bits is 0"),
        ([[3, 5]], -8, "element_bits is -8"),
        ([[3, 5]], "16", "element_bits is '16'"),
        ([3, 5], 16, r"shapes is \[3, 5\]"),
        (np.array([3, 5]), 16, r"shapes is array\(\[3, 5\]\)"),
        (np.zeros((2, 2, 2)), 16, "shapes is array"),
        ([[3, 5], [3]], 16, r"shapes is \[\[3, 5\], \[3\]\]"),
        ([["3", "5"]], 16, "shapes is"),
        ("3x5", 16, "shapes is '3x5'"),
        ([[2**40, 2**40]], 16, r"a tensor of 2.418e\+24 bytes"),
    ],
)
def test_no_shapes(name: str, shapes: Any, bits: Any, expected: str) -> None:
    """Nonsense is not stored in 0 bytes, and no bare error of arrays comes of it."""
    with pytest.raises(HardwareError, match=expected) as caught:
        costmodels.load(name).stored_bytes(shapes, bits)
    assert caught.value.fix


@pytest.mark.parametrize("name", ["tpu-v5e", "h100"])
def test_shapes_however_they_are_written(name: str) -> None:
    """Lists, tuples and whole numbers of any type are an array's; no elements take no bytes, and a scalar's take some."""
    hardware = costmodels.load(name)
    shapes = np.array([[50257, 1024], [197, 197], [3, 0]])
    expected = hardware.stored_bytes(shapes, 16).tolist()
    assert expected[2] == 0
    for same in (
        shapes.tolist(),
        tuple(map(tuple, shapes.tolist())),
        shapes.astype(np.float64),
        shapes.astype(np.uint8) * 0 + shapes,
    ):
        assert hardware.stored_bytes(same, 16).tolist() == expected
    assert hardware.stored_bytes([], 16).tolist() == []
    assert hardware.stored_bytes([[]], 16).tolist() == [2]


def test_only_tpus_have_tiles() -> None:
    """Memory without tiles holds the elements alone, and no gaps are known of it."""
    shapes = np.asarray([[3, 5]])
    assert costmodels.load("h100").stored_bytes(shapes, 32, is_temporary=True) == 60
    assert costmodels.load("tpu-v5e").stored_bytes(shapes, 32) == 4 * 128 * 4
    assert costmodels.load("tpu-v5e").stored_bytes(shapes, 32, is_temporary=True) == 2048 + 122


@pytest.mark.parametrize(
    ("shape", "dim", "devices", "bits", "minor", "sent"),
    [
        ((2048, 2048), 0, 4, 16, None, (2112, 2048)),
        ((2048, 2048), 1, 4, 16, None, (2048, 2048)),
        ((16384, 1024), 0, 4, 16, None, (16416, 1024)),
        ((32768, 1024), 0, 8, 16, None, (33152, 1024)),
        ((4096, 1024), 0, 4, 32, None, (4128, 1024)),
        ((16384, 256), 0, 4, 32, None, (16416, 256)),
        ((1000, 256), 0, 4, 16, None, (1024, 256)),
        ((1056, 2048), 0, 4, 32, None, (1088, 2048)),
        ((3040, 2048), 0, 4, 16, None, (3072, 2048)),
        ((6432, 1024), 0, 4, 32, None, (6528, 1024)),
        ((8016, 2048), 0, 16, 16, None, (8448, 2048)),
        ((24864, 640), 0, 4, 16, None, (25344, 640)),
        ((65536, 64), 0, 4, 32, ((1,), (0,), True), (65600, 64)),
        ((65536, 64), 1, 4, 32, ((0,), (1,), True), (65536, 64)),
        ((3072, 192), 0, 4, 16, None, (3072, 192)),
        ((16, 1024, 1024), 0, 4, 16, ((1,), (2,)), (16416, 8, 128)),
        ((16, 1024, 512), 2, 4, 16, None, (16, 1024, 512)),
        ((64, 12, 512, 512), 0, 4, 16, ((2,), (3,)), (196992, 8, 128)),
        ((16, 12, 1500, 1500), 0, 4, 16, ((2,), (3,)), (434112, 8, 128)),
        ((512, 256, 96), 0, 8, 16, ((0, 1), (2,)), (12288, 8, 128)),
        ((32, 32, 32, 64), 1, 4, 32, ((0,), (3,)), (4104, 8, 64)),
    ],
)
def test_scattered_sums_go_in_equal_chunks(
    shape: tuple[int, ...],
    dim: int,
    devices: int,
    bits: int,
    minor: MinorPair | None,
    sent: tuple[int, ...],
) -> None:
    """What libtpu 0.0.51 for v5e 4x4 reduces in the place of a sum of this shape, of which devices keep parts along a dimension."""
    tiles = replace(TPU, scattered_tiles=3650)
    part, _ = tiles.scattered_part(shape, dim, devices, bits, minor)
    assert part * devices == math.prod(sent) * bits // 8


@pytest.mark.parametrize(
    ("shape", "bits", "sent"),
    [
        ((8192, 8192), 32, (8640, 8192)),
        ((16, 4, 1024, 1024, 4), 32, (262880, 8, 128)),
        ((2048, 8192), 32, (2048, 8192)),
        ((64, 100, 3072), 32, (19968, 8, 128)),
    ],
)
def test_scattered_sums_of_v6e(shape: tuple[int, ...], bits: int, sent: tuple[int, ...]) -> None:
    """The same of 8 devices of v6e 2x4, rows of float32."""
    tiles = costmodels.load("tpu-v6e").tiles
    assert tiles is not None
    minor = None if len(shape) == 2 else ((1,), (2,)) if len(shape) == 3 else ((2,), (3,))
    part, _ = tiles.scattered_part(shape, 0, 8, bits, minor)
    assert part * 8 == math.prod(sent) * bits // 8


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((4 * 2003 * 8, 128), 2020 * 8),
        ((4 * 2003 * 8, 256), 2016 * 8),
        ((4 * 250 * 8, 384), 256 * 8),
        ((4 * 251 * 8, 1024), 260 * 8),
        ((4 * 3001, 8, 128), 3024),
        ((4 * 10007, 8, 128), 10032),
    ],
)
def test_scattered_sums_of_a_square(shape: tuple[int, ...], rows: int) -> None:
    """What libtpu 0.0.52 for v5p 2x2x4 reduces over four devices that are two by two: rows of a part, bfloat16."""
    tiles = costmodels.load("tpu-v5p").tiles
    assert tiles is not None
    minor = None if len(shape) == 2 else ((2,), (1,))
    part, _ = tiles.scattered_part(shape, 0, 4, 16, minor, ways=2)
    assert part == rows * math.prod(shape[1:]) * 2


def test_what_is_added_to_parts_is_told() -> None:
    """Rows beyond those of a matrix; of more dimensions whole tiles beyond those that hold the part."""
    tiles = replace(TPU, scattered_tiles=3650)
    assert tiles.scattered_part((2048, 2048), 0, 4, 16) == (528 * 2048 * 2, 16 * 2048 * 2)
    assert tiles.scattered_part((16, 100, 3072), 0, 4, 32, ((1,), (2,))) == (1248 * 4096, 0)
    assert TPU.scattered_part((2048, 2048), 0, 4, 16) == (512 * 2048 * 2, 0)


def test_nothing_is_added_to_parts_without_elements() -> None:
    tiles = replace(TPU, scattered_tiles=3650)
    assert tiles.scattered_part((64, 8, 0, 8), 0, 4, 32) == (0, 0)


@pytest.mark.parametrize(
    ("chip", "rows", "columns", "is_copied"),
    [
        ("tpu-v5e", 1_660_000, 32, True),
        ("tpu-v5e", 1_680_000, 32, False),
        ("tpu-v5e", 1_700_000, 64, True),
        ("tpu-v5e", 1_685_000, 16, False),
        ("tpu-v6e", 3_250_000, 32, True),
        ("tpu-v6e", 3_380_000, 32, False),
        ("tpu-v5p", 8_000_000, 32, True),
        ("tpu-v5e", 1_000_000, 128, False),
    ],
)
def test_copies_in_rows_of_lanes_as_compiled(chip: str, rows: int, columns: int, is_copied: bool) -> None:
    """No copy of a table that would take a twentieth of the memory and more than twice the table, or that lies so anyway."""
    shapes = np.asarray([[rows, columns]])
    (found,) = costmodels.load(chip).copied_bytes(shapes, 32, ((1,), (0,), True))
    assert (found > 0) == is_copied


@pytest.mark.parametrize(
    ("slices", "rows", "columns", "bits", "is_made"),
    [
        (16_384, 3_980_000, 2, 16, True),
        (16_384, 4_000_000, 2, 16, False),
        (16_384, 4_000_000, 4, 16, True),
        (16_384, 4_500_000, 4, 16, False),
        (16_384, 3_900_000, 2, 32, True),
        (16_384, 4_000_000, 2, 32, False),
        (16_384, 4_800_000, 32, 32, True),
        (16_384, 5_400_000, 32, 32, False),
        (16_384, 9_000_000, 64, 32, True),  # twice as much is not far
        (4096, 900_000, 2, 32, True),
        (4096, 1_000_000, 2, 32, False),
        (1024, 260_000, 2, 32, True),  # 128 MiB
        (65_536, 8_000_000, 32, 32, True),
    ],
)
def test_copies_to_scatter_into(slices: int, rows: int, columns: int, bits: int, *, is_made: bool) -> None:
    """As libtpu 0.0.52 makes them for v5p, whose memory is large enough for all."""
    (found,) = costmodels.load("tpu-v5p").copied_bytes(
        np.asarray([[rows, columns]]), bits, ((1,), (0,), True), slices=np.asarray([slices])
    )
    assert (found > 0) == is_made


@pytest.mark.parametrize(
    ("rows", "columns", "bits", "is_copied"),
    [
        (300_000, 64, 32, True),
        (300_000, 100, 32, True),
        (1_700_000, 64, 32, True),
        (250_000, 16, 32, True),
        (400_000, 32, 32, False),
        (1_000_000, 16, 32, False),
        (1_700_000, 64, 16, True),
        (300_000, 128, 32, False),
    ],
)
def test_copies_that_rows_are_gathered_from(rows: int, columns: int, bits: int, is_copied: bool) -> None:
    """As libtpu 0.0.51 makes them: none where that pads by more than 128 MiB and to more than twice the table."""
    (found,) = costmodels.load("tpu-v5e").copied_bytes(
        np.asarray([[rows, columns]]), bits, ((1,), (0,), True), is_read=True
    )
    assert (found > 0) == is_copied


@pytest.mark.parametrize(
    ("hardware", "part", "is_turned", "expected"),
    [
        ("tpu-v5p", (256, 14336), True, False),
        ("tpu-v5p", (4096, 896), True, False),
        ("tpu-v5p", (256, 14336), False, True),
        ("tpu-v5p", (4096, 896), False, True),
        ("tpu-v6e", (256, 14336), True, False),
        ("tpu-v6e", (4096, 896), True, True),
        ("tpu-v6e", (256, 14336), False, True),
        ("tpu-v6e", (4096, 896), False, False),
        ("tpu-v6e", (144, 14336), True, True),
        ("tpu-v6e", (4096, 900), False, True),
    ],
)
def test_parts_that_lie_as_what_they_update(
    hardware: str, part: tuple[int, int], is_turned: bool, expected: bool
) -> None:
    """Seen of perceptrons whose weights are split over 16 devices by rows and by columns, JAX's (turned) and torch's."""
    whole = tuple(max(size, full) for size, full in zip(part, (4096, 14336), strict=True))
    found = costmodels.load(hardware).are_updated_as_made(np.asarray([part]), whole, is_turned=is_turned)
    assert found.tolist() == [expected]
