"""Elementwise work whose result is returned or handed on under another name is done once, and stored."""

import pytest

from tests.mlir.modules import main_of
from tests.program.modules import program_of

T, TALL = "tensor<8x16xf32>", "tensor<4x2x16xf32>"
CONSTRAINT = f'sdy.sharding_constraint %0 <@mesh, [{{"x"}}, {{}}]> : {T}'
RESHAPE = f"stablehlo.reshape %0 : ({T}) -> {TALL}"


@pytest.mark.parametrize(("name", "type_"), [(CONSTRAINT, T), (RESHAPE, TALL)])
def test_what_is_returned_is_made(name: str, type_: str) -> None:
    text = main_of(f"%0 = stablehlo.tanh %a : {T}\n%1 = {name}\nreturn %1 : {type_}", results=type_)
    (made, renamed) = program_of(text).kernels
    assert (made.is_alias, made.shape.reads, made.shape.writes) == (False, (1,), 1)
    assert renamed.is_alias


def test_what_a_loop_carries_is_made_in_each_trip() -> None:
    body = f"""%p = stablehlo.constant dense<false> : tensor<i1>
      %r = stablehlo.while(%x = %a) : {T} cond {{
        stablehlo.return %p : tensor<i1>
      }} do {{
        %0 = stablehlo.tanh %x : {T}
        %1 = {CONSTRAINT}
        stablehlo.return %1 : {T}
      }}
      return %r : {T}"""
    (made, _) = program_of(main_of(body)).kernels
    assert (made.is_alias, made.shape.reads, made.shape.writes) == (False, (1,), 1)
