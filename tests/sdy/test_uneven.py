"""Dimensions that do not divide: padded intermediates are priced as what a device holds, arguments and results stay even."""

import pytest

from autoshard import pipeline
from autoshard.space import Strategy
from tests.sdy.arbitrary import arbitrary, complaints, differences

X, W, H = "tensor<8x16xf32>", "tensor<16x13xf32>", "tensor<8x13xf32>"
VOCABULARY = f"""sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%x: {X}, %w: {W}) -> {X} {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, {W}) -> {H}
  %1 = stablehlo.tanh %0 : {H}
  %2 = stablehlo.add %1, %0 : {H}
  %3 = stablehlo.dot_general %2, %w, contracting_dims = [1] x [1] : ({H}, {W}) -> {X}
  return %3 : {X}
}}"""


FEW = """sdy.mesh @mesh = <["x"=4, "y"=2]>
func.func @main(%x: tensor<2x64xf32>, %w: tensor<64x64xf32>) -> tensor<2x64xf32> {
  %0 = stablehlo.tanh %x : tensor<2x64xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {?}]> : tensor<2x64xf32>
  %2 = stablehlo.dot_general %1, %w, contracting_dims = [1] x [0] : (tensor<2x64xf32>, tensor<64x64xf32>) -> tensor<2x64xf32>
  %3 = stablehlo.tanh %2 : tensor<2x64xf32>
  return %3 : tensor<2x64xf32>
}"""


def is_padded(strategy: Strategy) -> bool:
    return any(sharding.axes[1] and not sharding.divides((8, 13)) for sharding in strategy.produced)


@pytest.mark.parametrize("seed", range(4))
def test_arbitrary_plans_are_what_they_say(seed: int) -> None:
    """13 columns on up to 8 devices, wherever they may be: the checker agrees on time, bytes and memory, the numbers on values."""
    written = arbitrary(VOCABULARY, is_padded, seed, "xla")
    assert complaints(written, deep=False) == ""
    assert differences(written) == ""


@pytest.mark.parametrize("seed", range(2))
def test_fewer_elements_than_parts_are_padded(seed: int) -> None:
    """Two rows are asked for on four devices, as JAX takes it too: two of them hold padding, and the demand is met, and priced so."""
    written = arbitrary(FEW, lambda strategy: True, seed, "xla")
    assert any(
        (value.settled or value.produced).startswith('[{"x"}') for value in written.plan.values.values()
    )
    assert complaints(written, deep=False) == ""
    assert differences(written) == ""


def test_local_parts_are_rounded_up() -> None:
    """Work and bytes of 13 columns on 4 devices are those of 4 columns."""
    loaded = pipeline.load_module(VOCABULARY.encode(), pipeline.Request(memory_bytes=None))
    priced = pipeline.price(loaded)
    node = next(n for n in priced.graph.nodes if n.space is not None and n.space.shape.is_matmul)
    assert node.space is not None
    names = [str(s.produced[0]) for s in node.space.strategies]
    split = node.space.strategies[names.index('[{}, {"x"}]')]
    assert split.produced[0].local_bytes(node.space.shape.results[0]) == 8 * 4 * 4
    assert split.operands[1].local_shape((16, 13)) == (16, 4)


def test_arguments_divide() -> None:
    """The weight has 13 columns; no plan splits them."""
    plan = arbitrary(VOCABULARY, is_padded, 0).plan
    assert plan.arguments[1].sharding.endswith("{}]")
