"""After reading, every op that main reaches stands in main, once a call."""

from itertools import pairwise

import pytest

from autoshard.errors import AutoshardError
from tests.mlir.modules import MESH_TEXT, listed, main_of, read_text

NESTED = f"""
{MESH_TEXT}
func.func public @main(%a: tensor<8xf32>) -> tensor<8xf32> {{
  %0 = call @f(%a) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = call @f(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}}
func.func private @f(%a: tensor<8xf32>) -> tensor<8xf32> {{
  %0 = stablehlo.abs %a : tensor<8xf32>
  %1 = call @g(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = call @g(%1) : (tensor<8xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}}
func.func private @g(%a: tensor<8xf32>) -> tensor<8xf32> {{
  %0 = stablehlo.negate %a : tensor<8xf32>
  return %0 : tensor<8xf32>
}}
"""


def test_nested_and_repeated_calls_are_expanded_in_order() -> None:
    names = [op.name.removeprefix("stablehlo.") for op in listed(NESTED).ops]
    assert names == ["abs", "negate", "negate"] * 2


def test_each_op_reads_what_the_one_before_made() -> None:
    ops = listed(NESTED).ops
    assert len(ops) == 6
    assert all(later.operands == earlier.results for earlier, later in pairwise(ops))


def test_the_users_module_is_not_changed() -> None:
    source, _, handles = read_text(NESTED)
    assert "call @g" in str(source.module)
    assert "call" not in str(handles.walked.module)


def test_called_functions_go_and_referenced_ones_stay() -> None:
    text = main_of(
        """%0 = stablehlo.custom_call @run(%a) {called_computations = [@kept]} : (tensor<8x16xf32>) -> tensor<8x16xf32>
        %1 = call @gone(%0) : (tensor<8x16xf32>) -> tensor<8x16xf32>
        return %1 : tensor<8x16xf32> }
        func.func private @kept(%a: tensor<8x16xf32>) -> tensor<8x16xf32> { return %a : tensor<8x16xf32> }
        func.func @public(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
          %0 = call @gone(%a) : (tensor<8x16xf32>) -> tensor<8x16xf32>
          return %0 : tensor<8x16xf32> }
        func.func private @unused() { return }
        func.func private @gone(%a: tensor<8x16xf32>) -> tensor<8x16xf32> { return %a : tensor<8x16xf32>"""
    )
    module = str(read_text(text)[2].walked.module)
    assert "func private @kept" in module
    assert "call @gone" in module, "a public function that main does not reach keeps its calls"


def test_recursion_is_refused_with_its_cycle() -> None:
    text = NESTED.replace(
        "stablehlo.negate %a : tensor<8xf32>", "call @f(%a) : (tensor<8xf32>) -> tensor<8xf32>"
    )
    with pytest.raises(AutoshardError, match="recursive function calls: @f -> @g -> @f"):
        listed(text)


def test_a_composite_is_its_decomposition() -> None:
    text = main_of(
        """%0 = stablehlo.composite "my.op" %a {decomposition = @d} : (tensor<8x16xf32>) -> tensor<8x16xf32>
        return %0 : tensor<8x16xf32> }
        func.func private @d(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
          %0 = stablehlo.tanh %a : tensor<8x16xf32>
          return %0 : tensor<8x16xf32>"""
    )
    assert [op.name for op in listed(text).ops] == ["stablehlo.tanh"]


def test_a_callees_signature_is_a_demand_on_what_it_is_handed() -> None:
    text = main_of(
        """%0 = call @f(%a) : (tensor<8x16xf32>) -> tensor<8x16xf32>
        return %0 : tensor<8x16xf32> }
        func.func private @f(%a: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> tensor<8x16xf32> {
          return %a : tensor<8x16xf32>"""
    )
    (constraint,) = listed(text).ops
    assert constraint.name == "sdy.sharding_constraint"
    assert str(constraint.demand) == '[{"x"}, {}]'


def test_calls_inside_loops_are_expanded() -> None:
    text = main_of(
        """%r = stablehlo.while(%x = %a) : tensor<8x16xf32>
          cond { %t = stablehlo.constant dense<true> : tensor<i1> stablehlo.return %t : tensor<i1> }
          do { %y = func.call @f(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32> stablehlo.return %y : tensor<8x16xf32> }
        return %r : tensor<8x16xf32> }
        func.func private @f(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {
          %0 = stablehlo.tanh %a : tensor<8x16xf32>
          return %0 : tensor<8x16xf32>"""
    )
    assert [op.name for op in listed(text).ops] == ["stablehlo.constant", "stablehlo.tanh"]
