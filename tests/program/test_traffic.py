"""Which bytes kernels move: what is worked out on a product as it leaves the matrix unit is neither stored nor loaded."""

import pytest

from autoshard.program import Compiler, Kernel, build_program
from autoshard.program.records import XLA_TPU
from autoshard.sharding import TensorType
from tests.mlir.modules import listed
from tests.program.modules import program_of

ADDED = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>, %b: tensor<64x16xf32>) -> (RESULTS) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %z = stablehlo.add %y, %b : tensor<64x16xf32>
  MORE
}
"""


def kernels(results: int, more: str) -> dict[str, Kernel]:
    text = ADDED.replace("RESULTS", ", ".join(["tensor<64x16xf32>"] * results)).replace("MORE", more)
    return {kernel.shape.name: kernel for kernel in program_of(text).kernels}


def test_sum_is_added_to_a_product() -> None:
    """The product is not written, and the addition reads its other operand alone."""
    found = kernels(1, "return %z : tensor<64x16xf32>")
    assert found["stablehlo.dot_general"].shape.is_fused_product
    assert found["stablehlo.add"].shape.reads == (0, 1)
    assert found["stablehlo.add"].shape.writes == 1


@pytest.mark.parametrize(
    "more",
    [
        "return %z, %y : tensor<64x16xf32>, tensor<64x16xf32>",
        "%t = stablehlo.multiply %y, %z : tensor<64x16xf32>\n return %z, %t : tensor<64x16xf32>, tensor<64x16xf32>",
    ],
    ids=["returned", "read twice"],
)
def test_product_is_stored(more: str) -> None:
    """For others than one reader."""
    found = kernels(2, more)
    assert found["stablehlo.dot_general"].shape.writes == 1
    assert 1 in found["stablehlo.add"].shape.reads


SLICED = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>) -> (tensor<60x16xf32>, tensor<60x16xf32>RESULT) {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %z = stablehlo.slice %y [0:60, 0:16] : (tensor<64x16xf32>) -> tensor<60x16xf32>
  %s = stablehlo.sine %z : tensor<60x16xf32>
  %t = stablehlo.cosine %z : tensor<60x16xf32>
  return %s, %tMORE : tensor<60x16xf32>, tensor<60x16xf32>TYPE
}
"""


@pytest.mark.parametrize("is_returned", [False, True])
def test_slice_of_a_product(is_returned: bool) -> None:
    """Its operands are sliced: the whole is there for others only, and else makes room when the slice is there."""
    more = (", tensor<64x16xf32>", ", %y", ", tensor<64x16xf32>") if is_returned else ("", "", "")
    text = SLICED
    for mark, word in zip(("RESULT", "MORE", "TYPE"), more, strict=True):
        text = text.replace(mark, word)
    program = program_of(text)
    product, slice_ = (
        next(kernel for kernel in program.kernels if kernel.shape.name == f"stablehlo.{name}")
        for name in ("dot_general", "slice")
    )
    assert product.shape.is_fused_product is not is_returned
    if not is_returned:
        assert program.lifetimes[product.results[0]].end == program.lifetimes[slice_.results[0]].begin


APART = Compiler(is_xla_tpu=False, products_apart=True)


def apart(text: str) -> dict[str, Kernel]:
    return {kernel.shape.name: kernel for kernel in build_program(listed(text), compiler=APART).kernels}


def test_products_that_are_apart_store_what_they_make() -> None:
    """A library's product is written, and what is added to it reads it and takes memory of its own."""
    text = ADDED.replace("RESULTS", "tensor<64x16xf32>").replace("MORE", "return %z : tensor<64x16xf32>")
    found = apart(text)
    assert not found["stablehlo.dot_general"].shape.is_fused_product
    assert found["stablehlo.add"].shape.reads == (1, 1)
    assert not found["stablehlo.add"].is_in_place


def test_what_products_that_are_apart_read_is_stored() -> None:
    """Both products read the tangent from memory, where others work it out from its operand."""
    text = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>, %v: tensor<32x16xf32>) -> (tensor<64x16xf32>, tensor<64x16xf32>) {
  %s = stablehlo.negate %x : tensor<64x32xf32>
  %y = stablehlo.dot_general %s, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  %z = stablehlo.dot_general %s, %v, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  return %y, %z : tensor<64x16xf32>, tensor<64x16xf32>
}
"""
    assert not apart(text)["stablehlo.negate"].is_alias
    assert apart(text)["stablehlo.negate"].shape.writes == 1
    fused = {kernel.shape.name: kernel for kernel in program_of(text).kernels}
    assert fused["stablehlo.negate"].is_alias


ROWS = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<64x32xf32>) -> RESULT {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  BEFORE
  %s = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<64xf32>) -> tensor<64x32xf32>
  %q = stablehlo.divide %e, %b : tensor<64x32xf32>
  BEHIND
}
"""


def rows(before: str, behind: str, result: str) -> str:
    """Rows of %e divided by what they add up to."""
    return ROWS.replace("BEFORE", before).replace("BEHIND", behind).replace("RESULT", result)


NORMALIZED = rows(
    "",
    "%p = stablehlo.dot_general %q, %x, contracting_dims = [1] x [1] : (tensor<64x32xf32>, tensor<64x32xf32>) -> tensor<64x64xf32>\n"
    "return %p : tensor<64x64xf32>",
    "tensor<64x64xf32>",
).replace("%e", "%x")


def test_a_reduction_and_the_work_behind_it_read_once() -> None:
    """A normalization is one kernel: its rows are read by the sum, and not again by the quotient."""
    found = apart(NORMALIZED)
    assert found["stablehlo.reduce"].shape.reads == (1,)
    assert (
        dict(
            zip(found["stablehlo.divide"].shape.operands, found["stablehlo.divide"].shape.reads, strict=True)
        )[TensorType((64, 32), "f32")]
        == 0
    )


def test_what_is_an_argument_under_another_name_is_read() -> None:
    """As the argument is: once for a sum of its rows and what is behind it."""
    text = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<64x32xf32>) -> (tensor<64xf32>, tensor<64x32xf32>) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %n = sdy.sharding_constraint %x <@mesh, [{"x"}, {}]> : tensor<64x32xf32>
  SUM
  %e = stablehlo.negate %n : tensor<64x32xf32>
  return %r, %e : tensor<64xf32>, tensor<64x32xf32>
}
"""
    sum_ = (
        "%r = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1]"
        " : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>"
    )
    other = "%r = stablehlo.constant dense<0.0> : tensor<64xf32>"
    assert apart(text.replace("SUM", sum_))["stablehlo.negate"].shape.reads == (0,)
    assert apart(text.replace("SUM", other))["stablehlo.negate"].shape.reads == (1,)


def test_a_constraint_is_no_reader_of_what_products_read_transposed() -> None:
    """A library's product takes its operands in any order of dimensions, constrained or not."""
    text = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<32x64xf32>, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {
  %t = stablehlo.transpose %x, dims = [1, 0] : (tensor<32x64xf32>) -> tensor<64x32xf32>
  %c = sdy.sharding_constraint %t <@mesh, [{"x"}, {}]> : tensor<64x32xf32>
  %y = stablehlo.dot_general %c, %w, contracting_dims = [1] x [0] : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
  return %y : tensor<64x16xf32>
}
"""
    assert apart(text)["stablehlo.transpose"].shape.writes == 0


def test_state_is_updated_side_by_side() -> None:
    """Momentum and parameter: what the one writes the other does not read again, and the gradient goes to both."""
    text = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%g: tensor<64xf32>, %m: tensor<64xf32>, %p: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
  %n = stablehlo.add %m, %g : tensor<64xf32>
  %r = stablehlo.multiply %n, %g : tensor<64xf32>
  %q = stablehlo.subtract %p, %r : tensor<64xf32>
  return %n, %q : tensor<64xf32>, tensor<64xf32>
}
"""
    shapes = [kernel.shape for kernel in build_program(listed(text), [(0, 1), (1, 2)], APART).kernels]
    assert sum(sum(shape.reads) + shape.writes for shape in shapes) == 5  # of g, m and p, and to m and p


def moved(text: str) -> int:
    """Bytes to and from memory."""
    return sum(kernel.shape.traffic_bytes for kernel in build_program(listed(text), compiler=APART).kernels)


SOFTMAX = rows(
    """
  %m = stablehlo.reduce(%x init: %z) applies stablehlo.maximum across dimensions = [1] : (tensor<64x32xf32>, tensor<f32>) -> tensor<64xf32>
  %w = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<64xf32>) -> tensor<64x32xf32>
  %d = stablehlo.subtract %x, %w : tensor<64x32xf32>
  %e = stablehlo.exponential %d : tensor<64x32xf32>""",
    "return %q : tensor<64x32xf32>",
    "tensor<64x32xf32>",
)


def test_a_softmax_that_is_returned_reads_and_writes_its_rows_once() -> None:
    """As measured on an H200; the two sums of each row are written as well, which one kernel has no need to."""
    rows, sums = 64 * 32 * 4, 2 * 64 * 4
    assert moved(SOFTMAX) == 2 * rows + sums


def test_returned_activations_are_read_again_behind_a_product() -> None:
    """Only new state is worked out side by side: to return more moves no less."""
    step = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<64x64xf32>, %w: tensor<64x64xf32>) -> (tensor<64x64xf32>RESULT) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = stablehlo.add %0, %x : tensor<64x64xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %3 = stablehlo.add %2, %1 : tensor<64x64xf32>
  return %3MORE : tensor<64x64xf32>RESULT
}
"""
    one = moved(step.replace("RESULT", "").replace("MORE", ""))
    assert moved(step.replace("RESULT", ", tensor<64x64xf32>").replace("MORE", ", %1")) >= one


SCATTERED = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%i: tensor<8x1xi32>, %u: tensor<8x16xf32>, %t: tensor<64x16xf32>) -> tensor<64x16xf32> {
  %z = MADE : tensor<64x16xf32>
  %s = "stablehlo.scatter"(%z, %i, %u) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
    inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<64x16xf32>, tensor<8x1xi32>, tensor<8x16xf32>) -> tensor<64x16xf32>
  return %s : tensor<64x16xf32>
}
"""


@pytest.mark.parametrize(("is_apart", "writes"), [(True, 1), (False, 0)])
def test_a_scatter_into_zeros_writes_them_first(is_apart: bool, writes: int) -> None:
    text = SCATTERED.replace("MADE", "stablehlo.constant dense<0.0>")
    compiler = Compiler(is_xla_tpu=False, products_apart=is_apart)
    (scatter,) = (
        k
        for k in build_program(listed(text), compiler=compiler).kernels
        if k.shape.name == "stablehlo.scatter"
    )
    assert scatter.shape.writes == writes


def test_a_scatter_into_what_has_no_buffer_writes_that_first() -> None:
    """A sine, or what is broadcast, is written as the scatter's result, and read for that."""
    text = SCATTERED.replace("MADE", "stablehlo.sine %t")
    table, updates = 64 * 16 * 4, 2 * (8 * 4 + 8 * 16 * 4)
    assert moved(text) == 2 * table + updates


UPDATED = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%c: tensor<64x16xf32> DONATED, %u: tensor<1x16xf32>, %i: tensor<i32>) -> (tensor<64x16xf32>) {
  %z = stablehlo.constant dense<0> : tensor<i32>
  NAMED
  %a = stablehlo.dynamic_update_slice %n, %u, %i, %z : (tensor<64x16xf32>, tensor<1x16xf32>, tensor<i32>, tensor<i32>) -> tensor<64x16xf32>
  %b = stablehlo.dynamic_update_slice %a, %u, %z, %z : (tensor<64x16xf32>, tensor<1x16xf32>, tensor<i32>, tensor<i32>) -> tensor<64x16xf32>
  return %b : tensor<64x16xf32>
}
"""


NAMED = "%n = stablehlo.reshape %c : (tensor<64x16xf32>) -> tensor<64x16xf32>"


@pytest.mark.parametrize("is_donated", [True, False])
@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("compiler", [XLA_TPU, APART], ids=["tpu", "gpu"])
def test_an_argument_that_is_not_donated_is_copied_before_it_is_updated(
    compiler: Compiler, is_named: bool, is_donated: bool
) -> None:
    """Once, also under another name: the second update writes into the copy. What is donated is updated where it is."""
    text = UPDATED.replace("NAMED", NAMED) if is_named else UPDATED.replace("NAMED", "").replace("%n,", "%c,")
    text = text.replace("DONATED", "{tf.aliasing_output = 0 : i32}" if is_donated else "")
    *_, first, second = build_program(listed(text), compiler=compiler).kernels
    cache, row = 64 * 16 * 4, 16 * 4
    assert first.shape.traffic_bytes == 2 * row + (0 if is_donated else 2 * cache)
    assert second.shape.traffic_bytes == 2 * row


def test_a_product_reads_what_it_casts_as_wide_as_it_is_stored() -> None:
    """Two bytes are read for one of a bfloat16 that is made of a float32 argument, also where that is transposed; as many of others."""
    text = """
sdy.mesh @mesh = <["x"=2]>
func.func @main(%x: tensor<64x32xbf16>, %w: tensor<16x32xf32>) -> tensor<64x16xf32> {
  %t = stablehlo.transpose %w, dims = [1, 0] : (tensor<16x32xf32>) -> tensor<32x16xf32>
  %c = stablehlo.convert %t : (tensor<32x16xf32>) -> tensor<32x16xbf16>
  %y = stablehlo.dot_general %x, %c, contracting_dims = [1] x [0] : (tensor<64x32xbf16>, tensor<32x16xbf16>) -> tensor<64x16xf32>
  return %y : tensor<64x16xf32>
}
"""
    (product,) = (kernel for kernel in program_of(text).kernels if kernel.shape.is_matmul)
    assert product.shape.reads == (1, 2)
