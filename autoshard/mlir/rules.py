"""Sharding rules for the ops that Shardy's own pass leaves out, in Shardy's terms.

`sdy-populate-op-sharding-rules` covers most of StableHLO; here are those whose semantics are known all the same. To add a rule
for an op: one line in `_RULES` (or in `_CUSTOM_CALLS` for a custom call's target), and a test that fails without it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from autoshard.mlir.attributes import called_by
from autoshard.mlir.context import chlo, ir, stablehlo
from autoshard.mlir.flops import TypedOp
from autoshard.mlir.listing import Window
from autoshard.sharding import Factor, FactorKind, OpShardingRule, TensorMapping, TensorType

RuleMaker = Callable[[TypedOp], OpShardingRule | None]

ELEMENTWISE = (
    "chlo._asin_acos_kernel", "chlo.acos", "chlo.acosh", "chlo.asin", "chlo.asinh", "chlo.atan", "chlo.atanh", "chlo.bessel_i1e",
    "chlo.broadcast_add", "chlo.broadcast_and", "chlo.broadcast_atan2", "chlo.broadcast_compare", "chlo.broadcast_complex",
    "chlo.broadcast_divide", "chlo.broadcast_maximum", "chlo.broadcast_minimum", "chlo.broadcast_multiply",
    "chlo.broadcast_next_after", "chlo.broadcast_or", "chlo.broadcast_polygamma", "chlo.broadcast_power", "chlo.broadcast_remainder",
    "chlo.broadcast_select", "chlo.broadcast_shift_left", "chlo.broadcast_shift_right_arithmetic", "chlo.broadcast_shift_right_logical",
    "chlo.broadcast_subtract", "chlo.broadcast_xor", "chlo.broadcast_zeta", "chlo.conj", "chlo.constant_like", "chlo.cosh", "chlo.digamma",
    "chlo.erf", "chlo.erf_inv", "chlo.erfc", "chlo.is_inf", "chlo.is_neg_inf", "chlo.is_pos_inf", "chlo.lgamma", "chlo.mulhi",
    "chlo.next_after", "chlo.polygamma", "chlo.sinh", "chlo.square", "chlo.tan", "chlo.zeta", "sdy.propagation_barrier", "sdy.reshard",
    "sdy.sharding_constraint", "stablehlo.map", "stablehlo.tan",
)  # fmt: skip

ELEMENTWISE_CUSTOM_CALLS = (
    "Sharding", "cu_threefry2x32_ffi", "hip_threefry2x32_ffi", "mhlo.acos", "mhlo.acosh", "mhlo.asin", "mhlo.asinh", "mhlo.atan",
    "mhlo.atanh", "mhlo.cosh", "mhlo.erf_inv", "mhlo.sinh", "mhlo.square", "mhlo.tan",
)  # fmt: skip


def own_rule(op: TypedOp) -> OpShardingRule | None:
    """The rule of an op that Shardy has none for, or None where nobody knows which dimensions may be split."""
    maker = _CUSTOM_CALLS.get(called_by(op.op)) or _RULES.get(op.name)
    if maker is not None:
        return maker(op)
    return _whole(op) if all(_rank(t) == 0 for t in (*op.operands, *op.results)) else None


def with_whole_windows(op: TypedOp, rule: OpShardingRule) -> OpShardingRule:
    """Shardy's rule of a convolution without its splits of a sum over window positions.

    A kernel gradient sums over the spatial positions of its input, and Shardy calls those reduction factors. Windows that overlap, or
    start in the padding, reach into the neighbour's part, so the parts' sums are not the sum; XLA in jaxlib 0.10.2 returns wrong values.
    """
    numbers = stablehlo.ConvDimensionNumbers(op.op.attributes["dimension_numbers"])
    spatial = {factor for dim in numbers.input_spatial_dimensions for factor in rule.operands[0][dim]}
    factors = tuple(
        Factor(factor.size, FactorKind.NEED_REPLICATION, factor.is_blocked)
        if index in spatial and factor.kind is FactorKind.REDUCTION
        else factor
        for index, factor in enumerate(rule.factors)
    )
    return OpShardingRule(factors, rule.operands, rule.results, rule.is_custom)


def with_shifted_rows(rule: OpShardingRule, windows: Sequence[Window]) -> OpShardingRule:
    """Shardy's rule of a pad where rows that come in push others out: it passes a dimension through whose size stays.

    What is split along it needs rows of the neighbours all the same.
    """
    moved = {factor for window in windows for factor in rule.operands[window.operand][window.dim]}
    factors = tuple(
        replace(factor, kind=FactorKind.PERMUTATION)
        if index in moved and factor.kind is FactorKind.PASS_THROUGH
        else factor
        for index, factor in enumerate(rule.factors)
    )
    return replace(rule, factors=factors)


def _rank(type_: TensorType | None) -> int:
    return type_.rank if type_ is not None else 0


def _whole(op: TypedOp) -> OpShardingRule:
    """Scalars and tokens only: nothing to split."""
    return OpShardingRule((), ((),) * len(op.operands), ((),) * len(op.results))


def _elementwise(op: TypedOp) -> OpShardingRule | None:
    """Identity; scalars may stand beside tensors of one shape, anything else that broadcasts is not ours to judge."""
    types = (*op.operands, *op.results)
    shapes = {type_.shape for type_ in types if type_ is not None and type_.rank}
    if len(shapes) > 1:
        return None
    shape = next(iter(shapes), ())
    identity = tuple((i,) for i in range(len(shape)))
    return _rule(map(Factor, shape), *_mappings(op, lambda type_: identity if type_.rank else ()))


def _rule(
    factors: Iterable[Factor], operands: Sequence[TensorMapping], results: Sequence[TensorMapping]
) -> OpShardingRule:
    return OpShardingRule(tuple(factors), tuple(operands), tuple(results))


def _mappings(
    op: TypedOp, of: Callable[[TensorType], TensorMapping]
) -> tuple[tuple[TensorMapping, ...], tuple[TensorMapping, ...]]:
    operands, results = (
        tuple(of(type_) if type_ is not None else () for type_ in types)
        for types in (op.operands, op.results)
    )
    return operands, results


def _results_only(op: TypedOp) -> OpShardingRule | None:
    """Every device makes its own part of the results; operands (bounds, shapes) are needed whole."""
    factors: list[Factor] = []

    def own_factors(types: Sequence[TensorType | None], kind: FactorKind) -> tuple[TensorMapping, ...]:
        mappings: list[TensorMapping] = []
        for type_ in types:
            shape = type_.shape if type_ is not None else ()
            mappings.append(tuple((len(factors) + i,) for i in range(len(shape))))
            factors.extend(Factor(size, kind) for size in shape)
        return tuple(mappings)

    operands = own_factors(op.operands, FactorKind.NEED_REPLICATION)
    results = own_factors(op.results, FactorKind.PASS_THROUGH)
    return _rule(factors, operands, results)


def _last_dim_whole(op: TypedOp) -> OpShardingRule | None:
    """top_k: every dimension but the last is a batch."""
    (operand,) = op.operands
    if operand is None or not operand.rank:
        return None
    factors = [Factor(size) for size in operand.shape]
    factors[-1] = Factor(operand.shape[-1], FactorKind.NEED_REPLICATION)
    return _rule(factors, *_mappings(op, lambda type_: tuple((i,) for i in range(type_.rank))))


def _batch_norm(op: TypedOp) -> OpShardingRule | None:
    """Statistics over everything but the feature dimension, which alone may be split."""
    feature = ir.IntegerAttr(op.op.attributes["feature_index"]).value
    tensor = op.operands[0]
    if tensor is None:
        return None
    factors = [Factor(n, FactorKind.NEED_REPLICATION) for n in tensor.shape]
    factors[feature] = Factor(tensor.shape[feature])
    return _rule(
        factors,
        *_mappings(
            op, lambda type_: ((feature,),) if type_.rank == 1 else tuple((i,) for i in range(type_.rank))
        ),
    )


def _ragged_dot(op: TypedOp) -> OpShardingRule | None:
    """Dimensions that are cut into groups, and the groups, stay whole; the rest is as in a dot_general.

    CHLO's three modes: the ragged dimension of lhs is free (`[b, m, k] x [g, b, k, n] -> [b, m, n]`), contracting (result has the
    groups in front) or batch.
    """
    numbers = chlo.RaggedDotDimensionNumbers(op.op.attributes["ragged_dot_dimension_numbers"])
    lhs, rhs, groups = op.operands
    if lhs is None or rhs is None or groups is None:
        return None
    ragged = set(numbers.lhs_ragged_dimensions)
    batches = tuple(zip(numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions, strict=True))
    contracting = tuple(
        zip(numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions, strict=True)
    )
    factors: list[Factor] = []
    of_lhs: dict[int, int] = {}
    of_rhs: dict[int, int] = {}

    def factor(size: int, kind: FactorKind) -> int:
        factors.append(Factor(size, kind))
        return len(factors) - 1

    whole, free = FactorKind.NEED_REPLICATION, FactorKind.PASS_THROUGH
    for l, r in batches:  # noqa: E741
        of_lhs[l] = of_rhs[r] = factor(lhs.shape[l], whole if l in ragged else free)
    lhs_free = [d for d in range(lhs.rank) if d not in of_lhs and d not in numbers.lhs_contracting_dimensions]
    for d in lhs_free:
        of_lhs[d] = factor(lhs.shape[d], whole if d in ragged else free)
    for l, r in contracting:  # noqa: E741
        of_lhs[l] = of_rhs[r] = factor(lhs.shape[l], whole if l in ragged else FactorKind.REDUCTION)
    for d in numbers.rhs_group_dimensions:
        of_rhs[d] = factor(rhs.shape[d], whole)
    rhs_free = [d for d in range(rhs.rank) if d not in of_rhs]
    for d in rhs_free:
        of_rhs[d] = factor(rhs.shape[d], free)
    output = [of_lhs[l] for l, _ in batches] + [of_lhs[d] for d in lhs_free] + [of_rhs[d] for d in rhs_free]  # noqa: E741
    if ragged & set(numbers.lhs_contracting_dimensions):
        output.insert(0, factor(groups.shape[-1], whole))
    sizes = tuple((factor(size, whole),) for size in groups.shape)
    operands = (
        tuple((of_lhs[d],) for d in range(lhs.rank)),
        tuple((of_rhs[d],) for d in range(rhs.rank)),
        sizes,
    )
    return _rule(factors, operands, (tuple((f,) for f in output),))


_RULES: dict[str, RuleMaker] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    "chlo.constant": _results_only,
    "chlo.ragged_dot": _ragged_dot,
    "chlo.top_k": _last_dim_whole,
    "sdy.constant": _results_only,
    "stablehlo.batch_norm_grad": _batch_norm,
    "stablehlo.batch_norm_training": _batch_norm,
    "stablehlo.constant": _results_only,
    "stablehlo.get_dimension_size": _results_only,
    "stablehlo.iota": _results_only,
    "stablehlo.rng": _results_only,
}

_CUSTOM_CALLS: dict[str, RuleMaker] = {
    **dict.fromkeys(ELEMENTWISE_CUSTOM_CALLS, _elementwise),
    "TopK": _last_dim_whole,
}
