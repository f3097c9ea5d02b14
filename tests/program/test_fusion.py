"""Which ops run as one kernel, and the rule of that kernel."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from autoshard.program import Kernel, Program
from autoshard.program.fusion import rule_of
from autoshard.sharding import TensorMapping, factor_axes_of, tensor_sharding
from autoshard.space import Strategy, strategies
from tests.mlir.modules import main_of
from tests.program.modules import LOOP, kernel_ops, program_of
from tests.programs import PROGRAMS

T = "tensor<8x16xf32>"
DOT = f"contracting_dims = [1] x [1] : ({T}, {T}) -> tensor<8x8xf32>"


def kernels(body: str, results: str = T) -> list[list[str]]:
    return kernel_ops(program_of(main_of(body, f"%a: {T}, %b: {T}", results)))


def test_chain_is_one_kernel() -> None:
    """An elementwise op whose only reader is elementwise joins it."""
    body = f"""%0 = stablehlo.exponential %a : {T}
      %1 = stablehlo.add %0, %b : {T}
      %2 = stablehlo.negate %1 : {T}
      return %2 : {T}"""
    assert kernels(body) == [["exponential", "add", "negate"]]


def test_two_readers_in_one_kernel() -> None:
    """A value that is read twice, by one kernel, stays inside it."""
    body = f"""%0 = stablehlo.exponential %a : {T}
      %1 = stablehlo.negate %0 : {T}
      %2 = stablehlo.multiply %0, %1 : {T}
      return %2 : {T}"""
    assert kernels(body) == [["exponential", "negate", "multiply"]]


def test_two_readers_in_two_kernels() -> None:
    """A value that two kernels read is a kernel's result."""
    body = f"""%0 = stablehlo.exponential %a : {T}
      %1 = stablehlo.negate %0 : {T}
      %2 = stablehlo.dot_general %0, %1, {DOT}
      return %2 : tensor<8x8xf32>"""
    assert kernels(body, "tensor<8x8xf32>") == [["exponential"], ["negate"], ["dot_general"]]


def test_reduction_takes_what_it_sums() -> None:
    """Elementwise work joins the reduction that reads it, a matmul takes nothing in."""
    reduced = f"""%0 = stablehlo.multiply %a, %b : {T}
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1]
        : ({T}, tensor<f32>) -> tensor<8xf32>
      return %1 : tensor<8xf32>"""
    assert kernels(reduced, "tensor<8xf32>") == [["multiply", "reduce"]]
    multiplied = f"""%0 = stablehlo.negate %a : {T}
      %1 = stablehlo.dot_general %0, %b, {DOT}
      return %1 : tensor<8x8xf32>"""
    assert kernels(multiplied, "tensor<8x8xf32>") == [["negate"], ["dot_general"]]


@pytest.mark.parametrize(
    ("dot", "result", "expected"),
    [
        (
            "batching_dims = [0] x [0], contracting_dims = [1] x [1]",
            "tensor<8xf32>",
            [["negate", "dot_general"]],
        ),
        ("batching_dims = [0, 1] x [0, 1], contracting_dims = [] x []", T, [["negate", "dot_general"]]),
        ("contracting_dims = [1] x [1]", "tensor<8x8xf32>", [["negate"], ["dot_general"]]),
    ],
)
def test_a_dot_that_is_no_matrix_product(dot: str, result: str, expected: list[list[str]]) -> None:
    """One that sums nothing is elementwise, one whose operands share all dimensions a reduction: both fuse what they read."""
    body = f"%0 = stablehlo.negate %a : {T}\n%1 = stablehlo.dot_general %0, %b, {dot} : ({T}, {T}) -> {result}\nreturn %1 : {result}"
    program = program_of(main_of(body, f"%a: {T}, %b: {T}", result))
    assert kernel_ops(program) == expected
    assert program.kernels[-1].shape.is_matmul == (len(expected) > 1)


def test_outer_product_joins_its_reader() -> None:
    """It is elementwise although each operand lacks a dimension of the result."""
    body = f"""
      %0 = stablehlo.dot_general %r, %c, contracting_dims = [] x [] : (tensor<8xf32>, tensor<16xf32>) -> {T}
      %1 = stablehlo.add %0, %a : {T}
      return %1 : {T}"""
    program = program_of(main_of(body, f"%a: {T}, %r: tensor<8xf32>, %c: tensor<16xf32>", T))
    assert kernel_ops(program) == [["dot_general", "add"]]


def test_result_keeps_its_kernel() -> None:
    """A value that main returns is stored even where an elementwise op reads it too."""
    body = f"""%0 = stablehlo.exponential %a : {T}
      %1 = stablehlo.negate %0 : {T}
      return %0, %1 : {T}, {T}"""
    assert kernels(body, f"{T}, {T}") == [["exponential"], ["negate"]]


def test_demand_keeps_its_kernel() -> None:
    """A value on which the user wrote a sharding is stored with it."""
    body = f"""%0 = stablehlo.exponential %a : {T}
      %1 = sdy.sharding_constraint %0 <@mesh, [{{"x"}}, {{?}}]> : {T}
      %2 = stablehlo.negate %1 : {T}
      return %2 : {T}"""
    assert kernels(body) == [["exponential"], ["sharding_constraint"], ["negate"]]


def explicit(first: str, second: str) -> str:
    """Elementwise ops of a value, each with a demand, and the sum of the last along the second dimension."""
    asked = [f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {one}>]>}}" for one in (first, second)]
    return f"""%0 = stablehlo.exponential %a {asked[0]} : {T}
      %1 = stablehlo.add %0, %b {asked[1]} : {T}
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [1] : ({T}, tensor<f32>) -> tensor<8xf32>
      return %2 : tensor<8xf32>"""


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ('[{"x"}, {"y"}]', '[{"x"}, {"y"}]', [["exponential", "add", "reduce"]]),
        ('[{"x"}, {"y"}]', '[{"x"}, {}]', [["exponential"], ["add", "reduce"]]),
        ('[{"x"}, {?}]', '[{"x"}, {}]', [["exponential"], ["add", "reduce"]]),
        ('[{"x"}, {}]', '[{"x", "z"}, {}]', [["exponential"], ["add", "reduce"]]),
        ('[{"x"}p1, {}]', '[{"x"}p2, {}]', [["exponential"], ["add"], ["reduce"]]),
    ],
)
def test_demands_that_agree_share_a_kernel(first: str, second: str, expected: list[list[str]]) -> None:
    """One kernel makes values that are demanded alike, where all are of one priority; a reduction reads one as it is demanded."""
    program = program_of(main_of(explicit(first, second), f"%a: {T}, %b: {T}", "tensor<8xf32>"))
    assert kernel_ops(program) == expected


def test_what_is_made_inside_is_as_demanded() -> None:
    """Every strategy of the kernel has the demanded split of the value inside; without the demand others have not."""
    asked = '[{"x"}, {"y"}]'
    program = program_of(main_of(explicit(asked, asked), f"%a: {T}, %b: {T}", "tensor<8xf32>"))
    (shape,) = (kernel.shape for kernel in program.kernels)
    mesh = program.listing.mesh
    demand = program.listing.ops[0].demand
    assert demand is not None
    assert [sharding for _, sharding in shape.within] == [demand]
    made = [strategy.operands[0] for strategy in strategies(shape, mesh)]
    assert made
    assert all(one.satisfies(demand) for one in made)
    free = strategies(replace(shape, within=()), mesh)
    assert any(not one.operands[0].satisfies(demand) for one in free)


BROADCAST = f"""%row = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %row) applies stablehlo.add across dimensions = [1]
    : ({T}, tensor<f32>) -> tensor<8xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<8xf32>) -> {T}
  %2 = stablehlo.subtract %a, %1 : {T}
  %3 = stablehlo.add %b, %1 : {T}
  return %2, %3 : {T}, {T}"""


def test_broadcast_joins_every_reader() -> None:
    """A broadcast is recomputed in each elementwise reader, whose operand is then what was broadcast."""
    program = program_of(main_of(BROADCAST, f"%a: {T}, %b: {T}", f"{T}, {T}"))
    assert kernel_ops(program) == [
        ["reduce"],
        ["broadcast_in_dim", "subtract"],
        ["broadcast_in_dim", "add"],
    ]
    (broadcast,) = (op for op in program.listing.ops if op.name.endswith("broadcast_in_dim"))
    assert program.cloneable >= set(broadcast.results)
    for kernel in program.kernels[1:]:
        assert broadcast.operands[0] in [use.value for use in kernel.uses]
        assert ((0,),) in kernel.shape.rule.operands


def test_broadcast_for_a_matmul_is_stored() -> None:
    """A matmul reads its operands from memory, a broadcast too."""
    body = f"""%zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.reduce(%a init: %zero) applies stablehlo.add across dimensions = [0]
        : ({T}, tensor<f32>) -> tensor<16xf32>
      %1 = stablehlo.broadcast_in_dim %0, dims = [1] : (tensor<16xf32>) -> {T}
      %2 = stablehlo.dot_general %1, %b, {DOT}
      return %2 : tensor<8x8xf32>"""
    assert kernels(body, "tensor<8x8xf32>") == [["reduce"], ["broadcast_in_dim"], ["dot_general"]]


def test_constants_are_free() -> None:
    """Constants, iota and expressions of those have no kernel: each reader makes its own."""
    body = f"""%0 = stablehlo.iota dim = 1 : {T}
      %two = stablehlo.constant dense<2.0> : tensor<f32>
      %1 = stablehlo.broadcast_in_dim %two, dims = [] : (tensor<f32>) -> {T}
      %2 = stablehlo.divide %0, %1 : {T}
      %3 = stablehlo.add %a, %2 : {T}
      %4 = stablehlo.dot_general %3, %2, {DOT}
      return %4 : tensor<8x8xf32>"""
    program = program_of(main_of(body, f"%a: {T}", "tensor<8x8xf32>"))
    assert kernel_ops(program) == [["add"], ["dot_general"]]
    (free,) = (op.results[0] for op in program.listing.ops if op.name.endswith("divide"))
    assert free in program.cloneable
    assert all(free not in [use.value for use in kernel.uses] for kernel in program.kernels)
    assert [len(kernel.free_reads) for kernel in program.kernels] == [1, 1]
    assert free not in program.lifetimes


def test_scalars_have_no_kernel() -> None:
    """Scalars are on every device, and what is done to them costs nothing."""
    body = "%0 = stablehlo.add %a, %a : tensor<f32>\nreturn %0 : tensor<f32>"
    assert program_of(main_of(body, "%a: tensor<f32>", "tensor<f32>")).kernels == ()


def test_loops_keep_their_own() -> None:
    """What a loop carries is stored, and nothing joins from outside into its body."""
    assert kernel_ops(program_of(LOOP)) == [["dot_general"], ["dot_general"], ["add"], ["dot_general"]]


def test_equal_kernels_share_a_shape() -> None:
    """Strategies are enumerated once for kernels that do the same to the same types."""
    body = f"""%0 = stablehlo.exponential %a : {T}
      %1 = stablehlo.exponential %b : {T}
      return %0, %1 : {T}, {T}"""
    program = program_of(main_of(body, f"%a: {T}, %b: {T}", f"{T}, {T}"))
    assert program.kernels[0].shape is program.kernels[1].shape


@lru_cache
def real_program(name: str) -> Program:
    return program_of(PROGRAMS[name](), axes=[("x", 4), ("y", 2)])


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_op_is_evaluated_somewhere(name: str) -> None:
    """Every op with a ranked operand or result is free or in a kernel; in several only where it is recomputed."""
    program = real_program(name)
    homes: dict[int, int] = {}
    for kernel in program.kernels:
        for op in kernel.ops:
            homes[op] = homes.get(op, 0) + 1
    for number, op in enumerate(program.listing.ops):
        if number in homes:
            assert homes[number] == 1 or program.cloneable >= set(op.results)
        else:
            types = [program.listing.values[v].type for v in (*op.operands, *op.results)]
            is_scalar = all(type_ is None or not type_.rank for type_ in types)
            assert is_scalar or program.cloneable >= set(op.results)


@pytest.mark.parametrize("name", PROGRAMS)
def test_composed_rules(name: str) -> None:
    """Under any strategy of a kernel, each op inside has axes for the factors of its own rule that give what the
    kernel's rule makes of that op's operands and results."""
    random = np.random.default_rng(0)
    program = real_program(name)
    fused = [kernel for kernel in program.kernels if len(kernel.ops) > 1]
    for kernel in fused:
        found = strategies(kernel.shape, program.listing.mesh)
        for index in random.integers(0, len(found), 4):
            assert _ops_against(program, kernel, found[int(index)]) == []
    assert fused


def _ops_against(program: Program, kernel: Kernel, strategy: Strategy) -> list[str]:
    """Ops of the kernel whose own rule has no axes for the shardings that the strategy means for them."""
    at = {site: mapping for use, mapping in _uses(kernel) for site in use}
    at.update({(op, operand): mapping for op, operand, mapping in kernel.free_reads})
    made = dict(kernel.inner)
    made.update(zip(kernel.results, kernel.shape.rule.results, strict=True))
    mesh = program.listing.mesh
    refused: list[str] = []
    for number in kernel.ops:
        op = program.listing.ops[number]
        rule = rule_of(op, program.listing)
        mappings: list[TensorMapping] = []
        wanted: list[TensorMapping] = []
        for operand, (value, mapping) in enumerate(zip(op.operands, rule.operands, strict=True)):
            theirs = at.get((number, operand), made.get(value))
            if theirs is not None:
                mappings.append(mapping)
                wanted.append(theirs)
        for value, mapping in zip(op.results, rule.results, strict=True):
            theirs = made.get(value)
            if theirs is not None:
                mappings.append(mapping)
                wanted.append(theirs)
        shardings = [tensor_sharding(kernel.shape.rule, m, strategy.factor_axes, mesh) for m in wanted]
        known = [s for s in shardings if s is not None]
        if len(known) < len(shardings) or factor_axes_of(rule, mappings, known, mesh) is None:
            refused.append(op.name)
    return refused


def _uses(kernel: Kernel) -> list[tuple[tuple[tuple[int, int], ...], TensorMapping]]:
    return [
        (use.sites, mapping) for use, mapping in zip(kernel.uses, kernel.shape.rule.operands, strict=True)
    ]
