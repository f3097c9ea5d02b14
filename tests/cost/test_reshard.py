"""A reshard costs the collectives that Shardy emits for it."""

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from autoshard.cost.layouts import LayoutsByRank
from autoshard.cost.lowering import CollectivePrices
from autoshard.cost.reshard import ReshardPrices
from autoshard.mlir import passes
from autoshard.mlir.collective import CollectiveStep
from autoshard.sharding import Mesh, TensorSharding, TensorType, parse_sharding
from autoshard.space import tensor_shardings
from tests.cost.priced import HARDWARE, collective_ns, communication

MESH = Mesh.of([("x", 4), ("y", 2)])
SUB_AXES = [parse_sharding(text, MESH) for text in ('[{"x":(1)2}, {"y"}]', '[{"x":(2)2}, {"x":(1)2}]')]
SHARDINGS = [*tensor_shardings(TensorType((64, 64), "f32"), MESH, None, must_divide=True), *SUB_AXES]
PAIRS = [(a, b) for a in range(len(SHARDINGS)) for b in range(len(SHARDINGS)) if a != b]
TYPES = [TensorType((64, 64), "f32"), TensorType((13, 7), "bf16"), TensorType((8, 8), "i1")]
LARGE = TensorType((64, 4096), "f32")


@cache
def steps() -> list[tuple[CollectiveStep, ...]]:
    """Shardy's own, of every pair."""
    return passes.decompose_reshards(MESH, [(2, SHARDINGS[a], SHARDINGS[b]) for a, b in PAIRS])


@cache
def prices() -> ReshardPrices:
    layouts = LayoutsByRank()
    layouts[2].ids_of(SHARDINGS)
    collectives = CollectivePrices(communication(MESH), HARDWARE, "shardy")
    priced = ReshardPrices(MESH, collectives, layouts, passes.decompose_reshards)
    everything = np.arange(len(SHARDINGS))
    for shape in (*(type_.shape for type_ in TYPES), LARGE.shape):
        priced.want(shape, everything, everything)
    priced.resolve()
    return priced


def matrix_of(type_: TensorType) -> NDArray[np.int64]:
    """[from, to] of all of them."""
    everything = np.arange(len(SHARDINGS))
    return prices().ns(type_, everything, everything)


def price_of(step: CollectiveStep, before: TensorSharding, type_: TensorType) -> int:
    """One collective, by the result of a gather or a slice, or by what each device puts in."""
    sized_by = step.out_sharding if step.kind in ("all_gather", "all_slice") else before
    return collective_ns(communication(MESH), step.kind, sized_by.local_bytes(type_), step.axes)


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_price_is_the_sum_of_shardys_steps(type_: TensorType) -> None:
    """Step by step, with the bytes that one device holds at that step, padding included."""
    matrix = matrix_of(type_)
    for (a, b), sequence in zip(PAIRS, steps(), strict=True):
        before, total = SHARDINGS[a], 0
        for step in sequence:
            total += price_of(step, before, type_)
            before = step.out_sharding
        assert before == SHARDINGS[b]
        assert matrix[a, b] == total, f"{SHARDINGS[a]} to {SHARDINGS[b]}"


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_breakdown_adds_up(type_: TensorType) -> None:
    """The collectives behind an entry of the matrix have its price."""
    matrix = matrix_of(type_)
    for a, b in PAIRS:
        found = prices().collectives(type_, a, b)
        assert sum(collective.ns for collective in found) == matrix[a, b]


def test_staying_is_free() -> None:
    """The sharding that a value has costs nothing, and every other one something."""
    for type_ in TYPES:
        matrix = matrix_of(type_)
        assert not matrix.diagonal().any()
        assert all(matrix[a, b] > 0 for a, b in PAIRS)


def test_slicing_is_nearly_free() -> None:
    """Keeping a part of what a device has costs less than gathering it again."""
    matrix = matrix_of(TYPES[0])
    whole = SHARDINGS.index(TensorSharding.replicated_closed(2))
    for a, b in PAIRS:
        if a == whole:
            assert matrix[a, b] < matrix[b, a]


def test_gathering_grows_with_the_bytes() -> None:
    """A larger tensor of the same layout never costs less."""
    small, large = matrix_of(TYPES[0]), matrix_of(LARGE)
    assert (small <= large).all()


def test_unknown_types_of_one_rank_share_the_steps() -> None:
    """The sequence is of rank and axes; only bytes differ: twice as wide elements, twice the bytes of every step."""
    for a, b in PAIRS:
        narrow = prices().collectives(TensorType((64, 64), "bf16"), a, b)
        wide = prices().collectives(TensorType((64, 64), "f32"), a, b)
        assert [(c.kind, c.axes, 2 * c.bytes) for c in narrow] == [(c.kind, c.axes, c.bytes) for c in wide]


def test_only_what_is_announced_of_a_shape_is_priced() -> None:
    """Shardings of one rank are numbered together; those that values of another shape alone have are no pairs of this one."""
    layouts = LayoutsByRank()
    ids = layouts[2].ids_of(SHARDINGS)
    collectives = CollectivePrices(communication(MESH), HARDWARE, "xla-tpu")
    priced = ReshardPrices(MESH, collectives, layouts, passes.decompose_reshards)
    priced.want((8, 8), ids[:2], ids[:2])
    priced.want((64, 64), ids, ids)
    priced.resolve()
    few, all_ = (priced.ns(TensorType(shape, "f32"), ids, ids) for shape in ((8, 8), (64, 64)))
    assert set(map(tuple, np.argwhere(few).tolist())) == {(0, 1), (1, 0)}
    assert np.count_nonzero(all_) == len(PAIRS)
    with pytest.raises(AssertionError, match="was announced"):
        priced.ns(TensorType((4, 4), "f32"), ids, ids)
