"""Products that only a transposition reads are brought to another sharding behind it, but where XLA may scatter them while they run."""

import pytest

from autoshard.mlir.decisions import Decisions
from autoshard.mlir.write import write
from autoshard.sharding import TensorSharding
from tests.mlir.modules import main_of, read_text, sharding

MADE, TURNED, WEIGHT = "tensor<32x64xf32>", "tensor<64x32xf32>", "tensor<64x32xf32>"
WHOLE = TensorSharding.replicated_closed(2)


def written(settled: str, read: str, turned: str, *, moved: str = "", other: str = "%t") -> list[str]:
    """The ops of the written update, in order, with the sharding of constraints; of a product that is made whole."""
    body = f"""
      %g = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : (tensor<128x32xf32>, tensor<128x64xf32>) -> {MADE}
      %t = stablehlo.transpose %g, dims = [1, 0] : ({MADE}) -> {TURNED}
      %u = stablehlo.add %w, %t : {WEIGHT}
      return %u, {other} : {WEIGHT}, {MADE if other == "%g" else TURNED}"""
    arguments = f"%a: tensor<128x32xf32>, %b: tensor<128x64xf32>, %w: {WEIGHT}"
    source, listing, handles = read_text(
        main_of(body, arguments, f"{WEIGHT}, {MADE if other == '%g' else TURNED}")
    )
    (product, result, updated) = (op.results[0] for op in listing.ops)
    rows = sharding('[{"x"}, {}]')
    made = {
        0: rows,
        1: rows,
        2: sharding(turned),
        product: WHOLE,
        result: sharding(turned),
        updated: sharding(turned),
    }
    kept = made | {product: sharding(settled), result: sharding(moved or turned)}
    uses = {(1, 0): sharding(read), (2, 1): sharding(moved or turned)}
    lines = write(source, handles, listing, Decisions(made, kept, {}, uses), "xla").splitlines()
    return [
        line.partition("@mesh, ")[2].partition(">")[0] if "constraint" in line else name
        for line in lines
        for name in ("dot_general", "transpose", "add", "constraint")
        if name in line
    ]


@pytest.mark.parametrize(
    ("settled", "read"),
    [("[{}, {}]", '[{}, {"x"}]'), ('[{}, {"x"}]', '[{}, {"x"}]')],
    ids=["where it is read", "at once"],
)
def test_a_sum_is_sliced_behind_the_transposition(settled: str, read: str) -> None:
    found = written(settled, read, '[{"x"}, {}]')
    assert found[:4] == ["dot_general", "transpose", "[{}, {}]", '[{"x"}, {}]']


@pytest.mark.parametrize(
    ("settled", "turned", "moved", "other"),
    [
        ('[{}, {"x", "y", "z"}]', '[{"x", "y", "z"}, {}]', "", "%t"),
        ('[{}, {"x"}]', '[{"x"}, {}]', "[{}, {}]", "%t"),
        ('[{}, {"x"}]', '[{"x"}, {}]', "", "%g"),
    ],
    ids=["a loop may scatter it", "the transposition is moved itself", "another reads it"],
)
def test_other_sums_are_sliced_before_it(settled: str, turned: str, moved: str, other: str) -> None:
    found = written(settled, settled, turned, moved=moved, other=other)
    assert settled in found[: found.index("transpose")]
