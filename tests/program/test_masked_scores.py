"""What is stored of scores that are masked in float32: exponentials, or the scores of one sequence and of queries that share keys."""

import pytest

from autoshard.program import Compiler, build_program
from tests.mlir.modules import listed
from tests.programs.masked import masked_heads


@pytest.mark.parametrize(
    ("queries", "is_plain", "keeps_narrow_operands", "stored"),
    [
        (1, True, False, ["exponential"]),
        (1, False, False, ["transpose"]),
        (4, False, False, ["transpose"]),
        (4, False, True, ["transpose", "convert"]),
    ],
)
def test_grouped_queries_keep_scores(
    queries: int, is_plain: bool, keeps_narrow_operands: bool, stored: list[str]
) -> None:
    """Products make them in another order of dimensions than the softmax has, which no exchange of operands makes: exponentials are not
    made there. Nor are they of groups of one: XLA strips that dimension from the product, and a reshape is in between. Quotients are stored
    as well by a compiler that keeps narrow operands.
    """
    compiler = Compiler(is_xla_tpu=True, keeps_narrow_operands=keeps_narrow_operands)
    text = masked_heads(queries=queries, is_plain=is_plain)
    program = build_program(listed(text), compiler=compiler)
    size, behind = 16 * 8 * queries * 512 * 512, max(k.time for k in program.kernels if k.shape.is_matmul)
    found = [
        program.listing.ops[kernel.time].name.removeprefix("stablehlo.")
        for kernel in program.kernels
        for value in kernel.results
        if (life := program.ample_lifetimes[value]).is_own_buffer and life.begin < behind - 1 <= life.end
        if value not in program.returned
        if (type_ := program.listing.values[value].type) is not None and type_.num_elements == size
    ]
    assert found == stored
    assert {type_.dtype for type_ in program.of_one.values()} == (
        {"bf16"} if is_plain and queries == 1 else set()
    )
