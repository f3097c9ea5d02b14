"""Changes of sharding are written one collective at a time."""

import pytest

from autoshard.mlir.context import ir
from autoshard.mlir.emit import Change
from autoshard.mlir.passes import decompose_reshards
from autoshard.mlir.stepwise import write_steps
from autoshard.mlir.tensors import Shardings
from autoshard.sharding import TensorSharding
from tests.mlir.modules import MESH, main_of, read_text, sharding


@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        ('[{"x"}, {}]', '[{}, {"x"}]', ['[{}, {"x"}]']),
        ('[{"x", "z"}, {}]', '[{}, {"z"}]', ['[{"x"}, {"z"}]', '[{}, {"z"}]']),
        ('[{"z"}, {}]', '[{}, {"y"}]', ['[{"z"}, {"y"}]', '[{}, {"y"}]']),
        ('[{"z"}, {}]', '[{"z"}, {}]', ['[{"z"}, {}]']),
    ],
)
def test_each_step_has_a_constraint_of_its_own(before: str, after: str, written: list[str]) -> None:
    """And each constraint is then one collective of Shardy's at most."""
    body = (
        f"%b = sdy.sharding_constraint %a <@mesh, {after}> : tensor<8x16xf32>\nreturn %b : tensor<8x16xf32>"
    )
    _, _, handles = read_text(main_of(body))
    walked = handles.walked
    with walked.module.context:
        shardings = Shardings(MESH, (MESH,), walked.module.context)
        write_steps([Change(walked.ops[0], sharding(before), sharding(after))], MESH, shardings)
    found = _constraints(walked.module, shardings)
    assert list(map(str, found)) == written
    chain = [sharding(before), *found]
    steps = decompose_reshards(MESH, [(2, a, b) for a, b in zip(chain, found, strict=False)])
    assert all(len(sequence) <= 1 for sequence in steps)


def _constraints(module: ir.Operation, shardings: Shardings) -> list[TensorSharding]:
    found: list[TensorSharding] = []

    def note(op: ir.Operation) -> ir.WalkResult:
        if op.operation.name == "sdy.sharding_constraint":
            found.append(
                shardings.read(op.operation.attributes["sharding"], op.operation.results[0].type, "")
            )
        return ir.WalkResult.ADVANCE

    module.walk(note, ir.WalkOrder.PRE_ORDER)
    return found
