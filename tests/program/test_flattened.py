"""Rows as one dimension or as several: what XLA:TPU stores does not depend on it, and so neither does what is predicted.

Of nine training steps and forward passes of mixers, transformers and convnets both take the same to the byte (libtpu 0.0.52).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from autoshard import pipeline
from autoshard.baselines import baseline_choices
from tests.program.test_turned import mixer_text
from tests.programs.flattened import flattened
from tests.programs.lowering import array, lower, sgd

BATCH, ROWS, WIDTH, HIDDEN, WORDS = 512, 512, 1024, 4096, 32000


def norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def gelu(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=False)


def step(
    act: Callable[[jax.Array], jax.Array], *, picks: bool, has_bias: bool = False, dtype: Any = jnp.bfloat16
) -> str:
    """A training step of three blocks; the loss picks labels from logits, or adds squares up."""

    def loss(weights: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        for scale, up, down in weights["blocks"]:
            x = x + act(norm(x, scale) @ up.astype(dtype)) @ down.astype(dtype)
        x = norm(x, weights["scale"])
        if not picks:
            return jnp.sum(jnp.square(x.astype(jnp.float32)))
        logits = x @ weights["words"].astype(dtype)
        logits = logits + weights["bias"].astype(dtype) if has_bias else logits
        logs = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.mean(jnp.take_along_axis(logs, labels[..., None], -1))

    def update(weights: Any, x: jax.Array, labels: jax.Array) -> Any:
        return sgd(weights, jax.grad(loss)(weights, x, labels))

    block = array(WIDTH), array(WIDTH, HIDDEN), array(HIDDEN, WIDTH)
    weights = {
        "blocks": [block] * 3,
        "scale": array(WIDTH),
        "words": array(WIDTH, WORDS),
        "bias": array(WORDS),
    }
    x, labels = array(BATCH, ROWS, WIDTH, dtype=dtype), array(BATCH, ROWS, dtype=jnp.int32)
    return lower(update, weights, x, labels, donate=(0,))


def peaks(text: str, hardware: str) -> dict[str, int]:
    """Of data parallelism, and of that with weights split."""
    mesh = None if "sdy.mesh" in text else (("x", 4), ("y", 4))
    request = pipeline.Request(mesh=mesh, hardware=hardware, topology=(4, 4), memory_bytes=None)
    loaded = pipeline.load_module(text.encode(), request)
    priced = pipeline.price(loaded)
    choices = baseline_choices(loaded, priced)
    return {name: priced.expected_peak(choice) for name, choice, _ in choices[1:] if choice is not None}


@pytest.mark.parametrize("hardware", ["tpu-v5e", "tpu-v6e"])
@pytest.mark.parametrize("is_shared", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize(
    ("act", "loss", "dtype"),
    [
        (gelu, "labels", jnp.bfloat16),
        (gelu, "biased", jnp.bfloat16),
        (jax.nn.silu, "labels", jnp.bfloat16),
        (jnp.tanh, "biased", jnp.float32),
        (jax.nn.gelu, "squares", jnp.bfloat16),
    ],
    ids=["gelu", "gelu-biased", "silu", "tanh-float32", "squares"],
)
def test_training_steps(act: Any, loss: str, dtype: Any, is_shared: bool, hardware: str) -> None:
    text = step(act, picks=loss != "squares", has_bias=loss == "biased", dtype=dtype)
    assert peaks(flattened(text, is_shared=is_shared), hardware) == peaks(text, hardware)


@pytest.mark.parametrize("is_shared", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize("turns", [False, True])
def test_mixers(turns: bool, is_shared: bool) -> None:
    text = mixer_text(4, turns=turns, images=1024, width=512, dtype="bf16", is_gelu=True)
    assert peaks(flattened(text, is_shared=is_shared), "tpu-v5e") == peaks(text, "tpu-v5e")


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("hardware", "compiled", "ratio"),
    [("tpu-v5e", 4.995e9, 0.97), ("tpu-v5p", 4.96e9, 0.95), ("tpu-v6e", 4.49e9, 0.87)],
)
def test_what_goes_back_to_float32_logits_is_there_in_bfloat16_alone(
    hardware: str, compiled: float, ratio: float, has_bias: bool
) -> None:
    """Both products that read it take it so, and exponentials of a loss are made once (libtpu 0.0.52, the best plan for 4 x 4)."""
    text = step(jnp.tanh, picks=True, has_bias=has_bias, dtype=jnp.float32)
    assert compiled / peaks(text, hardware)["fully sharded"] == pytest.approx(ratio, abs=0.03)
