"""Tree-reweighted message passing: a lower bound by moving costs between nodes and edges.

Messages m reparametrise the core: node i has r_i = cost_i + sum_e m[e -> i], edge e has M_e - m[e -> u] - m[e -> v],
the total of any choice is unchanged, and

    bound(m) = sum_i min_s r_i(s) + sum_e min_{s, t} (M_e(s, t) - m[e -> u](s) - m[e -> v](t))

holds for every m. `sweep` improves m by sequential TRW-S [1], in the form of block-coordinate
ascent [2], in floating point; `exact_bound` evaluates the formula
in integers, so no rounding touches what is reported. `conditional` is the same bound under x_i = s; a strategy
whose bound reaches the cost of a known choice can go (reduced cost fixing).

[1] V. Kolmogorov, Convergent tree-reweighted message passing for energy minimization, IEEE PAMI 28(10), 2006.
[2] V. Kolmogorov, A new look at reweighted message passing, IEEE PAMI 37(5), 2015.
"""

# pyright: reportArgumentType=false, reportReturnType=false
# An element of an array is a number here: numba gives it its type, numpy's stubs cannot.
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoshard.problem.model import Ints
from autoshard.solve.kernels import kernel
from autoshard.solve.layout import Layout

Floats = NDArray[np.float64]
LARGEST_BOUND = 2**62  # either way: no choice costs so little, and where one would cost so much there is none


@kernel
def take_minima(
    pool: Floats, at: int, messages: Floats, own: int, k: int, other: int, count: int, side: int
) -> None:
    """messages[own + s] = min_t (M(s, t) - messages[other + t]), so that what is left of the edge is zero there."""
    if side == 0:
        for s in range(k):
            least = np.inf
            for t in range(count):
                least = min(least, pool[at + s * count + t] - messages[other + t])
            messages[own + s] = least
        return
    for s in range(k):
        messages[own + s] = np.inf
    for t in range(count):
        sent = messages[other + t]
        row = at + t * k
        for s in range(k):
            messages[own + s] = min(messages[own + s], pool[row + s] - sent)


@kernel
def sweep(layout: Layout, cost: Floats, table: Ints, pool: Floats, messages: Floats, times: int) -> None:
    """`times` passes forward and backward over the nodes, messages updated in place; the bound never falls.

    A node takes in the minima of its edges to the nodes before it, then gives an equal share of its costs to each
    of its edges to the nodes after it; edges to nodes after it have nothing new for it since the pass before.
    """
    start, ends = layout.start, layout.ends
    count = len(start) - 1
    widest = 1
    for i in range(count):
        widest = max(widest, start[i + 1] - start[i])
    total = np.empty(widest)
    for turn in range(2 * times):
        forward = turn % 2 == 0
        for step in range(count):
            i = step if forward else count - 1 - step
            k = start[i + 1] - start[i]
            for s in range(k):
                total[s] = cost[start[i] + s]
            behind = 0
            for near in range(layout.near_start[i], layout.near_start[i + 1]):
                e, j = layout.near_edge[near], layout.near_node[near]
                side = 0 if ends[e, 0] == i else 1
                own = layout.message[e, side]
                if (j < i) == forward:
                    behind += 1
                    take_minima(
                        pool,
                        table[e],
                        messages,
                        own,
                        k,
                        layout.message[e, 1 - side],
                        start[j + 1] - start[j],
                        side,
                    )
                for s in range(k):
                    total[s] += messages[own + s]
            ahead = layout.near_start[i + 1] - layout.near_start[i] - behind
            share = 1.0 / max(behind, ahead, 1)
            for near in range(layout.near_start[i], layout.near_start[i + 1]):
                if (layout.near_node[near] > i) == forward:
                    e = layout.near_edge[near]
                    own = layout.message[e, 0 if ends[e, 0] == i else 1]
                    for s in range(k):
                        messages[own + s] -= share * total[s]


@kernel
def float_bound(layout: Layout, cost: Floats, table: Ints, pool: Floats, messages: Floats) -> float:
    """bound(m) in floating point: to steer by, not to report."""
    start, ends, where = layout.start, layout.ends, layout.message
    rest = cost.copy()
    bound = 0.0
    for e in range(len(ends)):
        u, v = ends[e, 0], ends[e, 1]
        columns = start[v + 1] - start[v]
        for t in range(columns):
            rest[start[v] + t] += messages[where[e, 1] + t]
        least = np.inf
        for s in range(start[u + 1] - start[u]):
            sent = messages[where[e, 0] + s]
            rest[start[u] + s] += sent
            row = table[e] + s * columns
            for t in range(columns):
                least = min(least, pool[row + t] - sent - messages[where[e, 1] + t])
        bound += least
    for i in range(len(start) - 1):
        bound += rest[start[i] : start[i + 1]].min()
    return bound


@kernel
def exact_bound(
    layout: Layout, cost: Ints, table: Ints, pool: Ints, messages: Ints, conditional: Ints
) -> int:
    """bound(m); into `conditional` [sum K] what the bound rises by under x_i = s, 2**60 at most.

    Forbidden entries are 2**61 and stay larger than anything else. Costs, and the messages to one node together, are
    2**61 at most. The sum may leave 64 bits on the way; where it ends out of bounds, `rough` knows.
    """
    start, ends, where = layout.start, layout.ends, layout.message
    conditional[:] = cost
    for e in range(len(ends)):
        for side in range(2):
            i = ends[e, side]
            for s in range(start[i + 1] - start[i]):
                conditional[start[i] + s] += messages[where[e, side] + s]
    bound = 0
    rough = 0.0
    for i in range(len(start) - 1):
        least = conditional[start[i] : start[i + 1]].min()
        for s in range(start[i], start[i + 1]):
            conditional[s] = min(conditional[s] - least, 2**60)
        bound += least
        rough += least
    for e in range(len(ends)):
        u, v = ends[e, 0], ends[e, 1]
        rows, columns = start[u + 1] - start[u], start[v + 1] - start[v]
        least = np.int64(2**62)
        for s in range(rows):
            at = table[e] + s * columns
            for t in range(columns):
                least = min(least, pool[at + t] - messages[where[e, 0] + s] - messages[where[e, 1] + t])
        bound += least
        rough += least
        for s in range(rows):
            best = np.int64(2**62)
            at = table[e] + s * columns
            for t in range(columns):
                best = min(best, pool[at + t] - messages[where[e, 0] + s] - messages[where[e, 1] + t])
            conditional[start[u] + s] = min(conditional[start[u] + s] + best - least, 2**60)
        for t in range(columns):
            best = np.int64(2**62)
            for s in range(rows):
                best = min(
                    best,
                    pool[table[e] + s * columns + t] - messages[where[e, 0] + s] - messages[where[e, 1] + t],
                )
            conditional[start[v] + t] = min(conditional[start[v] + t] + best - least, 2**60)
    if abs(rough) > LARGEST_BOUND:
        return LARGEST_BOUND if rough > 0 else -LARGEST_BOUND
    return bound


@kernel
def decode(layout: Layout, cost: Floats, table: Ints, pool: Floats, messages: Floats) -> Ints:
    """A choice [n]: node by node, the best given those before it and the messages of those after it."""
    start, ends = layout.start, layout.ends
    count = len(start) - 1
    choice = np.zeros(count, dtype=np.int64)
    for i in range(count):
        total = cost[start[i] : start[i + 1]].copy()
        k = len(total)
        for near in range(layout.near_start[i], layout.near_start[i + 1]):
            e, j = layout.near_edge[near], layout.near_node[near]
            first = ends[e, 0] == i
            other = start[j + 1] - start[j]
            for s in range(k):
                if j > i:
                    total[s] += messages[layout.message[e, 0 if first else 1] + s]
                elif first:
                    total[s] += pool[table[e] + s * other + choice[j]]
                else:
                    total[s] += pool[table[e] + choice[j] * k + s]
        choice[i] = np.argmin(total)
    return choice
