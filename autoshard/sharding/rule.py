"""Op sharding rules: how the dimensions of an op's operands and results map to shared factors, in Shardy's notation.

`([i, k],[k, j])->([i, j]) {i=8, j=16, k=8} reduction={k}`: a dimension that maps to several factors (`[ij]`) is compound, its
factors listed major to minor. Factor kinds (Shardy documentation, propagation): pass-through factors may be split freely; reduction
factors may be split and cost an all-reduce of the results; need-replication factors stay whole; permutation factors may be split
at the price of moving data between neighbours.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from autoshard.errors import AutoshardError


class FactorKind(Enum):
    PASS_THROUGH = "pass_through"
    REDUCTION = "reduction"
    NEED_REPLICATION = "need_replication"
    PERMUTATION = "permutation"


@dataclass(frozen=True, slots=True)
class Factor:
    size: int
    kind: FactorKind = FactorKind.PASS_THROUGH
    is_blocked: bool = False


TensorMapping = tuple[tuple[int, ...], ...]  # factor indices of each dimension, major to minor


@dataclass(frozen=True, slots=True)
class OpShardingRule:
    factors: tuple[Factor, ...]
    operands: tuple[TensorMapping, ...]
    results: tuple[TensorMapping, ...]
    is_custom: bool = field(default=False)
    is_elementwise: bool = field(init=False, repr=False, compare=False)  # asked for millions of times
    """Whether each element of the one result reads one of each operand that is no scalar."""

    def __post_init__(self) -> None:
        read = {operand for operand in self.operands if operand}
        is_elementwise = len(self.results) == 1 and read <= {*self.results} and self.passes_through
        object.__setattr__(self, "is_elementwise", is_elementwise)

    @property
    def passes_through(self) -> bool:
        """Whether every factor may be split freely."""
        return all(
            factor.kind is FactorKind.PASS_THROUGH and not factor.is_blocked for factor in self.factors
        )

    def __str__(self) -> str:
        operands, results = (
            ", ".join(_mapping_text(mapping) for mapping in mappings)
            for mappings in (self.operands, self.results)
        )
        sizes = ", ".join(f"{factor_symbol(i)}={factor.size}" for i, factor in enumerate(self.factors))
        text = f"({operands})->({results})" + (f" {{{sizes}}}" if sizes else "")
        for kind in (FactorKind.REDUCTION, FactorKind.NEED_REPLICATION, FactorKind.PERMUTATION):
            text += _kind_text(
                kind.value, [i for i, factor in enumerate(self.factors) if factor.kind is kind]
            )
        text += _kind_text(
            "blocked_propagation", [i for i, factor in enumerate(self.factors) if factor.is_blocked]
        )
        return text + (", custom" if self.is_custom else "")

    @staticmethod
    def elementwise(shape: Sequence[int], num_operands: int, num_results: int = 1) -> "OpShardingRule":
        """The identity rule: every tensor has this shape and dimension i is factor i everywhere."""
        mapping = tuple((i,) for i in range(len(shape)))
        return OpShardingRule(tuple(map(Factor, shape)), (mapping,) * num_operands, (mapping,) * num_results)


def factor_symbol(index: int) -> str:
    """Shardy's factor names: i, j, ..., z, then z_1, z_2, ..."""
    letters = "ijklmnopqrstuvwxyz"
    return letters[index] if index < len(letters) else f"z_{index - len(letters) + 1}"


def _mapping_text(mapping: TensorMapping) -> str:
    return f"[{', '.join(''.join(map(factor_symbol, dim)) for dim in mapping)}]"


def _kind_text(name: str, factors: list[int]) -> str:
    return f" {name}={{{', '.join(map(factor_symbol, factors))}}}" if factors else ""


_SYMBOL = r"[a-z](?:_\d+)?"
_TENSOR = re.compile(r"\[([^\[\]]*)\]")
_SIZE = re.compile(rf"({_SYMBOL})=(\d+)")
_KIND = re.compile(r"(reduction|need_replication|permutation|blocked_propagation)=\{([^{}]*)\}")


def parse_rule(text: str) -> OpShardingRule:
    """Parse Shardy's notation, alone or inside `#sdy.op_sharding_rule<...>`.

    Raises:
        AutoshardError: the text has no `(...)->(...)`, or uses a factor without a size.
    """
    arrow = text.find("->")
    if arrow < 0:
        raise AutoshardError(
            f"not an op sharding rule: {text}", fix="write ([i, k],[k, j])->([i, j]) {i=8, k=4, j=16}"
        )
    close = text.find(")", arrow)
    operand_text, result_text, tail = text[:arrow], text[arrow:close], text[close:]
    kind_matches = _KIND.findall(tail)
    sizes = dict(_SIZE.findall(_KIND.sub("", tail)))
    order = {symbol: index for index, symbol in enumerate(sizes)}
    kinds = {symbol: kind for kind, symbols in kind_matches for symbol in re.findall(_SYMBOL, symbols)}
    blocked = {
        s
        for kind, symbols in kind_matches
        if kind == "blocked_propagation"
        for s in re.findall(_SYMBOL, symbols)
    }
    for kind, symbols in kind_matches:
        if kind != "blocked_propagation":
            kinds.update(dict.fromkeys(re.findall(_SYMBOL, symbols), kind))

    def mapping(dims: str) -> TensorMapping:
        if not dims.strip():
            return ()
        try:
            return tuple(tuple(order[s] for s in re.findall(_SYMBOL, dim)) for dim in dims.split(","))
        except KeyError as missing:
            raise AutoshardError(f"factor {missing} has no size", where=text) from None

    factors = tuple(
        Factor(int(size), _kind_of(kinds.get(symbol)), symbol in blocked) for symbol, size in sizes.items()
    )
    operands, results = (tuple(map(mapping, _TENSOR.findall(part))) for part in (operand_text, result_text))
    return OpShardingRule(factors, operands, results, "custom" in tail)


def _kind_of(name: str | None) -> FactorKind:
    return FactorKind.PASS_THROUGH if name in (None, "blocked_propagation") else FactorKind(name)


def factor_volume(rule: OpShardingRule) -> int:
    """Size of the rule's iteration space."""
    return math.prod(factor.size for factor in rule.factors)
