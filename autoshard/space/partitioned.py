"""How XLA's partitioner runs an op whose operands and result are sharded as nothing prescribes: a product, or a slice at an index.

What is read or updated at an index is brought to the sharding of the result, whole along the dimensions that the rule wants whole, and
sliced behind that (libtpu 0.0.52, v5e 4x4).

Products go by counts of parts and by which dimensions match, not by price: the rules below are those of XLA's `dot_handler.cc` (SPMD
partitioner, 2025), in axes. With all devices, then within groups of those that share what has been decided:

1. Where both operands are split over all devices along the batch, or one and the result alike, along that.
2. Where both are split so along what is summed over, along that: the sum goes everywhere and is sliced.
3. Where one operand and the result are split alike over all devices along a dimension that the other operand does not have, along that:
   the other one is gathered.
4. Otherwise devices are grouped along what matches: the batch, then a dimension of one operand and the result, then what is summed over,
   and the groups run the rest.
5. Otherwise as the result is split, if that is over all devices along one of these; then (2) by the larger operand where the other and
   the result are whole.

What is left is run as the result is split.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from autoshard.program import KernelShape
from autoshard.sharding import (
    PRODUCT,
    AxisRef,
    FactorAxes,
    FactorKind,
    Mesh,
    OpShardingRule,
    TensorMapping,
    TensorSharding,
    factor_axes_of,
    tensor_sharding,
    total_size,
)
from autoshard.space.factors import may_split
from autoshard.space.shardings import searched_axes
from autoshard.space.strategies import Strategy, reduced_axes

_AT_INDEX = frozenset({"stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"})

_Axes = tuple[AxisRef, ...]
_Split = Mapping[int, _Axes]
"""The axes of factors that are split."""


def partitioned(
    shape: KernelShape,
    operands: tuple[TensorSharding, ...],
    results: tuple[TensorSharding, ...],
    mesh: Mesh,
) -> Strategy | None:
    """The strategy by which such an op with such operands settles so; None where these rules have none."""
    if shape.manual_axes:
        return None
    if shape.name in _AT_INDEX:
        return _split_as(shape, _result_where_free(shape, results, mesh), results, mesh)
    if shape.name != PRODUCT or len(operands) != 2:
        return None
    rule = shape.rule
    mappings = (*rule.operands, *rule.results)
    split = [
        _split_of(rule, mapping, one, mesh)
        for mapping, one in zip(mappings, (*operands, *results), strict=True)
    ]
    lhs, rhs, out = split
    if lhs is None or rhs is None or out is None:
        return None
    sizes = tuple(type_.num_bytes for type_ in (*shape.operands, *shape.results))
    chosen = _Roles.of(rule).run(_Case(lhs, rhs, out, searched_axes(mesh), sizes))
    return _split_as(shape, chosen, results, mesh)


def _result_where_free(shape: KernelShape, results: tuple[TensorSharding, ...], mesh: Mesh) -> _Split | None:
    """The axes of the result's factors that may be split."""
    split = _split_of(shape.rule, shape.rule.results[0], results[0], mesh)
    return None if split is None else {f: axes for f, axes in split.items() if may_split(shape, f)}


def _split_as(
    shape: KernelShape, chosen: _Split | None, results: tuple[TensorSharding, ...], mesh: Mesh
) -> Strategy | None:
    """With these axes of factors, resharded behind the op to what is settled as."""
    if chosen is None:
        return None
    rule = shape.rule
    factor_axes: FactorAxes = tuple(chosen.get(factor, ()) for factor in range(len(rule.factors)))
    read, made = (
        tuple(tensor_sharding(rule, mapping, factor_axes, mesh) for mapping in side)
        for side in (rule.operands, rule.results)
    )
    reads, produced = (tuple(one for one in side if one is not None) for side in (read, made))
    if len(reads) != len(read) or len(produced) != len(made):
        return None
    return Strategy(
        factor_axes, reads, produced, results, reduced_axes(rule, factor_axes, mesh), is_open=True
    )


def _split_of(
    rule: OpShardingRule, mapping: TensorMapping, sharding: TensorSharding, mesh: Mesh
) -> _Split | None:
    if sharding.unreduced:
        return None
    found = factor_axes_of(rule, [mapping], [sharding], mesh)
    return None if found is None else {factor: axes for factor, axes in enumerate(found) if axes}


@dataclass(frozen=True, slots=True)
class _Case:
    """A product on the devices of these axes: how its operands and its result are split over them.

    `bytes_` of one device's part of each were it whole within its group.
    """

    lhs: _Split
    rhs: _Split
    out: _Split
    axes: _Axes
    bytes_: tuple[int, ...]

    @property
    def devices(self) -> int:
        return total_size(self.axes)

    def local_bytes(self) -> list[float]:
        parts = (self.lhs, self.rhs, self.out)
        return [size / _count(split) for size, split in zip(self.bytes_, parts, strict=True)]

    def grouped(self, by: _Axes, lhs: _Split, rhs: _Split, out: _Split, divided: tuple[bool, ...]) -> "_Case":
        """Within each group; `divided`: which of the three have a part in each."""
        size = total_size(by)
        bytes_ = tuple(b // size if one else b for b, one in zip(self.bytes_, divided, strict=True))
        return _Case(lhs, rhs, out, _unused(self.axes, by), bytes_)


@dataclass(frozen=True, slots=True)
class _Roles:
    """The factors of a product: of all three (b), of the first operand and the result (m), of the second (n), summed over (k)."""

    b: frozenset[int]
    m: frozenset[int]
    n: frozenset[int]
    k: frozenset[int]

    @staticmethod
    def of(rule: OpShardingRule) -> "_Roles":
        lhs, rhs = (frozenset(f for dim in mapping for f in dim) for mapping in rule.operands)
        k = frozenset(f for f in lhs & rhs if rule.factors[f].kind is FactorKind.REDUCTION)
        return _Roles((lhs & rhs) - k, lhs - rhs, rhs - lhs, k)

    def run(self, case: _Case) -> _Split:
        """The axes of each factor."""
        for in_place in (True, False):  # whether operands stay on the devices that they are on
            found = self._base(case) or self._grouped(case, in_place=in_place) or self._as_result(case)
            if found is not None:
                return found
        return case.out

    def _base(self, case: _Case) -> _Split | None:
        """Rules 1 to 3."""
        lhs, rhs, out, devices = case.lhs, case.rhs, case.out, case.devices
        if devices == 1:
            return {}
        if 1 < _count(out) < devices:
            return None
        if _count(lhs, self.b) == devices and _of(lhs, self.b) in (_of(rhs, self.b), _of(out, self.b)):
            return _of(lhs, self.b)
        if _count(rhs, self.b) == devices and _of(rhs, self.b) == _of(out, self.b):
            return _of(rhs, self.b)
        if _count(lhs, self.k) == devices == _count(rhs, self.k):
            larger = rhs if case.bytes_[0] < case.bytes_[1] else lhs
            return _of(larger, self.k)
        for operand, role in ((lhs, self.m), (rhs, self.n)):
            if _count(operand, role) == devices and _of(operand, role) == _of(out, role):
                return _of(operand, role)
        return None

    def _as_result(self, case: _Case) -> _Split | None:
        """Rule 5."""
        lhs, rhs, out, devices = case.lhs, case.rhs, case.out, case.devices
        if 1 < _count(out) < devices:
            return None
        for role in (self.b, self.m, self.n):
            if _count(out, role) == devices:
                return _of(out, role)
        if out:
            return None
        for one, other, size in ((rhs, lhs, case.bytes_[1]), (lhs, rhs, case.bytes_[0])):
            if _count(one, self.k) == devices and not other and size > case.bytes_[2]:
                return _of(one, self.k)
        return None

    def _grouped(self, case: _Case, *, in_place: bool) -> _Split | None:
        """Rule 4."""
        for group in (self._by_batch, self._by_kept, self._by_summed):
            found = group(case, in_place=in_place)
            if found is not None:
                mine, rest = found
                return {**mine, **self.run(rest)}
        if not case.lhs and not case.rhs and 1 < _count(case.out) < case.devices:
            return self.run(replace(case, axes=_axes(case.out)))
        return None

    def _by_batch(self, case: _Case, *, in_place: bool) -> tuple[_Split, _Case] | None:
        lhs, rhs, out = (_of(one, self.b) for one in (case.lhs, case.rhs, case.out))
        if _count(out) == 1 or _count(out) not in (_count(lhs), _count(rhs)):
            return None
        if _sizes(lhs) == _sizes(rhs):
            sizes = case.local_bytes()
            mine = lhs if sizes[0] > sizes[1] else rhs
        else:
            mine = out
        if in_place and not lhs == rhs == mine:
            return None
        by = _axes(mine)
        parts = [_without(one, by) for one in (case.lhs, case.rhs, case.out)]
        return mine, case.grouped(
            by,
            *(_but(one, self.b) for one in parts),
            divided=(True, True, True),
        )

    def _by_kept(self, case: _Case, *, in_place: bool) -> tuple[_Split, _Case] | None:
        """Along dimensions that one operand and the result have."""
        sizes = case.local_bytes()
        m, n = (_of(case.lhs, self.m), _of(case.out, self.m)), (_of(case.rhs, self.n), _of(case.out, self.n))
        may_m, may_n = (1 < _count(one[0]) == _count(one[1]) for one in (m, n))
        if may_m or may_n:
            is_lhs = may_m and (not may_n or _count(m[0]) * sizes[1] < _count(n[0]) * sizes[0])
            factors = (self.m if is_lhs else self.n).intersection(case.out)
        elif m[0] and m[1]:
            is_lhs, factors = True, _alike(*m)
        elif n[0] and n[1]:
            is_lhs, factors = False, _alike(*n)
        else:
            return None
        mine = _of(case.out, factors)
        matching, other = (case.lhs, case.rhs) if is_lhs else (case.rhs, case.lhs)
        role = self.n if is_lhs else self.m
        if not mine or (in_place and _of(matching, factors) != mine):
            return None
        by = _axes(mine)
        rest = _but(_without(matching, by), factors)
        is_small = sizes[1 if is_lhs else 0] <= sizes[2]
        other = self._gathered(case, other, matching, by, role, is_small=is_small)
        out = _but(_without(case.out, by), factors)
        lhs, rhs = (rest, other) if is_lhs else (other, rest)
        return mine, case.grouped(by, lhs, rhs, out, (is_lhs, not is_lhs, True))

    def _gathered(
        self, case: _Case, other: _Split, matching: _Split, by: _Axes, role: frozenset[int], *, is_small: bool
    ) -> _Split:
        """The other operand, of which each group needs all that the result does not split."""
        out = case.out
        split = {f for f, axes in other.items() if _overlaps(axes, by)}
        if not split:
            return other
        unused = _unused(case.axes, _axes(other))
        swapped = [f for f in split if other[f] == by and total_size(unused) == total_size(by)]
        if swapped:  # what it is whole over and what it is split over change places
            return {**other, swapped[0]: unused}
        if set(_axes(_of(other, split))) == set(by):
            return _but(other, split)
        may_k = _count(other, self.k) == total_size(by) and _count(other, role) == _count(out, role)
        may_kept = _count(other, role) == total_size(by) and _count(matching, self.k) == _count(other, self.k)
        if may_k and (not may_kept or is_small):
            return _without(_but(other, self.k), by)
        if may_kept:
            return _without(_but(other, role), by)
        return _without({**_of(out, self.b | role), **_of(matching, self.k)}, by)

    def _by_summed(self, case: _Case, *, in_place: bool) -> tuple[_Split, _Case] | None:
        lhs, rhs = _of(case.lhs, self.k), _of(case.rhs, self.k)
        if not lhs or not rhs:
            return None
        factors = self.k if _count(lhs) == _count(rhs) else _alike(lhs, rhs)
        lhs, rhs = _of(lhs, factors), _of(rhs, factors)
        if not lhs or not rhs or (in_place and lhs != rhs):
            return None
        sizes = case.local_bytes()
        mine = lhs if sizes[0] > sizes[1] else rhs
        by = _axes(mine)
        rest = [_but(_without(one, by), factors) for one in (case.lhs, case.rhs)]
        out = case.out
        for kept in (rest[0], rest[1]):
            unsplit = _but(kept, self.k)
            if kept and not (rest[1] if kept is rest[0] else rest[0]) and _is_cut_further(unsplit, out):
                out = unsplit
        split = {f for f, axes in out.items() if _overlaps(axes, by)}
        inner: _Split = out
        if split:
            is_scattered = set(_axes(_of(out, split))) == set(by)
            roles = [one for one in (self.m, self.n, self.b) if _count(out, one) == total_size(by)]
            if not is_scattered and not roles:
                inner = {}
            else:
                dropped = split if is_scattered else roles[0]
                inner = _without(_but(out, dropped), by)
        return mine, case.grouped(by, rest[0], rest[1], inner, (True, True, False))


def _count(split: _Split, factors: Iterable[int] | None = None) -> int:
    """Into how many parts."""
    return math.prod(total_size(split.get(f, ())) for f in (split if factors is None else factors))


def _of(split: _Split, factors: Iterable[int]) -> _Split:
    return {f: split[f] for f in factors if f in split}


def _but(split: _Split, factors: Collection[int]) -> _Split:
    """All of it but these."""
    return _of(split, [f for f in split if f not in factors])


def _axes(split: _Split) -> _Axes:
    return tuple(axis for f in sorted(split) for axis in split[f])


def _unused(axes: _Axes, by: _Axes) -> _Axes:
    return tuple(axis for axis in axes if not _overlaps((axis,), by))


def _sizes(split: _Split) -> dict[int, int]:
    return {f: total_size(axes) for f, axes in split.items()}


def _alike(one: _Split, other: _Split) -> frozenset[int]:
    """Factors split into as many parts in both."""
    return frozenset(f for f in one if f in other and total_size(one[f]) == total_size(other[f]))


def _overlaps(axes: _Axes, by: _Axes) -> bool:
    return any(axis.overlaps(other) for axis in axes for other in by)


def _without(split: _Split, by: _Axes) -> _Split:
    """Without what is split over any of these axes."""
    return {f: axes for f, axes in split.items() if not _overlaps(axes, by)}


def _is_cut_further(split: _Split, out: _Split) -> bool:
    return all(out.get(f, ())[: len(axes)] == axes for f, axes in split.items())
