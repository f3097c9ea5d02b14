"""Cores of some size for tests of the large-core engines: layers of nodes with random tables and overlapping memory."""

from __future__ import annotations

import numpy as np

from autoshard.problem import Problem, ProblemBuilder, Table
from autoshard.solve.core import Core, flatten
from autoshard.solve.load import certain_peak, load


def layered_core(seed: int, *, layers: int = 12, width: int = 3, room: float = 0.4) -> Core:
    """Each node is tied to two of the layer before; memory of a node lasts for two to four layers.

    `room`: the limit, from the least that is certain (0) to what the dearest choice in memory uses (1).
    """
    draw = np.random.default_rng(seed)
    builder = ProblemBuilder()
    counts = draw.integers(2, 6, layers * width)
    highest = np.zeros(layers + 4, dtype=np.int64)
    for node, count in enumerate(counts.tolist()):
        builder.add_node(draw.integers(0, 100, count))
        layer, lasts = node // width, int(draw.integers(2, 5))
        usage = draw.integers(1, 50, count)
        builder.add_node_usage(node, layer, layer + lasts, usage)
        highest[layer : layer + lasts] += usage.max()
        for _ in range(2 if layer else 0):
            other = (layer - 1) * width + int(draw.integers(0, width))
            builder.add_edge(other, node, Table(draw.integers(0, 200, (counts[other], count))))
    least = certain_peak(builder.build(0))
    return flatten(load(builder.build(int(least + room * (highest.max() - least)))))


def copies(nodes: int, *, unit: int = 1, limit: int) -> Problem:
    """A node saves its bytes only if the next one does not; lifetimes overlap. `unit`: bytes that the limit counts."""
    draw = np.random.default_rng(0)
    builder = ProblemBuilder()
    for node in range(nodes):
        builder.add_node(draw.integers(0, 100, 3))
        builder.add_node_usage(node, node, node + 30, np.array([0, 10, 12]) * unit)
    usage = np.zeros((3, 3), dtype=np.int64)
    usage[0, 0] = 10 * unit
    for node in range(nodes - 1):
        edge = builder.add_edge(node, node + 1, Table(draw.integers(0, 100, (3, 3))))
        builder.add_edge_usage(edge, node, node + 30, usage)
    return builder.build(limit * unit)
