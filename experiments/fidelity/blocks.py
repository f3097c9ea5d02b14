"""One wide language model whose layers are built in many ways: what is projected together, gated, normed and shared.

    JAX_PLATFORMS=cpu python experiments/fidelity/blocks.py FOLDER [NAME...]

Six layers of width 2048, 64 sequences of 1024 tokens of 32000 words, bfloat16 on float32 weights, AdamW, state donated. Lowered with jax
0.10.2 and optax 0.2.8 on abstract shapes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from jax import lax
from policies import picked_loss, stepped
from programs import BF16, F32, I32, Program, Reader, Tree, lower, named

WORDS, WIDTH, HEADS, LAYERS, BATCH, LENGTH = 32000, 2048, 16, 6, 64, 1024
SIZE = WIDTH // HEADS
SEEN = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))


@dataclass(frozen=True)
class Block:
    """How a layer is built.

    Attributes:
        groups: of queries, which share keys; `rank`: of the matrix behind keys and values, 0 for none.
        joins: whether one product makes queries, keys and values, and one what is gated and its gates.
        gated: with what hidden values are multiplied; `factor`: how many there are of a column.
        place: of norms: "before" the work on them, "after" the sum, or "both" sides of the work.
    """

    groups: int = 4
    rank: int = 0
    joins: bool = False
    gated: str = "silu"
    factor: int = 3
    place: str = "before"
    centers: bool = False
    biased: bool = False
    rotates: bool = True
    norms_heads: bool = False
    is_parallel: bool = False
    made_again: bool = False
    is_scanned: bool = False
    experts: int = 0


def normed(b: Block, w: Reader, name: str, x: Any) -> Any:
    wide = x.astype(F32)
    wide = wide - wide.mean(-1, keepdims=True) if b.centers else wide
    made = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * w(name, x.shape[-1])
    return (made + w(name + "_bias", x.shape[-1]) if b.centers else made).astype(x.dtype)


def projected(b: Block, w: Reader, name: str, x: Any, columns: int) -> Any:
    y = x @ w(name, x.shape[-1], columns).astype(x.dtype)
    return y + w(name + "_bias", columns).astype(x.dtype) if b.biased else y


def several(b: Block, w: Reader, names: str, x: Any, columns: list[int]) -> list[Any]:
    if b.joins:
        made = projected(b, w, names, x, sum(columns))
        return jnp.split(made, [sum(columns[: n + 1]) for n in range(len(columns) - 1)], -1)
    return [projected(b, w, name, x, count) for name, count in zip(names, columns, strict=True)]


def rotated(x: Any) -> Any:
    angles = jnp.arange(LENGTH)[:, None] * 1e4 ** (-jnp.arange(SIZE // 2) / (SIZE // 2))
    cos, sin = (each(angles)[:, None] for each in (jnp.cos, jnp.sin))
    first, second = jnp.split(x.astype(F32), 2, -1)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], -1).astype(x.dtype)


def attended(b: Block, w: Reader, x: Any) -> Any:
    shared = b.groups * SIZE
    if b.rank:
        low = normed(b, w, "low", projected(b, w, "l", x, b.rank))
        q = projected(b, w, "q", x, WIDTH)
        k, v = several(b, w, "kv", low, [shared, shared])
    else:
        q, k, v = several(b, w, "qkv", x, [WIDTH, shared, shared])
    q = q.reshape(BATCH, LENGTH, HEADS, SIZE)
    k, v = (one.reshape(BATCH, LENGTH, b.groups, SIZE) for one in (k, v))
    if b.norms_heads:
        q, k = normed(b, w, "qn", q), normed(b, w, "kn", k)
    if b.rotates:
        q, k = rotated(q), rotated(k)
    q = q.reshape(BATCH, LENGTH, b.groups, HEADS // b.groups, SIZE)
    scores = jnp.einsum("bqgje,bkge->bgjqk", q, k).astype(F32) / SIZE**0.5
    p = jax.nn.softmax(jnp.where(SEEN, scores, -1e30), -1).astype(x.dtype)
    mixed = jnp.einsum("bgjqk,bkge->bqgje", p, v).reshape(BATCH, LENGTH, WIDTH)
    return projected(b, w, "o", mixed, WIDTH)


def hidden(b: Block, w: Reader, x: Any) -> Any:
    count = b.factor * WIDTH
    if b.experts:
        return mixture(b, w, x)
    if b.gated:
        gate, up = several(b, w, "gu", x, [count, count])
        return projected(b, w, "d", getattr(jax.nn, b.gated)(gate) * up, WIDTH)
    return projected(b, w, "d", jax.nn.gelu(projected(b, w, "u", x, count)), WIDTH)


def mixture(b: Block, w: Reader, x: Any) -> Any:
    """All experts on all tokens, weighted by the two best scores."""
    scores = jax.nn.softmax((x @ w("r", WIDTH, b.experts).astype(x.dtype)).astype(F32), -1)
    least = lax.top_k(scores, 2)[0][..., -1:]
    weights = jnp.where(scores >= least, scores, 0.0).astype(x.dtype)
    gate, up = (jnp.einsum("btd,edf->betf", x, w(n, b.experts, WIDTH, WIDTH).astype(x.dtype)) for n in "gu")
    out = jnp.einsum(
        "betf,efd->betd", jax.nn.silu(gate) * up, w("d", b.experts, WIDTH, WIDTH).astype(x.dtype)
    )
    return jnp.einsum("betd,bte->btd", out, weights)


def layer(b: Block, w: Reader, x: Any) -> Any:
    if b.is_parallel:
        h = normed(b, w, "first", x)
        return x + attended(b, w, h) + hidden(b, w, h)
    for name, work in (("first", attended), ("second", hidden)):
        h = normed(b, w, name, x) if b.place != "after" else x
        h = work(b, w, h)
        h = normed(b, w, name + "_after", h) if b.place == "both" else h
        x = normed(b, w, name, x + h) if b.place == "after" else x + h
    return x


def trained(b: Block, optimizer: optax.GradientTransformation | None = None) -> Program:
    one = Reader()
    jax.eval_shape(lambda x: layer(b, one, x), Shape((BATCH, LENGTH, WIDTH), BF16))

    def loss(w: Tree, ids: Any, labels: Any) -> Any:
        x = w["table"].astype(BF16)[ids]

        def run(x: Any, mine: Tree) -> Any:
            return layer(b, Reader(mine), x)

        run = jax.checkpoint(run) if b.made_again else run
        if b.is_scanned:
            x, _ = lax.scan(lambda x, mine: (run(x, mine), None), x, w["layers"])
        else:
            for mine in w["layers"]:
                x = run(x, mine)
        return picked_loss(w, x, labels)

    layers: Any = [one.shapes] * LAYERS
    if b.is_scanned:
        layers = {name: Shape((LAYERS, *each.shape), F32) for name, each in one.shapes.items()}
    w = {
        "layers": layers,
        "table": Shape((WORDS, WIDTH), F32),
        "norm": Shape((WIDTH,), F32),
        "head": Shape((WIDTH, WORDS), F32),
    }
    ids = Shape((BATCH, LENGTH), I32)
    return stepped(loss, w, optimizer or optax.adamw(1e-3), ids, ids)


PLAIN = Block(groups=HEADS, gated="", factor=4, centers=True, biased=True, rotates=False)
BLOCKS: dict[str, Block] = {
    "llama": Block(),
    "joined": Block(joins=True),
    "all_heads": Block(groups=HEADS),
    "one_head": Block(groups=1),
    "low_rank": Block(groups=HEADS, rank=512),
    "normed_heads": Block(norms_heads=True),
    "both_sides": Block(place="both", gated="gelu"),
    "relu_gated": Block(gated="relu"),
    "gpt": PLAIN,
    "gpt_joined": replace(PLAIN, joins=True),
    "unbiased": replace(PLAIN, biased=False, centers=False),
    "after": replace(PLAIN, place="after"),
    "parallel": Block(is_parallel=True, gated="", factor=4),
    "parallel_gated": Block(is_parallel=True),
    "mixture": Block(experts=4),
    "again": Block(made_again=True),
    "scanned": Block(is_scanned=True),
    "scanned_again": Block(is_scanned=True, made_again=True),
    "gpt_again": replace(PLAIN, made_again=True),
}


def programs() -> Iterator[Callable[[], Program]]:
    for name, block in BLOCKS.items():
        yield named(name, trained, block)
    yield named("llama_sgd", trained, Block(), optax.sgd(1e-3))
    yield named(
        "llama_clipped", trained, Block(), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    )


if __name__ == "__main__":
    lower(__doc__, [*programs()], compressed=True, for_tpu=True)
