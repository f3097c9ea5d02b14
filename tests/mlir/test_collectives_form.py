"""The form with explicit collectives is what Shardy's passes make of the shardy form, and the program in it is the user's."""

import re
from collections import Counter
from functools import cache

import pytest

from autoshard.mlir.collective import Collective
from autoshard.mlir.context import ir
from autoshard.mlir.explicit import listed_collectives
from autoshard.mlir.forms import Form
from autoshard.mlir.isolated import run_isolated
from autoshard.mlir.passes import collectives
from autoshard.mlir.read import read
from autoshard.mlir.source import SourceModule, load, resolve_mesh
from autoshard.mlir.walk import walk
from autoshard.mlir.write import write
from tests.mlir.modules import main_of, read_text
from tests.mlir.random_plan import random_decisions
from tests.mlir.test_write import AXES, PROGRAMS

NOTHING_LEFT = {
    "closed": "sdy-close-shardings",
    "even": "sdy-update-non-divisible-input-output-shardings",
    "without sub-axes": "sdy-remove-sub-axes-in-input-output-shardings",
    "without edges": "func.func(sdy-sink-data-flow-edges,sdy-sink-func-data-flow-edges)",
    "without rules": "func.func(sdy-drop-sharding-rules)",
}
"""Passes of Shardy's export pipeline; by what they see to."""


@cache
def written_as(name: str, form: Form) -> SourceModule:
    """A program with a plan drawn at random in it."""
    source, listing, handles = read_text(PROGRAMS[name](), AXES)
    return load(write(source, handles, listing, random_decisions(listing, 1), form).encode())


def made_explicit(name: str) -> list[Collective]:
    source = written_as(name, "shardy-collectives")
    return listed_collectives(walk(source.module.operation, source.main), resolve_mesh(source, None), "")


def user_ops(source: SourceModule) -> list[tuple[str, str]]:
    """Name and location of every op of the module that is not of sdy, in order."""
    found: list[tuple[str, str]] = []

    def note(op: ir.Operation) -> ir.WalkResult:
        if not op.name.startswith("sdy."):
            found.append((op.name, str(op.operation.location)))
        return ir.WalkResult.ADVANCE

    source.module.operation.walk(note, ir.WalkOrder.PRE_ORDER)
    return found


def signature(source: SourceModule) -> str:
    main = next(op.operation for op in source.module.body.operations if op.operation.name == "func.func")
    return str({name: str(main.attributes[name]) for name in sorted(main.attributes)})


@pytest.mark.parametrize("name", PROGRAMS)
def test_its_collectives_are_those_that_shardys_passes_make_of_the_shardy_form(name: str) -> None:
    """None is left to make: no reshard, no constraint, no group."""
    shardy = written_as(name, "shardy")
    expected = collectives(shardy, resolve_mesh(shardy, None))
    found = made_explicit(name)
    assert Counter(map(figures, found)) == Counter(map(figures, expected))
    assert found
    written = str(written_as(name, "shardy-collectives").module)
    assert not set(re.findall(r"sdy\.(\w+)", written)) & {
        "reshard", "sharding_constraint", "sharding_group", "constant", "propagation_barrier", "sharding_rule",
    }  # fmt: skip


def figures(collective: Collective) -> tuple[object, ...]:
    return tuple(
        getattr(collective, key) for key in ("kind", "axes", "operand_bytes", "result_bytes", "repeat")
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_users_ops_stay_in_order_and_where_they_were_written(name: str) -> None:
    """Dead ones, equal constants and constant expressions too, which a canonicalizer would take away; and so does main's signature."""
    written, shardy = written_as(name, "shardy-collectives"), written_as(name, "shardy")
    assert [op for op, _ in user_ops(written)] == [op for op, _ in user_ops(shardy)]
    assert signature(written) == signature(shardy)
    if shardy.has_locations:
        assert user_ops(written) == user_ops(shardy)


def test_the_users_rule_and_attributes_stay() -> None:
    rule = "#sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=16}, custom>"
    call = f'"stablehlo.custom_call"(%a) {{call_target_name = "mine", mhlo.note = "kept", sdy.sharding_rule = {rule}}}'
    source, listing, handles = read_text(
        main_of(f"%0 = {call} : (tensor<8x16xf32>) -> tensor<8x16xf32>\nreturn %0 : tensor<8x16xf32>")
    )
    written = write(source, handles, listing, random_decisions(listing, 0), "shardy-collectives")
    walked = walk(load(written.encode()).module.operation, "main")
    (call,) = [op for op in walked.ops if op.name == "stablehlo.custom_call"]
    assert str(call.attributes["sdy.sharding_rule"]) == rule
    assert str(call.attributes["mhlo.note"]) == '"kept"'


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("what", NOTHING_LEFT)
def test_the_shardy_form_leaves_nothing_to_shardys_export_passes(name: str, what: str) -> None:
    """The module is the same before and after each."""
    module = written_as(name, "shardy").module
    assert str(run_isolated(module.operation, NOTHING_LEFT[what])) == str(module)


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_read_back_as_demands_for_what_each_collective_makes(name: str) -> None:
    written = written_as(name, "shardy-collectives")
    again, _ = read(written, resolve_mesh(written, None))
    reshards = [op for op in again.ops if op.name == "sdy.reshard"]
    assert len(reshards) == len(made_explicit(name))
    assert all(op.demand is not None for op in reshards)
