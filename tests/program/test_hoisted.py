"""Casts of what a loop steps through."""

import pytest

from tests.mlir.modules import counted_loop, main_of
from tests.program.modules import program_of

STACK, W, X = "tensor<4x16x16xf32>", "tensor<16x16xf32>", "tensor<8x16xbf16>"
NARROW = "tensor<16x16xbf16>"


def sliced(name: str, index: str = "%i", rows: int = 16) -> str:
    """A slice of the weights that is cast."""
    part = f"tensor<1x{rows}x16xf32>"
    return f"""
      %{name}0 = stablehlo.dynamic_slice %w, {index}, %zero, %zero, sizes = [1, {rows}, 16]
        : ({STACK}, tensor<i32>, tensor<i32>, tensor<i32>) -> {part}
      %{name}1 = stablehlo.reshape %{name}0 : ({part}) -> tensor<{rows}x16xf32>
      %{name} = stablehlo.convert %{name}1 : (tensor<{rows}x16xf32>) -> tensor<{rows}x16xbf16>"""


LAYER = f"""{sliced("w1")}
      %next = stablehlo.dot_general %a, %w1, contracting_dims = [1] x [0] : ({X}, {NARROW}) -> {X}"""
CAST_TWICE = f"""{sliced("w1")}
      {sliced("w2")}
      %b = stablehlo.dot_general %a, %w1, contracting_dims = [1] x [0] : ({X}, {NARROW}) -> {X}
      %next = stablehlo.dot_general %b, %w2, contracting_dims = [1] x [1] : ({X}, {NARROW}) -> {X}"""
TAKEN_NARROWER = f"""
      %w1 = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 16, 16]
        : ({STACK}, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x16x16xf32>
      %w2 = stablehlo.reshape %w1 : (tensor<1x16x16xf32>) -> {W}
      %b = stablehlo.convert %a : ({X}) -> tensor<8x16xf32>
      %c = stablehlo.dot_general %b, %w2, contracting_dims = [1] x [0] : (tensor<8x16xf32>, {W}) -> tensor<8x16xf32>
      %next = stablehlo.convert %c : (tensor<8x16xf32>) -> {X}"""
ONE_SLICE = LAYER.replace("%w, %i,", "%w, %zero,")
PART = f"""{sliced("w1", rows=8)}
      %b = stablehlo.dot_general %a, %w1, contracting_dims = [1] x [1] : ({X}, tensor<8x16xbf16>) -> tensor<8x8xbf16>
      %next = stablehlo.dot_general %b, %w1, contracting_dims = [1] x [0] : (tensor<8x8xbf16>, tensor<8x16xbf16>) -> {X}"""


def scan(layer: str = LAYER, also: str = "", results: str = "%r#1", types: str = X) -> str:
    """Four trips of a layer."""
    carried = (("%a", "%x", X), ("%w", "%s", STACK))
    loop = counted_loop(4, carried, layer, ("%next", "%w"))
    body = f"%zero = stablehlo.constant dense<0> : tensor<i32>\n{loop}\n{also}\nreturn {results} : {types}"
    return main_of(body, f"%x: {X}, %s: {STACK}", types)


@pytest.mark.parametrize("layer", [LAYER, CAST_TWICE, TAKEN_NARROWER])
def test_all_slices_are_cast_before_a_loop_that_alone_reads_them(layer: str) -> None:
    """As long as the loop runs; once, as XLA makes what is the same once; also what a float32 product takes."""
    program = program_of(scan(layer))
    ((whole,),) = program.hoisted_casts.values()
    (loop,) = {(flow.begin, flow.end) for flow in program.listing.data_flows}
    assert (whole.begin, whole.end) == loop
    assert (whole.type.shape, whole.type.dtype) == ((4, 16, 16), "bf16")


UPDATED = [
    (f"%u = stablehlo.add %s, %s : {STACK}", "%r#1, %u", f"{X}, {STACK}"),
    ("", "%r#1, %s", f"{X}, {STACK}"),
]


@pytest.mark.parametrize(("also", "results", "types"), UPDATED)
def test_what_products_take_narrower_is_not_cast_if_it_is_read_or_returned_besides(
    also: str, results: str, types: str
) -> None:
    """As weights are that are updated; what says that it is cast is."""
    assert not program_of(scan(TAKEN_NARROWER, also, results, types)).hoisted_casts
    assert len(program_of(scan(LAYER, also, results, types)).hoisted_casts) == 1


BARRED = LAYER.replace(
    "%w1 = stablehlo.convert %w11",
    f"%w12 = stablehlo.optimization_barrier %w11 : {W}\n      %w1 = stablehlo.convert %w12",
)


def test_casts_for_two_loops_are_there_until_the_second_ends() -> None:
    """One set for both, also where a barrier is in front of the casts, as where activations are made anew."""
    again = counted_loop(
        4, (("%a", "%r#1", X), ("%w", "%s", STACK)), BARRED, ("%next", "%w"), name="q", counter="j"
    )
    program = program_of(scan(LAYER, again.replace("%w, %i,", "%w, %j,"), "%q#1"))
    ((whole,),) = program.hoisted_casts.values()
    loops = [(flow.begin, flow.end) for flow in program.listing.data_flows if flow.kind == "while"]
    assert (whole.begin, whole.end) == (min(begin for begin, _ in loops), max(end for _, end in loops))


@pytest.mark.parametrize("layer", [ONE_SLICE, PART])
def test_what_is_not_stepped_through_is_not_all_cast(layer: str) -> None:
    """One slice in every trip, or a part of each."""
    assert not program_of(scan(layer)).hoisted_casts
