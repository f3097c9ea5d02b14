"""Local search whose step is exact: a random tree around a random node, all of it chosen anew at once.

A breadth-first ball of nodes, each with one neighbour in the tree so far, the others fixed where they stand.
Dynamic programming over the tree minimises cost + weight * (bytes priced by the multipliers) + noise. The new
choice counts only if every memory row stays within its room (or the excess shrinks while there is one), and if its
true cost is lower, or higher by no more than the temperature allows.

[1] G. Marsaglia, Xorshift RNGs, Journal of Statistical Software 8(14), 2003.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# An element of an array is a number here: numba gives it its type, numpy's stubs cannot.
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoshard.problem.model import Ints
from autoshard.solve.core import Core
from autoshard.solve.kernels import kernel
from autoshard.solve.layout import Layout
from autoshard.solve.messages import Floats

RandomState = NDArray[np.uint64]  # [1], not zero
_MOST_BRANCHES = 64  # neighbours of a node that a tree looks at
_HUB = 256  # a node with more neighbours is only ever a root
_PAIRS_AT_ONCE = 50_000_000  # that the moves between two looks at the clock look at, about
_MOVES_AT_ONCE = 500


class Weights(NamedTuple):
    """Costs and priced bytes; `edge_bytes` [m] is -1 or where the edge's part of `pair_bytes` begins."""

    cost: Floats  # [sum K]
    table: Ints  # [m]
    pool: Floats
    node_bytes: Floats  # [sum K]
    edge_bytes: Ints  # [m]
    pair_bytes: Floats


class Memory(NamedTuple):
    """Items and rows as in Core."""

    room: Ints  # [T]
    begin: Ints  # [I]
    end: Ints  # [I]
    usage: Ints  # [I]
    usage_pool: Ints


class Tree(NamedTuple):
    """The tree of one step, root first; arrays are as long as the largest tree."""

    slot: Ints  # [n] position in the tree, -1 outside
    node: Ints
    parent: Ints  # position in the tree
    edge: Ints  # to the parent
    value: Floats  # [largest, widest] cost of the branch by strategy
    pick: Ints  # [largest, widest] best strategy by strategy of the parent
    fresh: Ints  # the new choice


def new_tree(layout: Layout, largest: int) -> Tree:
    """Room for trees of up to `largest` nodes."""
    widest = int(np.diff(layout.start).max(initial=1))
    return Tree(
        slot=np.full(len(layout.start) - 1, -1, dtype=np.int64),
        node=np.empty(largest, dtype=np.int64),
        parent=np.empty(largest, dtype=np.int64),
        edge=np.empty(largest, dtype=np.int64),
        value=np.empty((largest, widest)),
        pick=np.empty((largest, widest), dtype=np.int64),
        fresh=np.empty(largest, dtype=np.int64),
    )


def moves_at_once(core: Core, largest: int) -> int:
    """How many moves with trees of up to `largest` nodes take a fraction of a second."""
    pairs = core.pair_count() / max(1, len(core.ends))
    return max(1, min(_MOVES_AT_ONCE, int(_PAIRS_AT_ONCE / (max(1.0, pairs) * largest))))


@kernel
def next_random(state: RandomState) -> int:
    """31 random bits of a xorshift generator [1]; unsigned, because signed arithmetic must not overflow."""
    bits = state[0]
    bits ^= bits << np.uint64(13)
    bits ^= bits >> np.uint64(7)
    bits ^= bits << np.uint64(17)
    state[0] = bits
    return np.int64(bits >> np.uint64(33))


@kernel
def exponential(state: RandomState) -> float:
    """An exponentially distributed number of mean one."""
    return -np.log((next_random(state) + 1) / 2147483648.0)


@kernel
def grow(layout: Layout, tree: Tree, root: int, most: int, state: RandomState) -> int:
    """Fill the tree breadth first from the root; returns its size."""
    near_start, near_node = layout.near_start, layout.near_node
    tree.node[0], tree.parent[0], tree.edge[0], tree.slot[root] = root, -1, -1, 0
    size, head = 1, 0
    while head < size and size < most:
        i = tree.node[head]
        degree = near_start[i + 1] - near_start[i]
        shift = next_random(state)
        for step in range(min(degree, _MOST_BRANCHES)):
            near = near_start[i] + (step + shift) % degree
            j = near_node[near]
            if tree.slot[j] >= 0 or size >= most or near_start[j + 1] - near_start[j] > _HUB:
                continue
            touching = 0
            for back in range(near_start[j], near_start[j + 1]):
                if tree.slot[near_node[back]] >= 0:
                    touching += 1
                    if touching > 1:
                        break
            if touching == 1:
                tree.slot[j] = size
                tree.node[size], tree.parent[size], tree.edge[size] = j, head, layout.near_edge[near]
                size += 1
        head += 1
    return size


@kernel
def value_alone(layout: Layout, weights: Weights, tree: Tree, at: int, choice: Ints, weight: float) -> None:
    """The value of a tree node by strategy, its neighbours outside of the tree where they stand."""
    start = layout.start
    i = tree.node[at]
    k = start[i + 1] - start[i]
    for s in range(k):
        tree.value[at, s] = weights.cost[start[i] + s] + weight * weights.node_bytes[start[i] + s]
    for near in range(layout.near_start[i], layout.near_start[i + 1]):
        j = layout.near_node[near]
        if tree.slot[j] >= 0:
            continue
        e = layout.near_edge[near]
        first = layout.ends[e, 0] == i
        stride = start[j + 1] - start[j] if first else 1
        offset = choice[j] if first else choice[j] * k
        for s in range(k):
            tree.value[at, s] += weights.pool[weights.table[e] + offset + s * stride]
        if weights.edge_bytes[e] >= 0 and weight > 0:
            for s in range(k):
                tree.value[at, s] += weight * weights.pair_bytes[weights.edge_bytes[e] + offset + s * stride]


@kernel
def send_up(layout: Layout, weights: Weights, tree: Tree, at: int, weight: float) -> None:
    """Minimise a tree node out, into the value of its parent."""
    start = layout.start
    i, e, up = tree.node[at], tree.edge[at], tree.node[tree.parent[at]]
    k, other = start[i + 1] - start[i], start[up + 1] - start[up]
    first = layout.ends[e, 0] == i
    stride = other if first else 1
    across = 1 if first else k
    priced = weights.edge_bytes[e] >= 0 and weight > 0
    for t in range(other):
        best, best_s = np.inf, 0
        base = weights.table[e] + t * across
        for s in range(k):
            total = tree.value[at, s] + weights.pool[base + s * stride]
            if priced:
                total += weight * weights.pair_bytes[weights.edge_bytes[e] + t * across + s * stride]
            if total < best:
                best, best_s = total, s
        tree.value[tree.parent[at], t] += best
        tree.pick[at, t] = best_s


@kernel
def choose_anew(
    layout: Layout,
    weights: Weights,
    tree: Tree,
    size: int,
    choice: Ints,
    weight: float,
    temperature: float,
    state: RandomState,
) -> bool:
    """The best choice of the whole tree into `fresh`; is it another one?"""
    for at in range(size):
        value_alone(layout, weights, tree, at, choice, weight)
        if temperature > 0:
            i = tree.node[at]
            for s in range(layout.start[i + 1] - layout.start[i]):
                tree.value[at, s] += temperature * exponential(state)
    for back in range(size - 1):
        send_up(layout, weights, tree, size - 1 - back, weight)
    root = tree.node[0]
    tree.fresh[0] = np.argmin(tree.value[0, : layout.start[root + 1] - layout.start[root]])
    changed = tree.fresh[0] != choice[root]
    for at in range(1, size):
        tree.fresh[at] = tree.pick[at, tree.fresh[tree.parent[at]]]
        changed = changed or tree.fresh[at] != choice[tree.node[at]]
    return changed


@kernel
def note_bytes(
    layout: Layout, memory: Memory, owner: int, then: int, now: int, change: Ints, span: Ints
) -> None:
    """What the items of a node, or of n + an edge, use more at another strategy or pair."""
    for item in range(layout.own_items[owner], layout.own_items[owner + 1]):
        x = layout.item_order[item]
        more = memory.usage_pool[memory.usage[x] + now] - memory.usage_pool[memory.usage[x] + then]
        if more != 0:
            change[memory.begin[x]] += more
            change[memory.end[x]] -= more
            span[0] = min(span[0], memory.begin[x])
            span[1] = max(span[1], memory.end[x])


@kernel
def difference(
    layout: Layout,
    weights: Weights,
    memory: Memory,
    tree: Tree,
    size: int,
    choice: Ints,
    change: Ints,
    span: Ints,
) -> float:
    """True change in cost; `change` gets the steps of the change in bytes, `span` the rows that hold them."""
    start, ends = layout.start, layout.ends
    count = len(start) - 1
    delta = 0.0
    for at in range(size):
        i, new_i = tree.node[at], tree.fresh[at]
        if new_i == choice[i]:
            continue
        delta += weights.cost[start[i] + new_i] - weights.cost[start[i] + choice[i]]
        note_bytes(layout, memory, i, choice[i], new_i, change, span)
        for near in range(layout.near_start[i], layout.near_start[i + 1]):
            j, e = layout.near_node[near], layout.near_edge[near]
            new_j = choice[j]
            if tree.slot[j] >= 0:
                new_j = tree.fresh[tree.slot[j]]
                if new_j != choice[j] and j < i:
                    continue  # counted at j
            if ends[e, 0] == i:
                columns = start[j + 1] - start[j]
                then, now = choice[i] * columns + choice[j], new_i * columns + new_j
            else:
                columns = start[i + 1] - start[i]
                then, now = choice[j] * columns + choice[i], new_j * columns + new_i
            delta += weights.pool[weights.table[e] + now] - weights.pool[weights.table[e] + then]
            note_bytes(layout, memory, count + e, then, now, change, span)
    return delta


@kernel
def excess_change(memory: Memory, profile: Ints, change: Ints, span: Ints) -> float:
    """Bytes over the room, summed over the rows: after the change less before."""
    difference = 0.0
    running = 0
    for row in range(span[0], span[1]):
        running += change[row]
        difference += max(0, profile[row] + running - memory.room[row]) - max(
            0, profile[row] - memory.room[row]
        )
    return difference


@kernel
def finish(
    tree: Tree, size: int, choice: Ints, profile: Ints, change: Ints, span: Ints, accept: bool
) -> None:
    """Take the new choice over or not, and wipe the slate."""
    running = 0
    for row in range(span[0], span[1]):
        running += change[row]
        change[row] = 0
        if accept:
            profile[row] += running
    change[span[1]] = 0
    for at in range(size):
        if accept:
            choice[tree.node[at]] = tree.fresh[at]
        tree.slot[tree.node[at]] = -1


@kernel
def run_moves(
    layout: Layout,
    weights: Weights,
    memory: Memory,
    choice: Ints,
    profile: Ints,
    state: RandomState,
    tree: Tree,
    moves: int,
    temperature: float,
    heaviest: float,
) -> None:
    """`moves` steps with trees that fit `tree`; choice, profile and random state change in place.

    Each step draws its weight on bytes from 0..heaviest.
    """
    count, rows = len(layout.start) - 1, len(memory.room)
    largest = len(tree.node)
    change = np.zeros(rows + 1, dtype=np.int64)
    span = np.empty(2, dtype=np.int64)
    for _ in range(moves):
        most = max(1, largest >> max(0, next_random(state) % 8 - 3))
        weight = heaviest * ((next_random(state) % 16) / 15.0) ** 2
        size = grow(layout, tree, next_random(state) % count, most, state)
        span[0], span[1] = rows, 0
        accept = False
        if choose_anew(layout, weights, tree, size, choice, weight, temperature, state):
            delta = difference(layout, weights, memory, tree, size, choice, change, span)
            excess = excess_change(memory, profile, change, span)
            accept = excess < 0 or (excess == 0 and delta <= 0)
            if excess == 0 and delta > 0 and temperature > 0:
                accept = delta <= temperature * exponential(state)
        finish(tree, size, choice, profile, change, span, accept)
