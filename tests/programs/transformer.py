"""Decoder-only transformers: training, with unrolled or scanned layers, and decoding with a KV cache."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.programs.lowering import adam, adam_state, array, cross_entropy, lower

LAYERS, BATCH, SEQUENCE, WIDTH, HEADS, HIDDEN, VOCABULARY = 2, 8, 16, 32, 4, 64, 64
HEAD_WIDTH = WIDTH // HEADS


def layer_specs(*stack: int, dtype: Any = jnp.float32) -> Any:
    """Weights of one layer, or of several stacked along leading dimensions."""
    shapes = {
        "attention_norm": (WIDTH,),
        "q": (WIDTH, HEADS, HEAD_WIDTH),
        "k": (WIDTH, HEADS, HEAD_WIDTH),
        "v": (WIDTH, HEADS, HEAD_WIDTH),
        "o": (HEADS, HEAD_WIDTH, WIDTH),
        "mlp_norm": (WIDTH,),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    return {name: array(*stack, *shape, dtype=dtype) for name, shape in shapes.items()}


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    x32 = x.astype(jnp.float32)
    return (x32 * lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def attention(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """`[batch, query, head, width]` attended by `[batch, key, head, width]`."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / HEAD_WIDTH**0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9)).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def layer(weights: Any, x: jax.Array, mask: jax.Array, compute: Any) -> jax.Array:
    w = {
        name: weight if name.endswith("norm") else weight.astype(compute) for name, weight in weights.items()
    }
    normed = rms_norm(x, w["attention_norm"])
    q, k, v = (jnp.einsum("bsd,dhe->bshe", normed, w[name]) for name in ("q", "k", "v"))
    x = x + jnp.einsum("bshe,hed->bsd", attention(q, k, v, mask), w["o"])
    hidden = jax.nn.gelu(rms_norm(x, w["mlp_norm"]) @ w["up"])
    return x + hidden @ w["down"]


def train(scan: bool, compute: Any) -> str:
    def loss(parameters: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        mask = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
        x = parameters["embedding"].astype(compute)[tokens]
        if scan:

            @jax.checkpoint
            def body(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
                return layer(weights, x, mask, compute), None

            x, _ = lax.scan(body, x, parameters["layers"])
        else:
            for weights in parameters["layers"]:
                x = layer(weights, x, mask, compute)
        x = rms_norm(x, parameters["final_norm"])
        return cross_entropy(x @ parameters["embedding"].astype(compute).T, targets)

    def step(state: Any, tokens: jax.Array, targets: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(state["params"], tokens, targets)
        return adam(state, gradients), value

    parameters = {
        "embedding": array(VOCABULARY, WIDTH),
        "layers": layer_specs(LAYERS) if scan else [layer_specs() for _ in range(LAYERS)],
        "final_norm": array(WIDTH),
    }
    tokens = array(BATCH, SEQUENCE, dtype=jnp.int32)
    return lower(step, adam_state(parameters), tokens, tokens, donate=[0])


def decode() -> str:
    """One token for every sequence of the batch: caches of every layer updated in place at `position`."""

    def step(parameters: Any, cache: Any, token: jax.Array, position: jax.Array) -> tuple[Any, jax.Array]:
        x = parameters["embedding"][token][:, None, :]
        mask = jnp.arange(SEQUENCE) <= position
        new_cache: list[Any] = []
        for w, old in zip(parameters["layers"], cache, strict=True):
            normed = rms_norm(x, w["attention_norm"])
            q, k, v = (jnp.einsum("bsd,dhe->bshe", normed, w[name]) for name in ("q", "k", "v"))
            keys = lax.dynamic_update_slice(old["k"], k, (0, position, 0, 0))
            values = lax.dynamic_update_slice(old["v"], v, (0, position, 0, 0))
            new_cache.append({"k": keys, "v": values})
            x = x + jnp.einsum("bshe,hed->bsd", attention(q, keys, values, mask), w["o"])
            x = x + jax.nn.gelu(rms_norm(x, w["mlp_norm"]) @ w["up"]) @ w["down"]
        logits = rms_norm(x, parameters["final_norm"])[:, 0].astype(jnp.float32) @ parameters[
            "embedding"
        ].T.astype(jnp.float32)
        return new_cache, jnp.argmax(logits, axis=-1).astype(jnp.int32)

    bf16 = jnp.bfloat16
    parameters = {
        "embedding": array(VOCABULARY, WIDTH, dtype=bf16),
        "layers": [layer_specs(dtype=bf16) for _ in range(LAYERS)],
        "final_norm": array(WIDTH, dtype=bf16),
    }
    entry = array(BATCH, SEQUENCE, HEADS, HEAD_WIDTH, dtype=bf16)
    cache = [{"k": entry, "v": entry} for _ in range(LAYERS)]
    i32 = jnp.int32
    return lower(step, parameters, cache, array(BATCH, dtype=i32), array(dtype=i32), donate=[1])
