"""Permutation factors of windows: what neighbours send, by listing rows and by hand, and equal numbers on eight devices."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.check.halo import rows_from_others
from autoshard.cost.halo import halo_rows
from autoshard.program import Window
from autoshard.sharding import FactorKind
from autoshard.space import Strategy
from tests.mlir.modules import listed
from tests.sdy.arbitrary import arbitrary, complaints, differences


def window(count: int, size: int, stride: int = 1, low: int = 0, dilation: int = 1, base: int = 1) -> Window:
    return Window(0, count, size, stride, low, dilation, base, False)


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


PROGRAMS = {
    "same": convolution("16x16", "pad = [[2, 2], [2, 2]]"),
    "strided": convolution("8x8", "stride = [2, 2], pad = [[2, 1], [2, 1]]"),
    "uneven": convolution("12x12", "pad = [[0, 0], [0, 0]]"),
    "dilated": convolution("16x16", "pad = [[4, 4], [4, 4]], rhs_dilate = [2, 2]"),
    "pooling": pooling(
        "window_dimensions = array<i64: 1, 3, 3, 1>, window_strides = array<i64: 1, 2, 2, 1>, "
        "padding = dense<[[0, 0], [1, 0], [1, 0], [0, 0]]> : tensor<4x2xi64>",
        "8x8",
    ),
}


def is_split_over_space(strategy: Strategy) -> bool:
    return any(strategy.operands[0].axes[dim] for dim in (1, 2))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("seed", range(2))
def test_split_windows(name: str, seed: int) -> None:
    """The checker finds the same rows, and XLA on eight devices the same numbers."""
    written = arbitrary(PROGRAMS[name], is_split_over_space, seed, "xla")
    assert complaints(written, deep=False) == ""
    assert differences(written) == ""


def test_windows_are_read_from_the_module() -> None:
    """Size, stride, padding and dilation of each dimension, whatever the order of dimensions."""
    (strided,) = [op for op in listed(PROGRAMS["strided"]).ops if op.windows]
    assert strided.windows == tuple(Window(dim, 8, 5, 2, 2, 1, 1, False) for dim in (1, 2))
    (dilated,) = [op for op in listed(PROGRAMS["dilated"]).ops if op.windows]
    assert [(w.dilation, w.low) for w in dilated.windows] == [(2, 4)] * 2
    (pooled,) = [op for op in listed(PROGRAMS["pooling"]).ops if op.windows]
    assert [(w.dim, w.size, w.stride, w.low) for w in pooled.windows] == [
        (0, 1, 1, 0), (1, 3, 2, 1), (2, 3, 2, 1), (3, 1, 1, 0),
    ]  # fmt: skip
    assert pooled.rule is not None
    assert any(factor.kind is FactorKind.PERMUTATION for factor in pooled.rule.factors)
