"""Placements as text: what they say, what they are priced as, what cannot be."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels import Communication, HardwareError, load, placement_text
from costmodels.topology import Piece

V5E, V5P = load("tpu-v5e"), load("tpu-v5p")
MESH = (("x", 4), ("y", 4))
SIZE = 1 << 24


def all_reduces(model: Communication, axes: Sequence[str]) -> list[int]:
    return [int(model.all_reduce_ns(SIZE, [axis])) for axis in axes]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("x=0,y=1", ((Piece(2, 1, 4),), (Piece(1, 1, 4),))),
        (" y = 0 , x = 1 ", ((Piece(1, 1, 4),), (Piece(2, 1, 4),))),
        (
            "x=0:(1)2+1:(1)2,y=0:(2)2+1:(2)2",
            ((Piece(1, 2, 2), Piece(2, 2, 2)), (Piece(1, 1, 2), Piece(2, 1, 2))),
        ),
    ],
)
def test_what_the_text_says(text: str, pieces: tuple[tuple[Piece, ...], ...]) -> None:
    """Parts are written major to minor; (pre)size is Shardy's, major first. The first dimension of a torus is the last of the shape."""
    placement = V5E.place(MESH, (4, 4), placement=text).placement
    assert placement.pieces == pieces
    assert V5E.place(MESH, (4, 4), placement=placement_text(placement)).placement == placement


@given(st.permutations(["x", "x", "y", "y", "z", "z"]))
def test_text_and_device_order_of_any_placement(owners: list[str]) -> None:
    """Every way to give the halves of 4x4x4 to axes has a text that reads back, and an order that is a permutation; along one
    axis the other coordinates of the mesh stay, and exactly the dimensions of its pieces change."""
    digits = [f"{dim}:({pre})2" for dim in "012" for pre in (1, 2)]
    taken = {axis: [d for d, owner in zip(digits, owners, strict=True) if owner == axis] for axis in "xyz"}
    text = ",".join(f"{axis}={'+'.join(parts)}" for axis, parts in taken.items())
    placement = V5P.place([("x", 4), ("y", 4), ("z", 4)], (4, 4, 4), placement=text).placement
    again = V5P.place([("x", 4), ("y", 4), ("z", 4)], (4, 4, 4), placement=placement_text(placement))
    assert again.placement.device_order() == placement.device_order()
    order = np.asarray(placement.device_order()).reshape(4, 4, 4)
    assert sorted(order.ravel().tolist()) == list(range(64))
    coordinates = np.stack(np.unravel_index(order, placement.shape), axis=-1)
    for axis, pieces in enumerate(placement.pieces):
        moved = np.moveaxis(coordinates, axis, 0)
        changed = {int(d) for d in np.argwhere((moved != moved[:1]).any(axis=(0, 1, 2)))[:, 0]}
        assert changed == {piece.dimension for piece in pieces}


def test_row_major_is_the_default() -> None:
    """The same pieces and the devices in their own order, also by name."""
    default = V5E.place([("x", 8), ("y", 2)], (4, 4)).placement
    assert placement_text(default) == "x=1+0:(1)2,y=0:(2)2"
    assert default.device_order() == list(range(16))
    assert default.is_row_major()
    for text in ("row-major", placement_text(default)):
        assert V5E.place([("x", 8), ("y", 2)], (4, 4), placement=text).placement == default


def test_devices_are_numbered_along_the_first_dimension_first() -> None:
    """As jax numbers them: on 2x2x4 the last axis of a mesh of 4x4 is the square of the first two dimensions."""
    placed = V5P.place([("x", 4), ("y", 4)], (2, 2, 4)).placement
    assert placement_text(placed) == "x=2,y=1+0"
    assert placed.device_order() == list(range(16))
    own = V5E.place([("x", 2), ("y", 4)]).placement
    assert (own.shape, placement_text(own)) == ((1, 2, 4), "x=1,y=0")


def test_a_mesh_that_row_major_cannot_lay() -> None:
    """A mesh of 3x4 on 3x4 chips, whose last axis would be the first dimension, has a placement all the same."""
    placement = V5E.place([("x", 3), ("y", 4)], (3, 4), placement="x=0,y=1").placement
    assert placement.device_order()[:5] == [0, 3, 6, 9, 1]


@pytest.mark.parametrize(
    ("name", "shape", "slices", "placements"),
    [
        ("tpu-v5e", (2, 8), 2, ("x=slices,y=0,z=1", "y=slices,x=0,z=1")),
        ("tpu7x", (2, 4), 2, ("x=slices,y=0,z=1+cores", "y=slices,x=0,z=1+cores")),
        (
            "gb200-nvl72",
            (2, 16),
            None,
            ("x=nodes,y=chips:(1)2,z=chips:(2)8", "y=nodes,x=chips:(1)2,z=chips:(2)8"),
        ),
    ],
)
def test_an_axis_over_the_network_costs_more_than_one_over_the_links(
    name: str, shape: tuple[int, ...], slices: int | None, placements: tuple[str, str]
) -> None:
    """Slices of a torus, and nodes of GPUs: whichever axis is placed on them pays for it."""
    mesh = [("x", 2), ("y", 2), ("z", 8)]
    first, second = (load(name).place(mesh, shape, slices=slices, placement=text) for text in placements)
    (x_out, y_in), (x_in, y_out) = all_reduces(first, "xy"), all_reduces(second, "xy")
    assert x_out == y_out > x_in == y_in


def test_a_ring_is_faster_than_a_line_of_the_same_devices() -> None:
    """v5p 4x4x8 closes every dimension; an axis of 4 on half a dimension of 8 has no wraparound."""
    mesh = [("x", 4), ("y", 4), ("z", 8)]
    ring = V5P.place(mesh, (4, 4, 8), placement="x=0,y=1,z=2")
    line = V5P.place(mesh, (4, 4, 8), placement="x=2:(2)4,y=1,z=0+2:(1)2")
    assert all_reduces(ring, "x") < all_reduces(line, "x")


def test_several_slices_reduce_in_a_hierarchy() -> None:
    """Over slices and links together an all-reduce takes no longer than scattering in the slice, summing the parts over the
    network and gathering in the slice, and longer than the slice alone."""
    model = V5E.place([("d", 2), ("x", 4), ("y", 4)], (4, 4), slices=2)
    in_steps = (
        int(model.reduce_scatter_ns(SIZE, ["x"]))
        + int(model.all_reduce_ns(SIZE // 4, ["d"]))
        + int(model.all_gather_ns(SIZE, ["x"]))
    )
    assert all_reduces(model, "x")[0] < int(model.all_reduce_ns(SIZE, ["d", "x"])) <= in_steps


WRONG = {
    "no equals sign": ("x0,y=1", "cannot read 'x0,y=1' at 'x0'"),
    "no axis": ("=0,y=1", "cannot read '=0,y=1' at '=0'"),
    "a part that is none": ("x=0:2,y=1", "cannot read the part '0:2'"),
    "an unknown axis": ("x=0,q=1", '"q" is not an axis of the mesh\n  Its axes are x=4, y=4.'),
    "an unknown dimension": (
        "x=0,y=2",
        "there is no dimension '2'\n  The topology's dimensions are 0=4, 1=4.",
    ),
    "one slice": ("x=slices,y=1", 'axis "x" has 4 devices, slices has 1'),
    "an axis twice": ("x=0,x=1", 'axis "x" is placed twice'),
    "an axis left out": ("x=0", 'axis "y" is left out'),
    "a dimension twice": ("x=0,y=0", 'dimension 0 is used by "x" and "y"'),
    "a part twice": ("x=0:(1)2+0:(1)2,y=1", 'dimension 0 is used twice by "x"'),
    "too many devices": ("x=0+1,y=1", 'axis "x" has 4 devices, 0+1 has 4 x 4 = 16'),
    "no part of it": ("x=0:(3)2,y=1", "0:(3)2 is no part of dimension 0, which has 4"),
    "nothing": ("", "cannot read '' at ''"),
}


@pytest.mark.parametrize(("text", "expected"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_placed(text: str, expected: str) -> None:
    """Each with the place, and what there is instead."""
    with pytest.raises(HardwareError) as caught:
        V5E.place(MESH, (4, 4), placement=text)
    assert str(caught.value).startswith(f"placement: {expected}")


def test_every_split_of_two_axes_adds_up() -> None:
    """What the axes' groups cover together is the whole shape, whatever rides where."""
    for first in itertools.combinations(range(4), 2):
        digits = ["0:(1)2", "0:(2)2", "1:(1)2", "1:(2)2"]
        x = "+".join(digits[i] for i in first)
        y = "+".join(digits[i] for i in range(4) if i not in first)
        route = V5E.place(MESH, (4, 4), placement=f"x={x},y={y}").placement.route(["x", "y"])
        assert math.prod(piece.length for piece in route.pieces) == 16
        assert len(route.pieces) == 2


@pytest.mark.parametrize(
    ("name", "mesh", "shape", "slices", "count"),
    [
        ("tpu-v5e", (4, 4), (4, 4), None, 4),
        ("tpu-v5e", (16,), (4, 4), None, 1),
        ("tpu-v5p", (4, 4), (2, 2, 4), None, 4),
        ("tpu-v5p", (4, 4, 4), (4, 4, 4), None, 18),
        ("h100", (4, 4), (2, 8), None, 2),
        ("h100", (2, 8), (2, 8), None, 2),
        ("tpu-v5e", (2, 2), (2, 1), 2, 2),
    ],
)
def test_distinct_placements(
    name: str, mesh: tuple[int, ...], shape: tuple[int, ...], slices: int | None, count: int
) -> None:
    """Row-major first; each class once, and every way to give the prime parts to the axes is priced as one of them."""
    axes = list(zip("xyz", mesh, strict=False))
    models = load(name).placements(axes, shape, slices=slices)
    assert len(models) == count
    assert models[0].placement.is_row_major()
    assert len({placement_text(model.placement) for model in models}) == count
    prices = {tuple(all_reduces(model, [axis for axis, _ in axes])) for model in models}
    names, sizes = models[0].placement.names, models[0].placement.shape
    parts = [
        f"{dim}:({pre})2"
        for dim, size in zip(names, sizes, strict=True)
        for pre in (1, 2, 4, 8)
        if pre * 2 <= size
    ]
    for owners in itertools.product(range(len(axes)), repeat=len(parts)):
        if any(2 ** owners.count(axis) != size for axis, size in enumerate(mesh)):
            continue
        text = ",".join(
            f"{axis}={'+'.join(part for part, owner in zip(parts, owners, strict=True) if owner == index)}"
            for index, (axis, _) in enumerate(axes)
        )
        model = load(name).place(axes, shape, slices=slices, placement=text)
        assert tuple(all_reduces(model, [axis for axis, _ in axes])) in prices


def test_the_most_compact_shape() -> None:
    """Nearest to a cube, in the fewest slices; of nodes the fullest."""
    assert V5E.compact_topology(64) == ((8, 8), 1)
    assert [V5P.compact_topology(devices)[0] for devices in (4, 16, 64)] == [(2, 2), (2, 2, 4), (4, 4, 4)]
    assert V5E.compact_topology(512) == ((16, 16), 2)
    assert load("tpu7x").compact_topology(16) == ((2, 2, 2), 1)
    assert load("h100").compact_topology(16) == ((2, 8), None)
    assert V5E.compact_topology(1) == ((1,), 1)
    with pytest.raises(HardwareError, match="no 1 slices of this torus"):
        V5E.compact_topology(37, slices=1)


def test_placements_on_very_many_slices_are_listed() -> None:
    """How many slices an axis has is what counts: twelve factors of 2 among them are no more than seven."""
    few, many = (
        load("tpu-v5e").placements([("x", size), ("y", size)], (16, 16), slices=size * size // 256)
        for size in (256, 1024)
    )
    assert len(few) == len(many) == 136
