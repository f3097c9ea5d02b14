"""Results lie in the smallest layout, which need not be what a matrix unit writes."""

import pytest

from autoshard import pipeline
from autoshard.annotated import price_as_written

SEQUENCES, POSITIONS, INNER = 32, 512, 256


def scores(words: int, work: str) -> str:
    """Of all words at each position of eight sequences a device."""
    given, table = f"tensor<{SEQUENCES}x{POSITIONS}x{INNER}xbf16>", f"tensor<{INNER}x{words}xbf16>"
    made, bias = f"tensor<{SEQUENCES}x{POSITIONS}x{words}xbf16>", f"tensor<{words}xbf16>"
    rows = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}, {}]>}'
    return f"""
      sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: {given} {rows}, %w: {table}, %b: {bias}) -> ({made} {rows}) {{
        %0 = stablehlo.dot_general %a, %w, contracting_dims = [2] x [0] : ({given}, {table}) -> {made}
        %1 = stablehlo.broadcast_in_dim %b, dims = [2] : ({bias}) -> {made}
        %2 = stablehlo.add %0, %1 : {made}
        %3 = stablehlo.tanh %2 : {made}
        return %{work} : {made}
      }}"""


@pytest.mark.parametrize("work", ["0", "2", "3"], ids=["product", "biased", "activated"])
@pytest.mark.parametrize(("words", "taken"), [(30592, 268_416_000), (30522, 517_972_480)])
def test_products_are_laid_out_anew(words: int, taken: int, work: str) -> None:
    """As XLA:TPU takes (libtpu 0.0.51, v5e 2x2; the product and the biased one, within a thousandth of each other): 128 divides the one
    number of words; of the other, positions and sequences are what a result has as minor dimensions without padding."""
    request = pipeline.Request(hardware="tpu-v5e", topology=(2, 2), memory_bytes=None)
    written = price_as_written(pipeline.load_module(scores(words, work).encode(), request))
    assert written.priced.expected_peak(written.choice) == pytest.approx(taken, rel=0.05)


def test_a_constant_of_a_given_sharding_is_no_kernel() -> None:
    """As it is read back: constants are worked out where they are returned or read."""
    text = """
      sdy.mesh @mesh = <["x"=2]>
      func.func @main() -> tensor<8x16xbf16> {
        %0 = stablehlo.iota dim = 0 : tensor<8x16xf32>
        %1 = stablehlo.convert %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>]>}
          : (tensor<8x16xf32>) -> tensor<8x16xbf16>
        return %1 : tensor<8x16xbf16>
      }"""
    request = pipeline.Request(hardware="tpu-v5e", memory_bytes=None)
    loaded = pipeline.load_module(text.encode(), request)
    plan = pipeline.plan_loaded(loaded)
    written = pipeline.write_planned(loaded, plan)
    again = pipeline.cost_loaded(pipeline.load_module(written.encode(), request)).price
    assert (plan.price.step_ns, plan.price.peak_bytes) == (again.step_ns, again.peak_bytes)
