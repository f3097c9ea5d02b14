"""Laying meshes on shapes, checked against the device numbers themselves."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels import HardwareError, load
from costmodels.topology import Axis, Piece, Placement, lay, merged

V5E = load("tpu-v5e")

sizes = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3)


def devices_of_pieces(pieces: tuple[Piece, ...], shape: list[int]) -> set[int]:
    """Numbers of the devices that the group of device 0 covers, from its pieces."""
    numbers = np.arange(math.prod(shape)).reshape(shape)
    index: list[list[int]] = [[0] for _ in shape]
    for piece in pieces:
        steps = [piece.stride * step for step in range(piece.length)]
        index[piece.dimension] = [a + b for a in index[piece.dimension] for b in steps]
    return set(numbers[np.ix_(*index)].flatten().tolist())


@given(sizes, sizes, st.data())
def test_pieces_are_the_devices_of_the_group(mesh: list[int], shape: list[int], data: st.DataObject) -> None:
    """A sub-axis covers the devices that row-major numbering gives its group, or those of several groups."""
    pieces = lay(mesh, shape) if math.prod(mesh) == math.prod(shape) else None
    if pieces is None:
        return
    names = [f"axis{index}" for index in range(len(mesh))]
    placement = Placement(tuple(zip(names, mesh, strict=True)), tuple(shape), pieces)
    chosen = data.draw(st.integers(0, len(mesh) - 1))
    pre_size = data.draw(st.sampled_from([d for d in range(1, 9) if mesh[chosen] % d == 0]))
    rest = mesh[chosen] // pre_size
    size = data.draw(st.sampled_from([d for d in range(1, 9) if rest % d == 0]))
    route = placement.route([(names[chosen], pre_size, size)])
    numbers = np.arange(math.prod(mesh)).reshape(
        [*mesh[:chosen], pre_size, size, rest // size, *mesh[chosen + 1 :]]
    )
    corner = tuple(slice(None) if axis == chosen + 1 else 0 for axis in range(len(mesh) + 2))
    group, covered = set(numbers[corner].flatten().tolist()), devices_of_pieces(route.pieces, shape)
    assert group <= covered
    assert len(covered) == len(group) * route.copies


def test_two_axes_on_four_by_four() -> None:
    """(data=8, model=2) on 4x4: model is a neighbour pair, data every second chip of a row times a column."""
    placement = V5E.place([("data", 8), ("model", 2)], topology=(4, 4)).placement
    assert placement.route(["model"]).pieces == (Piece(2, 1, 2),)
    assert placement.route(["data"]).pieces == (Piece(1, 1, 4), Piece(2, 2, 2))
    assert placement.route(["data", "model"]).pieces == (Piece(1, 1, 4), Piece(2, 1, 4))
    assert '"data"=8: 4 of dimension 1 x 2 of dimension 2, every 2' in str(placement)


def test_sub_axes_are_split_major_to_minor() -> None:
    """Of "x"=8 in a row, "x":(1)2 are the two halves and "x":(4)2 the neighbours; with the middle, all."""
    placement = V5E.place([("x", 8)], (8,)).placement
    assert placement.route([("x", 1, 2)]).pieces == (Piece(1, 4, 2),)
    assert placement.route([("x", 4, 2)]).pieces == (Piece(1, 1, 2),)
    assert placement.route([("x", 4, 2), ("x", 1, 2), ("x", 2, 2)]) == placement.route(["x"])


def test_a_group_without_pieces_is_priced_by_those_around_it() -> None:
    """Every eighth of 24 devices is no box of 4x6; every second is, and is made of 4 such groups."""
    model = V5E.place([("x", 24)], (6, 4))
    assert model.placement.route([("x", 1, 3)]).copies == 4
    assert model.all_gather_ns(3000, [("x", 1, 3)]) == model.all_gather_ns(12_000, [("x", 1, 12)])


def test_pieces_that_touch_are_one() -> None:
    """Two halves of a dimension make the whole."""
    assert merged([Piece(0, 4, 2), Piece(0, 1, 4)]) == (Piece(0, 1, 8),)
    assert len(merged([Piece(0, 4, 2), Piece(0, 1, 2)])) == 2


@pytest.mark.parametrize(
    ("name", "mesh", "shape"),
    [
        ("tpu-v5e", [16, 16], (1, 16, 16)),
        ("tpu-v5e", [4, 1], (1, 2, 2)),
        ("tpu-v5e", [16], (1, 4, 4)),
        ("tpu-v5e", [2, 8], (1, 4, 4)),
        ("tpu-v5e", [4, 8], (1, 4, 8)),
        ("tpu-v5e", [2, 16], (1, 8, 4)),
        ("tpu-v5e", [7, 2], (1, 7, 2)),
        ("tpu-v5e", [6, 12], (1, 6, 12)),
        ("tpu-v5p", [2, 2, 4], (1, 2, 2, 4)),
        ("tpu-v5e", [64], (1, 8, 8)),
        ("tpu-v5e", [2, 4, 4], (1, 8, 4)),
        ("tpu-v5e", [2, 16, 16], (2, 16, 16)),
        ("tpu-v5p", [4096], (1, 16, 16, 16)),
        ("tpu-v5p", [4, 4], (1, 4, 2, 2)),
        ("tpu-v5p", [8, 8], (1, 4, 4, 4)),
        ("tpu-v5p", [4, 4, 8], (1, 4, 4, 8)),
        ("tpu7x", [8, 4], (1, 4, 2, 2, 2)),
        ("h100", [4, 8], (4, 8)),
        ("h100", [8, 3], (4, 6)),
        ("gb200-nvl72", [8, 8], (1, 64)),
        ("mi300x", [2, 4], (1, 8)),
    ],
)
def test_default_topology(name: str, mesh: list[int], shape: tuple[int, ...]) -> None:
    """Slices as they come, near to a cube, the mesh's own where it is one, in the fewest slices; the fullest nodes."""
    axes = [(f"axis{index}", size) for index, size in enumerate(mesh)]
    assert load(name).place(axes).placement.shape == shape


def test_axes_apart() -> None:
    """A dimension for each axis, as sizes alone are priced, where the torus has them; a ring of 16 is no slice of v5e."""
    ring = V5E.place_apart({"x": 16})
    assert (ring.placement.shape, V5E.place({"x": 16}).placement.shape) == ((1, 16), (1, 4, 4))
    assert ring.all_gather_ns(10**8, ["x"]) == V5E.all_gather_ns(10**8, (16,))
    assert V5E.place_apart({"x": 64}).placement == V5E.place({"x": 64}).placement
    assert load("tpu7x").place_apart({"x": 1}).placement == load("tpu7x").place({"x": 1}).placement
    assert load("tpu7x").place_apart([("x", 8), ("core", 2)]).placement.shape == (1, 8, 2)
    assert load("h100").place_apart({"x": 8}).placement == load("h100").place({"x": 8}).placement


@pytest.mark.parametrize(
    ("name", "mesh", "topology", "slices", "expected"),
    [
        ("tpu-v5e", [32], (4, 4), None, "the mesh has 32 devices, the topology 4x4 = 16"),
        ("tpu-v5e", [8], (4, 4), None, "the mesh has 8 devices"),
        ("tpu-v5e", [8], (2, 2, 2), None, "has 3 dimensions, the torus 2"),
        ("tpu-v5e", [32], (32,), None, "longer than 16 chips in one dimension"),
        ("tpu-v5p", [16 * 24 * 28], (16, 24, 28), None, "10752 chips, a pod has 8960"),
        ("tpu-v5e", [12], (3, 4), None, ""),
        ("tpu-v5e", [12], (3, 4), 0, "0 slices"),
        ("tpu-v5e", [32], (4, 4), 3, "the mesh has 32 devices, the topology 3 slices of 4x4 = 48"),
        ("tpu-v5e", [16], None, 3, "16 chips do not make 3 slices"),
        ("tpu7x", [32], (2, 2, 2), None, "the topology 2x2x2 chips of 2 = 16"),
        ("tpu-v5e", [3, 4], (3, 4), None, "axis0=3, axis1=4 does not divide 3x4"),
        ("tpu-v5e", [0], None, None, 'axis "axis0" has size 0'),
        ("mi300x", [16], None, None, "more than one node of 8"),
        ("h100", [16], (16,), None, "16 chips in a node of 8"),
        ("h100", [8], (2, 2, 2), None, "no topology of nodes"),
        ("h100", [16], None, 2, "slices are for a torus"),
        ("tpu7x", [3], None, None, "do not fill chips of 2"),
    ],
)
def test_what_cannot_be_placed(
    name: str, mesh: list[int], topology: tuple[int, ...] | None, slices: int | None, expected: str
) -> None:
    """More devices than the topology or the family has, too many dimensions, sizes that do not divide."""
    axes = [(f"axis{index}", size) for index, size in enumerate(mesh)]
    if not expected:
        load(name).place(axes, topology, slices=slices)
        return
    with pytest.raises(HardwareError) as caught:
        load(name).place(axes, topology, slices=slices)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (["y"], '"y" is not an axis of the mesh'),
        (["x", "x"], '"x" is covered twice'),
        (["x", ("x", 1, 2)], '"x" is covered twice'),
        ([("x", 3, 2)], '(3)2 does not divide "x"'),
    ],
)
def test_groups_that_do_not_exist(axes: list[Axis], expected: str) -> None:
    """An unknown axis, an axis twice, a sub-axis that does not divide."""
    with pytest.raises(HardwareError) as caught:
        V5E.place([("x", 8)]).all_gather_ns(1000, axes)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("chip", "mesh", "shape", "axes", "is_square"),
    [
        ("tpu-v5p", [("x", 4), ("y", 4)], (2, 2, 4), ["y"], True),
        ("tpu-v5p", [("x", 4), ("y", 4)], (2, 2, 4), ["x"], False),
        ("tpu-v5e", [("x", 4), ("y", 2)], (2, 4), ["x"], False),
        ("tpu-v5e", [("x", 4)], (2, 2), ["x"], True),
        ("tpu-v5e", [("a", 2), ("b", 2), ("c", 2), ("d", 2)], (4, 4), ["b", "d"], False),
    ],
)
def test_squares_of_two_whole_dimensions(
    chip: str, mesh: list[tuple[str, int]], shape: tuple[int, ...], axes: list[str], is_square: bool
) -> None:
    assert load(chip).place(mesh, shape).placement.covers_pairs(axes) == is_square
