"""Which ops a compiler runs as one kernel, and the sharding rule of that kernel.

An elementwise op joins the kernel of its users when all of them are in one kernel; a broadcast joins each of its users; constants, iota and
elementwise expressions of those are recomputed wherever they are used. The rule of a kernel maps all its operands and results
to the factors of its root op: an inner op adds no factor, because its result mentions all of its own. One that the user
demands a sharding of joins where the same is said of its factors there already, or where a reduction reads it as it is.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from autoshard.mlir.listing import Listing, Op
from autoshard.program.demands import priority_levels
from autoshard.sharding import DimSharding, FactorKind, OpShardingRule, TensorMapping, TensorSharding

FREE_LEAVES = frozenset({"stablehlo.constant", "stablehlo.iota", "sdy.constant"})
RESHAPE = "stablehlo.reshape"
RESHAPING = frozenset(
    {RESHAPE, "stablehlo.slice", "stablehlo.pad", "stablehlo.concatenate", "stablehlo.transpose"}
)
MAX_OPS = 128  # of a kernel; compilers split larger ones, and joining looks through all reads
BROADCAST = "stablehlo.broadcast_in_dim"
DOTS = frozenset({"stablehlo.dot_general", "stablehlo.dot"})
NOT_FUSED = frozenset(
    {
        "sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier", "stablehlo.custom_call", "stablehlo.all_reduce",
        "stablehlo.collective_permute",
        "stablehlo.collective_broadcast", "stablehlo.rng", "stablehlo.rng_bit_generator", "stablehlo.cholesky", "stablehlo.map",
    }
)  # fmt: skip


class Read(NamedTuple):
    op: int
    operand: int
    value: int
    mapping: TensorMapping


@dataclass(slots=True)
class Group:
    """A kernel under construction: mappings are to the factors of the root's rule."""

    root: int
    ops: list[int] = field(default_factory=list[int])
    mapping: dict[int, TensorMapping] = field(default_factory=dict[int, TensorMapping])
    """Of each value inside."""
    reads: list[Read] = field(default_factory=list[Read])
    free_reads: list[Read] = field(default_factory=list[Read])
    said: dict[int, DimSharding] = field(default_factory=dict[int, DimSharding])  # of factors, by demands
    demands: list[tuple[TensorMapping, TensorSharding]] = field(
        default_factory=list[tuple[TensorMapping, TensorSharding]]
    )
    """On values inside."""


@dataclass(frozen=True, slots=True)
class Fusion:
    groups: tuple[Group, ...]  # in program order of their roots
    free: frozenset[int]  # values that cost nothing and have no node
    cloneable: frozenset[int]


def rule_of(op: Op, listing: Listing) -> OpShardingRule:
    """The op's rule, or the one that keeps every tensor whole where none is known."""
    if op.rule is not None:
        return op.rule
    operands, results = (
        tuple(((),) * (type_.rank if (type_ := listing.values[v].type) is not None else 0) for v in values)
        for values in (op.operands, op.results)
    )
    return OpShardingRule((), operands, results)


def matmul_roles(rule: OpShardingRule) -> str:
    """m and n are the factors of one operand and the result, b those of all three, k those that the result lacks.

    Of a ragged product g are those of the groups, each row or column of which meets one, and s those of their sizes.
    """
    lhs, rhs, result, sizes = (
        {f for mapping in mappings for dim in mapping for f in dim}
        for mappings in (rule.operands[:1], rule.operands[1:2], rule.results[:1], rule.operands[2:])
    )

    def role(f: int) -> str:
        if sizes and f not in lhs and (f in rhs) != (f in result):
            return "g"
        if f in sizes:
            return "s"
        return "k" if f not in result else "b" if f in lhs and f in rhs else "m" if f in lhs else "n"

    return "".join(map(role, range(len(rule.factors))))


def has_batch(rule: OpShardingRule, roles: str) -> bool:
    """Whether a product of such factors is several."""
    return any(role == "b" and factor.size > 1 for role, factor in zip(roles, rule.factors, strict=True))


def is_elementwise(op: Op) -> bool:
    rule = op.rule
    if rule is None or len(op.results) != 1 or op.name in NOT_FUSED:
        return False
    return rule.is_elementwise or (op.name in DOTS and not op.is_matmul and _broadcasts(rule))


def is_cheap(op: Op) -> bool:
    """Whether an op costs next to nothing to repeat."""
    return op.name == BROADCAST or op.name in RESHAPING or is_elementwise(op)


def adds_unit_dims(op: Op) -> bool:
    """A broadcast that repeats no element: a reshape in effect, as what goes back to one of several stacked values is written."""
    if op.name != BROADCAST or op.rule is None:
        return False
    factors = op.rule.factors
    kept, given = (
        [dim for dim in mapping if any(factors[factor].size > 1 for factor in dim)]
        for mapping in (op.rule.results[0], op.rule.operands[0])
    )
    return kept == given


def is_reduction(op: Op) -> bool:
    """A reduction, also one that is written as a dot; what makes its operands is evaluated inside."""
    return op.name == "stablehlo.reduce" or (op.name in DOTS and not op.is_matmul and not is_elementwise(op))


def _broadcasts(rule: OpShardingRule) -> bool:
    """Whether each element of the result reads one of each operand, as of a dot that sums nothing."""
    return rule.passes_through and all(dim in rule.results[0] for operand in rule.operands for dim in operand)


def free_values(
    listing: Listing, grouped: frozenset[int] = frozenset(), *, demanded: bool = False
) -> frozenset[int]:
    """Values made of constants and iota only, by ops that cost next to nothing to repeat; none in `grouped`.

    Args:
        demanded: also those of a given sharding.
    """
    free: set[int] = set()
    for op in listing.ops:
        is_leaf = op.name in FREE_LEAVES
        is_made_of_free = op.operands and is_cheap(op) and all(v in free for v in op.operands)
        has_a_say = (op.demand is not None and not demanded) or not grouped.isdisjoint(op.results)
        if (is_leaf or is_made_of_free) and not has_a_say:
            free.update(op.results)
    return frozenset(free)


def fuse(listing: Listing, pinned: frozenset[int], grouped: frozenset[int] = frozenset()) -> Fusion:
    """Group the ops of the listing into kernels.

    Args:
        pinned: values (results, carried ones, members of sharding groups) that keep a buffer of their own.
        grouped: those of them that also have one sharding, so that they are not recomputed for each use.
    """
    free = free_values(listing, grouped)
    users: dict[int, list[int]] = {}
    for index, op in enumerate(listing.ops):
        for value in op.operands:
            if value not in free:
                users.setdefault(value, []).append(index)
    groups: dict[int, Group] = {}
    member: dict[int, tuple[Group, ...]] = {}  # op -> kernels that evaluate it
    cloneable = set(free)
    verdicts: dict[tuple[object, ...], bool] = {}
    all_alike = len(priority_levels(listing)) <= 1  # otherwise each demand may be met or not

    def elementwise(op: Op) -> bool:
        key = (op.name, id(op.rule), len(op.results))
        if key not in verdicts:
            verdicts[key] = is_elementwise(op) or op.name in (BROADCAST, "stablehlo.transpose")
        return verdicts[key] and (op.demand is None or (_is_plain(op.demand) and all_alike))

    for index in range(len(listing.ops) - 1, -1, -1):
        op = listing.ops[index]
        if all(v in free for v in op.results) and op.results:
            continue
        if op.collective is None and all(
            (t := listing.values[v].type) is None or not t.rank for v in (*op.operands, *op.results)
        ):
            continue  # scalars are on every device
        homes = _homes(op, listing, users, member, pinned) if elementwise(op) else ()
        if homes:
            for home in homes:
                _join(home, op, index, free, listing, is_cloned=len(homes) > 1)
            if len(homes) > 1:
                cloneable.update(op.results)
            member[index] = homes
            continue
        rule = rule_of(op, listing)
        group = Group(index)
        groups[index] = group
        group.mapping.update(zip(op.results, rule.results, strict=False))
        if op.demand is not None and _is_plain(op.demand):
            group.said.update(_said(op.demand, rule.results[0]))
        _read(group, op, index, rule.operands, free, listing)
        is_off_mesh = op.demand is not None and op.demand.is_foreign
        is_fusing = elementwise(op) or (is_reduction(op) and not is_off_mesh)
        member[index] = (group,) if is_fusing else ()
    return Fusion(tuple(groups[i] for i in sorted(groups)), free, frozenset(cloneable))


def _homes(
    op: Op,
    listing: Listing,
    users: dict[int, list[int]],
    member: dict[int, tuple[Group, ...]],
    pinned: frozenset[int],
) -> tuple[Group, ...]:
    """Kernels that `op` can be evaluated in, or none where it needs one of its own."""
    (value,) = op.results
    user_ops = users.get(value, [])
    if not user_ops or value in pinned:
        return ()
    homes: dict[int, Group] = {}
    for user in user_ops:
        for group in member.get(user, ()):
            homes[group.root] = group
        if not member.get(user) or listing.ops[user].region != op.region:
            return ()
    if (len(homes) > 1 and op.name != BROADCAST) or any(len(home.ops) >= MAX_OPS for home in homes.values()):
        return ()
    is_demanded = any(listing.ops[user].demand is not None for user in user_ops)
    if op.demand is None and is_demanded and op.name != BROADCAST:
        return ()
    is_joining = (_consistent(home, value) and _takes(home, op, listing) for home in homes.values())
    return tuple(homes.values()) if all(is_joining) else ()


def _is_plain(demand: TensorSharding) -> bool:
    return not (demand.is_foreign or demand.unreduced or demand.replicated)


def _said(demand: TensorSharding, mapping: TensorMapping) -> dict[int, DimSharding]:
    """What it says of each factor that alone makes up a dimension."""
    return {factors[0]: dim for factors, dim in zip(mapping, demand.dims, strict=True) if len(factors) == 1}


def _takes(group: Group, op: Op, listing: Listing) -> bool:
    """Whether the kernel can make a value as it is demanded, moving nothing inside."""
    (value,) = op.results
    type_ = listing.values[value].type
    if op.demand is None or type_ is None:
        return True
    mapping = next(read.mapping for read in group.reads if read.value == value)
    asked = _said(op.demand, mapping)
    new = {factor: dim for factor, dim in asked.items() if factor not in group.said}
    is_mapped = all(factors or not dim.axes for factors, dim in zip(mapping, op.demand.dims, strict=True))
    if not is_mapped or any(group.said[factor] != asked[factor] for factor in asked.keys() - new):
        return False
    root = listing.ops[group.root]
    used = [axis for dim in group.said.values() for axis in dim.axes]
    return not new or (
        is_reduction(root)
        and op.demand.divides(type_.shape)
        and not any(axis.overlaps(other) for dim in new.values() for axis in dim.axes for other in used)
        and not any(
            dim.axes and rule_of(root, listing).factors[factor].kind is FactorKind.NEED_REPLICATION
            for factor, dim in new.items()
        )
    )


def _consistent(group: Group, value: int) -> bool:
    mappings = {read.mapping for read in group.reads if read.value == value}
    return len(mappings) == 1 and all(len(dim) <= 1 for dim in next(iter(mappings)))


def _join(
    group: Group, op: Op, index: int, free: frozenset[int], listing: Listing, *, is_cloned: bool
) -> None:
    (value,) = op.results
    mine = [read for read in group.reads if read.value == value]
    mapping = mine[0].mapping
    group.reads = [read for read in group.reads if read.value != value]
    if is_cloned:
        group.free_reads += mine
    else:
        group.mapping[value] = mapping
    if op.demand is not None:
        group.demands.append((mapping, op.demand))
        group.said.update(_said(op.demand, mapping))
    assert op.rule is not None
    to_root = {mine[0]: theirs for mine, theirs in zip(op.rule.results[0], mapping, strict=True) if mine}
    operands = tuple(
        tuple(to_root.get(dim[0], ()) if dim else () for dim in operand) for operand in op.rule.operands
    )
    _read(group, op, index, operands, free, listing)


def _read(
    group: Group,
    op: Op,
    index: int,
    mappings: tuple[TensorMapping, ...],
    free: frozenset[int],
    listing: Listing,
) -> None:
    group.ops.append(index)
    for position, (value, mapping) in enumerate(zip(op.operands, mappings, strict=False)):
        type_ = listing.values[value].type
        if type_ is not None and type_.rank:
            reads = group.free_reads if value in free else group.reads
            reads.append(Read(index, position, value, mapping))
