"""Exponentials of a softmax beside their scores: what keeps XLA:TPU from working both out as the product leaves the matrix unit."""

import re

import pytest

from autoshard.program import build_program
from autoshard.program.records import Compiler
from tests.mlir.modules import listed, main_of


def attention(mask: str, queries: int = 256, row: int = 256, groups: int = 1, dtype: str = "f32") -> str:
    """Softmax of scaled scores, masked by `%mask` where `mask` makes that of `%m`."""
    grouped = f"{groups}x" if groups > 1 else ""
    scores = f"tensor<4x{queries}x{grouped}{row}xf32>" if groups > 1 else f"tensor<4x{queries}x{row}xf32>"
    asked = f"tensor<4x{queries}x{grouped}64xbf16>"
    read, rows = f"tensor<4x{row}x64xbf16>", f"tensor<4x{grouped}{queries}xf32>"
    rank = 4 if groups > 1 else 3
    made = f"tensor<4x{queries}x{grouped}{row}x{dtype}>"
    turned = f"tensor<4x{grouped}{queries}x{row}xf32>"
    order = "[0, 2, 1, 3]" if groups > 1 else "[0, 1, 2]"
    wide = f"%1 = stablehlo.convert %0 : ({made}) -> {scores}" if dtype != "f32" else ""
    last = f"[{rank - 2}, {rank - 1}]"
    masked = f"""
      {mask}
      %no = stablehlo.constant dense<-1.0e30> : tensor<f32>
      %nos = stablehlo.broadcast_in_dim %no, dims = [] : (tensor<f32>) -> {turned}
      %every = stablehlo.broadcast_in_dim %mask, dims = {last} : (tensor<{queries}x{row}xi1>) -> {turned.replace("f32", "i1")}
      %s = stablehlo.select %every, %t, %nos : {turned.replace("f32", "i1")}, {turned}"""
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [{rank - 1}] x [2]
        : ({asked}, {read}) -> {made}
      {wide}
      %t = stablehlo.transpose %{1 if wide else 0}, dims = {order} : ({scores}) -> {turned}
      {masked if mask else f"%s = stablehlo.negate %t : {turned}"}
      %2 = stablehlo.reduce(%s init: %zero) applies stablehlo.maximum across dimensions = [{rank - 1}]
        : ({turned}, tensor<f32>) -> {rows}
      %3 = stablehlo.broadcast_in_dim %2, dims = [{", ".join(map(str, range(rank - 1)))}] : ({rows}) -> {turned}
      %4 = stablehlo.subtract %s, %3 : {turned}
      %5 = stablehlo.exponential %4 : {turned}
      %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [{rank - 1}]
        : ({turned}, tensor<f32>) -> {rows}
      %7 = stablehlo.broadcast_in_dim %6, dims = [{", ".join(map(str, range(rank - 1)))}] : ({rows}) -> {turned}
      %8 = stablehlo.divide %5, %7 : {turned}
      %9 = stablehlo.convert %8 : ({turned}) -> {turned.replace("f32", "bf16")}
      %10 = stablehlo.dot_general %9, %k, batching_dims = [0] x [0], contracting_dims = [{rank - 1}] x [1]
        : ({turned.replace("f32", "bf16")}, {read}) -> tensor<4x{grouped}{queries}x64xbf16>
      return %10 : tensor<4x{grouped}{queries}x64xbf16>"""
    inputs = f"%q: {asked}, %k: {read}, %m: tensor<{queries}x{row}xi1>"
    return main_of(body, inputs, f"tensor<4x{grouped}{queries}x64xbf16>")


ARGUMENT = "%mask = stablehlo.not %m : tensor<{0}x{1}xi1>"
TURNED = "%mask = stablehlo.transpose %m, dims = [1, 0] : (tensor<{1}x{0}xi1>) -> tensor<{0}x{1}xi1>"
CAUSAL = """
      %i = stablehlo.iota dim = 0 : tensor<{0}x{1}xi32>
      %j = stablehlo.iota dim = 1 : tensor<{0}x{1}xi32>
      %mask = stablehlo.compare GE, %i, %j : (tensor<{0}x{1}xi32>, tensor<{0}x{1}xi32>) -> tensor<{0}x{1}xi1>"""


def beside(text: str, *, masks_apart: bool = True) -> list[tuple[int, ...]]:
    program = build_program(listed(text), compiler=Compiler(is_xla_tpu=True, masks_apart=masks_apart))
    return [whole.type.shape for wholes in program.wholes.values() for whole in wholes]


@pytest.mark.parametrize(
    ("mask", "queries", "row", "groups", "is_apart"),
    [
        (ARGUMENT, 256, 256, 1, True),
        (ARGUMENT, 256, 512, 1, False),  # rows lie along the lanes, as the mask does
        (ARGUMENT, 256, 512, 2, True),
        (TURNED, 256, 256, 1, False),
        (CAUSAL, 256, 256, 1, False),
        (CAUSAL, 512, 4096, 1, False),
        (CAUSAL, 512, 4096, 2, True),
        (CAUSAL, 512, 2048, 2, False),
        ("", 512, 4096, 2, False),
        ("", 256, 256, 1, False),
        ("", 512, 8192, 1, True),
    ],
)
def test_apart(mask: str, queries: int, row: int, groups: int, is_apart: bool) -> None:
    found = beside(attention(mask.format(queries, row), queries, row, groups))
    grouped = (groups,) if groups > 1 else ()
    assert found == [(4, *grouped, queries, row)] * is_apart


def test_masks_of_keys_alone_are_no_masks_by_query_and_key() -> None:
    """Though a batch of as many sequences as queries gives them the same dimensions."""
    text = attention(ARGUMENT.format(256, 256)).replace("<4x", "<256x")
    dims = "%every = stablehlo.broadcast_in_dim %mask, dims = [{}, 2]"
    assert dims.format(1) in text
    assert beside(text) == [(256, 256, 256)]
    assert beside(text.replace(dims.format(1), dims.format(0))) == []


@pytest.mark.parametrize("groups", [1, 4])
def test_scores_of_one_sequence_that_all_read_the_same_keys_are_not(groups: int) -> None:
    """A batch of one is none for XLA, which makes a product of one matrix of it."""
    text = attention("", 512, 8192, groups)
    assert beside(text)
    assert beside(text.replace("<4x", "<1x")) == []


def test_scores_that_are_widened_behind_the_product_are_not() -> None:
    assert beside(attention(ARGUMENT.format(256, 256), dtype="bf16")) == []


def test_other_compilers_take_the_mask_as_it_lies() -> None:
    assert beside(attention(ARGUMENT.format(256, 256)), masks_apart=False) == []


def test_exponentials_of_a_loss_are_not_apart() -> None:
    """Its logits, of a product of one matrix, are kept, however long their rows."""
    logits, rows = "tensor<8x8192xf32>", "tensor<8xf32>"
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<8x64xf32>, tensor<64x8192xf32>) -> {logits}
      %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.maximum across dimensions = [1] : ({logits}, tensor<f32>) -> {rows}
      %2 = stablehlo.broadcast_in_dim %1, dims = [0] : ({rows}) -> {logits}
      %3 = stablehlo.subtract %0, %2 : {logits}
      %4 = stablehlo.exponential %3 : {logits}
      %5 = stablehlo.reduce(%4 init: %zero) applies stablehlo.add across dimensions = [1] : ({logits}, tensor<f32>) -> {rows}
      %6 = stablehlo.dot_general %4, %w, contracting_dims = [1] x [1] : ({logits}, tensor<64x8192xf32>) -> tensor<8x64xf32>
      return %5, %6 : {rows}, tensor<8x64xf32>"""
    text = main_of(body, "%x: tensor<8x64xf32>, %w: tensor<64x8192xf32>", f"{rows}, tensor<8x64xf32>")
    assert beside(text) == []


def heads(
    rows: int,
    width: int,
    keys: str,
    *,
    is_masked: bool,
    batch: int = 2,
    count: int = 8,
    dtype: str = "f32",
    element: str = "bf16",
) -> str:
    """Attention of a batch of sequences: queries and keys of one projection each, scores scaled and, if so, causal."""
    x, flat = f"tensor<{batch}x{rows}x256x{element}>", f"tensor<{batch}x{rows}x{count * width}x{element}>"
    split, w = f"tensor<{batch}x{rows}x{count}x{width}x{element}>", f"tensor<256x{count * width}x{element}>"
    scores, made = (f"tensor<{batch}x{count}x{rows}x{rows}x{one}>" for one in ("f32", dtype))
    bits, sums = scores.replace("f32", "i1"), f"tensor<{batch}x{count}x{rows}xf32>"
    reshaped = f"""%f = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : ({x}, {w}) -> {flat}
      %k{0 if keys == "made" else ""} = stablehlo.reshape %f : ({flat}) -> {split}"""
    part = f"tensor<{batch}x{rows}x"
    half, half_split = f"{part}{count * width // 2}x{element}>", f"{part}{count // 2}x{width}x{element}>"
    twice = f"{part}{count // 2}x2x{width}x{element}>"
    made_of = {
        "reshaped": reshaped,
        "made": f"""{reshaped}
      %k1 = stablehlo.multiply %k0, %k0 : {split}
      %k = stablehlo.add %k1, %k0 : {split}""",
        "repeated": f"""%h = stablehlo.slice %x [0:{batch}, 0:{rows}, 0:256] : ({x}) -> {x}
      %p = stablehlo.dot_general %h, %w, contracting_dims = [2] x [0] : ({x}, {w}) -> {flat}
      %k0 = stablehlo.slice %p [0:{batch}, 0:{rows}, 0:{count * width // 2}] : ({flat}) -> {half}
      %k1 = stablehlo.reshape %k0 : ({half}) -> {half_split}
      %k2 = stablehlo.broadcast_in_dim %k1, dims = [0, 1, 2, 4] : ({half_split}) -> {twice}
      %k = stablehlo.reshape %k2 : ({twice}) -> {split}""",
        "cached": f"""{reshaped.replace("%k ", "%k0 ")}
      %k1 = stablehlo.multiply %k0, %k0 : {split}
      %k2 = stablehlo.add %k1, %k0 : {split}
      %start = stablehlo.constant dense<0> : tensor<i32>
      %k = stablehlo.dynamic_update_slice %cache, %k2, %start, %start, %start, %start
        : ({split}, {split}, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> {split}""",
        "direct": f"""%k = stablehlo.dot_general %x, %w3, contracting_dims = [2] x [0]
        : ({x}, tensor<256x{count}x{width}x{element}>) -> {split}""",
    }[keys]
    masked = f"""
      %i = stablehlo.iota dim = 0 : tensor<{rows}x{rows}xi32>
      %j = stablehlo.iota dim = 1 : tensor<{rows}x{rows}xi32>
      %mask = stablehlo.compare GE, %i, %j : (tensor<{rows}x{rows}xi32>, tensor<{rows}x{rows}xi32>) -> tensor<{rows}x{rows}xi1>
      %every = stablehlo.broadcast_in_dim %mask, dims = [2, 3] : (tensor<{rows}x{rows}xi1>) -> {bits}
      %no = stablehlo.constant dense<-1.0e30> : {scores}
      %s = stablehlo.select %every, %scaled, %no : {bits}, {scores}"""
    body = f"""
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      {made_of}
      %q = stablehlo.dot_general %x, %w3, contracting_dims = [2] x [0]
        : ({x}, tensor<256x{count}x{width}x{element}>) -> {split}
      %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : ({split}, {split}) -> {made}
      {f"%1 = stablehlo.convert %0 : ({made}) -> {scores}" if dtype != "f32" else ""}
      %scale = stablehlo.constant dense<0.1> : {scores}
      %scaled = stablehlo.multiply %{1 if dtype != "f32" else 0}, %scale : {scores}
      {masked if is_masked else ""}
      %2 = stablehlo.reduce(%{"s" if is_masked else "scaled"} init: %zero) applies stablehlo.maximum across dimensions = [3]
        : ({scores}, tensor<f32>) -> {sums}
      %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1, 2] : ({sums}) -> {scores}
      %4 = stablehlo.subtract %{"s" if is_masked else "scaled"}, %3 : {scores}
      %5 = stablehlo.exponential %4 : {scores}
      %6 = stablehlo.reduce(%5 init: %zero) applies stablehlo.add across dimensions = [3] : ({scores}, tensor<f32>) -> {sums}
      %7 = stablehlo.broadcast_in_dim %6, dims = [0, 1, 2] : ({sums}) -> {scores}
      %8 = stablehlo.divide %5, %7 : {scores}
      %9 = stablehlo.convert %8 : ({scores}) -> {scores.replace("f32", element)}
      %10 = stablehlo.dot_general %9, %q, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1]
        : ({scores.replace("f32", element)}, {split}) -> tensor<{batch}x{count}x{rows}x{width}x{element}>
      return %10 : tensor<{batch}x{count}x{rows}x{width}x{element}>"""
    given = f"%cache: {split}, %x: {x}, %w: {w}, %w3: tensor<256x{count}x{width}x{element}>"
    return main_of(body, given, f"tensor<{batch}x{count}x{rows}x{width}x{element}>")


def stored(text: str, compiler: Compiler) -> list[str]:
    """The types of what is stored beside exponentials, of the size of the scores."""
    program = build_program(listed(text), compiler=compiler)
    return [whole.type.dtype for wholes in program.wholes.values() for whole in wholes]


V5E = Compiler(is_xla_tpu=True, masks_apart=True)
V6E = Compiler(is_xla_tpu=True, stores_masks=True)


@pytest.mark.parametrize(
    ("keys", "width", "longest", "longest_masked"),
    [
        ("reshaped", 64, 4096, 3072),
        ("reshaped", 128, 3072, 2048),
        ("direct", 64, 3072, 2048),
        ("direct", 128, 2048, 2048),
        ("made", 64, 2048, 2047),
        ("made", 80, 2048, 1638),
    ],
)
def test_rows_up_to_which_scores_leave_the_product_as_exponentials(
    keys: str, width: int, longest: int, longest_masked: int
) -> None:
    """Of one sequence and of two, on v5e and v5p; one score more is stored beside them."""
    for is_masked, most in ((False, longest), (True, longest_masked)):
        for batch in (1, 2):
            assert stored(heads(most, width, keys, is_masked=is_masked, batch=batch), V5E) == []
            assert stored(heads(most + 1, width, keys, is_masked=is_masked, batch=batch), V5E) == ["f32"]


@pytest.mark.parametrize(
    ("keys", "width", "rows", "batch", "count", "is_apart"),
    [
        ("made", 128, 256, 2, 8, True),
        ("made", 128, 256, 1, 8, False),  # of one sequence
        ("made", 64, 256, 2, 8, False),  # heads do not fill the lanes
        ("repeated", 128, 256, 2, 8, True),
        ("cached", 128, 256, 2, 8, True),
        ("cached", 128, 256, 1, 8, False),
        ("reshaped", 128, 1024, 2, 16, True),
        ("reshaped", 128, 1024, 2, 12, False),
        ("reshaped", 128, 2048, 2, 16, False),
        ("reshaped", 128, 2048, 2, 24, True),
        ("reshaped", 128, 1020, 2, 32, False),  # not in rows of tiles
        ("direct", 128, 1024, 2, 32, False),
    ],
)
@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_heads_that_fill_the_lanes(
    keys: str, width: int, rows: int, batch: int, count: int, *, is_apart: bool, is_masked: bool, dtype: str
) -> None:
    """Keys that are made or reshaped in the product of a batch keep its softmax apart; narrow scores stay narrow."""
    text = heads(rows, width, keys, is_masked=is_masked, batch=batch, count=count, dtype=dtype)
    assert stored(text, V5E) == [dtype] * is_apart


@pytest.mark.parametrize(
    ("rows", "width", "types"),
    [
        (2816, 128, []),
        (3072, 128, ["f32", "f32", "i1", "f32"]),  # scores, what the mask puts in, the mask, the scale
        (3072, 64, []),
        (3328, 64, ["f32", "f32", "i1", "f32"]),
        (5120, 128, ["f32", "f32", "i1", "f32"]),
        (6144, 128, ["f32", "i1", "f32"]),
        (8192, 128, ["f32", "i1"]),
    ],
)
def test_masks_of_long_rows_are_stored(rows: int, width: int, types: list[str]) -> None:
    """On v6e; nothing where nothing is masked, up to rows that are apart anyway."""
    assert sorted(stored(heads(rows, width, "direct", is_masked=True), V6E)) == sorted(types)
    alone = ["f32"] * (rows > 4096) + ["f32"] * (rows > 5120)
    assert stored(heads(rows, width, "direct", is_masked=False), V6E) == alone


def test_constants_of_several_softmaxes_leave_a_gap() -> None:
    """As large as they are, on v6e; of one there is none, nor where masks alone are stored."""
    for rows, gap in ((4096, 1), (8192, 0)):
        one = heads(rows, 128, "direct", is_masked=True)
        body = one[one.index("%zero = ") : one.index("return %10")]
        again = re.sub(
            r"%(\w+)",
            lambda name: name[0] if name[1] in ("cache", "x", "w", "w3") else f"%again_{name[1]}",
            body,
        )
        both = one.replace(body, body + again)
        assert len(stored(both, V6E)) == 2 * (len(stored(one, V6E)) + gap)


def test_nothing_is_stored_for_scores_of_wide_heads() -> None:
    """On v6e: what is multiplied in float32 is worked out with its softmax."""
    assert stored(heads(4096, 128, "direct", is_masked=True), V6E)
    assert stored(heads(4096, 128, "direct", is_masked=True, element="f32"), V6E) == []


GROUPED = """
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %s = stablehlo.dot_general %q, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [4] x [3]
        : (tensor<2x16x2x4x8xTYPE>, tensor<2x16x2x8xTYPE>) -> tensor<2x2x16x4x16xf32>
      %e = stablehlo.exponential %s : tensor<2x2x16x4x16xf32>
      %sum = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [4]
        : (tensor<2x2x16x4x16xf32>, tensor<f32>) -> tensor<2x2x16x4xf32>
      %every = stablehlo.broadcast_in_dim %sum, dims = [0, 1, 2, 3] : (tensor<2x2x16x4xf32>) -> tensor<2x2x16x4x16xf32>
      %d = stablehlo.divide %e, %every : tensor<2x2x16x4x16xf32>
      %p = stablehlo.convert %d : (tensor<2x2x16x4x16xf32>) -> tensor<2x2x16x4x16xbf16>
      %a = stablehlo.dot_general %p, %v, batching_dims = [0, 1] x [0, 2], contracting_dims = [4] x [1]
        : (tensor<2x2x16x4x16xbf16>, tensor<2x16x2x8xbf16>) -> tensor<2x2x16x4x8xbf16>
      %b = stablehlo.dot_general %p, %a, batching_dims = [0, 1] x [0, 1], contracting_dims = [2, 3] x [2, 3]
        : (tensor<2x2x16x4x16xbf16>, tensor<2x2x16x4x8xbf16>) -> tensor<2x2x16x8xbf16>
      %f = stablehlo.reduce(%e init: %zero) applies stablehlo.maximum across dimensions = [4]
        : (tensor<2x2x16x4x16xf32>, tensor<f32>) -> tensor<2x2x16x4xf32>
      return %a, %b, %f : tensor<2x2x16x4x8xbf16>, tensor<2x2x16x8xbf16>, tensor<2x2x16x4xf32>"""


@pytest.mark.parametrize(
    ("keeps", "dtype", "is_stored"), [(True, "bf16", True), (True, "f32", False), (False, "bf16", False)]
)
def test_softmax_of_queries_that_share_keys(*, keeps: bool, dtype: str, is_stored: bool) -> None:
    """Two products read it: v6e stores it beside its exponentials, unless heads are float32; others make it anew."""
    results = "tensor<2x2x16x4x8xbf16>, tensor<2x2x16x8xbf16>, tensor<2x2x16x4xf32>"
    given = "%q: tensor<2x16x2x4x8xTYPE>, %k: tensor<2x16x2x8xTYPE>, %v: tensor<2x16x2x8xbf16>"
    text = main_of(GROUPED, given, results).replace("TYPE", dtype)
    compiler = Compiler(is_xla_tpu=True, keeps_grouped_operands=keeps)
    program = build_program(listed(text), compiler=compiler)
    (made,) = (op.results[0] for op in program.listing.ops if op.name == "stablehlo.convert")
    assert program.ample_lifetimes[made].is_own_buffer == is_stored
