"""Arguments that hold the batch, found in real programs."""

import gzip
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard.program import batch_arguments
from tests.program.modules import program_of
from tests.programs import PROGRAMS
from tests.programs.lowering import array, lower

BATCH = {
    "mlp_train": ["x", "labels"],
    "transformer_train": ["tokens", "targets"],
    "transformer_train_scan": ["tokens", "targets"],
    "decode_step": ["token"],
    "convnet_train": ["images", "labels"],
    "moe_train": ["x", "y"],
    "moe_sorted_train": ["x", "y"],
    "embedding_train": ["tokens", "targets"],
    "rnn_train": ["xs", "y"],  # a loop steps through the leading dimension of xs, time
    "fixed_point": [],
    "fft_mixer": ["x"],
    "dropout_train": ["x"],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_batch_arguments(name: str) -> None:
    """Never parameters or state, and all that shares the leading dimension of the work."""
    program = program_of(PROGRAMS[name](), axes=[("x", 4), ("y", 2)])
    assert [batch.argument.name for batch in batch_arguments(program)] == BATCH[name]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "mlp_mixer_l16_timm_fwd",
            ["images"],
        ),  # products of tokens keep the 196 patches, which lead their weights
        ("segformer_b5_torchax_fwd", ["batch['images']"]),  # 256 images, and weights of 256 rows
    ],
)
def test_sizes_that_parameters_have_too(shared: Path, name: str, expected: list[str]) -> None:
    text = gzip.decompress((shared / "models" / f"{name}.mlir.gz").read_bytes()).decode()
    program = program_of(text, axes=[("x", 4), ("y", 4)])
    assert [batch.argument.name for batch in batch_arguments(program)] == expected


@pytest.mark.parametrize(("dtype", "together"), [("i32", True), ("f32", False)])
def test_a_tower_of_short_texts(dtype: str, together: bool) -> None:
    """Queries of a twentieth of the passages' length: indices are no parameters, what is as long by chance may be."""
    given, made = f"tensor<8x2x{dtype}>", "tensor<8x4xf32>, tensor<8x4xbf16>"
    cast = f"stablehlo.convert %q : ({given}) -> tensor<8x2xbf16>"
    text = f"""sdy.mesh @mesh = <["x"=2]>
      func.func @main(%p: tensor<8x40xf32>, %q: {given}, %w: tensor<40x4xf32>, %v: tensor<2x4xbf16>) -> ({made}) {{
        %0 = stablehlo.dot_general %p, %w, contracting_dims = [1] x [0] : (tensor<8x40xf32>, tensor<40x4xf32>) -> tensor<8x4xf32>
        %1 = {cast}
        %2 = stablehlo.dot_general %1, %v, contracting_dims = [1] x [0] : (tensor<8x2xbf16>, tensor<2x4xbf16>) -> tensor<8x4xbf16>
        return %0, %2 : {made}
      }}"""
    found = [batch.argument.name for batch in batch_arguments(program_of(text))]
    assert found == (["arg0", "arg1"] if together else ["arg0"])


def test_no_arguments() -> None:
    """A program without any has no batch."""
    text = """sdy.mesh @mesh = <["x"=2]>
      func.func @main() -> tensor<4xf32> {
        %0 = stablehlo.constant dense<1.0> : tensor<4xf32>
        return %0 : tensor<4xf32>
      }"""
    assert batch_arguments(program_of(text)) == ()


def test_work_on_carried_state() -> None:
    """The batch enters the state that a loop carries, whose work is read before it is written."""
    text = """sdy.mesh @mesh = <["x"=2]>
      func.func @main(%x: tensor<8x4xf32>, %w: tensor<4x4xf32>) -> (tensor<8x4xf32>, tensor<4x4xf32>) {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %three = stablehlo.constant dense<3> : tensor<i32>
        %start = stablehlo.constant dense<0.0> : tensor<8x4xf32>
        %0:2 = stablehlo.while(%i = %zero, %h = %start) : tensor<i32>, tensor<8x4xf32>
          cond {
            %go = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %go : tensor<i1>
          } do {
            %product = stablehlo.dot_general %h, %w, contracting_dims = [1] x [0] : (tensor<8x4xf32>, tensor<4x4xf32>) -> tensor<8x4xf32>
            %sum = stablehlo.add %product, %x : tensor<8x4xf32>
            %next = stablehlo.add %i, %one : tensor<i32>
            stablehlo.return %next, %sum : tensor<i32>, tensor<8x4xf32>
          }
        %gram = stablehlo.dot_general %x, %x, contracting_dims = [0] x [0] : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
        return %0#1, %gram : tensor<8x4xf32>, tensor<4x4xf32>
      }"""
    assert [batch.argument.type.shape for batch in batch_arguments(program_of(text))] == [(8, 4)]


@pytest.mark.parametrize("count", [4, 8])
def test_state_that_nothing_donates(count: int) -> None:
    """Dense experts are in all the work that the batch is in, and their gate's too; they are given back, the batch is not.

    Nor are they the batch where there are as many of them.
    """
    experts, batch, made = f"tensor<{count}x8x8xf32>", "tensor<8x8xf32>", f"tensor<8x{count}x8xf32>"
    text = f"""sdy.mesh @mesh = <["x"=2]>
      func.func @main(%w: {experts}, %m: {experts}, %x: {batch}, %g: {batch}) -> ({experts}, {experts}, {made}) {{
        %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : ({batch}, {experts}) -> {made}
        %1 = stablehlo.dot_general %g, %m, contracting_dims = [1] x [1] : ({batch}, {experts}) -> {made}
        %2 = stablehlo.add %0, %1 : {made}
        %3 = stablehlo.add %w, %m : {experts}
        return %3, %m, %2 : {experts}, {experts}, {made}
      }}"""
    assert [batch.argument.name for batch in batch_arguments(program_of(text))] == ["arg2", "arg3"]


def test_caches_that_nothing_donates() -> None:
    """They are given back, and have the batch along with what is read."""
    cache, new = "tensor<8x32x16xf32>", "tensor<8x1x16xf32>"
    indices = "tensor<i32>, tensor<i32>, tensor<i32>"
    text = f"""sdy.mesh @mesh = <["x"=2]>
      func.func @main(%k: {cache}, %v: {cache}, %x: {new}, %w: tensor<16x16xf32>) -> ({cache}, {cache}, {new}) {{
        %i = stablehlo.constant dense<0> : tensor<i32>
        %q = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : ({new}, tensor<16x16xf32>) -> {new}
        %k2 = stablehlo.dynamic_update_slice %k, %q, %i, %i, %i : ({cache}, {new}, {indices}) -> {cache}
        %v2 = stablehlo.dynamic_update_slice %v, %q, %i, %i, %i : ({cache}, {new}, {indices}) -> {cache}
        %s = stablehlo.dot_general %q, %k2, batching_dims = [0] x [0], contracting_dims = [2] x [2] : ({new}, {cache}) -> tensor<8x1x32xf32>
        %o = stablehlo.dot_general %s, %v2, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<8x1x32xf32>, {cache}) -> {new}
        return %k2, %v2, %o : {cache}, {cache}, {new}
      }}"""
    assert [batch.argument.name for batch in batch_arguments(program_of(text))] == ["arg0", "arg1", "arg2"]


def _of_microbatches(weights: Any, x: jax.Array) -> jax.Array:
    parts = x.reshape(8, x.shape[0] // 8, *x.shape[1:])
    made, _ = lax.scan(
        lambda total, part: (total + weights.T @ _sum(part @ weights), None), _zeros(weights), parts
    )
    return made


def _of_rows(weights: Any, x: jax.Array) -> jax.Array:
    made = (x.reshape(-1, x.shape[-1]) @ weights).reshape(x.shape)
    return jnp.sum(jnp.tanh(made), 1)


def _in_parts(weights: Any, x: jax.Array) -> list[jax.Array]:
    return [jnp.tanh(part @ weights) for part in x.reshape(4, x.shape[0] // 4, *x.shape[1:])]


def _sum(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.tanh(x), (0, 1))[:, None]


def _zeros(weights: jax.Array) -> jax.Array:
    return jnp.zeros((weights.shape[1], 1), weights.dtype)


@pytest.mark.parametrize("function", [_of_microbatches, _of_rows, _in_parts])
def test_a_batch_that_is_merged_with_rows_or_split(function: Any) -> None:
    """64 sequences of 32, not the positions: of merged rows what is major, of a split batch all."""
    text = lower(function, array(256, 256), array(64, 32, 256))
    (found,) = batch_arguments(program_of(text, axes=[("x", 4)]))
    assert (found.argument.type.shape, found.dim) == ((64, 32, 256), 0)
