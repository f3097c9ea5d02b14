"""Kernels with any rule: a custom call whose rule the module states."""

from collections.abc import Sequence

from hypothesis import strategies as st

from autoshard.program import KernelShape
from autoshard.sharding import Factor, FactorKind, Mesh, OpShardingRule, TensorMapping, TensorType
from tests.program.modules import program_of


def shape_of(rule: OpShardingRule, mesh: Mesh, demand: str = "") -> KernelShape:
    """The kernel of a custom call with this rule; `demand` is the sharding written on its first result."""
    operands, results = (
        [TensorType(tensor_shape(rule, mapping), "f32") for mapping in mappings]
        for mappings in (rule.operands, rule.results)
    )
    arguments = ", ".join(f"%a{i}: {type_}" for i, type_ in enumerate(operands))
    names = ", ".join(f"%a{i}" for i in range(len(operands)))
    made = ", ".join(f"%r#{i}" if len(results) > 1 else "%r" for i in range(len(results)))
    types = ", ".join(map(str, results))
    per_value = [demand, *(f"[{', '.join(['{?}'] * t.rank)}]" for t in results[1:])]
    written = ", ".join(f"<@{mesh.name}, {sharding}>" for sharding in per_value)
    attributes = f"sdy.sharding_rule = #sdy.op_sharding_rule<{rule}, custom>" + (
        f", sdy.sharding = #sdy.sharding_per_value<[{written}]>" if demand else ""
    )
    (kernel,) = program_of(f"""
      sdy.mesh @{mesh.name} = {mesh}
      func.func @main({arguments}) -> ({types}) {{
        %r{f":{len(results)}" if len(results) > 1 else ""} = stablehlo.custom_call @unknown({names}) {{{attributes}}}
          : ({", ".join(map(str, operands))}) -> {types if len(results) == 1 else f"({types})"}
        return {made} : {types}
      }}""").kernels
    return kernel.shape


def tensor_shape(rule: OpShardingRule, mapping: TensorMapping) -> tuple[int, ...]:
    shape: list[int] = []
    for dim in mapping:
        size = 1
        for factor in dim:
            size *= rule.factors[factor].size
        shape.append(size)
    return tuple(shape)


@st.composite
def kernel_rules(
    draw: st.DrawFn, sizes: Sequence[int] = (1, 2, 3, 4, 6, 8), results: int = 1
) -> OpShardingRule:
    """One or two operands, results in which no reduction factor is; every tensor has dimensions."""
    count = draw(st.integers(1, 4))
    kinds = [draw(st.sampled_from([*[FactorKind.PASS_THROUGH] * 3, *FactorKind])) for _ in range(count)]
    kinds[0] = FactorKind.PASS_THROUGH
    factors = tuple(Factor(draw(st.sampled_from(sizes)), kind) for kind in kinds)
    kept = [i for i, kind in enumerate(kinds) if kind is not FactorKind.REDUCTION]
    operands = [draw(_mapping(factors, list(range(count))))]
    if draw(st.booleans()):
        operands.append(draw(_mapping(factors, sorted(draw(st.sets(st.integers(0, count - 1), min_size=1))))))
    made = tuple(draw(_mapping(factors, kept)) for _ in range(results))
    return OpShardingRule(factors, tuple(operands), made)


@st.composite
def _mapping(draw: st.DrawFn, factors: Sequence[Factor], present: list[int]) -> TensorMapping:
    """These factors in any order; compound dimensions have, as Shardy wants it, no factor of size 1."""
    dims: list[list[int]] = []
    for factor in draw(st.permutations(present)):
        is_compound = dims and factors[factor].size > 1 and factors[dims[-1][-1]].size > 1
        if is_compound and draw(st.integers(0, 3)) == 0:
            dims[-1].append(factor)
        else:
            dims.append([factor])
    return tuple(map(tuple, dims))
