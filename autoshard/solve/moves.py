"""Local search whose step is exact: a random tree around a random node, all of it chosen anew at once.

A breadth-first ball of nodes, each with one neighbour in the tree so far, the others fixed where they stand.
Dynamic programming over the tree minimises cost + weight * (bytes priced by the multipliers) + noise. The new
choice counts only if every memory row stays within its room (or the excess shrinks while there is one), and if its
true cost is lower, or higher by no more than the temperature allows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.kernels import kernel
from autoshard.solve.layout import Layout
from autoshard.solve.messages import Floats


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


@kernel
def run_moves(
    layout: Layout,
    weights: Weights,
    memory: Memory,
    choice: Ints,
    profile: Ints,
    random: Ints,
    moves: int,
    largest: int,
    temperature: float,
    heaviest: float,
) -> float:
    """`moves` steps with trees of up to `largest` nodes; choice, profile and random state change in place.

    Returns the change in cost. Each step draws its weight on bytes from 0..heaviest.
    """
    start, ends, near_start = layout.start, layout.ends, layout.near_start
    near_edge, near_node = layout.near_edge, layout.near_node
    count, rows = len(start) - 1, len(memory.room)
    widest = 0
    for i in range(count):
        widest = max(widest, start[i + 1] - start[i])
    slot = np.full(count, -1, dtype=np.int64)
    tree = np.empty(largest, dtype=np.int64)
    parent = np.empty(largest, dtype=np.int64)
    parent_edge = np.empty(largest, dtype=np.int64)
    value = np.empty((largest, widest))
    pick = np.empty((largest, widest), dtype=np.int64)
    fresh = np.empty(largest, dtype=np.int64)
    change = np.zeros(rows + 1, dtype=np.int64)
    gained = 0.0
    state = np.uint64(random[0])
    for _ in range(moves):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        root = np.int64(state >> np.uint64(33)) % count
        size_draw = np.int64((state >> np.uint64(20)) & np.uint64(7))
        most = max(1, largest >> size_draw) if size_draw < 4 else largest
        weight = heaviest * ((np.int64((state >> np.uint64(24)) & np.uint64(15))) / 15.0) ** 2
        size = 1
        tree[0], parent[0], parent_edge[0], slot[root] = root, -1, -1, 0
        head = 0
        while head < size and size < most:
            i = tree[head]
            first_near, degree = near_start[i], near_start[i + 1] - near_start[i]
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            shift = np.int64(state >> np.uint64(33)) % max(degree, 1)
            for step in range(min(degree, 64)):
                near = first_near + (step + shift) % degree
                j = near_node[near]
                if slot[j] >= 0 or size >= most:
                    continue
                touching = 0
                for back in range(near_start[j], min(near_start[j + 1], near_start[j] + 256)):
                    if slot[near_node[back]] >= 0:
                        touching += 1
                        if touching > 1:
                            break
                if touching == 1 and near_start[j + 1] - near_start[j] <= 256:
                    slot[j] = size
                    tree[size], parent[size], parent_edge[size] = j, head, near_edge[near]
                    size += 1
            head += 1
        for at in range(size):
            i = tree[at]
            k = start[i + 1] - start[i]
            for s in range(k):
                value[at, s] = weights.cost[start[i] + s] + weight * weights.node_bytes[start[i] + s]
            if temperature > 0:
                for s in range(k):
                    state ^= state << np.uint64(13)
                    state ^= state >> np.uint64(7)
                    state ^= state << np.uint64(17)
                    value[at, s] -= temperature * np.log(((state >> np.uint64(11)) + np.uint64(1)) / 2.0**53)
            for near in range(near_start[i], near_start[i + 1]):
                j = near_node[near]
                if slot[j] >= 0:
                    continue
                e = near_edge[near]
                first = ends[e, 0] == i
                stride = start[j + 1] - start[j] if first else 1
                offset = choice[j] if first else choice[j] * k
                for s in range(k):
                    value[at, s] += weights.pool[weights.table[e] + offset + s * stride]
                if weights.edge_bytes[e] >= 0 and weight > 0:
                    for s in range(k):
                        value[at, s] += (
                            weight * weights.pair_bytes[weights.edge_bytes[e] + offset + s * stride]
                        )
        for back in range(size - 1):
            at = size - 1 - back
            i, e = tree[at], parent_edge[at]
            up = tree[parent[at]]
            k, other = start[i + 1] - start[i], start[up + 1] - start[up]
            first = ends[e, 0] == i
            stride, across = (other, 1) if first else (1, k)
            priced = weights.edge_bytes[e] >= 0 and weight > 0
            for t in range(other):
                best, best_s = np.inf, 0
                base = weights.table[e] + t * across
                for s in range(k):
                    total = value[at, s] + weights.pool[base + s * stride]
                    if priced:
                        total += weight * weights.pair_bytes[weights.edge_bytes[e] + t * across + s * stride]
                    if total < best:
                        best, best_s = total, s
                value[parent[at], t] += best
                pick[at, t] = best_s
        changed = False
        for at in range(size):
            i = tree[at]
            if at == 0:
                fresh[0] = np.argmin(value[0, : start[i + 1] - start[i]])
            else:
                fresh[at] = pick[at, fresh[parent[at]]]
            changed = changed or fresh[at] != choice[i]
        if changed:
            delta = 0.0
            low, high = rows, 0
            for at in range(size):
                i = tree[at]
                if fresh[at] == choice[i]:
                    continue
                delta += weights.cost[start[i] + fresh[at]] - weights.cost[start[i] + choice[i]]
                for item in range(layout.own_items[i], layout.own_items[i + 1]):
                    x = layout.item_order[item]
                    more = memory.usage_pool[memory.usage[x] + fresh[at]]
                    more -= memory.usage_pool[memory.usage[x] + choice[i]]
                    if more != 0:
                        change[memory.begin[x]] += more
                        change[memory.end[x]] -= more
                        low, high = min(low, memory.begin[x]), max(high, memory.end[x])
                for near in range(near_start[i], near_start[i + 1]):
                    j, e = near_node[near], near_edge[near]
                    new = choice[j]
                    if slot[j] >= 0:
                        new = fresh[slot[j]]
                        if new != choice[j] and j < i:
                            continue  # counted at j
                    k, other = start[i + 1] - start[i], start[j + 1] - start[j]
                    if ends[e, 0] == i:
                        then, now = choice[i] * other + choice[j], fresh[at] * other + new
                    else:
                        then, now = choice[j] * k + choice[i], new * k + fresh[at]
                    delta += weights.pool[weights.table[e] + now] - weights.pool[weights.table[e] + then]
                    for item in range(layout.own_items[count + e], layout.own_items[count + e + 1]):
                        x = layout.item_order[item]
                        more = memory.usage_pool[memory.usage[x] + now]
                        more -= memory.usage_pool[memory.usage[x] + then]
                        if more != 0:
                            change[memory.begin[x]] += more
                            change[memory.end[x]] -= more
                            low, high = min(low, memory.begin[x]), max(high, memory.end[x])
            over_then, over_now = 0.0, 0.0
            running = 0
            for row in range(low, high):
                running += change[row]
                over_then += max(0, profile[row] - memory.room[row])
                over_now += max(0, profile[row] + running - memory.room[row])
            accept = over_now < over_then
            if over_now <= over_then and not accept:
                accept = delta <= 0
                if not accept and temperature > 0:
                    state ^= state << np.uint64(13)
                    state ^= state >> np.uint64(7)
                    state ^= state << np.uint64(17)
                    accept = delta <= -temperature * np.log(
                        ((state >> np.uint64(11)) + np.uint64(1)) / 2.0**53
                    )
            running = 0
            for row in range(low, min(high + 1, rows + 1)):
                running += change[row]
                change[row] = 0
                if accept and row < high:
                    profile[row] += running
            if accept:
                gained += delta
                for at in range(size):
                    choice[tree[at]] = fresh[at]
        for at in range(size):
            slot[tree[at]] = -1
    random[0] = np.int64(state >> np.uint64(1)) | 1
    return gained
