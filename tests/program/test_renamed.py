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


def test_images_that_ops_of_their_own_pad() -> None:
    """Two convolutions read an activation behind zeros: it lies as the convolution before made it."""
    images, padded = "tensor<8x30x30x32xbf16>", "tensor<8x32x32x32xbf16>"
    dims = "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    filters = "tensor<3x3x32x32xbf16>"
    program = program_of(
        main_of(
            f"""
      %zero = stablehlo.constant dense<0.0> : tensor<bf16>
      %0 = stablehlo.convolution(%a, %b) {dims}, window = {{}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
        : ({padded}, {filters}) -> {images}
      %1 = stablehlo.multiply %0, %0 : {images}
      %2 = stablehlo.pad %1, %zero, low = [0, 1, 1, 0], high = [0, 1, 1, 0], interior = [0, 0, 0, 0]
        : ({images}, tensor<bf16>) -> {padded}
      %3 = stablehlo.convolution(%2, %b) {dims}, window = {{}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
        : ({padded}, {filters}) -> {images}
      %4 = stablehlo.convolution(%2, %c) {dims}, window = {{}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
        : ({padded}, {filters}) -> {images}
      return %3, %4 : {images}, {images}""",
            f"%a: {padded}, %b: {filters}, %c: {filters}",
            f"{images}, {images}",
        )
    )
    name = next(k.results[0] for k in program.kernels if k.shape.name == "stablehlo.pad")
    assert lies_as_read(name, program, program.lifetimes)


def test_batches_and_heads_that_torch_merges() -> None:
    """A batched product reads what a transpose stores under a name of fewer dimensions, whose minor ones are as long."""
    heads, merged = "tensor<8x4x50x64xf32>", "tensor<32x50x64xf32>"
    made = "(tensor<8x50x256xf32>, tensor<256x256xf32>) -> tensor<8x50x256xf32>"
    program = program_of(
        main_of(
            f"""
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [2] x [0] : {made}
      %1 = stablehlo.reshape %0 : (tensor<8x50x256xf32>) -> tensor<8x50x4x64xf32>
      %2 = stablehlo.transpose %1, dims = [0, 2, 1, 3] : (tensor<8x50x4x64xf32>) -> {heads}
      %3 = stablehlo.reshape %2 : ({heads}) -> {merged}
      %4 = stablehlo.dot_general %3, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2]
        : ({merged}, {merged}) -> tensor<32x50x50xf32>
      return %4 : tensor<32x50x50xf32>""",
            f"%a: tensor<8x50x256xf32>, %b: tensor<256x256xf32>, %k: {merged}",
            "tensor<32x50x50xf32>",
        )
    )
    (name,) = (k.results[0] for k in program.kernels if k.shape.results[0].shape == (32, 50, 64))
    (buffer,) = (k.results[0] for k in program.kernels if k.shape.results[0].shape == (8, 4, 50, 64))
    assert program.minor_dims[buffer] == ((2,), (3,), False)
    assert name in program.as_made
    assert name not in program.padding_names
