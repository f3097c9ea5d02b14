"""What the loss of a classifier stores: logits once, no exponentials of them, and nothing for labels that it picks."""

import pytest

from autoshard.program import Compiler, Program, build_program
from tests.mlir.modules import listed, main_of, one_a_row
from tests.program.modules import program_of

ROWS, CLASSES = 64, 64
L, V = f"tensor<{ROWS}x{CLASSES}xf32>", f"tensor<{ROWS}xf32>"
X, W = f"tensor<{ROWS}x16xf32>", f"tensor<16x{CLASSES}xf32>"
PICKED = f"tensor<{ROWS}x1xf32>"


def loss(logits: str, picked: str, updates: int = 1, zero: str = "stablehlo.constant dense<0.0>") -> str:
    """The loss and what goes back to its logits: `logits` makes %1 of a product %0, and labels are picked from `picked`."""
    indices, values = f"tensor<{ROWS}x{updates}x1xi32>", f"tensor<{ROWS}x{updates}xf32>"
    return f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
      %zeros = {zero} : {L}
      %ones = stablehlo.constant dense<1.0> : {values}
      {logits}
      %2 = stablehlo.reduce(%1 init: %low) applies stablehlo.maximum across dimensions = [1] : ({L}, tensor<f32>) -> {V}
      %3 = stablehlo.broadcast_in_dim %2, dims = [0] : ({V}) -> {L}
      %4 = stablehlo.subtract %1, %3 : {L}
      %5 = stablehlo.exponential %4 : {L}
      %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [1] : ({L}, tensor<f32>) -> {V}
      %7 = stablehlo.broadcast_in_dim %6, dims = [0] : ({V}) -> {L}
      %8 = stablehlo.subtract %4, %7 : {L}
      %9 = "stablehlo.gather"({picked}, %labels) <{{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1],
        operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>,
        indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}}> : ({L}, tensor<{ROWS}x1x1xi32>) -> {PICKED}
      %10 = {one_a_row("%zeros", "%places", "%ones", (L, indices, values), 2)}
      %11 = stablehlo.divide %5, %7 : {L}
      %12 = stablehlo.subtract %11, %10 : {L}
      %13 = stablehlo.dot_general %12, %w, contracting_dims = [1] x [1] : ({L}, {W}) -> {X}
      %14 = stablehlo.dot_general %x, %12, contracting_dims = [0] x [0] : ({X}, {L}) -> {W}
      return %9, %13, %14 : {PICKED}, {X}, {W}"""


PRODUCT = f"%1 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {L}"
CONVERTED = f"""%0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> tensor<{ROWS}x{CLASSES}xbf16>
      %1 = stablehlo.convert %0 : (tensor<{ROWS}x{CLASSES}xbf16>) -> {L}"""


def program(text: str, updates: int = 1) -> Program:
    given = f"%x: {X}, %w: {W}, %labels: tensor<{ROWS}x1x1xi32>, %places: tensor<{ROWS}x{updates}x1xi32>"
    return program_of(main_of(text, given, f"{PICKED}, {X}, {W}"))


def stored(found: Program) -> list[str]:
    """The ops that make values of the size of the logits that have a buffer, where the compiler has memory to spare."""
    return [
        found.listing.ops[kernel.time].name.removeprefix("stablehlo.")
        for kernel in found.kernels
        for value in kernel.results
        if (type_ := found.listing.values[value].type) is not None and type_.shape == (ROWS, CLASSES)
        if found.ample_lifetimes[value].is_own_buffer
    ]


def test_logits_are_kept_and_nothing_beside_them() -> None:
    """Picking labels reads the logits as they are, so that no exponentials take their place; labels go back by a comparison."""
    found = program(loss(PRODUCT, "%1"))
    assert stored(found) == ["dot_general"]
    assert found.wholes == {}


def test_logarithms_that_labels_are_picked_from_are_made() -> None:
    assert stored(program(loss(PRODUCT, "%8"))) == ["dot_general", "subtract"]


BIASED = f"""%0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {L}
      %column = stablehlo.reduce(%w init: %zero) applies stablehlo.add across dimensions = [0] : ({W}, tensor<f32>) -> tensor<{CLASSES}xf32>
      %bias = stablehlo.broadcast_in_dim %column, dims = [1] : (tensor<{CLASSES}xf32>) -> {L}
      %1 = stablehlo.add %0, %bias : {L}"""


def test_biased_logits_are_there_once() -> None:
    """The bias is added as the product leaves the matrix unit, and labels are picked from what is stored there."""
    found = program(loss(BIASED, "%1"))
    assert stored(found) == ["dot_general"]
    assert found.wholes == {}


def test_converted_logits_are_made_again_for_the_labels() -> None:
    """Those in bfloat16 stay; in float32 they are there while the labels are picked, which no product waits for: at the end."""
    found = program(loss(CONVERTED, "%1"))
    assert stored(found)[0] == "dot_general"
    ((whole,),) = found.wholes.values()
    assert (whole.begin, whole.end) == (found.num_times - 2, found.num_times - 1)


@pytest.mark.parametrize("picks_behind_loops", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_logarithms_are_not_put_off_where_a_bias_is_summed_on_v5e(
    picks_behind_loops: bool, has_bias: bool
) -> None:
    """A scanned transformer's step with a biased head took 0.82 of what was predicted where its logits wait for the end."""
    text, types = loss(CONVERTED, "%8"), f"{PICKED}, {X}, {W}"
    if has_bias:
        summed = f"tensor<{CLASSES}xf32>"
        biased = f"""%15 = stablehlo.reduce(%12 init: %zero) applies stablehlo.add across dimensions = [0] : ({L}, tensor<f32>) -> {summed}
      return %9, %13, %14, %15 : {types}, {summed}"""
        text, types = text.replace(f"return %9, %13, %14 : {types}", biased), f"{types}, {summed}"
    given = f"%x: {X}, %w: {W}, %labels: tensor<{ROWS}x1x1xi32>, %places: tensor<{ROWS}x1x1xi32>"
    compiler = Compiler(is_xla_tpu=True, picks_behind_loops=picks_behind_loops)
    found = build_program(listed(main_of(text, given, types)), compiler=compiler)
    *_, logarithms = (k for k in found.kernels if k.shape.name == "stablehlo.subtract" and not k.is_alias)
    is_put_off = found.ample_lifetimes[logarithms.results[0]].begin > logarithms.time
    assert is_put_off is not (has_bias and picks_behind_loops)


def test_logarithms_of_converted_logits_are_made_at_the_end() -> None:
    """So are those that labels are picked from; the logits that they are made of stay until then."""
    found = program(loss(CONVERTED, "%8"))
    logits, logarithms = (
        found.ample_lifetimes[kernel.results[0]]
        for kernel in found.kernels
        if kernel.shape.name in ("stablehlo.dot_general", "stablehlo.subtract")
        and kernel.shape.results[0].shape == (ROWS, CLASSES)
        and found.ample_lifetimes[kernel.results[0]].is_own_buffer
    )
    assert logarithms.begin == found.num_times - 2
    assert logits.end == logarithms.end


def test_rows_that_a_product_waits_for_are_gathered_at_once() -> None:
    """Of converted products that nothing sums: a copy in float32, for that moment."""
    text = f"""
      {CONVERTED}
      %2 = "stablehlo.gather"(%1, %labels) <{{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1],
        operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>,
        indices_are_sorted = false, slice_sizes = array<i64: 1, 1>}}> : ({L}, tensor<{ROWS}x1x1xi32>) -> {PICKED}
      %two = stablehlo.broadcast_in_dim %2, dims = [0, 1] : ({PICKED}) -> tensor<{ROWS}x2xf32>
      %3 = stablehlo.dot_general %two, %x, contracting_dims = [0] x [0] : (tensor<{ROWS}x2xf32>, {X}) -> tensor<2x16xf32>
      %4 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [1] : ({L}, {W}) -> {X}
      return %2, %4, %w : {PICKED}, {X}, {W}"""
    found = program(text)
    gather = next(kernel.time for kernel in found.kernels if kernel.shape.name == "stablehlo.gather")
    ((whole,),) = found.wholes.values()
    assert (whole.begin, whole.end) == (gather, gather + 1)


@pytest.mark.parametrize(
    ("updates", "zero"), [(2, "stablehlo.constant dense<0.0>"), (1, "stablehlo.constant dense<1.0>")]
)
def test_other_scatters_are_stored(updates: int, zero: str) -> None:
    """Several updates of a row may meet in one element, and what is not zero has to be added to."""
    assert "scatter" in stored(program(loss(PRODUCT, "%1", updates, zero), updates))


def test_logarithms_lie_beside_the_float32_logits_that_come_with_their_maxima() -> None:
    """Where nothing goes back to these, as of a model that says how likely words are: nothing is written over a part of a pair."""
    text = loss(PRODUCT, "%8")
    body = f"{text[: text.index('%10 =')]}return %9 : {PICKED}"
    given = f"%x: {X}, %w: {W}, %labels: tensor<{ROWS}x1x1xi32>"
    found = build_program(listed(main_of(body, given, PICKED)), compiler=Compiler(is_xla_tpu=True))
    made = {k.shape.name: found.ample_lifetimes[k.results[0]] for k in found.kernels if not k.is_alias}
    logits, logarithms = made["stablehlo.dot_general"], made["stablehlo.subtract"]
    assert logits.end == logarithms.begin + 1
