"""Training steps of one transformer that differ in one thing or two each: what logits, losses, optimizers and layers have in common.

    python experiments/fidelity/steps.py FOLDER [NAME...]

writes NAME.mlir.gz; jax and optax alone. Four blocks of 1024 columns, 256 texts of 512 tokens, 32000 words.
"""

import argparse
import gzip
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax import ShapeDtypeStruct as Shape

F32, BF16, I32 = jnp.float32, jnp.bfloat16, jnp.int32
BATCH, ROWS, WIDTH, HEADS, HIDDEN, LAYERS = 256, 512, 1024, 16, 4096, 4
HEAD = WIDTH // HEADS
SGD = optax.sgd(0.1)


@dataclass(frozen=True)
class Step:
    """`logits`: made in `dtype` and widened ("narrow"), or in float32; `loss`: labels "picked", by "optax", by "onehot", or "masked"."""

    dtype: Any = BF16
    logits: str = "narrow"
    loss: str = "picked"
    optimizer: Any = SGD
    centers: bool = False
    act: str = "gelu"
    grouped: bool = False
    positions: str = ""
    is_tied: bool = False
    remakes: bool = False
    scans: bool = False
    microbatches: int = 1
    norms_last: bool = False
    cap: float = 0
    z_loss: float = 0
    words: int = 32000


WIDE = Step(logits="wide")
STEPS = {
    "base": Step(),
    "wide": WIDE,
    "f32": Step(F32),
    "adamw": Step(optimizer=optax.adamw(1e-3)),
    "lntied": Step(centers=True, is_tied=True),
    "swi": Step(act="swiglu", positions="rotated", grouped=True),
    "remat": replace(WIDE, remakes=True),
    "scan": Step(scans=True, optimizer=optax.adamw(1e-3)),
    "scanremat": replace(WIDE, scans=True, remakes=True),
    "widetied": replace(WIDE, is_tied=True, loss="optax"),
    "f32adamw": Step(
        F32, loss="optax", optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    ),
    "soft": replace(WIDE, cap=30),
    "masked": replace(WIDE, loss="masked", optimizer=optax.adamw(1e-3)),
    "post": Step(norms_last=True, centers=True, loss="onehot"),
    "accum": replace(WIDE, microbatches=4),
    "ada": Step(optimizer=optax.adafactor(1e-3), positions="learned"),
    "z": replace(WIDE, z_loss=1e-4, loss="optax"),
    "relu32": Step(F32, act="relu", is_tied=True),
    "wide50": replace(WIDE, words=50257, is_tied=True),
    "swi32": Step(F32, act="swiglu", remakes=True, scans=True),
}


def norm(step: Step, x: Array, scale: Any) -> Array:
    wide = x.astype(F32)
    if step.centers:
        wide -= jnp.mean(wide, -1, keepdims=True)
    made = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale[0]
    return (made + scale[1] if step.centers else made).astype(x.dtype)


def rotated(x: Array) -> Array:
    angles = jnp.arange(ROWS)[:, None] * 1e4 ** (-jnp.arange(HEAD // 2) / (HEAD // 2))
    cos, sin = (each(angles)[:, None].astype(x.dtype) for each in (jnp.cos, jnp.sin))
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], -1)


def attention(step: Step, x: Array, w: Any) -> Array:
    q, k, v = (jnp.einsum("bsd,dhe->bshe", x, w[name].astype(step.dtype)) for name in "qkv")
    if step.positions == "rotated":
        q, k = rotated(q), rotated(k)
    if step.grouped:
        k, v = (jnp.repeat(one, HEADS // one.shape[2], 2) for one in (k, v))
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(F32) / HEAD**0.5
    scores = jnp.where(jnp.tril(jnp.ones((ROWS, ROWS), bool)), scores, -1e9)
    made = jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(scores).astype(step.dtype), v)
    return jnp.einsum("bqhe,hed->bqd", made, w["o"].astype(step.dtype))


def perceptron(step: Step, x: Array, w: Any) -> Array:
    hidden = x @ w["up"].astype(step.dtype)
    if step.act == "swiglu":
        hidden *= jax.nn.silu(x @ w["gate"].astype(step.dtype))
    else:
        hidden = jax.nn.relu(hidden) if step.act == "relu" else jax.nn.gelu(hidden, approximate=False)
    return hidden @ w["down"].astype(step.dtype)


def block(step: Step, x: Array, w: Any) -> Array:
    if step.norms_last:
        x = norm(step, x + attention(step, x, w), w["first"])
        return norm(step, x + perceptron(step, x, w), w["second"])
    x += attention(step, norm(step, x, w["first"]), w)
    return x + perceptron(step, norm(step, x, w["second"]), w)


def loss(step: Step, w: Any, ids: Array, labels: Array) -> Array:
    x = w["embedding"].astype(step.dtype)[ids]
    x = x + w["positions"].astype(step.dtype) if step.positions == "learned" else x

    def layer(x: Array, w: Any) -> Array:
        return block(step, x, w)

    layer = jax.checkpoint(layer) if step.remakes else layer
    if step.scans:
        x, _ = lax.scan(lambda x, w: (layer(x, w), None), x, w["blocks"])
    for one in () if step.scans else w["blocks"]:
        x = layer(x, one)
    x, head = norm(step, x, w["last"]), w["embedding"].T if step.is_tied else w["head"]
    logits = jnp.matmul(
        x, head.astype(step.dtype), preferred_element_type=F32 if step.logits == "wide" else None
    )
    logits = logits.astype(F32)
    logits = step.cap * jnp.tanh(logits / step.cap) if step.cap else logits
    if step.loss == "picked":
        found = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    elif step.loss == "onehot":
        found = -jnp.sum(jax.nn.one_hot(labels, step.words) * jax.nn.log_softmax(logits), -1)
    else:
        found = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
    if step.loss == "masked":
        is_kept = (labels >= 0).astype(F32)
        return jnp.sum(found * is_kept) / jnp.sum(is_kept)
    squares = jnp.mean(jax.nn.logsumexp(logits, -1) ** 2) if step.z_loss else 0.0
    return jnp.mean(found) + step.z_loss * squares


def lowered(step: Step) -> str:
    def update(w: Any, state: Any, ids: Array, labels: Array) -> Any:
        def gradient(ids: Array, labels: Array) -> Any:
            return jax.grad(lambda w: loss(step, w, ids, labels))(w)

        if step.microbatches > 1:
            zeros = jax.tree.map(jnp.zeros_like, w)
            made, _ = lax.scan(
                lambda sums, one: (jax.tree.map(jnp.add, sums, gradient(*one)), None), zeros, (ids, labels)
            )
        else:
            made = gradient(ids, labels)
        moved, state = step.optimizer.update(made, state, w)
        return optax.apply_updates(w, moved), state

    scale = (Shape((WIDTH,), F32),) * (1 + step.centers)
    heads = HEADS // 4 if step.grouped else HEADS
    shapes = {
        "q": (WIDTH, HEADS, HEAD),
        "k": (WIDTH, heads, HEAD),
        "v": (WIDTH, heads, HEAD),
        "o": (HEADS, HEAD, WIDTH),
    }
    shapes |= {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    shapes |= {"gate": (WIDTH, HIDDEN)} if step.act == "swiglu" else {}
    one = {name: Shape(shape, F32) for name, shape in shapes.items()} | {"first": scale, "second": scale}
    stacked = jax.tree.map(lambda each: Shape((LAYERS, *each.shape), F32), one)
    w = {
        "embedding": Shape((step.words, WIDTH), F32),
        "blocks": stacked if step.scans else [one] * LAYERS,
        "last": scale,
    }
    w |= {} if step.is_tied else {"head": Shape((WIDTH, step.words), F32)}
    w |= {"positions": Shape((ROWS, WIDTH), F32)} if step.positions == "learned" else {}
    parts = (step.microbatches,) if step.microbatches > 1 else ()
    ids = Shape((*parts, BATCH // step.microbatches, ROWS), I32)
    state = jax.eval_shape(step.optimizer.init, w)
    return jax.jit(update, donate_argnums=(0, 1)).lower(w, state, ids, ids).as_text()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *STEPS])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or STEPS:
        text = lowered(STEPS[name])
        (options.folder / f"{name}.mlir.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
