"""What training steps store of few images."""

import pytest

from autoshard.program import Program
from tests.mlir.modules import main_of
from tests.program.modules import program_of

IMAGE, FILTER = "tensor<32x64x64x16xbf16>", "tensor<3x3x16x16xbf16>"
WIDE = "tensor<32x64x64x16xf32>"
ROLES = "batch_group_count = 1 : i64, feature_group_count = 1 : i64"


def layer(result: str, image: str, weights: str) -> str:
    return f"""{result} = stablehlo.convolution({image}, {weights}) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {{pad = [[1, 1], [1, 1]]}} {{{ROLES}}} : ({IMAGE}, {FILTER}) -> {IMAGE}"""


def gradient(result: str, image: str, back: str) -> str:
    return f"""{result} = stablehlo.convolution({image}, {back}) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f],
        window = {{pad = [[1, 1], [1, 1]]}} {{{ROLES}}} : ({IMAGE}, {IMAGE}) -> {FILTER}"""


STEP = f"""
      {layer("%0", "%x", "%v")}
      %1 = stablehlo.convert %0 : (tensor<32x64x64x16xbf16>) -> {WIDE}
      %2 = stablehlo.multiply %1, %1 : {WIDE}
      %3 = stablehlo.convert %2 : ({WIDE}) -> {IMAGE}
      {layer("%4", "%3", "%w")}
      {gradient("%5", "%3", "%4")}
      %6 = stablehlo.convert %4 : ({IMAGE}) -> {WIDE}
      %7 = stablehlo.multiply %6, %2 : {WIDE}
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %8 = stablehlo.reduce(%7 init: %zero) applies stablehlo.add across dimensions = [0, 1, 2]
        : ({WIDE}, tensor<f32>) -> tensor<16xf32>
      %9 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0, 1, 2]
        : ({WIDE}, tensor<f32>) -> tensor<16xf32>
      {gradient("%10", "%x", "%3")}
      return %5, %8, %9, %10 : {FILTER}, tensor<16xf32>, tensor<16xf32>, {FILTER}"""


def test_filters_and_norms() -> None:
    """Gradients of filters are told from other convolutions; of what is made before them what is summed after them is stored."""
    results = f"{FILTER}, tensor<16xf32>, tensor<16xf32>, {FILTER}"
    program = program_of(main_of(STEP, f"%x: {IMAGE}, %v: {FILTER}, %w: {FILTER}", results))
    names = [program.listing.ops[time].name for time in program.strips.filters]
    assert names == ["stablehlo.convolution"] * 2
    first, last = program.strips.filters.values()
    assert (first.taps, first.first, first.end) == (3, min(program.strips.filters), last.end)
    assert first.operands == ((0, 2, (3,)), (0, 2, (3,)))
    assert [str(program.listing.values[value].type) for value in program.strips.kept] == [WIDE]


def test_images_that_are_made_otherwise_are_cut_when_their_turn_comes() -> None:
    """What convolutions of each channel alone make, and products, is in no strips; the gradient takes them while it is made."""
    alone, depthwise = (
        "tensor<3x3x1x16xbf16>",
        ROLES.replace("feature_group_count = 1", "feature_group_count = 16"),
    )
    text = STEP.replace(f"{FILTER}) -> {IMAGE}", f"{alone}) -> {IMAGE}", 1).replace(ROLES, depthwise, 1)
    results = f"{FILTER}, tensor<16xf32>, tensor<16xf32>, {FILTER}"
    program = program_of(main_of(text, f"%x: {IMAGE}, %v: {alone}, %w: {FILTER}", results))
    of_made, of_given = program.strips.filters.items()
    assert (of_made[1].first, of_made[1].end) == (of_made[0], of_made[0] + 1)
    assert (of_given[1].first, of_given[1].end) == (of_given[0], of_given[0] + 1)
    assert not program.strips.kept


def test_patches_are_no_gradients() -> None:
    """A filter that is larger than what comes out of it, with strides as large."""
    filter_, result = "tensor<16x16x3x8xf32>", "tensor<4x4x4x8xf32>"
    text = f"""
      %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {{stride = [16, 16]}} {{{ROLES}}} : (tensor<4x64x64x3xf32>, {filter_}) -> {result}
      return %0 : {result}"""
    program = program_of(main_of(text, f"%x: tensor<4x64x64x3xf32>, %w: {filter_}", result))
    assert not program.strips.filters


@pytest.mark.parametrize("made_of", ["%x", "%c"])
def test_gradients_of_constants_store_nothing(made_of: str) -> None:
    """What goes back to a plain sum is a constant, which the convolution's kernel does not read."""
    text = f"""
      %c = stablehlo.constant dense<1.0> : {IMAGE}
      {gradient("%0", made_of, "%c")}
      return %0 : {FILTER}"""
    assert not program_of(main_of(text, f"%x: {IMAGE}", FILTER)).strips.filters


CHANNELS_FIRST, GROUPS, MEANS = "tensor<32x16x64x64xbf16>", "tensor<128x16384xf32>", "tensor<128xf32>"


def normalized(merged: str, back: str) -> str:
    """A convolution whose groups of channels are centred, between two reshapes, and a second one with its filter's gradient."""
    dims = "dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {pad = [[1, 1], [1, 1]]}"
    kind = f"{dims} {{{ROLES}}} : ({CHANNELS_FIRST}, tensor<16x16x3x3xbf16>) -> {CHANNELS_FIRST}"
    return f"""
      %0 = stablehlo.convolution(%x, %v) {kind}
      {merged}
      %2 = stablehlo.convert %1 : (tensor<128x16384xbf16>) -> {GROUPS}
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %3 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [1] : ({GROUPS}, tensor<f32>) -> {MEANS}
      %4 = stablehlo.broadcast_in_dim %3, dims = [0] : ({MEANS}) -> {GROUPS}
      %5 = stablehlo.subtract %2, %4 : {GROUPS}
      %6 = stablehlo.convert %5 : ({GROUPS}) -> tensor<128x16384xbf16>
      {back}
      %8 = stablehlo.convolution(%7, %w) {kind}
      %9 = stablehlo.convolution(%7, %8) dim_numbers = [f, b, 0, 1]x[i, o, 0, 1]->[f, b, 0, 1],
        window = {{pad = [[1, 1], [1, 1]]}} {{{ROLES}}} : ({CHANNELS_FIRST}, {CHANNELS_FIRST}) -> tensor<16x16x3x3xbf16>
      return %9 : tensor<16x16x3x3xbf16>"""


def test_statistics_of_groups_that_are_merged_with_images() -> None:
    """The sum of each group, spread over it in float32, is kept for as long as what it is taken from is read; images are found again."""
    text = normalized(
        f"%1 = stablehlo.reshape %0 : ({CHANNELS_FIRST}) -> tensor<128x16384xbf16>",
        f"%7 = stablehlo.reshape %6 : (tensor<128x16384xbf16>) -> {CHANNELS_FIRST}",
    )
    filters = "%v: tensor<16x16x3x3xbf16>, %w: tensor<16x16x3x3xbf16>"
    program = program_of(main_of(text, f"%x: {CHANNELS_FIRST}, {filters}", "tensor<16x16x3x3xbf16>"))
    times = [kernel.time for kernel in program.kernels if kernel.shape.name == "stablehlo.convolution"]
    ((value, spread),) = program.strips.spread.items()
    assert str(program.listing.values[value].type) == CHANNELS_FIRST
    ((images, taps, dtype, begin, end),) = (
        (one.images, one.taps, one.dtype, one.begin, one.end) for one in spread
    )
    assert (images, taps, dtype) == ((0, 3, (1,)), 3, "f32")
    assert times[0] < begin < times[1] < end == times[2] + 1
    (gradient_,) = program.strips.filters.values()
    assert (gradient_.first, gradient_.end) == (times[2], times[2] + 1)


def test_statistics_of_pixels_are_not_spread() -> None:
    """Tokens of an image merge rows with columns, and no images: what is normalized then is looked through."""
    text = normalized(
        f"%1 = stablehlo.reshape %0 : ({CHANNELS_FIRST}) -> tensor<512x4096xbf16>",
        f"%7 = stablehlo.reshape %6 : (tensor<512x4096xbf16>) -> {CHANNELS_FIRST}",
    )
    text = text.replace("128x16384", "512x4096").replace("tensor<128xf32>", "tensor<512xf32>")
    filters = "%v: tensor<16x16x3x3xbf16>, %w: tensor<16x16x3x3xbf16>"
    whole = program_of(main_of(text, f"%x: {CHANNELS_FIRST}, {filters}", "tensor<16x16x3x3xbf16>"))
    assert whole.strips.spread  # instance normalization: all channels share a dimension with images
    tokens = text.replace("512x4096", "32x16x4096").replace("tensor<512xf32>", "tensor<32x16xf32>")
    tokens = tokens.replace("across dimensions = [1]", "across dimensions = [2]").replace(
        "dims = [0]", "dims = [0, 1]", 1
    )
    program = program_of(main_of(tokens, f"%x: {CHANNELS_FIRST}, {filters}", "tensor<16x16x3x3xbf16>"))
    assert not program.strips.spread


WAVES, HALVES, TAPS = "tensor<8x1024x64xbf16>", "tensor<8x512x64xbf16>", "tensor<3x64x64xbf16>"


def strided(work: str, pad: str = "[0, 1]", halves: str = HALVES) -> str:
    """Of waves in two layers, the second in strides; `work` makes what goes back to the first, %b, of %g and the forward pass."""
    made, back = (
        f"[b, 0, f]x[0, i, o]->[b, 0, f], window = {{pad = [{pad}], stride = [2]}}",
        "[b, 0, f]x[0, o, i]->[b, 0, f]",
    )
    summed = "[f, 0, b]x[i, 0, o]->[0, b, f]"
    return f"""
      %0 = stablehlo.convolution(%x, %v) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {{pad = [[1, 1]]}} {{{ROLES}}}
        : ({WAVES}, {TAPS}) -> {WAVES}
      %1 = stablehlo.logistic %0 : {WAVES}
      %2 = stablehlo.multiply %0, %1 : {WAVES}
      %3 = stablehlo.convolution(%2, %w) dim_numbers = {made} {{{ROLES}}} : ({WAVES}, {TAPS}) -> {halves}
      %4 = stablehlo.convolution(%2, %3) dim_numbers = {summed}, window = {{pad = [{pad}], rhs_dilate = [2]}} {{{ROLES}}}
        : ({WAVES}, {halves}) -> {TAPS}
      %g = stablehlo.convolution(%3, %w) dim_numbers = {back}, window = {{pad = [[2, 1]], lhs_dilate = [2]}} {{{ROLES}}}
        : ({halves}, {TAPS}) -> {WAVES}
      {work}
      %9 = stablehlo.convolution(%x, %b) dim_numbers = {summed}, window = {{pad = [[1, 1]]}} {{{ROLES}}}
        : ({WAVES}, {WAVES}) -> {TAPS}
      return %4, %9 : {TAPS}, {TAPS}"""


def program_of_strided(*text: str) -> Program:
    return program_of(main_of(strided(*text), f"%x: {WAVES}, %v: {TAPS}, %w: {TAPS}", f"{TAPS}, {TAPS}"))


SWISH = f"""
      %5 = stablehlo.multiply %g, %1 : {WAVES}
      %6 = stablehlo.multiply %g, %0 : {WAVES}
      %b = stablehlo.add %5, %6 : {WAVES}"""
MASKED = f"""
      %5 = stablehlo.constant dense<0.0> : {WAVES}
      %6 = stablehlo.compare GT, %0, %5 : ({WAVES}, {WAVES}) -> tensor<8x1024x64xi1>
      %b = stablehlo.select %6, %g, %5 : tensor<8x1024x64xi1>, {WAVES}"""


def test_what_strides_read_as_images_again() -> None:
    """Each value of the forward pass that is read beside what goes back to it, but what is stored anyway, until the last reads it."""
    program = program_of_strided(SWISH)
    ops = {op.results[0]: index for index, op in enumerate(program.listing.ops)}
    names = {program.listing.ops[time].name: value for value, time in ops.items()}
    ((buffer, (one,)),) = program.strips.crossing.items()
    assert program.listing.ops[ops[buffer]].name == "stablehlo.convolution"
    assert (one.value, one.images, one.taps, one.dtype) == (
        names["stablehlo.logistic"],
        (0, 1, (2,)),
        1,
        "bf16",
    )
    assert (one.begin, one.end) == (ops[one.value], ops[names["stablehlo.add"]] + 1)


def test_the_first_that_strides_read_takes_the_place_of_what_it_is_made_of() -> None:
    """Where that is not read itself."""
    program = program_of_strided(f"%b = stablehlo.multiply %g, %1 : {WAVES}")
    assert program.strips.crossing.get(program.kernels[0].results[0], ()) == ()


def test_what_goes_back_in_strips_reads_strips() -> None:
    """A convolution without strides."""
    text = strided(SWISH, halves=WAVES).replace("pad = [[0, 1]], stride = [2]", "pad = [[1, 1]]")
    text = text.replace("pad = [[2, 1]], lhs_dilate = [2]", "pad = [[1, 1]]").replace(
        "pad = [[0, 1]], rhs_dilate = [2]", "pad = [[1, 1]]"
    )
    program = program_of(main_of(text, f"%x: {WAVES}, %v: {TAPS}, %w: {TAPS}", f"{TAPS}, {TAPS}"))
    assert len(program.strips.filters) == 2 and not program.strips.crossing


@pytest.mark.parametrize(
    ("pad", "size", "pads_strides"),
    [("[0, 1]", 512, True), ("[1, 1]", 512, True), ("[0, 0]", 511, False), ("[1, 0]", 512, True)],
)
def test_strides_over_padded_images(pad: str, size: int, pads_strides: bool) -> None:
    halves = HALVES.replace("512", str(size))
    text = strided(SWISH, pad, halves)
    if size == 511:
        text = text.replace("[[2, 1]]", "[[2, 3]]").replace(
            "pad = [[0, 0]], rhs_dilate", "pad = [[0, -1]], rhs_dilate"
        )
    if pad == "[1, 1]":
        text = text.replace("pad = [[1, 1]], rhs_dilate", "pad = [[1, 0]], rhs_dilate").replace(
            "[[2, 1]]", "[[1, 2]]"
        )
    program = program_of(main_of(text, f"%x: {WAVES}, %v: {TAPS}, %w: {TAPS}", f"{TAPS}, {TAPS}"))
    assert [one.pads_strides for one in program.strips.filters.values()] == [pads_strides, False]
