"""The shardings that a flow may take, against all assignments of axes to dimensions."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.sharding import Mesh, TensorSharding, TensorType, parse_sharding
from autoshard.space import searched_axes, tensor_shardings

MESH = Mesh.of([("x", 4), ("one", 1), ("y", 2), ("z", 3)])


def every_sharding(rank: int) -> set[TensorSharding]:
    axes = searched_axes(MESH)
    return {
        TensorSharding.closed(
            [[a for a, home in zip(order, homes, strict=True) if home == d] for d in range(rank)]
        )
        for order in itertools.permutations(axes)
        for homes in itertools.product(range(rank + 1), repeat=len(axes))
    }


def test_axes_of_one_device_are_not_searched() -> None:
    """Splitting over them changes nothing."""
    assert [axis.name for axis in searched_axes(MESH)] == ["x", "y", "z"]


@settings(deadline=None)
@given(st.lists(st.integers(1, 24), max_size=3), st.booleans())
def test_all_shardings(shape: list[int], must_divide: bool) -> None:
    """Whole axes in any order, no more shards than elements, evenly where that is asked; each once, replicated first."""
    found = tensor_shardings(TensorType(tuple(shape), "f32"), MESH, None, must_divide)
    expected = {
        s
        for s in every_sharding(len(shape))
        if all(dim.num_shards <= size for dim, size in zip(s.dims, shape, strict=True))
        and (s.divides(shape) or not must_divide)
    }
    assert set(found) == expected
    assert len(found) == len(expected)
    assert found[0].is_fully_replicated


@pytest.mark.parametrize(
    ("demand", "expected"),
    [
        ('[{"x"}, {}]', ['[{"x"}, {}]']),
        ('[{"z"}, {}]', []),  # does not divide
        ('[{"y", "x"}, {}]', ['[{"y", "x"}, {}]']),
        ('[{"x":(1)2}, {}]', ['[{"x":(1)2}, {}]']),
        (
            '[{"x"}, {?}]',
            ['[{"x"}, {}]', '[{"x"}, {"y"}]', '[{"x"}, {"z"}]', '[{"x"}, {"y", "z"}]', '[{"x"}, {"z", "y"}]'],
        ),
        ('[{"x", ?}, {}]', ['[{"x"}, {}]', '[{"x", "y"}, {}]']),
        ('[{?}, {}], replicated={"x"}', ["[{}, {}]", '[{"y"}, {}]']),
        ('[{"x":(1)2, ?}, {}]', ['[{"x":(1)2}, {}]', '[{"x":(1)2, "y"}, {}]']),
    ],
)
def test_demands(demand: str, expected: list[str]) -> None:
    """A closed dimension is as written, an open one continues what is written with axes that the demand does not name."""
    found = tensor_shardings(TensorType((8, 6), "f32"), MESH, parse_sharding(demand, MESH), must_divide=True)
    assert {str(s) for s in found} == set(expected)
    assert all(s.satisfies(parse_sharding(demand, MESH)) for s in found)
