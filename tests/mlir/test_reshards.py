"""Shardy's own decomposition of reshards, as steps; the cases of its documentation are the truth table."""

import itertools

import pytest

from autoshard.mlir.collective import CollectiveStep
from autoshard.mlir.reshards import decompose_reshards, moved_axes
from autoshard.sharding import Mesh, TensorSharding, parse_sharding
from tests.mlir.modules import MESH, sharding

UNEVEN = Mesh.of([("a", 2), ("b", 3)])
ABBREVIATIONS = {
    "all_gather": "AG",
    "all_slice": "slice",
    "all_to_all": "A2A",
    "collective_permute": "CP",
}
CASES = [
    ('[{"x"}]', "[{}]", 'AG "x"'),
    ('[{"x"}, {}]', '[{}, {"x"}]', 'A2A "x"'),
    ('[{"x", "y"}]', '[{"y", "x"}]', 'CP "x" "y"'),
    ('[{"x"}, {"y"}]', '[{"y"}, {"x"}]', 'CP "x" "y"'),
    ('[{"x"}, {}]', '[{}, {"y"}]', 'slice "y" + AG "x"'),
    ('[{"x"}]', '[{"z"}]', 'slice "z":(1)2 + CP "x" "z"'),
    ('[{"z"}]', '[{"x"}]', 'CP "x" "z" + AG "z":(2)2'),
    ('[{"x", "y"}, {}]', '[{"y"}, {"x"}]', 'CP "x" "y" + A2A "x"'),
    ('[{"x", "y", "z"}, {}]', '[{"x"}, {"z"}]', 'A2A "z" + AG "y"'),
    ("[{}, {}]", '[{"x"}, {"z"}]', 'slice "x" "z"'),
    ('[{"x"}, {"y"}]', "[{}, {}]", 'AG "x" "y"'),
    ('[{"x"}]', '[{"x"}]', ""),
    ("[]", "[]", ""),
]


def summary(steps: tuple[CollectiveStep, ...]) -> str:
    return " + ".join(" ".join([ABBREVIATIONS[step.kind], *map(str, step.axes)]) for step in steps)


def test_the_documented_cases() -> None:
    pairs = [(sharding(before), sharding(after)) for before, after, _ in CASES]
    steps = decompose_reshards(MESH, [(before.rank, before, after) for before, after in pairs])
    assert [summary(each) for each in steps] == [expected for _, _, expected in CASES]
    assert all(each[-1].out_sharding == after for each, (_, after) in zip(steps, pairs, strict=True) if each)


def test_axes_of_coprime_sizes_are_gathered() -> None:
    a, b = (parse_sharding(text, UNEVEN) for text in ('[{"a"}]', '[{"b"}]'))
    assert summary(decompose_reshards(UNEVEN, [(1, a, b)])[0]) == 'slice "b" + CP "a" "b" + AG "a"'


def test_an_all_to_all_says_from_where_to_where() -> None:
    ((step,),) = decompose_reshards(MESH, [(2, sharding('[{"x"}, {}]'), sharding('[{}, {"x"}]'))])
    assert step.moves == (((MESH.axis("x"),), 0, 1),)


def test_all_pairs_end_where_they_should() -> None:
    """Every pair of shardings of a matrix over two axes: each chain ends in the wanted sharding."""
    layouts = [
        TensorSharding.closed(dims)
        for dims in itertools.product(
            ((), (MESH.axis("x"),), (MESH.axis("z"),), (MESH.axis("z"), MESH.axis("x"))), repeat=2
        )
        if len({axis for dim in dims for axis in dim}) == sum(map(len, dims))
    ]
    requests = [(2, before, after) for before in layouts for after in layouts]
    for (_, before, after), steps in zip(requests, decompose_reshards(MESH, requests), strict=True):
        assert (steps[-1].out_sharding if steps else before) == after


@pytest.mark.parametrize(
    ("before", "after", "moved"),
    [
        ('[{"x", "y"}]', '[{"x", "z"}]', '"y" "z"'),
        ('[{"x", "y", "z"}]', '[{"y", "x", "z"}]', '"x" "y"'),
        ('[{"z"}]', '[{"x", "z":(2)2}]', '"x" "z"'),
        ('[{"x"}, {"y"}]', '[{"x"}, {"z":(1)2}]', '"y" "z":(1)2'),
    ],
)
def test_a_permute_moves_what_changes_place(before: str, after: str, moved: str) -> None:
    assert " ".join(map(str, moved_axes(sharding(before), sharding(after), MESH))) == moved
