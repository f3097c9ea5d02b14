"""Whether every op can run where the plan puts it: its operands and results agree factor by factor with its own sharding rule.

Shardy's notion of compatible (`getCompatibleFactorShardings`): every tensor that has a factor splits it by the same axes, factors that need
replication stay whole, and no axis splits two factors. Splitting a permutation factor moves data between devices; only for ops
with windows does the cost know how much, so anywhere else it is an offence.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.check.meshes import is_on_one_device
from autoshard.check.parts import FactorParts, Part, conflict, project
from autoshard.check.planned import Planned
from autoshard.check.report import Finding, of_offenders
from autoshard.mlir.listing import Op
from autoshard.sharding import FactorKind, OpShardingRule, TensorMapping, TensorSharding
from autoshard.sharding.rule import factor_symbol

_MOVES = frozenset({"sdy.sharding_constraint", "sdy.reshard"})
_WINDOWED = ("convolution", "pad", "reduce_window", "reverse", "select_and_scatter", "slice")


@dataclass(frozen=True, slots=True)
class Run:
    """How one op runs: its rule and the axes of each factor, none where it does not run on the plan's mesh."""

    rule: OpShardingRule
    factors: FactorParts
    is_off_mesh: bool = False

    @property
    def summed(self) -> list[Part]:
        """What splits reduction factors."""
        factors = zip(self.rule.factors, self.factors, strict=True)
        return [part for factor, parts in factors if factor.kind is FactorKind.REDUCTION for part in parts]


def check_rules(planned: Planned) -> tuple[dict[int, Run], Finding]:
    """How every op that is not recomputed runs, and whether all of them can; an op that cannot is left out."""
    runs: dict[int, Run] = {}
    offenders: list[str] = []
    count = 0
    for number, op in enumerate(planned.listing.ops):
        has_tensors = any(map(planned.is_ranked, (*op.operands, *op.results)))
        if planned.is_recomputed[number] or not (has_tensors or op.collective is not None):
            continue
        count += 1
        found = _run(planned, number, op)
        if isinstance(found, str):
            offenders.append(f"{planned.where(number)}: {found}")
        else:
            runs[number] = found
    return runs, of_offenders(
        "rules", offenders, count, "operands and results agree with the op's sharding rule"
    )


def rule_of(planned: Planned, op: Op) -> OpShardingRule:
    """The op's rule; where none is known, one by which every tensor is whole."""
    if op.rule is not None:
        return op.rule

    def whole(values: tuple[int, ...]) -> tuple[TensorMapping, ...]:
        types = (planned.listing.values[value].type for value in values)
        return tuple(((),) * (type_.rank if type_ is not None else 0) for type_ in types)

    return OpShardingRule((), whole(op.operands), whole(op.results))


def _run(planned: Planned, number: int, op: Op) -> Run | str:
    rule = rule_of(planned, op)
    unread = [
        i for i, v in enumerate(op.operands) if planned.is_ranked(v) and planned.read(number, i) is None
    ]
    if unread:
        return f"the plan does not say how operand {unread[0]} is read"
    if any(sharding.is_foreign for _, sharding in _tensors(planned, number, op, rule)):
        reason = _off_mesh(planned, number, op)
        return reason if reason is not None else Run(rule, ((),) * len(rule.factors), is_off_mesh=True)
    factors = project(rule, _tensors(planned, number, op, rule))
    if isinstance(factors, str):
        return factors
    problem = conflict(rule, factors) or _unpriced(op, rule, factors)
    return problem if problem is not None else Run(rule, factors)


def _tensors(
    planned: Planned, number: int, op: Op, rule: OpShardingRule
) -> Iterator[tuple[TensorMapping, TensorSharding]]:
    for operand, (value, mapping) in enumerate(zip(op.operands, rule.operands, strict=False)):
        sharding = planned.read(number, operand) if planned.is_ranked(value) else None
        if sharding is not None:
            yield mapping, sharding
    for value, mapping in zip(op.results, rule.results, strict=False):
        if planned.is_ranked(value) and value in planned.produced:
            yield mapping, planned.produced[value]


def _off_mesh(planned: Planned, number: int, op: Op) -> str | None:
    """Why an op with an operand or a result on another mesh cannot run: it moves a value there, or is on one device as a whole."""
    made = {planned.produced[value] for value in op.results if planned.is_ranked(value)}
    read = {
        planned.read(number, operand) for operand, value in enumerate(op.operands) if planned.is_ranked(value)
    }
    if op.name in _MOVES:
        return None if read == made else "a move reads what it leaves"
    devices = {sharding.mesh for sharding in made}
    if len(devices) != 1 or not all(is_on_one_device(planned.mesh, sharding) for sharding in made):
        return "an op runs on the plan's mesh, or all of it on one device"
    for sharding in read:
        if sharding is None or sharding.num_shards > 1 or sharding.mesh not in ("", *devices):
            return f"on one device an op reads what is whole, or there, and not {sharding}"
    return None


def _unpriced(op: Op, rule: OpShardingRule, factors: FactorParts) -> str | None:
    if op.name.removeprefix("stablehlo.") in _WINDOWED:
        return None
    for number, (factor, parts) in enumerate(zip(rule.factors, factors, strict=True)):
        if parts and factor.kind is FactorKind.PERMUTATION:
            return f"permutation factor {factor_symbol(number)} is split, at a price nobody knows, in {rule}"
    return None
