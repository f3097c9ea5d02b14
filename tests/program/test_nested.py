"""Products that leave no buffer of their own."""

from dataclasses import replace

import pytest

from autoshard.loading import load_module
from autoshard.program import Program, build_program
from autoshard.program.records import XLA_TPU, Compiler
from autoshard.requests import Request
from tests.mlir.modules import listed, main_of
from tests.program.modules import program_of

IMAGES = "tensor<8x16x16x64x{0}>"
DEPTHWISE, POINTWISE = ("3x3x1x64", 64, 1), ("1x1x64x64", 1, 0)


def _convolution(result: str, value: str, filter_: str, of: tuple[str, int, int], dtype: str = "f32") -> str:
    type_, (shape, groups, pad) = IMAGES.format(dtype), of
    return f"""
      {result} = stablehlo.convolution({value}, {filter_}) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {{stride = [1, 1], pad = [[{pad}, {pad}], [{pad}, {pad}]], lhs_dilate = [1, 1], rhs_dilate = [1, 1],
        reverse = [false, false]}} {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}
        : ({type_}, tensor<{shape}x{dtype}>) -> {type_}"""


def _chain(filters: list[tuple[str, int, int]], dtype: str = "f32", reads: str = "%2") -> str:
    """A pointwise convolution and two more of those filters, rectified and the first shifted; the third reads `reads`."""
    type_ = IMAGES.format(dtype)

    def convolution(result: str, value: str, filter_: str, of: tuple[str, int, int]) -> str:
        return _convolution(result, value, filter_, of, dtype)

    def rectifier(result: str, value: str) -> str:
        return f"\n      {result} = stablehlo.maximum {value}, %zero : {type_}"

    second, third = filters
    return main_of(
        f"""
      %zero = stablehlo.constant dense<0.0> : {type_}"""
        + convolution("%0", "%x", "%a", POINTWISE)
        + rectifier("%r", "%0")
        + f"""
      %s = stablehlo.reshape %d : (tensor<64x{dtype}>) -> tensor<1x1x1x64x{dtype}>
      %b1 = stablehlo.broadcast_in_dim %s, dims = [0, 1, 2, 3] : (tensor<1x1x1x64x{dtype}>) -> {type_}"""
        + f"\n      %1 = stablehlo.subtract %r, %b1 : {type_}"
        + convolution("%2", "%1", "%b", second)
        + rectifier("%3", "%2")
        + convolution("%4", "%3" if reads == "%2" else reads, "%c", third)
        + (f"\n      %5 = stablehlo.add %4, %3 : {type_}" if reads != "%2" else rectifier("%5", "%4"))
        + f"\n      return %5 : {type_}",
        f"%x: {type_}, %a: tensor<1x1x64x64x{dtype}>, %b: tensor<{second[0]}x{dtype}>, %c: tensor<{third[0]}x{dtype}>,"
        f" %d: tensor<64x{dtype}>",
        type_,
    )


def _stored(program: Program) -> list[bool]:
    """Whether the first two convolutions have a buffer."""
    made = [kernel.results[0] for kernel in program.kernels if kernel.shape.is_matmul]
    lives = [program.lifetimes[value] for value in made[:2]]
    return [life.is_own_buffer or life.within is not None for life in lives]


@pytest.mark.parametrize(
    ("filters", "dtype", "stored"),
    [
        ([DEPTHWISE, POINTWISE], "f32", [False, True]),
        ([DEPTHWISE, POINTWISE], "bf16", [False, True]),
        ([POINTWISE, DEPTHWISE], "f32", [True, False]),
        ([POINTWISE, POINTWISE], "f32", [True, True]),
    ],
)
def test_convolutions_inside_depthwise_ones(
    filters: list[tuple[str, int, int]], dtype: str, stored: list[bool]
) -> None:
    """What a depthwise convolution alone reads has no buffer, and each is in one pair; what the pair reads stays until it runs."""
    program = program_of(_chain(filters, dtype))
    assert _stored(program) == stored
    products = [kernel for kernel in program.kernels if kernel.shape.is_matmul]
    for inner, outer, is_stored in zip(products[:-1], products[1:], stored, strict=True):
        assert is_stored or all(program.lifetimes[use.value].end > outer.time for use in inner.uses)


def test_what_several_products_read_narrow_is_stored_as_that() -> None:
    """A rectified convolution in float32 that two convolutions read, which take bfloat16: the product itself has no buffer."""
    program = program_of(_chain([POINTWISE, POINTWISE], reads="%1"))
    assert _stored(program)[0] is False


@pytest.mark.parametrize(("hardware", "stored"), [("tpu-v5e", [False, True]), ("h100", [True, True])])
def test_only_xla_for_tpus_nests(hardware: str, stored: list[bool]) -> None:
    loaded = load_module(_chain([DEPTHWISE, POINTWISE]).encode(), Request(hardware=hardware))
    assert _stored(loaded.program) == stored


def _stack(channels: int, rows: int, *layers: tuple[int, int], images: int = 2048) -> str:
    """Convolutions of (rows of the window, channels) with a bias each, one behind the other."""
    value, type_, body, parameters = "%x", "", "", [f"%x: tensor<{images}x{rows}x{rows}x{channels}xf32>"]
    before = channels
    for number, (window, made) in enumerate(layers):
        type_, filters = (
            f"tensor<{images}x{rows}x{rows}x{made}xf32>",
            f"tensor<{window}x{window}x{before}x{made}xf32>",
        )
        pad = window // 2
        body += f"""
      %c{number} = stablehlo.convolution({value}, %w{number}) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {{stride = [1, 1], pad = [[{pad}, {pad}], [{pad}, {pad}]], lhs_dilate = [1, 1], rhs_dilate = [1, 1],
        reverse = [false, false]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
        : (tensor<{images}x{rows}x{rows}x{before}xf32>, {filters}) -> {type_}
      %b{number} = stablehlo.broadcast_in_dim %d{number}, dims = [3] : (tensor<{made}xf32>) -> {type_}
      %y{number} = stablehlo.add %c{number}, %b{number} : {type_}"""
        parameters += [f"%w{number}: {filters}", f"%d{number}: tensor<{made}xf32>"]
        value, before = f"%y{number}", made
    return main_of(f"{body}\n      return {value} : {type_}", ", ".join(parameters), type_)


V5E = Compiler(is_xla_tpu=True, nested_flop_per_byte=480, nested_from_channels=8, devices=16)
V6E = replace(V5E, nested_flop_per_byte=560, nested_from_channels=0)


@pytest.mark.parametrize(
    ("text", "compiler", "stored"),
    [
        (_stack(32, 56, (3, 64), (3, 96), (3, 128), (3, 160), (3, 192)), V5E, [64, 128, 160]),
        (_stack(32, 56, (3, 64), (1, 96), (1, 128), (1, 160), (1, 192)), V5E, [64, 128]),
        (_stack(32, 56, (3, 64), (1, 96), (3, 128), (1, 160), (3, 192)), V5E, [96, 160]),
        (_stack(32, 56, (1, 64), (3, 96), (1, 256), (1, 160), (3, 192)), V5E, [96, 160]),
        (_stack(128, 28, (3, 512), (1, 256), (3, 96), (3, 640)), V5E, [256, 96]),
        (_stack(128, 28, (3, 256), (3, 192), (3, 512), (3, 128)), V5E, [256, 192, 512]),
        (_stack(128, 28, (3, 256), (3, 192), (3, 512), (3, 128)), V6E, [192, 512]),
        (_stack(512, 28, (1, 1024), (1, 896), (1, 1152)), V5E, [896]),
        (_stack(3, 56, (3, 128), (3, 128)), V5E, [128]),
        (_stack(3, 56, (3, 128), (3, 128)), V6E, []),
        (_stack(32, 56, (3, 64), (3, 96), (3, 128)), XLA_TPU, [64, 96]),
    ],
)
def test_convolutions_inside_others(text: str, compiler: Compiler, stored: list[int]) -> None:
    """Which channels are stored between the convolutions of a stack; all but the last row as libtpu 0.0.52 does it."""
    program = build_program(listed(text), compiler=compiler)
    *made, _ = [kernel for kernel in program.kernels if kernel.shape.is_matmul]
    lives = [program.lifetimes[kernel.results[0]] for kernel in made]
    kept = [
        kernel.shape.results[0].shape[-1]
        for kernel, life in zip(made, lives, strict=True)
        if life.is_own_buffer or life.within is not None
    ]
    assert kept == stored


@pytest.mark.parametrize(
    "text", [_stack(32, 56, (3, 64), (3, 96), images=0), _stack(0, 56, (3, 64), (3, 96))]
)
def test_empty_images_are_in_no_others(text: str) -> None:
    """Nothing is saved where nothing is made."""
    program = build_program(listed(text), compiler=V6E)
    made = next(kernel for kernel in program.kernels if kernel.shape.is_matmul)
    assert program.lifetimes[made.results[0]].is_own_buffer


def test_a_convolution_of_constants_alone_is_in_no_other() -> None:
    """It reads nothing."""
    images, filters = "tensor<8x16x16x64xf32>", "tensor<1x1x64x64xf32>"

    def convolution(result: str, read: str, by: str) -> str:
        return f"""
      {result} = stablehlo.convolution({read}, {by}) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{}}
        {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({images}, {filters}) -> {images}"""

    made = f"%i = stablehlo.iota dim = 1 : {images}\n%j = stablehlo.iota dim = 2 : {filters}"
    body = f"{made}{convolution('%c', '%i', '%j')}{convolution('%d', '%c', '%w')}\nreturn %d : {images}"
    program = build_program(listed(main_of(body, f"%w: {filters}", images)), compiler=V6E)
    first = next(kernel for kernel in program.kernels if kernel.shape.is_matmul)
    assert not first.uses
    assert program.lifetimes[first.results[0]].is_own_buffer


@pytest.mark.parametrize("is_backward", [False, True])
def test_of_what_is_ready_the_least_runs_first(is_backward: bool) -> None:
    """A projection of what an earlier product reads too, unless it reads what is made later."""
    rows, small = "tensor<1024x64xf32>", "tensor<64x64xf32>"
    other = "%g" if is_backward else "%b"
    program = program_of(
        main_of(
            f"""
      %p = stablehlo.dot_general %x, %a, contracting_dims = [1] x [0] : ({rows}, {small}) -> {rows}
      %r = stablehlo.reshape %c : (tensor<64xf32>) -> tensor<1x64xf32>
      %w = stablehlo.broadcast_in_dim %r, dims = [0, 1] : (tensor<1x64xf32>) -> {rows}
      %q = stablehlo.add %p, %w : {rows}
      %s = stablehlo.dot_general %q, %x, contracting_dims = [1] x [1] : ({rows}, {rows}) -> tensor<1024x1024xf32>
      %g = stablehlo.dot_general %s, %x, contracting_dims = [1] x [0] : (tensor<1024x1024xf32>, {rows}) -> {rows}
      %h = stablehlo.dot_general %q, {other}, contracting_dims = [0] x [0] : ({rows}, {rows}) -> {small}
      return %g, %h : {rows}, {small}""",
            f"%x: {rows}, %a: {small}, %b: {rows}, %c: tensor<64xf32>",
            f"{rows}, {small}",
        )
    )
    products = [kernel for kernel in program.kernels if kernel.shape.is_matmul]
    scores, last = (products[number].time for number in (1, 3))
    made = products[1].uses[0].value
    assert program.ample_lifetimes[made].end == (last if is_backward else scores) + 1


@pytest.mark.parametrize(
    ("hardware", "is_read", "is_inside"),
    [("tpu-v6e", False, True), ("tpu-v5p", False, True), ("tpu-v5e", False, False), ("tpu-v6e", True, False)],
)
def test_sums_that_enter_nested_convolutions_are_made_inside(
    hardware: str, is_read: bool, is_inside: bool
) -> None:
    """The end of a residual stage: the convolution before is stored and not the sum, unless another op reads that too."""
    type_ = IMAGES.format("f32")
    before = _convolution("%k", "%x", "%b", POINTWISE)
    module = _chain([POINTWISE, DEPTHWISE]).replace(
        f"%1 = stablehlo.subtract %r, %b1 : {type_}",
        f"%q = stablehlo.subtract %r, %b1 : {type_}{before}\n%1 = stablehlo.add %q, %k : {type_}",
    )
    if is_read:
        module = module.replace("return %5", f"%6 = stablehlo.add %5, %1 : {type_}\nreturn %6")
    program = load_module(module.encode(), Request(hardware=hardware)).program
    products = [kernel for kernel in program.kernels if kernel.shape.is_matmul]
    sum_ = next(kernel for kernel in program.kernels if kernel.shape.name == "stablehlo.add")
    life, *added = (program.lifetimes[kernel.results[0]] for kernel in (sum_, *products[:2]))
    assert (life.is_own_buffer or life.within is not None) != is_inside
    assert is_inside == all(one.is_own_buffer and one.end > products[-1].time for one in added)


def test_a_depthwise_convolution_runs_inside_another_rather_than_what_reads_the_images_inside_it() -> None:
    """As in MobileNet on v6e: what the first one makes is stored, and not what the depthwise one makes of it."""
    images, made = "tensor<8x16x16x3xf32>", IMAGES.format("f32")
    pointwise = _convolution("%0", "%x", "%a", POINTWISE)

    def of_images(filters: list[tuple[str, int, int]]) -> Program:
        chain = (
            _chain(filters)
            .replace(f"%x: {made}", f"%x: {images}")
            .replace("%a: tensor<1x1x64x64xf32>", "%a: tensor<1x1x3x64xf32>")
        )
        first = pointwise.replace(f"({made}, tensor<1x1x64x64xf32>)", f"({images}, tensor<1x1x3x64xf32>)")
        return build_program(listed(chain.replace(pointwise, first)), compiler=V6E)

    assert _stored(of_images([DEPTHWISE, POINTWISE])) == [True, False]
    assert _stored(of_images([DEPTHWISE, DEPTHWISE])) == [False, True]
