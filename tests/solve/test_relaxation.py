"""Bytes at prices: items of one owner with the same bytes are one, and long ones go without an index, to the same sums."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.problem import ProblemBuilder, Table
from autoshard.solve import graph, relaxation
from autoshard.solve.core import Core, flatten
from autoshard.solve.graph import Memo
from autoshard.solve.layout import lay_out
from autoshard.solve.load import load
from autoshard.solve.relaxation import Relaxation


def read_again(draw: np.random.Generator) -> Core:
    """Nodes and edges that use the same bytes at several times."""
    builder = ProblemBuilder()
    sizes = draw.integers(2, 6, 6).tolist()
    for node, size in enumerate(sizes):
        builder.add_node(draw.integers(0, 100, size))
        builder.add_node_usage(node, node, node + 3, draw.integers(0, 9, size))
    for u in range(len(sizes) - 1):
        shape = (sizes[u], sizes[u + 1])
        edge = builder.add_edge(u, u + 1, Table(draw.integers(0, 100, shape)))
        usage = draw.integers(0, 9, shape)
        for begin in draw.integers(0, 6, 4).tolist():
            builder.add_edge_usage(edge, begin, begin + int(draw.integers(1, 4)), usage)
    return flatten(load(builder.build(memory_limit=30)))


@pytest.mark.parametrize("long", [0, 8, 4096])
@pytest.mark.parametrize("seed", range(10))
def test_priced_bytes_are_those_of_the_items(seed: int, long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One item after the other, each at the prices of its rows."""
    monkeypatch.setattr(relaxation, "_LONG", long)
    draw = np.random.default_rng(seed)
    core = read_again(draw)
    found = Relaxation(core, lay_out(core))
    multipliers = draw.uniform(0, 1, len(core.room))
    found.price_rows(multipliers)
    weights, nodes = found.weights(), core.node_count
    expected = np.zeros(len(weights.node_bytes)), np.zeros(len(weights.pair_bytes))
    items = zip(core.item_owner, core.item_begin, core.item_end, core.item_usage, strict=True)
    for owner, begin, end, usage in items:
        of_pairs = owner >= nodes
        at = weights.edge_bytes[owner - nodes] if of_pairs else core.start[owner]
        ends = core.ends[owner - nodes] if of_pairs else [owner]
        length = int(np.prod(core.counts[ends]))
        price = found.multipliers[begin:end].sum()
        expected[int(of_pairs)][at : at + length] += price * core.usage_pool[usage : usage + length]
    np.testing.assert_allclose(weights.node_bytes, expected[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(weights.pair_bytes, expected[1], rtol=1e-12, atol=1e-12)
    assert len(core.item_owner) > len(
        set(zip(core.item_owner.tolist(), core.item_usage.tolist(), strict=True))
    )


def test_a_memo_forgets_what_was_not_asked_for_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it keeps stays within its bytes; what it forgot is computed again."""
    calls: list[int] = []

    def twice(array: np.ndarray) -> np.ndarray:
        calls.append(int(array[0]))
        return 2 * array

    first, second, third = (np.full(8, number) for number in range(3))
    monkeypatch.setattr(graph, "_MOST_KEPT_BYTES", 2 * first.nbytes)
    memo = Memo()
    for array in (first, second, first, third, first, second):
        assert (memo.call(twice, array) == 2 * array).all()
    assert calls == [0, 1, 2, 1]
