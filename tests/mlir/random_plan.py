"""Plans drawn at random that every op accepts without a reshard of its own; the reshards are all at uses."""

import random

from autoshard.mlir.decisions import Decisions
from autoshard.mlir.listing import RESULT_SITE, Listing, Op, Site
from autoshard.sharding import (
    AxisRef,
    FactorKind,
    Mesh,
    TensorSharding,
    TensorType,
    tensor_sharding,
    total_size,
)

_SPLIT = (FactorKind.PASS_THROUGH, FactorKind.REDUCTION)
_LEAVES = ("stablehlo.constant", "stablehlo.iota")


def random_decisions(listing: Listing, seed: int, *, with_copies: bool = True) -> Decisions:
    """A plan in which about half of the axes are used everywhere; with_copies also draws settled and shared shardings."""
    draw = random.Random(seed)
    mesh = listing.mesh
    produced: dict[int, TensorSharding] = {}
    uses: dict[Site, TensorSharding] = {}
    recomputed = _recomputed(listing)
    for argument in listing.arguments:
        _draw_value(argument.value, listing, draw, produced)
    for flow in listing.data_flows:
        _draw_value(flow.target, listing, draw, produced)
    for index, op in enumerate(listing.ops):
        if not op.results or op.results[0] in recomputed:
            continue
        axes = _factor_axes(op, mesh, draw)
        shardings = _shardings(op, axes, mesh)
        if shardings is None:
            shardings = _shardings(op, [()] * len(axes), mesh)
        if shardings is None:
            continue
        operands, results = shardings
        produced.update(zip(op.results, results, strict=True))
        uses.update(((index, position), sharding) for position, sharding in enumerate(operands))
    for number, flow in enumerate(listing.data_flows):
        if flow.target in produced:
            uses.update(((-1 - number, i), produced[flow.target]) for i in range(len(flow.sources)))
    for index, result in enumerate(listing.results):
        uses[RESULT_SITE, index] = random_sharding(listing.values[result.value].type, mesh, draw)
    settled, shared = dict(produced), dict[int, TensorSharding]()
    fixed = {argument.value for argument in listing.arguments}
    for value in produced if with_copies else ():
        if draw.random() < 0.2 and value not in fixed:
            settled[value] = random_sharding(listing.values[value].type, mesh, draw)
        if draw.random() < 0.2:
            shared[value] = random_sharding(listing.values[value].type, mesh, draw)
    return Decisions(produced, settled, shared, uses, recomputed)


def random_sharding(type_: TensorType | None, mesh: Mesh, draw: random.Random) -> TensorSharding:
    if type_ is None:
        return TensorSharding(())
    dims: list[list[AxisRef]] = [[] for _ in type_.shape]
    for axis in draw.sample(mesh.axes, len(mesh.axes)):
        dim = draw.randrange(2 * len(dims)) if dims else len(dims)
        if dim < len(dims) and type_.shape[dim] % (total_size(dims[dim]) * axis.size) == 0:
            dims[dim].append(mesh.axis(axis.name))
    return TensorSharding.closed(dims)


def _draw_value(value: int, listing: Listing, draw: random.Random, into: dict[int, TensorSharding]) -> None:
    type_ = listing.values[value].type
    if type_ is not None:
        into[value] = random_sharding(type_, listing.mesh, draw)


def _recomputed(listing: Listing) -> frozenset[int]:
    found: set[int] = set()
    for op in listing.ops:
        if op.name in _LEAVES or (op.name == "stablehlo.broadcast_in_dim" and op.operands[0] in found):
            found.update(op.results)
    return frozenset(found)


def _factor_axes(op: Op, mesh: Mesh, draw: random.Random) -> list[tuple[AxisRef, ...]]:
    factors = op.rule.factors if op.rule is not None else ()
    axes: list[tuple[AxisRef, ...]] = [()] * len(factors)
    free = [i for i, factor in enumerate(factors) if factor.kind in _SPLIT]
    for axis in mesh.axes:
        factor = draw.choice(free) if free and draw.random() < 0.7 else None
        if factor is not None and factors[factor].size % (total_size(axes[factor]) * axis.size) == 0:
            axes[factor] = (*axes[factor], mesh.axis(axis.name))
    return axes


def _shardings(
    op: Op, axes: list[tuple[AxisRef, ...]], mesh: Mesh
) -> tuple[list[TensorSharding], list[TensorSharding]] | None:
    """Of operands and results, or None where a compound dimension cannot be split like that."""
    if op.rule is None:
        return None
    rule = op.rule
    operands, results = (
        [s for mapping in mappings if (s := tensor_sharding(rule, mapping, axes, mesh)) is not None]
        for mappings in (rule.operands, rule.results)
    )
    is_whole = len(operands) == len(rule.operands) and len(results) == len(rule.results)
    return (operands, results) if is_whole else None
