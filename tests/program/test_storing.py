"""In which type values are stored where products read them and something else is made beside."""

import pytest

from autoshard.program import Compiler, Program, build_program
from autoshard.program.storing import Storing
from tests.mlir.modules import listed, main_of
from tests.program.modules import program_of

T, W, ROW = "tensor<8x16xf32>", "tensor<16x16xf32>", "tensor<16xf32>"
ZERO = "%zero = stablehlo.constant dense<0.0> : tensor<f32>"
TWICE = f"""
  %x = stablehlo.negate %d : {T}
  %y = stablehlo.multiply %d, %m : {T}
  %g = stablehlo.add %x, %y : {T}"""
DOT = f"stablehlo.dot_general %m, %w, contracting_dims = [1] x [1] : ({T}, {W}) -> {T}"
CONVOLUTION = f"""stablehlo.convolution(%m, %w) dim_numbers = [b, f]x[o, i]->[b, f], window = {{}}
        {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({T}, {W}) -> {T}"""
WORK = {
    "none": (f"%g = stablehlo.reshape %d : ({T}) -> {T}", DOT, "bf16"),
    "once": (f"%g = stablehlo.multiply %d, %m : {T}", DOT, "bf16"),
    "twice": (TWICE, DOT, "bf16"),
    "once, of a convolution": (f"%g = stablehlo.multiply %d, %m : {T}", CONVOLUTION, "bf16"),
    "twice, of a convolution": (TWICE, CONVOLUTION, "f32"),
}


def gradient(work: str, reader: str, product: str = DOT) -> str:
    """Of a layer `%d` comes back, `%g` goes to the weights, the bias and the layer before."""
    return main_of(
        f"""
      {ZERO}
      %m = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %d = {product}
      {work}
      %b = stablehlo.reduce(%g init: %zero) applies stablehlo.{reader} across dimensions = [0] : ({T}, tensor<f32>) -> {ROW}
      %v = stablehlo.dot_general %g, %a, contracting_dims = [0] x [0] : ({T}, {T}) -> {W}
      %l = stablehlo.dot_general %g, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      return %b, %v, %l : {ROW}, {W}, {T}""",
        f"%a: {T}, %w: {W}",
        f"{ROW}, {W}, {T}",
    )


@pytest.mark.parametrize(("work", "by", "expected"), WORK.values(), ids=WORK)
def test_a_sum_beside_a_value_does_not_widen_it(work: str, by: str, expected: str) -> None:
    """What is stored is what the work on a product makes; of a convolution where it takes it once."""
    program = program_of(gradient(work, "add", by))
    product = next(k for k in program.kernels if k.time == 2)
    assert program.stored.of_value(product.results[0]).dtype == expected
    assert program.widths.of_value(product.results[0]).dtype == "f32"


def test_other_reductions_are_of_what_is_stored() -> None:
    program = program_of(gradient(WORK["none"][0], "multiply"))
    product = next(k for k in program.kernels if k.time == 2)
    assert program.stored.of_value(product.results[0]).dtype == "f32"


def test_work_on_a_product_writes_over_it_beside_a_sum() -> None:
    """It reads what the layer before made of another product twice, which is one value."""
    work = f"""
      %h = stablehlo.logistic %m : {T}
      %f = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %x = stablehlo.multiply %d, %h : {T}
      %y = stablehlo.multiply %d, %m : {T}
      %g = stablehlo.add %x, %y : {T}"""
    program = program_of(gradient(work, "add"))
    product, made = (next(k for k in program.kernels if k.time == time) for time in (2, 7))
    assert program.lifetimes[product.results[0]].end == program.lifetimes[made.results[0]].begin


def test_what_branches_return_and_nobody_reads_is_removed() -> None:
    body = f"""
      %i = stablehlo.constant dense<0> : tensor<i32>
      %r:2 = "stablehlo.case"(%i) ({{
        %z = stablehlo.constant dense<0.0> : {T}
        stablehlo.return %a, %z : {T}, {T}
      }}, {{
        stablehlo.return %a, %a : {T}, {T}
      }}) : (tensor<i32>) -> ({T}, {T})
      return %r#0 : {T}"""
    program = program_of(main_of(body, f"%a: {T}", T))
    read, unread = (flow.target for flow in program.listing.data_flows if flow.kind == "case")
    assert program.lifetimes[read].is_own_buffer
    assert not program.lifetimes[unread].is_own_buffer


H, HEADS = "tensor<8x4x4xf32>", "tensor<4x8x8xf32>"


def queries(bias: str) -> str:
    """A product with a bias, cut into heads and scaled, that products of attention alone read."""
    return main_of(
        f"""
      %d = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      {bias}
      %y = stablehlo.add %d, %b : {T}
      %h = stablehlo.reshape %y : ({T}) -> {H}
      %s = stablehlo.constant dense<0.5> : {H}
      %q = stablehlo.multiply %h, %s : {H}
      %0 = stablehlo.dot_general %q, %k, batching_dims = [1] x [1], contracting_dims = [2] x [2] : ({H}, {H}) -> {HEADS}
      %1 = stablehlo.dot_general %q, %o, batching_dims = [1] x [1], contracting_dims = [2] x [2] : ({H}, {H}) -> {HEADS}
      return %0, %1 : {HEADS}, {HEADS}""",
        f"%a: {T}, %w: {W}, %c: {ROW}, %k: {H}, %o: {H}",
        f"{HEADS}, {HEADS}",
    )


BIAS = f"""%r = stablehlo.reshape %c : ({ROW}) -> tensor<1x16xf32>
      %b = stablehlo.broadcast_in_dim %r, dims = [0, 1] : (tensor<1x16xf32>) -> {T}"""
LATER = f"%b = stablehlo.dot_general %d, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}"


@pytest.mark.parametrize(
    ("bias", "expected"), [(BIAS, "bf16"), (LATER, "f32")], ids=["bias", "another product"]
)
def test_what_leaves_the_fusion_of_a_product_is_stored(bias: str, expected: str) -> None:
    """A bias that is named anew, and heads and a scale behind it: bfloat16; what a later product is added to stays as wide as it is."""
    program = program_of(queries(bias))
    product = next(kernel for kernel in program.kernels if kernel.shape.is_matmul)
    assert program.stored.of_value(product.results[0]).dtype == expected


def hidden(work: str) -> str:
    """Work on a product that a product reads."""
    return main_of(
        f"""
      {BIAS}
      %d = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      {work}
      %o = stablehlo.dot_general %y, %v, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      return %o : {T}""",
        f"%a: {T}, %w: {W}, %v: {W}, %c: {ROW}, %g: {T}",
        T,
    )


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(
    ("work", "is_wide"),
    [
        (f"%y = stablehlo.add %d, %b : {T}", True),
        (f"%y = stablehlo.tanh %d : {T}", True),
        (f"%s = stablehlo.multiply %d, %b : {T}\n%y = stablehlo.maximum %s, %b : {T}", True),
        (f"%y = stablehlo.maximum %d, %b : {T}", False),
        (f"%y = stablehlo.multiply %d, %g : {T}", False),
    ],
    ids=["bias", "function", "scaled rectifier", "rectifier", "what goes back"],
)
def test_work_on_a_product_is_as_wide_as_it_is(work: str, is_wide: bool, keeps: bool) -> None:
    """As v6e has it: perceptrons of 16384 x 8192 values a device take 537 MB for these, 268 on v5e (libtpu 0.0.52)."""
    compiler = Compiler(is_xla_tpu=True, keeps_wide_results=keeps)
    program = build_program(listed(hidden(work)), compiler=compiler)
    product = next(kernel for kernel in program.kernels if kernel.shape.is_matmul)
    expected = "f32" if is_wide and keeps else "bf16"
    assert program.stored.of_value(product.results[0]).dtype == expected


PIXELS = "tensor<8x8x8x16xf32>"


def convolved(work: str, readers: int = 1) -> str:
    """A convolution, work on it that makes %y, and convolutions that read that."""

    def convolution(result: str, images: str) -> str:
        return f"""
      {result} = stablehlo.convolution({images}, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {{stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1],
        reverse = [false, false]}} {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
        : ({PIXELS}, tensor<3x3x16x16xf32>) -> {PIXELS}"""

    results = [f"%r{number}" for number in range(readers)]
    types = ", ".join([PIXELS] * readers)
    return main_of(
        convolution("%d", "%x")
        + f"\n%b = stablehlo.broadcast_in_dim %a, dims = [3] : (tensor<16xf32>) -> {PIXELS}\n{work}"
        + "".join(convolution(result, "%y") for result in results)
        + f"\nreturn {', '.join(results)} : {types}",
        f"%x: {PIXELS}, %w: tensor<3x3x16x16xf32>, %a: tensor<16xf32>, %g: {PIXELS}",
        types,
    )


@pytest.mark.parametrize(
    ("work", "readers", "dtype"),
    [
        (f"%y = stablehlo.add %d, %b : {PIXELS}", 1, "f32"),
        (f"%s = stablehlo.logistic %d : {PIXELS}\n%y = stablehlo.multiply %d, %s : {PIXELS}", 1, "f32"),
        (f"%y = stablehlo.add %d, %g : {PIXELS}", 1, "f32"),
        (f"%y = stablehlo.maximum %d, %b : {PIXELS}", 1, "bf16"),
        (f"%y = stablehlo.add %d, %b : {PIXELS}", 2, "bf16"),
    ],
    ids=["bias", "gate", "residual", "rectifier", "two readers"],
)
def test_work_on_a_convolution_that_one_reads_is_as_wide_as_it_is(
    work: str, readers: int, dtype: str
) -> None:
    """Of 128 images of 28 x 28 a device that is so on v5e, v5p, v6e, v4 and tpu7x (libtpu 0.0.52)."""
    program = build_program(listed(convolved(work, readers)), compiler=Compiler(is_xla_tpu=True))
    (value,) = next(kernel for kernel in program.kernels if kernel.shape.is_matmul).results
    assert program.stored.of_value(value).dtype == dtype


IMAGE, POOLED = "tensor<8x8x8x16xf32>", "tensor<8x4x4x16xf32>"
WINDOWS = "window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>"


PADDED = "tensor<8x9x9x16xf32>"


def pooling(has_gradient: bool, *, is_padded: bool = False) -> str:
    pad = f"""
      %u = stablehlo.pad %y, %zero, low = [0, 0, 0, 0], high = [0, 1, 1, 0], interior = [0, 0, 0, 0]
        : ({IMAGE}, tensor<f32>) -> {PADDED}"""
    source, looked_at = (PADDED, "%u") if is_padded else (IMAGE, "%y")
    gradient = f"""
      {pad if is_padded else ""}
      %g{"" if not is_padded else "_padded"} = "stablehlo.select_and_scatter"({looked_at}, %p, %zero) <{{{WINDOWS}}}> ({{
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %ge = stablehlo.compare GE, %l, %r : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %ge : tensor<i1>
      }}, {{
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %sum = stablehlo.add %l, %r : tensor<f32>
          stablehlo.return %sum : tensor<f32>
      }}) : ({source}, {POOLED}, tensor<f32>) -> {source}"""
    if is_padded:
        gradient += f"""
      %g = stablehlo.slice %g_padded [0:8, 0:8, 0:8, 0:16] : ({PADDED}) -> {IMAGE}"""
    result = ("%g", IMAGE) if has_gradient else ("%p", POOLED)
    return main_of(
        f"""
      {ZERO}
      %zeros = stablehlo.constant dense<0.0> : {IMAGE}
      %d = stablehlo.dot_general %a, %w, contracting_dims = [3] x [0] : ({IMAGE}, {W}) -> {IMAGE}
      %y = stablehlo.maximum %d, %zeros : {IMAGE}
      %p = "stablehlo.reduce_window"(%y, %zero) <{{{WINDOWS}}}> ({{
        ^bb0(%l: tensor<f32>, %r: tensor<f32>):
          %max = stablehlo.maximum %l, %r : tensor<f32>
          stablehlo.return %max : tensor<f32>
      }}) : ({IMAGE}, tensor<f32>) -> {POOLED}
      {gradient if has_gradient else ""}
      %m = stablehlo.compare GT, %d, %zeros : ({IMAGE}, {IMAGE}) -> tensor<8x8x8x16xi1>
      return {result[0]}, %m : {result[1]}, tensor<8x8x8x16xi1>""",
        f"%a: {IMAGE}, %w: {W}",
        f"{result[1]}, tensor<8x8x8x16xi1>",
    )


@pytest.mark.parametrize(
    ("has_gradient", "is_padded"),
    [(True, False), (True, True), (False, False)],
    ids=["as it is", "padded", "alone"],
)
def test_what_is_pooled_is_stored_for_its_gradient(has_gradient: bool, is_padded: bool) -> None:
    """Gradients go to the largest of each window, which reads what was pooled, padded or not; pooling alone repeats rectifiers."""
    program = program_of(pooling(has_gradient, is_padded=is_padded))
    rectified = next(kernel for kernel in program.kernels if kernel.shape.name == "stablehlo.maximum")
    assert program.ample_lifetimes[rectified.results[0]].is_own_buffer is has_gradient


def test_gpus_make_padded_images_again() -> None:
    """ResNet-50's step on an H100 takes less than with a buffer for what is pooled."""
    text = pooling(True, is_padded=True)
    program = build_program(listed(text), compiler=Compiler(is_xla_tpu=False))
    rectified = next(kernel for kernel in program.kernels if kernel.shape.name == "stablehlo.maximum")
    assert not program.ample_lifetimes[rectified.results[0]].is_own_buffer


@pytest.mark.parametrize("is_turned", [False, True])
def test_what_is_added_behind_a_transposition_is_stored_as_that_is_read(is_turned: bool) -> None:
    """A layer with a bias whose features come first (`vmap` of a matrix times each row), for products."""
    turned = f"%t = stablehlo.transpose %p, dims = [1, 0] : ({W}) -> {W}" if is_turned else ""
    program = program_of(
        main_of(
            f"""
      %p = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({W}, {W}) -> {W}
      {turned}
      %o = stablehlo.add {"%t" if is_turned else "%p"}, %b : {W}
      %c = stablehlo.reshape %o : ({W}) -> tensor<16x4x4xf32>
      %d = stablehlo.multiply %c, %e : tensor<16x4x4xf32>
      %r = stablehlo.dot_general %d, %d, contracting_dims = [1, 2] x [1, 2] : (tensor<16x4x4xf32>, tensor<16x4x4xf32>) -> {W}
      return %r : {W}""",
            f"%a: {W}, %w: {W}, %b: {W}, %e: tensor<16x4x4xf32>",
            W,
        )
    )
    product = next(kernel for kernel in program.kernels if kernel.shape.is_matmul)
    assert program.stored.of_value(product.results[0]).dtype == "bf16"


@pytest.mark.parametrize("is_read_apart", [False, True])
def test_what_is_added_to_a_product_is_read_there(is_read_apart: bool) -> None:
    """What leaves the matrix unit is stored: a mask that is added is not read again, unless the product itself has another reader."""
    more = f"%4 = stablehlo.cosine %d : {T}" if is_read_apart else f"%4 = stablehlo.cosine %y : {T}"
    program = program_of(
        main_of(
            f"""
      %m = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %d = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %y = stablehlo.add %d, %m : {T}
      %1 = stablehlo.dot_general %y, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      %2 = stablehlo.dot_general %y, %v, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      {more}
      return %1, %2, %4 : {T}, {T}, {T}""",
            f"%a: {T}, %b: {T}, %w: {W}, %v: {W}",
            f"{T}, {T}, {T}",
        )
    )
    returned = frozenset(result.value for result in program.listing.results)
    finished = Storing(
        program.listing, program.kernels, returned, Compiler(is_xla_tpu=True)
    ).finished_products()
    mask, product, *_ = (kernel for kernel in program.kernels if kernel.shape.is_matmul)
    added = next(kernel for kernel in program.kernels if kernel.shape.name == "stablehlo.add")
    assert finished.get(added.results[0]) == (None if is_read_apart else product.results[0])
    life, last = program.lifetimes[mask.results[0]], program.kernels[-1].time
    assert life.end <= last


def test_what_is_scattered_is_as_wide_as_it_is_added_up() -> None:
    """Though a product alone reads it, which a graph network's messages go to: it travels narrow and is stored in float32."""
    program = program_of(
        main_of(
            f"""
      {ZERO}
      %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> {T}
      %s = "stablehlo.scatter"(%zeros, %i, %a) <{{indices_are_sorted = false, unique_indices = false,
        scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
        scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> ({{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
          %sum = stablehlo.add %x, %y : tensor<f32>
          stablehlo.return %sum : tensor<f32>
      }}) : ({T}, tensor<8x1xi32>, {T}) -> {T}
      %o = stablehlo.dot_general %s, %w, contracting_dims = [1] x [0] : ({T}, {W}) -> {T}
      return %o : {T}""",
            f"%a: {T}, %w: {W}, %i: tensor<8x1xi32>",
            T,
        )
    )
    (scatter,) = (kernel for kernel in program.kernels if kernel.shape.name == "stablehlo.scatter")
    assert program.stored.of_value(scatter.results[0]).dtype == "f32"
    assert program.widths.of_value(scatter.results[0]).dtype == "bf16"


NARROW_T, NARROW_W = (type_.replace("f32", "bf16") for type_ in (T, W))


def stored_of_widened(program: Program) -> str:
    (widened,) = (op.results[0] for op in program.listing.ops if op.name == "stablehlo.convert")
    return program.stored.of_value(widened).dtype


def test_what_was_just_widened_is_stored_as_it_was() -> None:
    """Though work in float32 reads it: each reader widens it."""
    program = program_of(
        main_of(
            f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %p = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({NARROW_T}, {NARROW_W}) -> {NARROW_T}
      %d = stablehlo.select %m, %p, %a : tensor<8x16xi1>, {NARROW_T}
      %c = stablehlo.convert %d : ({NARROW_T}) -> {T}
      %s = stablehlo.reduce(%c init: %zero) applies stablehlo.add across dimensions = [0] : ({T}, tensor<f32>) -> {ROW}
      %r = stablehlo.broadcast_in_dim %s, dims = [1] : ({ROW}) -> {T}
      %g = stablehlo.subtract %c, %r : {T}
      return %g : {T}""",
            f"%a: {NARROW_T}, %w: {NARROW_W}, %m: tensor<8x16xi1>",
            T,
        )
    )
    assert stored_of_widened(program) == "bf16"


@pytest.mark.parametrize(("barrier", "dtype"), [(False, "bf16"), (True, "f32")])
def test_what_a_barrier_hands_on_is_stored_as_wide_as_it_is(barrier: bool, dtype: str) -> None:
    """As a layer that is made again does with what it is made of (a layer of 268 MB in float32 takes that; libtpu 0.0.52 for v5e)."""
    handed = f"%h = stablehlo.optimization_barrier %c : {T}" if barrier else f"%h = stablehlo.negate %c : {T}"
    program = program_of(
        main_of(
            f"""
      %p = stablehlo.dot_general %a, %w, contracting_dims = [1] x [0] : ({NARROW_T}, {NARROW_W}) -> {NARROW_T}
      %c = stablehlo.convert %p : ({NARROW_T}) -> {T}
      {handed}
      %g = stablehlo.sine %h : {T}
      return %g : {T}""",
            f"%a: {NARROW_T}, %w: {NARROW_W}",
            T,
        )
    )
    assert stored_of_widened(program) == dtype


def test_what_is_widened_from_integers_is_stored_as_wide_as_it_is() -> None:
    program = program_of(
        main_of(
            f"""
      %c = stablehlo.convert %a : (tensor<8x16xi8>) -> {T}
      %g = stablehlo.sine %c : {T}
      %n = stablehlo.negate %c : {T}
      return %g, %n : {T}, {T}""",
            "%a: tensor<8x16xi8>",
            f"{T}, {T}",
        )
    )
    assert stored_of_widened(program) == "f32"
