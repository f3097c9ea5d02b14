"""Which shardings each recomputed value is wanted in, and what the op that makes it then demands of its operands.

A recomputed value (a constant, an iota, a broadcast, an expression of those) has no sharding of its own: every use gets it as it wants it.
Going backwards through the program, the wanted shardings of a value are known before its op is reached.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autoshard.mlir.decisions import Decisions
from autoshard.mlir.linearity import zero_values
from autoshard.mlir.listing import RESULT_SITE, Listing, Op
from autoshard.sharding import (
    FactorAxes,
    FactorKind,
    OpShardingRule,
    TensorSharding,
    factor_axes_of,
    is_cut_over_all,
    tensor_sharding,
)

_BROADCAST = "stablehlo.broadcast_in_dim"
_FREE_KINDS = (FactorKind.PASS_THROUGH, FactorKind.REDUCTION)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute a recomputed value: what the op makes, from operands in these shardings."""

    made: TensorSharding
    operands: tuple[TensorSharding, ...]


class Choices:
    """Decisions completed to every ranked value and use of a listing."""

    def __init__(self, listing: Listing, decisions: Decisions) -> None:
        self._listing, self._decisions = listing, decisions
        self._zeros = zero_values(listing)
        self._variants: dict[tuple[int, TensorSharding], Variant] = {}
        self.wanted: dict[int, dict[TensorSharding, None]] = {}
        for value, sharding in self._handed_on():
            self._want(value, sharding)
        for index in range(len(listing.ops) - 1, -1, -1):
            for value, sharding in self._wants_of(index):
                self._want(value, sharding)

    def is_recomputed(self, value: int) -> bool:
        return value in self._decisions.cloneable

    def produced(self, value: int) -> TensorSharding:
        found = self._decisions.produced.get(value)
        return found if found is not None else self._replicated(value)

    def settled(self, value: int) -> TensorSharding:
        found = self._decisions.settled.get(value)
        return found if found is not None else self.produced(value)

    def may_be_scattered(self, product: int) -> bool:
        """Whether it is summed over all devices and settles as parts over all of them, which XLA may send while it multiplies."""
        type_ = self._listing.values[product].type
        made, settled = self.produced(product), self.settled(product)
        return type_ is not None and is_cut_over_all(made, settled, type_.shape, self._listing.mesh)

    def shared(self, value: int) -> TensorSharding | None:
        found = self._decisions.shared.get(value)
        return None if found == self.settled(value) else found

    def again(self, index: int, position: int) -> int:
        """Above 0: the number of the reader that has the value brought to its sharding anew."""
        return self._decisions.again.get((index, position), 0)

    def operand(self, index: int, position: int) -> TensorSharding:
        """What op `index`, which is not recomputed, reads at `position`."""
        op = self._listing.ops[index]
        value = op.operands[position]
        named = self._decisions.uses.get((index, position))
        if named is not None:
            return named
        if not self.is_recomputed(value):
            return self.settled(value)
        return (
            self.variant(op, self.produced(op.results[0])).operands[position]
            if op.results
            else self._replicated(value)
        )

    def source(self, flow: int, source: int) -> TensorSharding:
        named = self._decisions.uses.get((-1 - flow, source))
        if named is not None:
            return named
        found, crossing = (
            self.settled(self._listing.data_flows[flow].target),
            self._listing.data_flows[flow].crossing,
        )
        return found if crossing is None or not found.rank else crossing.handed(found)

    def result(self, index: int) -> TensorSharding:
        named = self._decisions.uses.get((RESULT_SITE, index))
        value = self._listing.results[index].value
        if named is not None:
            return named
        return self._replicated(value) if self.is_recomputed(value) else self.settled(value)

    def wanted_of(self, value: int) -> tuple[TensorSharding, ...]:
        """The shardings in which a recomputed value is wanted, replicated if nobody wants it."""
        return tuple(self.wanted.get(value, ())) or (self._replicated(value),)

    def variant(self, op: Op, wanted: TensorSharding) -> Variant:
        """How `op` makes `wanted`; ops of one rule (rules of a listing are shared) have their variants in common."""
        is_shared = op.rule is not None and not wanted.unreduced
        key = (id(op.rule) if is_shared else id(op), wanted)
        variant = self._variants.get(key)
        if variant is None:
            variant = self._variants[key] = self._make_variant(op, wanted)
        return variant

    def _make_variant(self, op: Op, wanted: TensorSharding) -> Variant:
        """Of a sum wanted partial: made partial where zeros or a broadcast can be, else made whole, to be changed."""
        if not wanted.unreduced:
            return self._make_whole_variant(op, wanted)
        variant = self._make_whole_variant(op, wanted.summed())
        way = self._partial_way(op)
        if way is None:
            return variant
        operands = tuple(
            replace(sharding, unreduced=wanted.unreduced) if i in way and sharding.rank else sharding
            for i, sharding in enumerate(variant.operands)
        )
        return Variant(replace(variant.made, unreduced=wanted.unreduced), operands)

    def _partial_way(self, op: Op) -> tuple[int, ...] | None:
        """The operands that are partial when the op makes a partial sum."""
        if op.is_zero:
            return ()
        zero = (way for way in op.linear if all(op.operands[i] in self._zeros for i in way))
        return next(
            zero, op.linear[0] if op.name == _BROADCAST and op.linear and self._has_rank(op) else None
        )

    def _has_rank(self, op: Op) -> bool:
        type_ = self._listing.values[op.operands[0]].type
        return type_ is not None and type_.rank > 0

    def _make_whole_variant(self, op: Op, wanted: TensorSharding) -> Variant:
        whole = Variant(self._replicated(op.results[0]), tuple(map(self._replicated, op.operands)))
        rule, mesh = op.rule, self._listing.mesh
        if rule is None or not rule.factors:
            return whole
        axes = factor_axes_of(rule, rule.results[:1], [wanted], mesh)
        if axes is None:
            return whole
        kept = _splittable(rule, axes)
        made, *operands = (
            tensor_sharding(rule, mapping, kept, mesh) for mapping in (rule.results[0], *rule.operands)
        )
        known = [sharding for sharding in operands if sharding is not None]
        return whole if made is None or len(known) < len(operands) else Variant(made, tuple(known))

    def _replicated(self, value: int) -> TensorSharding:
        type_ = self._listing.values[value].type
        return TensorSharding.replicated_closed(type_.rank if type_ is not None else 0)

    def _want(self, value: int, sharding: TensorSharding) -> None:
        if self.is_recomputed(value):
            self.wanted.setdefault(value, {})[sharding] = None

    def _handed_on(self) -> Iterator[tuple[int, TensorSharding]]:
        for number, flow in enumerate(self._listing.data_flows):
            for index, source in enumerate(flow.sources):
                yield source.value, self.source(number, index)
        for index, result in enumerate(self._listing.results):
            yield result.value, self.result(index)

    def _wants_of(self, index: int) -> Iterator[tuple[int, TensorSharding]]:
        op = self._listing.ops[index]
        if op.results and self.is_recomputed(op.results[0]):
            for wanted in self.wanted_of(op.results[0]):
                yield from zip(op.operands, self.variant(op, wanted).operands, strict=True)
            return
        for position, value in enumerate(op.operands):
            if self.is_recomputed(value):
                yield value, self.operand(index, position)


def _splittable(rule: OpShardingRule, axes: FactorAxes) -> FactorAxes:
    """The axes without those of factors that an op cannot split for free."""
    return tuple(
        mine if factor.kind in _FREE_KINDS else () for factor, mine in zip(rule.factors, axes, strict=True)
    )
