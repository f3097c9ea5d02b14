"""The strategies of a kernel: mesh axes on the factors of its rule, and what that makes of its operands and results.

Each axis goes to at most one factor (Shardy: axes of different factors are disjoint over the whole op). Splitting a reduction factor
leaves partial sums, which an all-reduce completes over those axes; a strategy with `settled != produced` instead wants the result
split over them too, which is a reduce-scatter. Strategies that demand and produce the same are one.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from autoshard.program import MOVES, KernelShape
from autoshard.sharding import (
    AxisRef,
    FactorAxes,
    FactorKind,
    Mesh,
    OpShardingRule,
    TensorSharding,
    factor_axes_of,
    is_scatter,
    merge_sub_axes,
    tensor_sharding,
    total_size,
)
from autoshard.space.factors import may_split, useful_sizes
from autoshard.space.shardings import Cut, assignments, cut_assignments, searched_axes


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run a kernel on the mesh.

    Attributes:
        factor_axes: axes of each factor of the rule.
        operands: sharding demanded of each use.
        produced: sharding of each result as the kernel leaves it, after the all-reduce.
        settled: sharding of each result as its users find it; differs from `produced` by a reshard right after the kernel.
        reduced: axes over which the results are partial sums that must be completed, in mesh order; by its reader, where the one result is
            unreduced over them.
        added: which of the shape's additions read their operands as addends.
        is_open: whether no constraint is on what it reads and makes, of a module as it is written.
    """

    factor_axes: FactorAxes
    operands: tuple[TensorSharding, ...]
    produced: tuple[TensorSharding, ...]
    settled: tuple[TensorSharding, ...]
    reduced: tuple[AxisRef, ...]
    added: tuple[int, ...] = ()
    is_open: bool = False

    @property
    def is_scattered(self) -> bool:
        """Whether the result settles split over exactly the reduced axes in addition: a reduce-scatter."""
        if not self.reduced or len(self.produced) != 1 or self.settled[0].is_foreign:
            return False
        if self.produced[0].unreduced != self.settled[0].unreduced:
            return False
        return is_scatter(self.produced[0], self.settled[0], self.reduced)

    def addends(self, result: int, mesh: Mesh) -> TensorSharding:
        """Of a result, before the sum."""
        made = self.produced[result]
        axes = sorted({*made.unreduced, *self.reduced}, key=mesh.order)
        return replace(made, unreduced=merge_sub_axes(axes, mesh))

    @property
    def leaves_sum(self) -> bool:
        """Whether the reader completes the sums."""
        return bool(self.reduced) and len(self.produced) == 1 and self.produced[0].unreduced == self.reduced


def _choice(strategy: Strategy) -> Hashable:
    return strategy.operands, strategy.settled, strategy.reduced


def strategies(
    shape: KernelShape, mesh: Mesh, cuts: Sequence[Cut] = (), any_order: bool = True
) -> list[Strategy]:
    """All strategies of a kernel, fully replicated first; never empty. Those that cut an axis for a factor come last.

    Axes of one factor are in mesh order, or in any.
    """
    if is_off_mesh(shape, mesh):
        return _off_mesh_strategies(shape)
    sizes = [size if may_split(shape, i) else 0 for i, size in enumerate(useful_sizes(shape))]
    found: dict[Hashable, Strategy] = {}
    for base in _bases(shape, mesh):
        used = [*shape.manual_axes, *(axis for axes in base for axis in axes)]
        free = [axis for axis in searched_axes(mesh) if not any(axis.overlaps(other) for other in used)]
        for factor_axes in assignments(sizes, free, base, any_order):
            for strategy in _of_assignment(shape, factor_axes, mesh):
                found.setdefault(_choice(strategy), strategy)
    for factor_axes in cut_assignments(sizes, cuts, mesh, shape.manual_axes):
        for strategy in _of_assignment(shape, factor_axes, mesh):
            found.setdefault(_choice(strategy), strategy)
    return list(found.values())


def wanted_strategies(
    shape: KernelShape,
    mesh: Mesh,
    wanted: Sequence[tuple[TensorSharding | None, ...]],
    cuts: Sequence[Cut] = (),
    any_order: bool = True,
) -> list[Strategy]:
    """The strategies whatever is demanded, with those that meet any of `wanted` (a demand or None for each result) among them."""
    nothing = (None,) * len(shape.results)
    found = [
        s
        for demands in (nothing, *wanted)
        for s in strategies(replace(shape, demands=demands), mesh, cuts, any_order)
    ]
    return distinct(found)


def distinct(found: Sequence[Strategy], key: Callable[[Strategy], Hashable] = _choice) -> list[Strategy]:
    """One strategy of each key, the first, in the order of the last ones; as a rule strategies that demand and leave the same are one."""
    return list({key(s): s for s in reversed(found)}.values())[::-1]


def strategy_of(
    shape: KernelShape, operands: tuple[TensorSharding, ...], results: tuple[TensorSharding, ...], mesh: Mesh
) -> Strategy | None:
    """The strategy that reads exactly `operands` and makes exactly `results`; None where the rule has none.

    Partial sums are kept, or added up, as the results have it; operands may be partial where the kernel is linear in them.
    """
    rule = shape.rule
    factor_axes = factor_axes_of(rule, (*rule.operands, *rule.results), (*operands, *results), mesh)
    if factor_axes is None or not _is_allowed(shape, factor_axes):
        return None
    own = reduced_axes(rule, factor_axes, mesh)
    kept = {axis for result in results for axis in result.unreduced}
    if (kept & set(own) and not shape.leaves_addends) or not _pass_through(shape, operands, kept - set(own)):
        return None
    return Strategy(factor_axes, operands, results, results, tuple(axis for axis in own if axis not in kept))


def _pass_through(shape: KernelShape, operands: tuple[TensorSharding, ...], axes: set[AxisRef]) -> bool:
    """Whether partial sums over exactly these axes pass from the operands to the result."""
    arriving = tuple(i for i, operand in enumerate(operands) if operand.unreduced)
    if not axes and not arriving:
        return True
    return arriving in shape.linear and all(set(operands[i].unreduced) == axes for i in arriving)


def _is_allowed(shape: KernelShape, factor_axes: FactorAxes) -> bool:
    return all(may_split(shape, factor) for factor, axes in enumerate(factor_axes) if axes)


def _bases(shape: KernelShape, mesh: Mesh) -> Iterator[FactorAxes]:
    """Assignments to start from: what the demands on the results ask for, together and each alone, and nothing."""
    rule = shape.rule
    demands = [
        (mapping, demand.as_closed())
        for mapping, demand in zip(rule.results, shape.demands, strict=True)
        if demand is not None and not demand.is_foreign
    ]
    demands += [(mapping, demand.as_closed()) for mapping, demand in shape.within]
    alone = [[one] for one in demands] if len(demands) > 1 else []
    for asked in (demands, *alone):
        demanded = factor_axes_of(rule, [m for m, _ in asked], [d for _, d in asked], mesh)
        if demanded is not None and any(demanded) and _is_allowed(shape, demanded):
            yield demanded
    yield ((),) * len(shape.rule.factors)


def _is_miscompiled(shape: KernelShape, factor_axes: FactorAxes) -> bool:
    """A convolution split over space and output features at once: XLA's partitioner (jaxlib 0.10.2) computes wrong values for some."""
    if shape.name != "stablehlo.convolution":
        return False
    split = [factor for factor, axes in enumerate(factor_axes) if axes]
    return any(shape.rule.factors[f].kind is FactorKind.PERMUTATION for f in split) and any(
        shape.matmul_roles[f] == "n" for f in split
    )


def _of_assignment(shape: KernelShape, factor_axes: FactorAxes, mesh: Mesh) -> Iterator[Strategy]:
    if _is_miscompiled(shape, factor_axes) or not _is_made_inside(shape, factor_axes, mesh):
        return
    rule = shape.rule
    operands = [tensor_sharding(rule, mapping, factor_axes, mesh) for mapping in rule.operands]
    results = [tensor_sharding(rule, mapping, factor_axes, mesh) for mapping in rule.results]
    if any(s is None for s in operands) or any(s is None for s in results):
        return
    demanded = tuple(s for s in operands if s is not None)
    produced = tuple(s for s in results if s is not None)
    if shape.name in MOVES and shape.demands[0] is not None:
        partial = shape.demands[0].unreduced
        demanded, produced = (
            tuple(replace(s, unreduced=partial) for s in each) for each in (demanded, produced)
        )
    reduced = reduced_axes(rule, factor_axes, mesh)
    variants = [produced]
    if reduced and len(produced) == 1:
        variants += [(one,) for one in scattered(produced[0], reduced, shape, mesh)]
    for settled in variants:
        kept = tuple(map(meeting, settled, shape.demands))
        if shape.name in MOVES and kept != produced:
            continue
        yield Strategy(factor_axes, demanded, produced, kept, reduced)


def _is_made_inside(shape: KernelShape, factor_axes: FactorAxes, mesh: Mesh) -> bool:
    """Whether what is made inside is as the user demands it."""
    made = ((tensor_sharding(shape.rule, m, factor_axes, mesh), demand) for m, demand in shape.within)
    return all(sharding is not None and sharding.satisfies(demand) for sharding, demand in made)


def reduced_axes(rule: OpShardingRule, factor_axes: FactorAxes, mesh: Mesh) -> tuple[AxisRef, ...]:
    """Those of the factors that are summed over, in mesh order."""
    axes = [
        axis
        for factor, mine in zip(rule.factors, factor_axes, strict=True)
        if factor.kind is FactorKind.REDUCTION
        for axis in mine
    ]
    return merge_sub_axes(sorted(axes, key=mesh.order), mesh)


def scattered(
    produced: TensorSharding, reduced: tuple[AxisRef, ...], shape: KernelShape, mesh: Mesh
) -> Iterator[TensorSharding]:
    """Shardings that split the result over all reduced axes as well, appended to its dimensions.

    On a mesh of more than two axes, and where one is cut, they go to one dimension, whose axes stay in mesh order: other orders
    would multiply the shardings of a rank by those of every order.
    """
    sizes = list(shape.results[0].shape)
    is_cut = any(axis.is_sub_axis for axis in (*reduced, *produced.used_axes()))
    has_many_axes = is_cut or len(searched_axes(mesh)) > 2
    for placed in assignments(sizes, reduced, produced.axes):
        axes = tuple(merge_sub_axes(dim, mesh) for dim in placed)
        found = TensorSharding.closed(axes)
        if found.num_shards != produced.num_shards * total_size(reduced) or not found.divides(sizes):
            continue
        grown = [after for before, after in zip(produced.axes, axes, strict=True) if after != before]
        if has_many_axes and (len(grown) > 1 or list(grown[0]) != sorted(grown[0], key=mesh.order)):
            continue
        yield found


def meeting(settled: TensorSharding, demand: TensorSharding | None) -> TensorSharding:
    """`settled` made to meet the demand: itself, or a reshard to what the demand names and no more."""
    return settled if demand is None or settled.satisfies(demand) else demand.as_closed()


def is_off_mesh(shape: KernelShape, mesh: Mesh) -> bool:
    """Whether the kernel does not run on the plan's mesh: a move to another one, or an op on one device."""
    foreign = [demand for demand in shape.demands if demand is not None and demand.is_foreign]
    return bool(foreign) and (shape.name in MOVES or any(mesh.named(d.mesh).is_one_device for d in foreign))


def _off_mesh_strategies(shape: KernelShape) -> list[Strategy]:
    """A move has what it demands at both ends; one of a recomputed value follows it, whole.

    An op on one device reads its operands whole, or all of them there.
    """
    asked = next(demand for demand in shape.demands if demand is not None and demand.is_foreign).as_closed()
    if shape.name in MOVES and shape.operands:
        return [_off_mesh(shape, (asked,), (asked,))]
    operands, results = (
        tuple(TensorSharding.replicated_closed(type_.rank) for type_ in types)
        for types in (shape.operands, shape.results)
    )
    if shape.name in MOVES:
        return [replace(_off_mesh(shape, operands, results), settled=(asked,))]
    there, made = (
        tuple(sharding.on_mesh(asked.mesh) if sharding.rank else sharding for sharding in whole)
        for whole in (operands, results)
    )
    return [_off_mesh(shape, read, made) for read in dict.fromkeys((operands, there))]


def _off_mesh(
    shape: KernelShape, operands: tuple[TensorSharding, ...], results: tuple[TensorSharding, ...]
) -> Strategy:
    return Strategy(((),) * len(shape.rule.factors), operands, results, results, ())
