"""Comparisons that gate what they are made of take no memory; masks of something else do."""

import pytest

from tests.mlir.modules import main_of
from tests.program.modules import program_of

T, P, W = "tensor<8x16xf32>", "tensor<8x16xi1>", "tensor<16x16xf32>"
ZEROS = f"%zeros = stablehlo.constant dense<0.0> : {T}"
MASKS = {
    "what is gated": (f"%p = stablehlo.compare GT, %h, %zeros : ({T}, {T}) -> {P}", False),
    "a cheap function of it": (
        f"%n = stablehlo.negate %h : {T}\n%p = stablehlo.compare LT, %n, %zeros : ({T}, {T}) -> {P}",
        False,
    ),
    "other bits": (f"%p = stablehlo.compare GT, %r, %zeros : ({T}, {T}) -> {P}", True),
    "two values": (f"%p = stablehlo.compare GT, %h, %r : ({T}, {T}) -> {P}", True),
}


@pytest.mark.parametrize(("mask", "is_stored"), MASKS.values(), ids=MASKS)
def test_comparisons_of_what_they_gate_are_repeated(mask: str, is_stored: bool) -> None:
    """Read in a layer and in its gradient."""
    body = f"""
      {ZEROS}
      %h = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %r = stablehlo.dot_general %w, %a, contracting_dims = [1] x [1] : ({W}, {T}) -> tensor<16x8xf32>
      %q = stablehlo.transpose %r, dims = [1, 0] : (tensor<16x8xf32>) -> {T}
      {mask.replace("%r,", "%q,").replace(", %r ", ", %q ")}
      %y = stablehlo.select %p, %h, %zeros : {P}, {T}
      %z = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %d = stablehlo.select %p, %z, %zeros : {P}, {T}
      %v = stablehlo.dot_general %a, %d, contracting_dims = [0] x [0] : ({T}, {T}) -> {W}
      return %z, %v : {T}, {W}"""
    program = program_of(main_of(body, f"%a: {T}, %w: {W}", f"{T}, {W}"))
    made = next(op.results[0] for op in program.listing.ops if op.name == "stablehlo.compare")
    assert program.lifetimes[made].is_own_buffer is is_stored
