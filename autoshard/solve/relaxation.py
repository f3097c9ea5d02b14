"""Lagrangian relaxation of the memory rows, bounded by message passing.

A multiplier l_t >= 0 per row prices its bytes, so that for all of them

    min_x cost(x)  subject to memory   >=   min_x (cost(x) + sum_t l_t (bytes_t(x) - room_t))   >=   bound(messages)

where bytes of items become costs of nodes and edges. The multipliers follow the rows that the relaxed choice
overloads, multiplicatively: l_t *= exp(rate * clip(bytes_t / room - 1, -1/4, 1)).

Reported bounds are integers. Costs are scaled by a power of two; multipliers are whole multiples of another; the
priced bytes of a strategy are rounded down and the price of the room up; the sum over all is rounded up in the end,
because costs are whole numbers.
"""

from __future__ import annotations

import numpy as np

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock, check, watched
from autoshard.solve.core import Core
from autoshard.solve.graph import FINITE_BELOW, FORBIDDEN
from autoshard.solve.layout import Layout, message_size, most_neighbours
from autoshard.solve.messages import LARGEST_BOUND, Floats, decode, exact_bound, float_bound, sweep
from autoshard.solve.moves import Memory, Weights

_SCALED_TOTAL = 52  # bits of the scaled sum of all costs
_MOST_SCALE = 16  # bits
_LONG = 4_096  # bytes of so many strategies or pairs are priced one item after the other, without an index of each
_LARGEST_PRICED = 2.0**60  # scaled sum of all priced bytes; lowering a price keeps a bound a bound
_LARGEST_MESSAGE = 2.0**57  # scaled; any messages make a bound
_LARGEST_RECEIVED = 2.0**60  # scaled sum of the messages to one node
_DEAREST_BYTE = 4.0  # times all costs together: where nothing fits, prices would rise for ever


class Relaxation:
    """Messages and multipliers of one core, improved step by step."""

    def __init__(self, core: Core, layout: Layout, total: int = 0, clock: Clock | None = None) -> None:
        """`total` raises what the largest sum of costs is taken to be.

        Raises:
            OutOfTimeError: the clock is over.
        """
        self.core, self.layout = core, layout
        finite = core.pool < FINITE_BELOW
        self.total = max(total, _largest_per_node(core) + _largest_per_edge(core, clock) + 1)
        self._scale = 1 << min(_MOST_SCALE, max(0, _SCALED_TOTAL - self.total.bit_length()))
        self._cost = core.cost.astype(np.float64)
        self._pool = np.where(finite, core.pool, 4.0 * self.total)
        self._largest_message = min(_LARGEST_MESSAGE, _LARGEST_RECEIVED / most_neighbours(layout))
        self._prices = _Prices(core, clock)
        self.table, self._priced_pool_of = self._prices.private_tables(core)
        check(clock)
        self.messages = np.zeros(message_size(core))
        self.multipliers = self._first_multipliers()
        self._reprice()
        check(clock)

    def weights(self) -> Weights:
        """For local search: costs, and bytes at the current prices."""
        return Weights(
            self._cost,
            self.core.table,
            self._pool,
            self._node_bytes,
            self._prices.edge_bytes,
            self._pair_bytes,
        )

    def memory(self) -> Memory:
        core = self.core
        return Memory(core.room, core.item_begin, core.item_end, core.item_usage, core.usage_pool)

    def improve(self, times: int, clock: Clock | None = None) -> None:
        """Message passing at the current prices, as often as the clock allows."""
        for _ in range(times):
            if clock is not None and clock.over():
                return
            sweep(self.layout, self._priced_cost, self.table, self._priced_pool, self.messages, 1)

    def decoded(self) -> Ints:
        return decode(self.layout, self._priced_cost, self.table, self._priced_pool, self.messages)

    def price_rows(self, multipliers: Floats) -> None:
        """Set the multipliers, none dearer than makes sense."""
        self.multipliers = np.minimum(multipliers, _DEAREST_BYTE * self.total)
        self._reprice()

    def value(self) -> float:
        """The bound at these multipliers and messages, the constant of the core left out, roughly."""
        of_messages = float_bound(
            self.layout, self._priced_cost, self.table, self._priced_pool, self.messages
        )
        return float(of_messages) - float(self.multipliers @ self.core.room)

    def bound(self) -> tuple[int, Ints]:
        """A lower bound on the cost, and [sum K] one for every strategy if it is taken, scaled, for `reaches`."""
        core, scale = self.core, self._scale
        cost, pool, offset = self._prices.scaled(core, self.multipliers, scale, self._priced_pool_of)
        conditional = np.empty(len(cost), dtype=np.int64)
        largest = self._largest_message
        messages = np.clip(np.rint(self.messages * scale), -largest, largest).astype(np.int64)
        raw = int(exact_bound(self.layout, cost, self.table, pool, messages, conditional)) - offset
        raw = max(raw, -LARGEST_BOUND)
        return -(-raw // scale) + core.constant, raw + conditional

    def reaches(self, conditional: Ints, cost: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """[sum K] strategies with which nothing cheaper than `cost` is possible."""
        threshold = (cost - 1 - self.core.constant) * self._scale
        return conditional > threshold

    def _first_multipliers(self) -> Floats:
        room = self.core.room
        if not len(room):
            return np.zeros(0)
        return np.full(len(room), 0.01 * self.total / max(float(room.sum()), 1.0))

    def _reprice(self) -> None:
        self._node_bytes, self._pair_bytes = self._prices.of_bytes(self.multipliers)
        self._priced_cost = self._cost + self._node_bytes
        self._priced_pool = np.concatenate([self._pool, self._pool[self._priced_pool_of] + self._pair_bytes])


class _Prices:
    """Items -> priced bytes of the strategies of nodes, and of the pairs of the edges that have items.

    Items of one owner that take the same bytes are one with the price of them all: few are of their own where values are read again and
    again.
    """

    def __init__(self, core: Core, clock: Clock | None) -> None:
        nodes = core.node_count
        sizes = np.concatenate([core.counts, core.counts[core.ends[:, 0]] * core.counts[core.ends[:, 1]]])
        has_items = np.unique(core.item_owner[core.item_owner >= nodes]) - nodes
        self.edge_bytes = np.full(len(core.ends), -1, dtype=np.int64)
        self.edge_bytes[has_items] = np.concatenate([[0], np.cumsum(sizes[nodes + has_items])])[:-1]
        self._pairs = int(sizes[nodes + has_items].sum())
        self._has_items = has_items
        self._sizes = sizes
        owner_and_usage = np.stack([core.item_owner, core.item_usage], axis=1).reshape(-1, 2)
        alike, self._alike = np.unique(owner_and_usage, axis=0, return_inverse=True)
        self._alike = self._alike.reshape(-1)
        owner, usage = alike.T
        lengths = sizes[owner]
        check(clock)
        at = np.where(
            owner < nodes,
            core.start[np.minimum(owner, nodes)],
            len(core.cost) + self.edge_bytes[np.maximum(owner - nodes, 0)] if len(core.ends) else 0,
        )
        self._bytes = core.usage_pool
        is_long = lengths > _LONG
        self._long = np.stack([np.arange(len(lengths)), at, usage, lengths], axis=1)[is_long].tolist()
        self._short = np.flatnonzero(~is_long)
        at, usage, lengths = at[self._short], usage[self._short], lengths[self._short]
        self._item = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        check(clock)
        self._target = np.repeat(at, lengths) + within
        check(clock)
        self._usage = core.usage_pool[np.repeat(usage, lengths) + within].astype(np.float64)
        self._begin, self._end = core.item_begin, core.item_end
        self._strategies = len(core.cost)
        terms = np.bincount(core.item_owner, minlength=1).max()
        self._downward = 1.0 - (float(terms) + 16.0) * 2.0**-52

    def private_tables(self, core: Core) -> tuple[Ints, Ints]:
        """Where the matrix of each edge begins if those with items have copies after the pool, and what to copy."""
        table = core.table.copy()
        table[self._has_items] = len(core.pool) + self.edge_bytes[self._has_items]
        ranges = [
            int(core.table[edge]) + np.arange(int(self._sizes[core.node_count + edge]))
            for edge in self._has_items.tolist()
        ]
        return table, np.concatenate([np.zeros(0, dtype=np.int64), *ranges])

    def of_bytes(self, multipliers: Floats) -> tuple[Floats, Floats]:
        """([sum K], [pairs]) sum over the items of (sum of the multipliers of its rows) * bytes."""
        sums = np.concatenate([[0.0], np.cumsum(multipliers)])
        prices = self._priced_bytes(sums[self._end] - sums[self._begin])
        return prices[: self._strategies], prices[self._strategies :]

    def scaled(self, core: Core, multipliers: Floats, scale: int, copied: Ints) -> tuple[Ints, Ints, int]:
        """Integer costs and matrices at these prices, rounded down, and the price of all room, rounded up."""
        cost = core.cost * scale
        pool = np.where(core.pool < FINITE_BELOW, core.pool * scale, FORBIDDEN)
        if not len(multipliers):
            return cost, pool, 0
        bits = int(np.floor(50 - np.log2(max(float(multipliers.sum()), 2.0**-900))))
        whole = np.floor(np.ldexp(multipliers, bits)).astype(np.int64)
        sums = np.concatenate([[0], np.cumsum(whole)])
        exact = self._priced_bytes((sums[self._end] - sums[self._begin]).astype(np.float64))
        largest = _LARGEST_PRICED / (core.node_count + len(core.ends))
        lowered = np.minimum(np.ldexp(exact * scale, -bits) * self._downward, largest)
        lowered = np.floor(lowered).astype(np.int64)
        copies = pool[copied]
        copies = np.where(copies < FINITE_BELOW, copies + lowered[self._strategies :], FORBIDDEN)
        used = np.flatnonzero(whole)
        offset = scale * sum(
            a * b for a, b in zip(whole[used].tolist(), core.room[used].tolist(), strict=True)
        )
        offset = -(-offset >> bits) if bits >= 0 else offset << -bits
        return cost + lowered[: self._strategies], np.concatenate([pool, copies]), offset

    def _priced_bytes(self, price: Floats) -> Floats:
        """[sum K + pairs] price * bytes of every item, by what it belongs to."""
        priced = np.bincount(self._alike, price).astype(np.float64)
        counted = np.bincount(
            self._target,
            priced[self._short][self._item] * self._usage,
            minlength=self._strategies + self._pairs,
        )
        total = np.asarray(counted, dtype=np.float64)
        for item, at, usage, length in self._long:
            total[at : at + length] += priced[item] * self._bytes[usage : usage + length]
        return total


def _largest_per_node(core: Core) -> int:
    if not core.node_count:
        return 0
    return int(np.maximum.reduceat(np.abs(core.cost), core.start[:-1]).sum())


def _largest_per_edge(core: Core, clock: Clock | None) -> int:
    largest: dict[int, int] = {}
    for edge, table in enumerate(watched(clock, core.table.tolist())):
        if table not in largest:
            matrix = core.matrix(edge)
            largest[table] = int(np.abs(matrix[matrix < FINITE_BELOW]).max(initial=0))
    return sum(largest[table] for table in core.table.tolist())
