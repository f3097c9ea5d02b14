"""Names of buffers that pad more than the buffer's own shape does."""

from dataclasses import replace

import pytest

from autoshard.program import Program, lies_as_read
from tests.mlir.modules import main_of
from tests.program.modules import program_of

HEADS = "tensor<8x50x2x64xf32>"


@pytest.mark.parametrize("is_scaled", [False, True])
def test_products_that_are_cut_into_heads(is_scaled: bool) -> None:
    """Of queries the name that the product of scores reads, scaled or not, and the name of keys."""
    queries = (
        f"%4 = stablehlo.multiply %2, %2 : {HEADS}"
        if is_scaled
        else f"%4 = stablehlo.reshape %0 : (tensor<8x50x128xf32>) -> {HEADS}"
    )
    weights = "(tensor<8x50x128xf32>, tensor<128x128xf32>) -> tensor<8x50x128xf32>"
    program = program_of(
        main_of(
            f"""
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [2] x [0] : {weights}
      %1 = stablehlo.dot_general %a, %c, contracting_dims = [2] x [0] : {weights}
      %2 = stablehlo.reshape %0 : (tensor<8x50x128xf32>) -> {HEADS}
      %3 = stablehlo.reshape %1 : (tensor<8x50x128xf32>) -> {HEADS}
      {queries}
      %5 = stablehlo.dot_general %4, %3, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3]
        : ({HEADS}, {HEADS}) -> tensor<8x2x50x50xf32>
      return %5 : tensor<8x2x50x50xf32>""",
            "%a: tensor<8x50x128xf32>, %b: tensor<128x128xf32>, %c: tensor<128x128xf32>",
            "tensor<8x2x50x50xf32>",
        )
    )
    scores = next(
        kernel
        for kernel in program.kernels
        if len(kernel.shape.results[0].shape) == 4 and kernel.shape.is_matmul
    )
    assert program.padding_names == {use.value for use in scores.uses}


HALF = "tensor<8x50x2x64xbf16>"
MADE = "(tensor<8x50x32xbf16>, tensor<32x2x64xbf16>) -> " + HALF
SCORES = "tensor<8x2x50x50xbf16>"


def attention(work: str = "", softmax: str = "%5") -> Program:
    """Queries and keys come out of products in heads already; `work` makes what the last product reads of the scores, `%5`."""
    return program_of(
        main_of(
            f"""
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [2] x [0] : {MADE}
      %1 = stablehlo.dot_general %a, %c, contracting_dims = [2] x [0] : {MADE}
      %5 = stablehlo.dot_general %0, %1, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3]
        : ({HALF}, {HALF}) -> {SCORES}
      {work}
      %6 = stablehlo.dot_general {softmax}, %1, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1]
        : ({SCORES}, {HALF}) -> tensor<8x2x50x64xbf16>
      %7 = stablehlo.dot_general {softmax}, %0, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1]
        : ({SCORES}, {HALF}) -> tensor<8x2x50x64xbf16>
      return %6, %7 : tensor<8x2x50x64xbf16>, tensor<8x2x50x64xbf16>""",
            "%a: tensor<8x50x32xbf16>, %b: tensor<32x2x64xbf16>, %c: tensor<32x2x64xbf16>",
            "tensor<8x2x50x64xbf16>, tensor<8x2x50x64xbf16>",
        )
    )


def test_what_products_alone_read_lies_as_they_read_it() -> None:
    """Of queries and keys positions and elements of a head are minor, though the batch could be."""
    program = attention()
    queries, keys = (kernel.results[0] for kernel in program.kernels[:2])
    for value in (queries, keys):
        first, second, _ = program.minor_dims[value]
        assert {first, second} == {(1,), (3,)}


def test_names_of_what_lies_so_already_pad_nothing() -> None:
    """Scaled scores, which products read in the layout of the scores; where work on these is stored, its names are laid out for them."""
    program = attention(f"%s = stablehlo.multiply %5, %5 : {SCORES}", "%s")
    (name,) = program.worked_on
    assert lies_as_read(name, program, program.lifetimes)
    stored = program.lifetimes | {name: replace(program.lifetimes[name], is_own_buffer=True)}
    assert not lies_as_read(name, program, stored)
