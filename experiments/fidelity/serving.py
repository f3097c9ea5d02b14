"""One decoder served in many ways: caches, loops and what is done to weights and words, four layers each.

    JAX_PLATFORMS=cpu python experiments/fidelity/serving.py FOLDER [NAME...]

Width 2048, 16 heads of 128 (4 of keys), 64 sequences with caches of 4096, 32000 words, bfloat16 weights; caches are donated. Lowered with
jax 0.10.2 on abstract shapes.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax
from programs import BF16, F32, I32, Program, Tree, lower

WORDS, WIDTH, HEADS, KEYS, HEAD, HIDDEN, LAYERS, BATCH, ROOM = 32000, 2048, 16, 4, 128, 8192, 4, 64, 4096
I8 = jnp.int8


def layer_weights() -> Tree:
    return {
        "q": Shape((WIDTH, HEADS, HEAD), BF16),
        "k": Shape((WIDTH, KEYS, HEAD), BF16),
        "v": Shape((WIDTH, KEYS, HEAD), BF16),
        "o": Shape((HEADS, HEAD, WIDTH), BF16),
        "gate": Shape((WIDTH, HIDDEN), BF16),
        "up": Shape((WIDTH, HIDDEN), BF16),
        "down": Shape((HIDDEN, WIDTH), BF16),
        "first": Shape((WIDTH,), BF16),
        "second": Shape((WIDTH,), BF16),
    }


def weights(**others: Any) -> Tree:
    table = Shape((WORDS, WIDTH), BF16)
    return {
        "layers": [layer_weights() for _ in range(LAYERS)],
        "table": table,
        "norm": Shape((WIDTH,), BF16),
        **others,
    }


def caches(room: int = ROOM, batch: int = BATCH, dtype: Any = BF16) -> Tree:
    one = Shape((batch, room, KEYS, HEAD), dtype)
    return [{"k": one, "v": one} for _ in range(LAYERS)]


def stacked(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: Shape((LAYERS, *x.shape), x.dtype), tree)


def norm(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(BF16) * scale


def rotated(x: Any, at: Any) -> Any:
    """`at`: [batch, length]."""
    turns = at[..., None] * 10000.0 ** (-jnp.arange(0, HEAD, 2) / HEAD)
    cos, sin = (f(turns)[:, :, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attended(q: Any, k: Any, v: Any, mask: Any) -> Any:
    grouped = q.reshape(*q.shape[:2], KEYS, HEADS // KEYS, HEAD)
    scores = jnp.einsum("bqkgh,bskh->bkgqs", grouped, k, preferred_element_type=F32) / HEAD**0.5
    p = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e30), -1).astype(BF16)
    return jnp.einsum("bkgqs,bskh->bqkgh", p, v).reshape(q.shape)


def perceptron(w: Tree, x: Any) -> Any:
    h = norm(x, w["second"])
    return x + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]


def projected(w: Tree, x: Any, at: Any) -> Any:
    h = norm(x, w["first"])
    q, k, v = (jnp.einsum("btd,dhe->bthe", h, w[name]) for name in "qkv")
    return rotated(q, at), rotated(k, at), v


def written(cache: Any, new: Any, at: Any) -> Any:
    """One position for all sequences."""
    return lax.dynamic_update_slice(cache, new.astype(cache.dtype), (0, at, 0, 0))


def layer_step(w: Tree, cache: Tree, x: Any, at: Any) -> Any:
    count = x.shape[1]
    places = at + jnp.arange(count)[None]
    q, k, v = projected(w, x, jnp.broadcast_to(places, x.shape[:2]))
    cache = {"k": written(cache["k"], k, at), "v": written(cache["v"], v, at)}
    mask = jnp.arange(cache["k"].shape[1])[None, None] <= places[:, :, None]
    out = attended(
        q,
        cache["k"].astype(BF16),
        cache["v"].astype(BF16),
        jnp.broadcast_to(mask, (x.shape[0], *mask.shape[1:])),
    )
    return perceptron(w, x + jnp.einsum("bqhe,hed->bqd", out, w["o"])), cache


def run_layers(w: Tree, kept: Tree, x: Any, at: Any) -> Any:
    found = []
    for layer, cache in zip(w["layers"], kept, strict=True):
        x, cache = layer_step(layer, cache, x, at)
        found.append(cache)
    return norm(x, w["norm"]), found


def logits(w: Tree, x: Any) -> Any:
    return jnp.einsum("btd,vd->btv", x, w["table"], preferred_element_type=F32)


WORD, AT = Shape((BATCH, 1), I32), Shape((), I32)


def decode() -> Program:
    """One word, a cache for each layer, all sequences at one position."""

    def step(kept: Tree, w: Tree, word: Any, at: Any) -> Any:
        x, kept = run_layers(w, kept, w["table"][word], at)
        return kept, logits(w, x)[:, 0].argmax(-1)

    return step, (caches(), weights(), WORD, AT), (0,)


def decode_ragged() -> Program:
    """Each sequence at a position of its own: caches are scattered into."""

    def step(kept: Tree, w: Tree, word: Any, at: Any) -> Any:
        x, rows, found = w["table"][word], jnp.arange(BATCH), []
        for layer, cache in zip(w["layers"], kept, strict=True):
            q, k, v = projected(layer, x, at[:, None])
            cache = {"k": cache["k"].at[rows, at].set(k[:, 0]), "v": cache["v"].at[rows, at].set(v[:, 0])}
            out = attended(q, cache["k"], cache["v"], (jnp.arange(ROOM)[None] <= at[:, None])[:, None])
            x = perceptron(layer, x + jnp.einsum("bqhe,hed->bqd", out, layer["o"]))
            found.append(cache)
        return found, logits(w, norm(x, w["norm"]))[:, 0]

    return step, (caches(), weights(), WORD, Shape((BATCH,), I32)), (0,)


def of_stacks(step: Callable[..., Any]) -> Program:
    """Of a step that is given weights and caches of all layers as stacks."""
    w = weights()
    w["layers"] = stacked(layer_weights())
    return step, (stacked(caches()[0]), w, WORD, AT), (0,)


def decode_scanned() -> Program:
    """Stacked weights and caches, the layers a scan."""

    def step(kept: Tree, w: Tree, word: Any, at: Any) -> Any:
        def body(x: Any, one: Any) -> Any:
            return layer_step(*one, x, at)

        x, kept = lax.scan(body, w["table"][word], (w["layers"], kept))
        return kept, logits(w, norm(x, w["norm"]))[:, 0]

    return of_stacks(step)


def decode_carried() -> Program:
    """The stacked cache is carried through the scan and written at the layer."""

    def step(kept: Tree, w: Tree, word: Any, at: Any) -> Any:
        def body(carry: Any, one: Any) -> Any:
            x, kept, number = carry
            cache = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, number, 0, keepdims=False), kept)
            x, cache = layer_step(one, cache, x, at)
            kept = jax.tree.map(lambda a, b: lax.dynamic_update_index_in_dim(a, b, number, 0), kept, cache)
            return (x, kept, number + 1), None

        (x, kept, _), _ = lax.scan(body, (w["table"][word], kept, 0), w["layers"])
        return kept, logits(w, norm(x, w["norm"]))[:, 0]

    return of_stacks(step)


def decode_narrow_cache() -> Program:
    """Keys and values kept in eight bits."""

    def step(kept: Tree, w: Tree, word: Any, at: Any) -> Any:
        x, kept = run_layers(w, kept, w["table"][word], at)
        return kept, logits(w, x)[:, 0]

    return step, (caches(dtype=jnp.float8_e4m3fn), weights(), WORD, AT), (0,)


def decode_narrow_weights() -> Program:
    """Weights in eight bits with a scale for each column, widened where they are read."""

    def widened(narrow: Tree, scales: Tree) -> Tree:
        return jax.tree.map(lambda a, s: a.astype(BF16) * s if a.dtype == I8 else a, narrow, scales)

    def step(kept: Tree, narrow: Tree, scales: Tree, word: Any, at: Any) -> Any:
        w = {**narrow, "layers": [widened(a, s) for a, s in zip(narrow["layers"], scales, strict=True)]}
        x, kept = run_layers(w, kept, w["table"][word], at)
        return kept, logits(w, x)[:, 0]

    w = weights()
    narrow = {**w, "layers": [
        {name: Shape(x.shape, I8 if len(x.shape) > 1 else BF16) for name, x in layer.items()} for layer in w["layers"]
    ]}  # fmt: skip
    scales = [
        {name: Shape(x.shape[-1:] if len(x.shape) > 1 else (1,), BF16) for name, x in layer.items()}
        for layer in w["layers"]
    ]
    return step, (caches(), narrow, scales, WORD, AT), (0,)


def decode_window() -> Program:
    """A ring of the last 1024 positions."""

    def step(kept: Tree, w: Tree, word: Any, at: Any) -> Any:
        x, found = w["table"][word], []
        place = jnp.mod(at, 1024)
        for layer, cache in zip(w["layers"], kept, strict=True):
            q, k, v = projected(layer, x, jnp.full((BATCH, 1), at))
            cache = {"k": written(cache["k"], k, place), "v": written(cache["v"], v, place)}
            mask = (jnp.arange(1024) <= at)[None, None]
            out = attended(q, cache["k"], cache["v"], jnp.broadcast_to(mask, (BATCH, 1, 1024)))
            x = perceptron(layer, x + jnp.einsum("bqhe,hed->bqd", out, layer["o"]))
            found.append(cache)
        return found, logits(w, norm(x, w["norm"]))[:, 0]

    return step, (caches(1024), weights(), WORD, AT), (0,)


def decode_paged() -> Program:
    """Caches in pages of 64 positions, which each sequence's table names."""

    def step(kept: Tree, w: Tree, pages: Any, word: Any, at: Any) -> Any:
        x, found = w["table"][word], []
        page, place = jnp.take_along_axis(pages, (at // 64)[:, None], 1)[:, 0], at % 64
        for layer, cache in zip(w["layers"], kept, strict=True):
            q, k, v = projected(layer, x, at[:, None])
            cache = {
                "k": cache["k"].at[page, place].set(k[:, 0]),
                "v": cache["v"].at[page, place].set(v[:, 0]),
            }
            k, v = (cache[name][pages].reshape(BATCH, ROOM, KEYS, HEAD) for name in "kv")
            out = attended(q, k, v, (jnp.arange(ROOM)[None] <= at[:, None])[:, None])
            x = perceptron(layer, x + jnp.einsum("bqhe,hed->bqd", out, layer["o"]))
            found.append(cache)
        return found, logits(w, norm(x, w["norm"]))[:, 0]

    one = Shape((BATCH * ROOM // 64, 64, KEYS, HEAD), BF16)
    kept = [{"k": one, "v": one} for _ in range(LAYERS)]
    return step, (kept, weights(), Shape((BATCH, ROOM // 64), I32), WORD, Shape((BATCH,), I32)), (0,)


def verified() -> Program:
    """Eight drafted words at once, as many accepted as agree."""

    def step(kept: Tree, w: Tree, words: Any, at: Any) -> Any:
        x, kept = run_layers(w, kept, w["table"][words], at)
        said = logits(w, x).argmax(-1)
        agree = jnp.cumprod((said[:, :-1] == words[:, 1:]).astype(I32), 1)
        return kept, said, agree.sum(1)

    return step, (caches(), weights(), Shape((BATCH, 8), I32), AT), (0,)


def beams() -> Program:
    """Four beams of each sequence: the best of all are kept, with their caches."""

    def step(kept: Tree, scores: Any, w: Tree, word: Any, at: Any) -> Any:
        x, kept = run_layers(w, kept, w["table"][word], at)
        p = jax.nn.log_softmax(logits(w, x)[:, 0]).reshape(BATCH // 4, 4 * WORDS)
        total = (scores.reshape(-1, 4, 1) + p.reshape(-1, 4, WORDS)).reshape(BATCH // 4, 4 * WORDS)
        best, where = lax.top_k(total, 4)
        rows = (where // WORDS + 4 * jnp.arange(BATCH // 4)[:, None]).reshape(-1)
        return jax.tree.map(lambda a: a[rows], kept), best.reshape(-1), (where % WORDS).reshape(-1, 1)

    return step, (caches(1024), Shape((BATCH,), F32), weights(), WORD, AT), (0, 1)


def sampled() -> Program:
    """128 words in a loop, drawn from the 50 likeliest at a temperature."""

    def step(kept: Tree, w: Tree, word: Any, key: Any) -> Any:
        def body(number: Any, carry: Any) -> Any:
            kept, word, said, key = carry
            x, kept = run_layers(w, kept, w["table"][word], 512 + number)
            best, where = lax.top_k(logits(w, x)[:, 0] / 0.7, 50)
            key, drawn = jax.random.split(key)
            choice = jax.random.categorical(drawn, best)
            word = jnp.take_along_axis(where, choice[:, None], 1)
            return kept, word, lax.dynamic_update_slice(said, word, (0, number)), key

        said = jnp.zeros((BATCH, 128), I32)
        kept, _, said, _ = lax.fori_loop(0, 128, body, (kept, word, said, key))
        return kept, said

    return step, (caches(1024), weights(), WORD, Shape((2,), jnp.uint32)), (0,)


def nucleus() -> Program:
    """One word drawn from the likeliest that make 0.9 together: all words are sorted."""

    def step(kept: Tree, w: Tree, word: Any, at: Any, key: Any) -> Any:
        x, kept = run_layers(w, kept, w["table"][word], at)
        z = logits(w, x)[:, 0]
        order = jnp.argsort(-z, -1)
        p = jax.nn.softmax(jnp.take_along_axis(z, order, -1), -1)
        is_in = jnp.cumsum(p, -1) - p < 0.9
        drawn = jax.random.categorical(key, jnp.where(is_in, jnp.log(p), -jnp.inf))
        return kept, jnp.take_along_axis(order, drawn[:, None], 1)

    return step, (caches(), weights(), WORD, AT, Shape((2,), jnp.uint32)), (0,)


def prefill() -> Program:
    """1024 words of each sequence into its cache, the next word of each."""

    def step(kept: Tree, w: Tree, words: Any) -> Any:
        x, kept = run_layers(w, kept, w["table"][words], 0)
        return kept, logits(w, x[:, -1:])[:, 0].argmax(-1)

    return step, (caches(1024), weights(), Shape((BATCH, 1024), I32)), (0,)


def scored() -> Program:
    """How likely each word of 1024 is, without a cache."""

    def step(w: Tree, words: Any) -> Any:
        x = w["table"][words]
        mask = jnp.broadcast_to(jnp.tril(jnp.ones((1024, 1024), bool)), (BATCH, 1024, 1024))
        at = jnp.broadcast_to(jnp.arange(1024), (BATCH, 1024))
        for layer in w["layers"]:
            q, k, v = projected(layer, x, at)
            x = perceptron(layer, x + jnp.einsum("bqhe,hed->bqd", attended(q, k, v, mask), layer["o"]))
        p = jax.nn.log_softmax(logits(w, norm(x, w["norm"])[:, :-1]))
        return jnp.take_along_axis(p, words[:, 1:, None], -1)[..., 0]

    return step, (weights(), Shape((BATCH, 1024), I32)), ()


def embedded() -> Program:
    """The mean of what is said of 512 words, without padding, of length one."""

    def step(w: Tree, words: Any, lengths: Any) -> Any:
        x = w["table"][words]
        is_word = jnp.arange(512)[None] < lengths[:, None]
        at = jnp.broadcast_to(jnp.arange(512), words.shape)
        for layer in w["layers"]:
            q, k, v = projected(layer, x, at)
            mask = jnp.broadcast_to(is_word[:, None], (words.shape[0], 512, 512))
            x = perceptron(layer, x + jnp.einsum("bqhe,hed->bqd", attended(q, k, v, mask), layer["o"]))
        x = norm(x, w["norm"]).astype(F32) * is_word[..., None]
        mean = x.sum(1) / lengths[:, None]
        return mean / jnp.linalg.norm(mean, axis=-1, keepdims=True)

    return step, (weights(), Shape((256, 512), I32), Shape((256,), I32)), ()


def adapted() -> Program:
    """One word; each sequence has one of 32 low-rank adapters of queries and values."""

    def step(kept: Tree, w: Tree, adapters: Tree, which: Any, word: Any, at: Any) -> Any:
        x, found = w["table"][word], []
        for layer, extra, cache in zip(w["layers"], adapters, kept, strict=True):
            q, k, v = projected(layer, x, jnp.full((BATCH, 1), at))
            h = norm(x, layer["first"])
            for name, to in (("q", HEADS), ("v", KEYS)):
                down, up = (extra[f"{name}_{way}"][which] for way in ("down", "up"))
                more = jnp.einsum("btr,bre->bte", jnp.einsum("btd,bdr->btr", h, down), up)
                more = more.reshape(BATCH, 1, to, HEAD)
                q, v = (q + more, v) if name == "q" else (q, v + more)
            cache = {"k": written(cache["k"], k, at), "v": written(cache["v"], v, at)}
            mask = jnp.broadcast_to((jnp.arange(ROOM) <= at)[None, None], (BATCH, 1, ROOM))
            out = attended(q, cache["k"], cache["v"], mask)
            x = perceptron(layer, x + jnp.einsum("bqhe,hed->bqd", out, layer["o"]))
            found.append(cache)
        return found, logits(w, norm(x, w["norm"]))[:, 0]

    extra = {
        f"{name}_{way}": Shape((32, WIDTH, 16) if way == "down" else (32, 16, to * HEAD), BF16)
        for name, to in (("q", HEADS), ("v", KEYS))
        for way in ("down", "up")
    }
    adapters = [extra for _ in range(LAYERS)]
    return step, (caches(), weights(), adapters, Shape((BATCH,), I32), WORD, AT), (0,)


PROGRAMS: tuple[Callable[[], Program], ...] = (
    decode, decode_ragged, decode_scanned, decode_carried, decode_narrow_cache, decode_narrow_weights, decode_window,
    decode_paged, verified, beams, sampled, nucleus, prefill, scored, embedded, adapted,
)  # fmt: skip


if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
