"""Permutation factors: what other devices send, by two counts and by hand, and equal numbers on eight devices."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import pipeline
from autoshard.check import Subject, check
from autoshard.check.halo import rows_from_others
from autoshard.cost.halo import halo_rows
from autoshard.mlir.forms import Form
from autoshard.program import Window
from autoshard.sharding import FactorKind
from autoshard.space import Strategy
from tests.mlir.modules import listed
from tests.sdy.arbitrary import arbitrary, complaints, differences


def window(count: int, size: int, stride: int = 1, low: int = 0, dilation: int = 1, base: int = 1) -> Window:
    return Window(0, count, size, stride, low, dilation, base)


@pytest.mark.parametrize(
    ("asked", "rows", "shards", "expected"),
    [
        (window(16, 3, low=1), 16, 4, (1, 1)),  # the usual convolution: a row each way
        (window(16, 7, low=3), 16, 4, (3, 3)),
        (window(16, 2, low=1), 16, 4, (1,)),  # it looks back only
        (window(8, 2, stride=2), 16, 4, ()),  # pooling without overlap: nothing
        (window(8, 3, stride=2, low=1), 16, 4, (1,)),  # strided, as in ResNets: one row from above
        (window(16, 3, low=2, dilation=2), 16, 4, (2, 2)),  # a dilated window reaches twice as far
        (window(16, 11, low=5), 16, 8, (2, 2, 2, 2, 1, 1)),  # two rows each: three neighbours on either side
        (window(32, 3, low=1, base=2), 16, 4, (1,)),  # a transposed convolution
        (window(14, 3), 16, 4, (2,)),  # no padding: the last results have no row to look ahead to
        (window(15, 1, low=-1), 16, 4, (1,)),  # x[1:]: a row from below, whatever the size
        (window(8, 1, low=-8), 16, 4, (2, 2)),  # x[8:]: two rows each, from one or two below
        (window(7, 1, stride=2, low=-2), 16, 4, (1,)),  # x[2::2]: the second of two rows from below
        (window(8, 1, stride=2), 16, 4, ()),  # x[::2]: every part shrinks in its place
        (
            window(20, 1, low=4),
            16,
            4,
            (3,),
        ),  # four zeros in front: parts of five rows, up to three from above
        (window(31, 1, base=2), 16, 4, ()),  # zeros between: every part grows in its place
        (window(16, 1, stride=-1, low=-15), 16, 4, (4,)),  # reversed: parts trade places
        (window(13, 1, stride=-1, low=-12), 13, 4, (4, 3)),  # and move up by what the last part lacks
        (window(9, 1, stride=-1, low=-8), 9, 8, (2, 1, 1)),  # by more than a part: three and four devices up
    ],
)
def test_rows_by_hand(asked: Window, rows: int, shards: int, expected: tuple[int, ...]) -> None:
    assert sorted(halo_rows(asked, rows, shards)) == sorted(expected)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_planner_and_checker_count_the_same_rows(data: st.DataObject) -> None:
    """Intervals on one side, lists of rows on the other; windows of every kind, dimensions that do not divide."""
    draw = data.draw
    rows, shards, size = draw(st.integers(1, 40)), draw(st.integers(2, 8)), draw(st.integers(1, 9))
    if draw(st.booleans()) and draw(st.booleans()):
        mirrored = window(rows, 1, stride=-1, low=1 - rows)
        assert sorted(halo_rows(mirrored, rows, shards)) == sorted(rows_from_others(mirrored, rows, shards))
    stride, is_scattered = draw(st.integers(1, 4)), draw(st.booleans())
    dilation, base = (1, 1) if is_scattered else (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    asked = Window(
        0, draw(st.integers(1, 40)), size, stride, draw(st.integers(-3, 9)), dilation, base, is_scattered
    )
    assert sorted(halo_rows(asked, rows, shards)) == sorted(rows_from_others(asked, rows, shards))


IMAGE, KERNEL = "tensor<2x16x16x4xf32>", "tensor<5x5x4x4xf32>"


def convolution(size: str, window: str) -> str:
    made = f"tensor<2x{size}x4xf32>"
    return f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
    func.func @main(%a: {IMAGE}, %k: {KERNEL}) -> {made} {{
      %0 = stablehlo.convolution(%a, %k) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {{{window}}}
        {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}} : ({IMAGE}, {KERNEL}) -> {made}
      return %0 : {made}
    }}"""


def pooling(attributes: str, size: str) -> str:
    made = f"tensor<2x{size}x4xf32>"
    return f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
    func.func @main(%a: {IMAGE}) -> {made} {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = "stablehlo.reduce_window"(%a, %zero) ({{
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          %s = stablehlo.add %p, %q : tensor<f32>
          stablehlo.return %s : tensor<f32>
      }}) {{{attributes}}} : ({IMAGE}, tensor<f32>) -> {made}
      return %0 : {made}
    }}"""


def moved(op: str, made: str) -> str:
    """A program that is one op, which moves columns of %a."""
    return f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
    func.func @main(%a: tensor<8x16xf32>) -> tensor<{made}xf32> {{
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = {op} -> tensor<{made}xf32>
      return %0 : tensor<{made}xf32>
    }}"""


def sliced(columns: str, count: int) -> str:
    return moved(f"stablehlo.slice %a [0:8, {columns}] : (tensor<8x16xf32>)", f"8x{count}")


def padded(low: int, high: int, between: int, count: int) -> str:
    op = f"stablehlo.pad %a, %zero, low = [0, {low}], high = [0, {high}], interior = [0, {between}]"
    return moved(f"{op} : (tensor<8x16xf32>, tensor<f32>)", f"8x{count}")


def reversed_(count: int) -> str:
    type_ = f"tensor<8x{count}xf32>"
    return f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
    func.func @main(%a: {type_}) -> {type_} {{
      %0 = stablehlo.reverse %a, dims = [1] : {type_}
      return %0 : {type_}
    }}"""


WINDOWS = {
    "same": convolution("16x16", "pad = [[2, 2], [2, 2]]"),
    "strided": convolution("8x8", "stride = [2, 2], pad = [[2, 1], [2, 1]]"),
    "uneven": convolution("12x12", "pad = [[0, 0], [0, 0]]"),
    "dilated": convolution("16x16", "pad = [[4, 4], [4, 4]], rhs_dilate = [2, 2]"),
    "pooling": pooling(
        "window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>, "
        "padding = dense<[[0, 0], [1, 0], [1, 0], [0, 0]]> : tensor<4x2xi64>",
        "8x8",
    ),
    "of an iota": convolution("16x16", "pad = [[2, 2], [2, 2]]")
    .replace("%0 = stablehlo.conv", f"%b = stablehlo.iota dim = 1 : {IMAGE}\n%0 = stablehlo.conv")
    .replace("(%a, %k) dim", "(%b, %k) dim"),
}
MOVES = {
    "shifted": sliced("1:16", 15),
    "padded": padded(3, 1, 0, 20),
    "reversed": reversed_(16),
    "second half": sliced("8:16", 8),
    "strided": sliced("2:16:3", 5),
    "few": sliced("13:16", 3),
    "cropped": padded(-3, 3, 0, 16),
    "apart": padded(0, 3, 1, 34),
    "reversed unevenly": reversed_(13),
}
QUICK = ("shifted", "padded", "reversed")


def is_split(*dims: int) -> Callable[[Strategy], bool]:
    def wish(strategy: Strategy) -> bool:
        return any(strategy.produced[0].axes[dim] for dim in dims)

    return wish


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_split_windows(name: str, seed: int) -> None:
    """The checker finds the same rows, Shardy's passes leave them to the partitioner, and XLA on eight devices has the same numbers."""
    written = arbitrary(WINDOWS[name], is_split(1, 2), seed, "xla")
    assert complaints(written) == ""
    assert differences(written) == ""


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        *((name, 0) for name in QUICK),
        *(pytest.param(name, seed, marks=pytest.mark.slow) for name in MOVES for seed in range(1, 4)),
    ],
)
def test_rows_that_move_along_a_split_dimension(name: str, seed: int) -> None:
    """Slices, pads and reverses are held to the same."""
    written = arbitrary(MOVES[name], is_split(1), seed, "xla")
    assert any(c.kind == "halo_exchange" for c in written.plan.price.collectives)
    assert complaints(written) == ""
    assert differences(written) == ""


SHIFT = """sdy.mesh @mesh = <["x"=4]>
    func.func @main(%a: tensor<512x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>})
        -> (tensor<512x1024xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"x"}]>}) {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %0 = stablehlo.slice %a [0:512, 1:1024] : (tensor<512x1024xf32>) -> tensor<512x1023xf32>
      %1 = stablehlo.pad %0, %zero, low = [0, 0], high = [0, 1], interior = [0, 0]
        : (tensor<512x1023xf32>, tensor<f32>) -> tensor<512x1024xf32>
      return %1 : tensor<512x1024xf32>
    }"""


@pytest.mark.parametrize("form", ["xla", "shardy"])
def test_a_shift_by_one_sends_one_column_to_the_neighbour(form: Form) -> None:
    """x[:, 1:] over a split dimension: 512 floats to one neighbour, instead of gathering x to slice it."""
    loaded = pipeline.load_module(SHIFT.encode(), pipeline.Request(memory_bytes=None, form=form))
    plan = pipeline.plan_loaded(loaded)
    (only,) = plan.price.collectives
    ns = loaded.communication.collective_permute_ns(512 * 4, ["x"])
    assert (only.kind, only.axes, only.bytes, only.ns) == ("halo_exchange", ("x",), 512 * 4, ns)
    assert pipeline.check_plan(SHIFT.encode(), plan, deep=True).passed


def test_windows_are_read_from_the_module() -> None:
    """Size, stride, padding and dilation of each dimension, whatever the order of dimensions."""
    (strided,) = [op for op in listed(WINDOWS["strided"]).ops if op.windows]
    assert strided.windows == tuple(Window(dim, 8, 5, 2, 2, 1, 1) for dim in (1, 2))
    (dilated,) = [op for op in listed(WINDOWS["dilated"]).ops if op.windows]
    assert [(w.dilation, w.low) for w in dilated.windows] == [(2, 4)] * 2
    (pooled,) = [op for op in listed(WINDOWS["pooling"]).ops if op.windows]
    assert [(w.dim, w.size, w.stride, w.low) for w in pooled.windows] == [
        (0, 1, 1, 0), (1, 3, 2, 1), (2, 3, 2, 1), (3, 1, 1, 0),
    ]  # fmt: skip
    assert pooled.rule is not None
    assert any(factor.kind is FactorKind.PERMUTATION for factor in pooled.rule.factors)


def test_every_operand_that_moves_has_its_windows() -> None:
    """Of a slice, pad or reverse, the dimensions that change; of a reduce_window over two operands, all dimensions of both."""

    def windows(text: str) -> tuple[Window, ...]:
        (found,) = [op.windows for op in listed(text, [("x", 4), ("y", 2)]).ops if op.windows]
        return found

    assert windows(MOVES["strided"]) == (Window(1, 5, 1, 3, -2, 1, 1),)
    assert windows(MOVES["apart"]) == (Window(1, 34, 1, 1, 0, 1, 2),)
    assert windows(MOVES["reversed"]) == (Window(1, 16, 1, -1, -15, 1, 1),)
    row = "tensor<8xf32>"
    pooled = f"""func.func @main(%a: {row}, %b: {row}) -> ({row}, {row}) {{
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %0:2 = "stablehlo.reduce_window"(%a, %b, %z, %z) ({{
        ^bb0(%p: tensor<f32>, %q: tensor<f32>, %r: tensor<f32>, %s: tensor<f32>):
          stablehlo.return %p, %q : tensor<f32>, tensor<f32>
      }}) {{window_dimensions = array<i64: 3>, padding = dense<1> : tensor<1x2xi64>}}
        : ({row}, {row}, tensor<f32>, tensor<f32>) -> ({row}, {row})
      return %0#0, %0#1 : {row}, {row}
    }}"""
    assert windows(pooled) == tuple(Window(0, 8, 3, 1, 1, 1, 1, operand=operand) for operand in range(2))


def test_what_a_shift_reads_is_sent_and_not_made_inside() -> None:
    """Rows that zeros push out, of a value that nothing else reads: four of eight go to the other device."""
    given = 'tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}'
    text = f"""sdy.mesh @mesh = <["x"=2]>
      func.func @main(%a: {given}) -> ({given}) {{
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.tanh %a : tensor<8x16xf32>
        %1 = stablehlo.pad %0, %zero, low = [4, 0], high = [-4, 0], interior = [0, 0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
        return %1 : tensor<8x16xf32>
      }}"""
    loaded = pipeline.load_module(text.encode(), pipeline.Request())
    plan = pipeline.plan_loaded(loaded)
    assert [(one.kind, one.bytes) for one in plan.price.collectives] == [("halo_exchange", 4 * 16 * 4)]
    assert check(Subject(loaded.program, loaded.hardware, loaded.communication), plan).passed
