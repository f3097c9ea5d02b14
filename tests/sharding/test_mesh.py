"""Axis references as intervals of an axis, and the order and names of a mesh."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, new_context
from autoshard.mlir.meshes import module_meshes
from autoshard.sharding import AxisRef, Mesh, merge_sub_axes, parse_axes, total_size
from tests.sharding.strategies import axis_refs, cuts, meshes, untimed

EIGHT = Mesh.of([("x", 8), ("y", 3)])


def ref(text: str, mesh: Mesh = EIGHT) -> AxisRef:
    (found,) = parse_axes(text, mesh)
    return found


@untimed
@given(st.data())
def test_axis_text_round_trip(data: st.DataObject) -> None:
    """References print and parse in Shardy's notation, alone and in a list."""
    mesh = data.draw(meshes())
    axes = tuple(data.draw(st.lists(axis_refs(mesh))))
    assert parse_axes(", ".join(map(str, axes)), mesh) == axes


@untimed
@given(meshes())
def test_mesh_text_round_trip(mesh: Mesh) -> None:
    """Shardy reads the text of a mesh back as the same mesh."""
    module = ir.Module.parse(f"sdy.mesh @{mesh.name} = {mesh}", new_context())
    assert module_meshes(module.operation) == [mesh]


@pytest.mark.parametrize(
    ("a", "b", "overlap", "contained"),
    [
        ('"x"', '"x"', True, True),
        ('"x"', '"y"', False, False),
        ('"x"', '"x":(1)2', True, True),
        ('"x"', '"x":(4)2', True, True),
        ('"x":(1)2', '"x":(2)2', False, False),
        ('"x":(1)2', '"x":(4)2', False, False),
        ('"x":(1)4', '"x":(2)2', True, True),
        ('"x":(1)4', '"x":(2)4', True, False),
        ('"x":(2)4', '"x":(4)2', True, True),
        ('"x":(1)2', '"x":(1)4', True, False),
    ],
)
def test_overlap_and_containment(a: str, b: str, overlap: bool, contained: bool) -> None:
    """`"x":(p)s` is the interval [p, p*s) of the axis: a truth table."""
    assert ref(a).overlaps(ref(b)) is overlap
    assert ref(a).contains(ref(b)) is contained


@untimed
@given(st.data())
def test_overlap_and_containment_are_of_sets(data: st.DataObject) -> None:
    """Overlap is symmetric, containment antisymmetric and transitive, and what contains overlaps."""
    mesh = data.draw(meshes())
    a, b, c = (data.draw(axis_refs(mesh)) for _ in range(3))
    assert a.overlaps(b) == b.overlaps(a)
    assert a.contains(a)
    assert not (a.contains(b) and b.contains(a)) or a == b
    assert not (a.contains(b) and b.contains(c)) or a.contains(c)
    assert not a.contains(b) or a.overlaps(b) or b.size == 1


@untimed
@given(st.data())
def test_parts_of_an_axis_are_disjoint_and_merge_to_it(data: st.DataObject) -> None:
    """Any cut of the axes has disjoint parts with the product of their sizes, and merging undoes it."""
    mesh = data.draw(meshes())
    parts = data.draw(cuts(mesh))
    assert not any(a.overlaps(b) for i, a in enumerate(parts) for b in parts[:i])
    assert total_size(parts) == mesh.num_devices
    assert merge_sub_axes(parts, mesh) == tuple(mesh.axis(a.name) for a in mesh.axes if a.size > 1)


@untimed
@given(st.data())
def test_merging(data: st.DataObject) -> None:
    """Merging keeps the number of shards, is idempotent, and leaves no two neighbours that continue each other."""
    mesh = data.draw(meshes())
    axes = data.draw(cuts(mesh).flatmap(st.permutations))
    merged = merge_sub_axes(axes, mesh)
    assert total_size(merged) == total_size(axes)
    assert merge_sub_axes(merged, mesh) == merged
    assert not any(a.name == b.name and a.end == b.begin for a, b in itertools.pairwise(merged))


@pytest.mark.parametrize(
    ("axes", "merged"),
    [
        ('"x":(1)2, "x":(2)4', '"x"'),
        ('"x":(1)2, "x":(2)2', '"x":(1)4'),
        ('"x":(2)2, "x":(1)2', '"x":(2)2, "x":(1)2'),
        ('"x":(1)2, "x":(4)2', '"x":(1)2, "x":(4)2'),
        ('"x":(1)2, "y", "x":(2)4', '"x":(1)2, "y", "x":(2)4'),
        ('"x":(1)2, "x":(2)2, "x":(4)2', '"x"'),
    ],
)
def test_merging_table(axes: str, merged: str) -> None:
    """Only neighbours in major-to-minor order merge, and the whole axis loses its sub-axis form."""
    assert merge_sub_axes(parse_axes(axes, EIGHT), EIGHT) == parse_axes(merged, EIGHT)


def test_order_is_the_meshes_and_then_major_to_minor() -> None:
    """Shardy's mesh order."""
    axes = parse_axes('"y", "x":(4)2, "x":(1)2', EIGHT)
    assert sorted(axes, key=EIGHT.order) == list(parse_axes('"x":(1)2, "x":(4)2, "y"', EIGHT))


def test_whole_axis_has_one_form() -> None:
    """`"x":(1)8` is `"x"`."""
    assert EIGHT.axis("x", 1, 8) == EIGHT.axis("x")
    assert not EIGHT.axis("x").is_sub_axis


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ([("x", 0)], 'mesh axis "x"=0 has no devices'),
        ([("x", -2)], 'mesh axis "x"=-2 has no devices'),
        ([("x", 2), ("x", 2)], 'mesh axis "x" is named twice'),
    ],
)
def test_bad_mesh(axes: list[tuple[str, int]], reason: str) -> None:
    """A mesh that cannot be says why."""
    with pytest.raises(AutoshardError) as caught:
        Mesh.of(axes)
    assert caught.value.reason == reason


def test_unknown_axis_lists_the_known() -> None:
    """The message names the axes that there are."""
    with pytest.raises(AutoshardError, match=r'unknown mesh axis "q"\n  its axes are x, y'):
        EIGHT.axis("q")


@pytest.mark.parametrize("text", ['"x":(1)3', '"x":(2)8', '"y":(2)2'])
def test_sub_axis_must_divide(text: str) -> None:
    """A sub-axis is a part of a factorisation of its axis."""
    with pytest.raises(AutoshardError, match="does not divide"):
        parse_axes(text, EIGHT)
