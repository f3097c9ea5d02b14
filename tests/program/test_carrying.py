"""Which results are the next step's arguments where nobody says so."""

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.errors import AutoshardError
from autoshard.program import donated_pairs, warnings_of_state
from tests.mlir.modules import listed, main_of

T, W = "tensor<4xf32>", "tensor<8xf32>"
DONOR = "jax.buffer_donor = true"
DONOR_ON_X, ON_Y, ANY = (
    f"{donor}sdy.sharding = #sdy.sharding<@mesh, [{axes}]>"
    for donor, axes in ((f"{DONOR}, ", '{"x"}'), ("", '{"y"}'), ("", "{?}"))
)


def module(arguments: list[tuple[str, str]], results: list[tuple[str, str]]) -> str:
    """Arguments and results as (type, attributes); each result is the first argument of its type."""
    first = {type_: f"%a{number}" for number, (type_, _) in reversed(list(enumerate(arguments)))}
    types = ", ".join(type_ for type_, _ in results)
    return main_of(
        f"return {', '.join(first[type_] for type_, _ in results)} : {types}",
        ", ".join(f"%a{i}: {type_} {{{attributes}}}" for i, (type_, attributes) in enumerate(arguments)),
        ", ".join(f"{type_} {{{attributes}}}" for type_, attributes in results),
    )


@pytest.mark.parametrize(
    ("arguments", "results", "pairs"),
    [
        pytest.param([(T, DONOR), (W, DONOR)], [(W, ""), (T, "")], [(1, 0), (0, 1)], id="by type"),
        pytest.param([(T, DONOR), (T, DONOR)], [(T, ""), (T, ""), (T, "")], [(0, 0), (1, 1)], id="in order"),
        pytest.param([(T, ""), (T, DONOR)], [(T, "")], [(0, 1)], id="what is not donated is left out"),
        pytest.param([(T, "tf.aliasing_output = 0 : i32"), (T, DONOR)], [(T, ""), (T, "")], [(0, 0), (1, 1)], id="named"),
        pytest.param([(T, DONOR), (W, "")], [(W, "")], [], id="nothing of its type"),
        pytest.param([(T, "tf.aliasing_output = 0 : i32"), (W, "")], [(W, "")], [], id="named, of another type"),
        pytest.param([(T, DONOR_ON_X)], [(T, ON_Y)], [], id="two shardings"),
        pytest.param([(T, DONOR_ON_X)], [(T, ANY)], [(0, 0)], id="one and an open one"),
    ],
)  # fmt: skip
def test_donors_are_paired_with_results(
    arguments: list[tuple[str, str]], results: list[tuple[str, str]], pairs: list[tuple[int, int]]
) -> None:
    assert list(donated_pairs(listed(module(arguments, results)))) == pairs


def test_a_result_that_does_not_exist() -> None:
    text = module([(T, "tf.aliasing_output = 1 : i32")], [(T, "")])
    with pytest.raises(AutoshardError, match="donated to result 1, the module has 1"):
        autoshard.plan(text.encode(), hardware="tpu-v5e")


def test_a_step_that_jax_lowers_on_a_mesh_carries_its_state() -> None:
    """JAX names no result where these have no sharding yet; it does on one device, and both give the same pairs."""

    def step(state: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        hidden = jnp.tanh(x @ state["in"])
        return jnp.sum(hidden @ state["out"]), {"in": state["in"] - x.T @ hidden, "out": state["out"] * 2}

    mesh = jax.sharding.AbstractMesh((4,), ("x",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    state = {name: jax.ShapeDtypeStruct((64, 64), jnp.float32) for name in ("in", "out")}
    traced = jax.jit(step, donate_argnums=0).trace(
        state, jax.ShapeDtypeStruct((32, 64), jnp.float32, sharding=split)
    )
    on_mesh = str(traced.lower(lowering_platforms=("tpu",)).compiler_ir())
    traced = jax.jit(step, donate_argnums=0).trace(state, jax.ShapeDtypeStruct((32, 64), jnp.float32))
    on_one = str(traced.lower(lowering_platforms=("tpu",)).compiler_ir())
    assert "jax.buffer_donor" in on_mesh and "tf.aliasing_output" not in on_mesh
    assert "tf.aliasing_output" in on_one
    pairs = ((1, 0), (2, 1))
    assert donated_pairs(listed(on_one, [("x", 4)])) == donated_pairs(listed(on_mesh)) == pairs
    plan = autoshard.plan(on_mesh.encode(), hardware="tpu-v5e")
    assert plan.carry == pairs
    assert all(
        plan.results[result].sharding == plan.arguments[argument].sharding for result, argument in pairs
    )


class TestStateThatNobodyNames:
    STEP = ([(T, ""), (W, ""), (T, "")], [(T, ""), (W, ""), ("tensor<4xf32>", "")])

    def test_most_results_have_types_of_arguments(self) -> None:
        (warning,) = warnings_of_state(listed(module(*self.STEP)))
        assert "3 of 3 results" in warning and "--carry" in warning

    def test_donation_says_what_is_state(self) -> None:
        arguments, results = self.STEP
        assert not warnings_of_state(listed(module([(T, DONOR), *arguments[1:]], results)))

    def test_one_result_is_no_state(self) -> None:
        assert not warnings_of_state(listed(module([(T, "")], [(T, "")])))

    def test_who_says_none_is_not_asked(self) -> None:
        text = module(*self.STEP).encode()
        found = {
            carry: autoshard.plan(text, hardware="tpu-v5e", carry=carry).warnings
            for carry in ("auto", "none")
        }
        assert len(found["auto"]) == len(found["none"]) + 1
