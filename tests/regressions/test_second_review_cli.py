"""What a second review found at the command line."""

import pytest

import autoshard
from autoshard.errors import AutoshardError
from autoshard.mlir.upstream.rewrite import is_upstream

MODULE = b"""module { mesh.mesh @mesh(shape = 4x2) {autoshard.axes = ["x", "y"]}
  func.func @main(%arg0: tensor<64x8xf32>) -> tensor<64x8xf32> { %s = mesh.sharding @mesh split_axes = [[0]] : !mesh.sharding
    %0 = mesh.shard %arg0 to %s : tensor<64x8xf32>
    %1 = stablehlo.tanh %0 : tensor<64x8xf32>
    return %1 : tensor<64x8xf32> } }
"""
ON_ONE_LINE = "// mesh.mesh\nmodule { sdy.mesh @mesh = <[]> }"


@pytest.fixture(scope="module")
def plan() -> autoshard.Plan:
    return autoshard.plan(MODULE, time_limit_s=20)


def test_upstreams_statements_may_follow_a_brace(plan: autoshard.Plan) -> None:
    """A mesh on the line of `module {` is read, and so is a sharding on the line of the function."""
    assert plan.arguments[0].sharding == '[{"x"}, {}]'
    assert not is_upstream(ON_ONE_LINE.encode())


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "no value is named"),
        ("arg0=x", "cannot read the sharding 'x'"),
        ('arg0=@other [{"x"}, {}]', "cannot read the sharding"),
        ("nothing=x", "no value is called 'nothing'"),
        ("arg0=", "cannot read the sharding ''"),
    ],
)
def test_why_says_what_it_cannot_read(plan: autoshard.Plan, value: str, reason: str) -> None:
    """The name or the sharding, whichever it is; a value without a name is not called nothing."""
    with pytest.raises(AutoshardError, match=reason):
        autoshard.why(MODULE, plan, value)
