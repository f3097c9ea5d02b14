"""Rule and flops of an op, worked out once for all ops with the same name, types and attributes that matter."""

from dataclasses import dataclass

from autoshard.mlir.context import ir
from autoshard.mlir.flops import TypedOp, flops, is_matmul
from autoshard.mlir.linearity import Ways, body_name, leaves_addends, linear_ways
from autoshard.mlir.listing import Window
from autoshard.mlir.rules import own_rule, with_shifted_rows, with_whole_windows
from autoshard.mlir.windows import windows_of
from autoshard.sharding import OpShardingRule, TensorType, parse_rule

RULE = "sdy.sharding_rule"
_SHAPED_BY_ATTRIBUTES = frozenset(  # whose rule, flops or windows depend on more than their types and Shardy's rule
    {
        "chlo.ragged_dot", "stablehlo.batch_norm_grad", "stablehlo.batch_norm_training", "stablehlo.convolution",
        "stablehlo.custom_call", "stablehlo.fft", "stablehlo.pad", "stablehlo.reduce_window",
        "stablehlo.reverse", "stablehlo.select_and_scatter", "stablehlo.slice", "stablehlo.sort",
    }
)  # fmt: skip

_LOOKED_THROUGH = frozenset(
    {"sdy.reshard", "sdy.propagation_barrier"}
)  # by Shardy's passes, unless they have a rule


@dataclass(frozen=True, slots=True)
class OpFacts:
    rule: OpShardingRule | None
    flops: int
    attribute: ir.Attribute | None
    """A rule of ours, to be attached to the op; one without operands has no text form."""
    windows: tuple[Window, ...] = ()
    linear: Ways = ()
    leaves_addends: bool = False
    reducer: str = ""
    is_matmul: bool = False


class FactBook:
    """Facts by op signature; `types` are the listing's tensor types, which signatures name by their index."""

    def __init__(self, types: list[TensorType | None], context: ir.Context) -> None:
        self._types, self._context = types, context
        self._facts: dict[object, OpFacts] = {}
        self._rules: dict[ir.Attribute, OpShardingRule] = {}
        self._interned: dict[OpShardingRule, OpShardingRule] = {}

    def of(self, op: ir.Operation, name: str, operands: tuple[int, ...], results: tuple[int, ...]) -> OpFacts:
        """Facts of `op`, whose operands and results have the types of these numbers."""
        attribute = op.attributes.get(RULE)
        extra = tuple(op.attributes.items()) if name in _SHAPED_BY_ATTRIBUTES else None
        key = (name, attribute, operands, results, extra, body_name(op))
        facts = self._facts.get(key)
        if facts is None:
            typed = TypedOp(name, self._typed(operands), self._typed(results), op)
            facts = self._facts[key] = self._work_out(typed, attribute)
        return facts

    def _typed(self, numbers: tuple[int, ...]) -> tuple[TensorType | None, ...]:
        return tuple(self._types[number] for number in numbers)

    def _work_out(self, op: TypedOp, attribute: ir.Attribute | None) -> OpFacts:
        rule, windows = self._parsed(attribute) if attribute is not None else own_rule(op), windows_of(op)
        if rule is not None and op.name == "stablehlo.convolution":
            rule = with_whole_windows(op, rule)
        if rule is not None and op.name == "stablehlo.pad":
            rule = with_shifted_rows(rule, windows)
        if rule is None:
            return OpFacts(
                None,
                flops(op, None, windows),
                None,
                linear=linear_ways(op),
                is_matmul=is_matmul(op.name, None),
            )
        rule = self._interned.setdefault(rule, rule)
        is_attached = attribute is None and rule.factors and op.operands and op.name not in _LOOKED_THROUGH
        return OpFacts(
            rule,
            flops(op, rule, windows),
            self._attribute(rule) if is_attached else None,
            windows,
            linear_ways(op),
            leaves_addends(op),
            body_name(op.op),
            is_matmul(op.name, rule),
        )

    def _parsed(self, attribute: ir.Attribute) -> OpShardingRule:
        if attribute not in self._rules:
            self._rules[attribute] = parse_rule(str(attribute))
        return self._rules[attribute]

    def _attribute(self, rule: OpShardingRule) -> ir.Attribute:
        return ir.Attribute.parse(f"#sdy.op_sharding_rule<{rule}>", self._context)
