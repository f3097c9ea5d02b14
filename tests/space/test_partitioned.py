"""How XLA's partitioner runs products that nothing prescribes; each row is what libtpu 0.0.51 makes of the product for v5e 4x4."""

import pytest

from autoshard.program import KernelShape
from autoshard.sharding import Mesh, TensorType, parse_rule, parse_sharding
from autoshard.space import partitioned

MESH = Mesh.of([("x", 4), ("y", 4)])
SHAPE = KernelShape(
    "stablehlo.dot_general",
    parse_rule("([i, k], [k, j])->([i, j]) {i=4096, j=1024, k=2048} reduction={k}"),
    (TensorType((4096, 2048), "bf16"), TensorType((2048, 1024), "bf16")),
    (TensorType((4096, 1024), "bf16"),),
    2 * 4096 * 2048 * 1024,
    "mnk",
    (1, 1),
    1,
    (None,),
)
ALL = '{"x", "y"}'

ROWS = [  # operands and result as they are; the axes of i, j and k
    ("[A, {}]", "[A, {}]", "[A, {}]", "A", "", ""),  # the second is gathered
    ("[A, {}]", "[{}, A]", "[{}, A]", "", "A", ""),  # the first is
    ("[{}, A]", "[A, {}]", "[A, {}]", "", "", "A"),  # summed everywhere, then sliced
    ("[{}, A]", "[{}, A]", "[A, {}]", "A", "", ""),  # as the result is
    ("[X, {}]", "[{}, Y]", "[X, Y]", "X", "Y", ""),
    ("[{}, {}]", "[{}, {}]", "[X, Y]", "X", "Y", ""),  # both are sliced
    ("[X, Y]", "[X, Y]", "[X, Y]", "X", "Y", ""),  # both are gathered
    ("[Y, X]", "[Y, {}]", "[Y, {}]", "Y", "", "X"),  # the second changes its axis
    ("[{}, X]", "[{}, X]", "[{}, X]", "", "X", "Y"),  # the first does
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:3]))
def test_a_product_runs_as_its_operands_and_its_result_match(row: tuple[str, ...]) -> None:
    *written, i, j, k = row
    lhs, rhs, out = (
        parse_sharding(text.replace("A", ALL).replace("X", '{"x"}').replace("Y", '{"y"}'), MESH)
        for text in written
    )
    found = partitioned(SHAPE, (lhs, rhs), (out,), MESH)
    assert found is not None
    names = ["".join(axis.name for axis in axes) for axes in found.factor_axes]
    assert names == [text.replace("A", "xy").lower() for text in (i, j, k)]
    assert found.settled == (out,)
