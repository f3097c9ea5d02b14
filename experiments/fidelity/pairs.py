"""Models that read two things at once, and layers whose experts are chosen, of one set of parts.

    JAX_PLATFORMS=cpu python experiments/fidelity/pairs.py FOLDER [NAME...]

Layers of width 1024, 64 examples (1024 of pairs that are told apart, 16384 of clicks), bfloat16 on float32 weights, AdamW, state donated.
Lowered with jax 0.10.2 and optax 0.2.8 on abstract shapes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from jax import lax
from policies import read_by
from programs import BF16, F32, I32, Program, Reader, lower, named

WORDS, WIDTH, HEADS, LAYERS, BATCH, LENGTH = 32000, 1024, 16, 4, 64, 512
SIZE = WIDTH // HEADS


class Part(Reader):
    """A reader of the weights whose names begin with a prefix."""

    def __init__(self, whole: Reader, prefix: str) -> None:
        self.whole, self.prefix = whole, prefix

    def __call__(self, name: str, *shape: int) -> Any:
        return self.whole(f"{self.prefix}_{name}", *shape)


def normed(w: Reader, name: str, x: Any) -> Any:
    wide = x.astype(F32)
    wide = wide - wide.mean(-1, keepdims=True)
    made = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (made * w(name + "_scale", x.shape[-1]) + w(name + "_bias", x.shape[-1])).astype(x.dtype)


def dense(w: Reader, name: str, x: Any, columns: int) -> Any:
    made = x @ w(name, x.shape[-1], columns).astype(x.dtype)
    return made + w(name + "_bias", columns).astype(x.dtype)


def attended(w: Reader, x: Any, read: Any = None, seen: Any = None) -> Any:
    """`x` attends to what is `read` (itself), where it is `seen` (everywhere)."""
    read = x if read is None else read
    q, k, v = (
        dense(w, name, of, WIDTH).reshape(*of.shape[:2], HEADS, SIZE)
        for name, of in (("q", x), ("k", read), ("v", read))
    )
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k).astype(F32) / SIZE**0.5
    scores = scores if seen is None else jnp.where(seen, scores, -1e30)
    p = jax.nn.softmax(scores, -1).astype(x.dtype)
    return dense(w, "o", jnp.einsum("bhqk,bkhe->bqhe", p, v).reshape(x.shape), WIDTH)


def hidden(w: Reader, x: Any) -> Any:
    return dense(w, "down", jax.nn.gelu(dense(w, "up", x, 4 * WIDTH)), WIDTH)


def layer(w: Reader, x: Any, read: Any = None, seen: Any = None, work: Callable[..., Any] = hidden) -> Any:
    x = x + attended(Part(w, "own"), normed(w, "first", x), None, seen)
    if read is not None:
        x = x + attended(Part(w, "other"), normed(w, "second", x), read)
    return x + work(Part(w, "hidden"), normed(w, "third", x))


def stack(
    w: Reader, name: str, x: Any, read: Any = None, seen: Any = None, work: Callable[..., Any] = hidden
) -> Any:
    for n in range(LAYERS):
        x = layer(Part(w, f"{name}{n}"), x, read, seen, work)
    return normed(w, name, x)


def causal(length: int) -> Any:
    return jnp.tril(jnp.ones((length, length), bool))


def embedded(w: Reader, name: str, ids: Any) -> Any:
    places = w(name + "_places", ids.shape[1], WIDTH).astype(BF16)
    return w(name, WORDS, WIDTH).astype(BF16)[ids] + places


def picked(z: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(z.astype(F32), labels)


def patches(w: Reader, name: str, images: Any) -> Any:
    """[b, 16 n, 16 n, 3] to [b, n * n, WIDTH]."""
    made = lax.conv_general_dilated(
        images.astype(BF16),
        w(name, 16, 16, 3, WIDTH).astype(BF16),
        (16, 16),
        "VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    made = made.reshape(images.shape[0], -1, WIDTH)
    return made + w(name + "_places", made.shape[1], WIDTH).astype(BF16)


def translated(w: Reader, source: Any, target: Any, labels: Any) -> Any:
    known = (source > 0)[:, None, None]
    read = stack(w, "in", embedded(w, "source", source), None, known)
    x = stack(w, "out", embedded(w, "target", target), read, causal(target.shape[1]))
    losses = picked(x @ w("head", WIDTH, WORDS).astype(BF16), labels)
    return jnp.where(labels > 0, losses, 0.0).sum() / (labels > 0).sum()


def translated_tied(w: Reader, source: Any, target: Any, labels: Any) -> Any:
    read = stack(w, "in", embedded(w, "table", source))
    x = stack(w, "out", embedded(w, "table", target), read, causal(target.shape[1]))
    return picked(x @ w("table", WORDS, WIDTH).astype(BF16).T, labels).mean()


def heard(w: Reader, sound: Any, target: Any, labels: Any) -> Any:
    x = sound.astype(BF16)
    for name, step in (("first", 1), ("second", 2)):
        weight = w("sound_" + name, 3, x.shape[-1], WIDTH).astype(BF16)
        x = lax.conv_general_dilated(x, weight, (step,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
        x = jax.nn.gelu(x + w("sound_bias_" + name, WIDTH).astype(BF16))
    read = stack(w, "in", x + w("places", x.shape[1], WIDTH).astype(BF16))
    x = stack(w, "out", embedded(w, "target", target), read, causal(target.shape[1]))
    return picked(x @ w("head", WIDTH, WORDS).astype(BF16), labels).mean()


def both_seen(w: Reader, images: Any, texts: Any) -> tuple[Any, Any]:
    x = stack(w, "image", patches(w, "patch", images)).mean(1)
    y = stack(w, "text", embedded(w, "words", texts), None, causal(texts.shape[1]))[:, -1]
    both = (dense(w, "image_out", x, 512).astype(F32), dense(w, "text_out", y, 512).astype(F32))
    x, y = (one * lax.rsqrt((one * one).sum(-1, keepdims=True)) for one in both)
    return x, y


def contrasted(w: Reader, images: Any, texts: Any) -> Any:
    x, y = both_seen(w, images, texts)
    z = x @ y.T * jnp.exp(w("heat", 1))
    labels = jnp.arange(z.shape[0])
    return (picked(z, labels) + picked(z.T, labels)).mean() / 2


def matched(w: Reader, images: Any, texts: Any) -> Any:
    x, y = both_seen(w, images, texts)
    z = x @ y.T * jnp.exp(w("heat", 1)) + w("shift", 1)
    signs = 2 * jnp.eye(z.shape[0]) - 1
    return -jax.nn.log_sigmoid(signs * z).sum() / z.shape[0]


def captioned(w: Reader, images: Any, texts: Any, labels: Any) -> Any:
    seen = dense(w, "bridge", stack(w, "image", patches(w, "patch", images)), WIDTH)
    x = jnp.concatenate([seen, embedded(w, "words", texts)], 1)
    x = stack(w, "text", x, None, causal(x.shape[1]))[:, seen.shape[1] :]
    return picked(x @ w("head", WIDTH, WORDS).astype(BF16), labels).mean()


def looked_at(w: Reader, images: Any, texts: Any, labels: Any) -> Any:
    seen = stack(w, "image", patches(w, "patch", images))
    x = stack(w, "text", embedded(w, "words", texts), seen, causal(texts.shape[1]))
    return picked(x @ w("head", WIDTH, WORDS).astype(BF16), labels).mean()


def perceived(w: Reader, points: Any, labels: Any) -> Any:
    read = normed(w, "points", dense(w, "in", points.astype(BF16), WIDTH))
    x = jnp.broadcast_to(w("latents", 256, WIDTH).astype(BF16), (points.shape[0], 256, WIDTH))
    x = stack(w, "latent", x, read)
    return picked(dense(w, "head", x.mean(1), 1000), labels).mean()


def found(w: Reader, images: Any, kinds: Any, boxes: Any) -> Any:
    read = stack(w, "image", patches(w, "patch", images))
    x = jnp.broadcast_to(w("queries", kinds.shape[1], WIDTH).astype(BF16), (*kinds.shape, WIDTH))
    x = stack(w, "query", x, read)
    told = jax.nn.sigmoid(dense(w, "box", jax.nn.relu(dense(w, "box_in", x, WIDTH)), 4).astype(F32))
    return picked(dense(w, "kind", x, 92), kinds).mean() + jnp.abs(told - boxes).sum(-1).mean()


def masked_images(w: Reader, images: Any, order: Any) -> Any:
    """A quarter of the patches is read, the rest is told from it."""
    x = patches(w, "patch", images)
    count, least = x.shape[1], x.shape[1] // 4
    kept = jnp.take_along_axis(x, order[:, :least, None], 1)
    read = stack(w, "image", kept)
    blank = jnp.broadcast_to(w("blank", WIDTH).astype(BF16), (x.shape[0], count - least, WIDTH))
    whole = jnp.take_along_axis(jnp.concatenate([read, blank], 1), jnp.argsort(order, 1)[..., None], 1)
    told = dense(w, "out", stack(w, "told", whole), 768).astype(F32)
    side = images.shape[1] // 16
    real = (
        images.reshape(images.shape[0], side, 16, side, 16, 3).transpose(0, 1, 3, 2, 4, 5).reshape(told.shape)
    )
    return jnp.square(told - real).mean()


def cleaned(w: Reader, noisy: Any, times: Any, texts: Any, noise: Any) -> Any:
    """A diffusion transformer, modulated by the time, with texts looked at."""
    x = dense(w, "in", noisy.astype(BF16), WIDTH)
    waves = times[:, None] * jnp.exp(-jnp.arange(128) / 16.0)
    t = jax.nn.silu(
        dense(w, "time", jnp.concatenate([jnp.sin(waves), jnp.cos(waves)], -1).astype(BF16), WIDTH)
    )
    read = embedded(w, "words", texts)
    for n in range(LAYERS):
        one = Part(w, f"layer{n}")
        shift, scale, gate, low, high, last = jnp.split(dense(one, "by", t, 6 * WIDTH)[:, None], 6, -1)
        x = x + gate * attended(Part(one, "own"), normed(one, "first", x) * (1 + scale) + shift)
        x = x + attended(Part(one, "other"), normed(one, "second", x), read)
        x = x + last * hidden(Part(one, "hidden"), normed(one, "third", x) * (1 + high) + low)
    return jnp.square(dense(w, "out", normed(w, "last", x), noisy.shape[-1]).astype(F32) - noise).mean()


def perceptron(w: Reader, name: str, x: Any, columns: tuple[int, ...]) -> Any:
    for n, count in enumerate(columns):
        x = dense(w, f"{name}{n}", x, count)
        x = jax.nn.relu(x) if n < len(columns) - 1 else x
    return x


def towers(w: Reader, users: Any, items: Any) -> Any:
    x, y = (
        perceptron(
            w, name, w(name, 1000000, 128).astype(BF16)[ids].reshape(ids.shape[0], -1), (1024, 512, 256)
        )
        for name, ids in (("user", users), ("item", items))
    )
    return picked(x @ y.T, jnp.arange(x.shape[0])).mean()


def crossed(w: Reader, numbers: Any, ids: Any, clicked: Any) -> Any:
    """Tables of many sizes; products of every two of what they say."""
    low = perceptron(w, "low", numbers.astype(BF16), (512, 256, 128))
    sizes = (1000, 100000, 1000000, 40)
    rows = [w(f"table{n}", sizes[n % 4], 128).astype(BF16)[ids[:, n]] for n in range(ids.shape[1])]
    every = jnp.stack([low, *rows], 1)
    products = jnp.einsum("bie,bje->bij", every, every)
    first, second = jnp.tril_indices(every.shape[1], -1)
    x = jnp.concatenate([low, products[:, first, second]], -1)
    z = perceptron(w, "high", x, (1024, 1024, 512, 1))[:, 0].astype(F32)
    return optax.sigmoid_binary_cross_entropy(z, clicked).mean()


def remembered(w: Reader, past: Any, item: Any, clicked: Any) -> Any:
    """What was clicked before, weighed by how near it is to what is shown."""
    table = w("table", 1000000, 64).astype(BF16)
    rows, shown = table[past], table[item]
    shown = jnp.broadcast_to(shown[:, None], rows.shape)
    near = perceptron(w, "near", jnp.concatenate([rows, shown, rows - shown, rows * shown], -1), (80, 40, 1))
    weights = jax.nn.softmax(jnp.where((past > 0)[..., None], near.astype(F32), -1e30), 1).astype(BF16)
    x = jnp.concatenate([(weights * rows).sum(1), shown[:, 0]], -1)
    z = perceptron(w, "high", x, (512, 256, 1))[:, 0].astype(F32)
    return optax.sigmoid_binary_cross_entropy(z, clicked).mean()


EXPERTS, SPACE = 16, 2 * LENGTH // 16


def experts(w: Reader, x: Any, by: str) -> Any:
    """Each expert's perceptron on its rows, `by` an equation's letters in front: "ebc" of [e, b, c, d]."""
    up, down = (
        w(name, *shape).astype(BF16)
        for name, shape in (("up", (EXPERTS, WIDTH, 2 * WIDTH)), ("down", (EXPERTS, 2 * WIDTH, WIDTH)))
    )
    made = jax.nn.gelu(jnp.einsum(f"{by}d,edf->{by}f", x, up))
    return jnp.einsum(f"{by}f,efd->{by}d", made, down)


def scored(w: Reader, x: Any) -> Any:
    return jax.nn.softmax((x @ w("router", WIDTH, EXPERTS).astype(x.dtype)).astype(F32), -1)


def ranked(scores: Any, count: int) -> tuple[Any, Any, Any]:
    """[b, t, k] weights, experts and places in the experts' queues."""
    weights, chosen = lax.top_k(scores, count)
    asked = jax.nn.one_hot(chosen, EXPERTS, dtype=I32).reshape(scores.shape[0], -1, EXPERTS)
    places = ((jnp.cumsum(asked, 1) - 1) * asked).sum(-1).reshape(chosen.shape)
    return weights / weights.sum(-1, keepdims=True), chosen, places


def by_products(w: Reader, x: Any, count: int = 2) -> Any:
    """Rows are handed to experts by products with ones and zeros."""
    weights, chosen, places = ranked(scored(w, x), count)
    where = jax.nn.one_hot(chosen, EXPERTS)[..., None] * jax.nn.one_hot(places, SPACE)[..., None, :]
    back = (where * weights[..., None, None]).sum(2).astype(x.dtype)
    sent = where.sum(2).astype(x.dtype)
    made = experts(w, jnp.einsum("btec,btd->ebcd", sent, x), "ebc")
    return jnp.einsum("btec,ebcd->btd", back, made)


def by_one(w: Reader, x: Any) -> Any:
    return by_products(w, x, 1)


def by_places(w: Reader, x: Any) -> Any:
    """Rows are scattered to the experts' queues and gathered from them."""
    weights, chosen, places = ranked(scored(w, x), 2)
    rows = jnp.broadcast_to(jnp.arange(x.shape[0])[:, None, None], chosen.shape)
    queues = jnp.zeros((x.shape[0], EXPERTS, SPACE, WIDTH), x.dtype)
    queues = queues.at[rows, chosen, places].add(
        jnp.broadcast_to(x[:, :, None], (*chosen.shape, WIDTH)), mode="drop"
    )
    made = experts(w, queues.transpose(1, 0, 2, 3), "ebc").transpose(1, 0, 2, 3)
    got = made.at[rows, chosen, places].get(mode="fill", fill_value=0)
    return (got * weights[..., None].astype(x.dtype)).sum(2)


def by_sorting(w: Reader, x: Any) -> Any:
    """Rows of one example are sorted by expert, for ragged products."""
    weights, chosen = lax.top_k(scored(w, x), 2)
    flat = x.reshape(-1, WIDTH)
    asked = chosen.reshape(-1)
    order = jnp.argsort(asked)
    sizes = jnp.bincount(asked, length=EXPERTS)
    up, down = (
        w(name, *shape).astype(BF16)
        for name, shape in (("up", (EXPERTS, WIDTH, 2 * WIDTH)), ("down", (EXPERTS, 2 * WIDTH, WIDTH)))
    )
    made = lax.ragged_dot(jax.nn.gelu(lax.ragged_dot(flat[order // 2], up, sizes)), down, sizes)
    back = jnp.zeros_like(made).at[order].set(made).reshape(*chosen.shape, WIDTH)
    return (back * weights[..., None].astype(x.dtype)).sum(2)


def by_choice(w: Reader, x: Any) -> Any:
    """Experts choose their rows."""
    weights, rows = lax.top_k(scored(w, x).swapaxes(1, 2), SPACE)
    taken = jax.vmap(lambda x, rows: x[rows])(x, rows)
    made = experts(w, taken.transpose(1, 0, 2, 3), "ebc").transpose(1, 0, 2, 3) * weights[..., None].astype(
        x.dtype
    )
    return jax.vmap(lambda rows, made: jnp.zeros((x.shape[1], WIDTH), x.dtype).at[rows].add(made))(rows, made)


def by_slots(w: Reader, x: Any) -> Any:
    """Each expert reads means of all rows."""
    z = jnp.einsum("btd,edc->btec", x, w("slots", EXPERTS, WIDTH, SPACE).astype(x.dtype)).astype(F32)
    sent = jax.nn.softmax(z, 1).astype(x.dtype)
    back = jax.nn.softmax(z.reshape(*x.shape[:2], -1), -1).reshape(z.shape).astype(x.dtype)
    return jnp.einsum("btec,ebcd->btd", back, experts(w, jnp.einsum("btec,btd->ebcd", sent, x), "ebc"))


def with_shared(w: Reader, x: Any) -> Any:
    return by_products(w, x) + hidden(Part(w, "shared"), x)


def spoken(work: Callable[..., Any]) -> Callable[..., Any]:
    def loss(w: Reader, ids: Any, labels: Any) -> Any:
        x = stack(w, "layer", embedded(w, "words", ids), None, causal(LENGTH), work)
        return picked(x @ w("head", WIDTH, WORDS).astype(BF16), labels).mean()

    return loss


def ids(*shape: int) -> Any:
    return Shape(shape, I32)


def wide(*shape: int) -> Any:
    return Shape(shape, F32)


PAIRS = 1024
CLICKS = 16384
TEXT = ids(BATCH, LENGTH)
LOSSES: dict[str, tuple[Any, ...]] = {
    "translator": (translated, TEXT, TEXT, TEXT),
    "translator_tied": (translated_tied, TEXT, TEXT, TEXT),
    "summarizer": (translated, ids(BATCH, 2048), ids(BATCH, 256), ids(BATCH, 256)),
    "speech": (heard, wide(BATCH, 2048, 80), ids(BATCH, 256), ids(BATCH, 256)),
    "clip": (contrasted, wide(PAIRS, 224, 224, 3), ids(PAIRS, 64)),
    "siglip": (matched, wide(PAIRS, 224, 224, 3), ids(PAIRS, 64)),
    "captions": (captioned, wide(BATCH, 384, 384, 3), TEXT, TEXT),
    "looks": (looked_at, wide(BATCH, 384, 384, 3), TEXT, TEXT),
    "perceiver": (perceived, wide(BATCH, 8192, 64), ids(BATCH)),
    "detector": (found, wide(BATCH, 512, 512, 3), ids(BATCH, 100), wide(BATCH, 100, 4)),
    "masked_images": (masked_images, wide(256, 256, 256, 3), ids(256, 256)),
    "diffusion": (cleaned, wide(BATCH, 1024, 64), wide(BATCH), ids(BATCH, 128), wide(BATCH, 1024, 64)),
    "towers": (towers, ids(CLICKS, 8), ids(CLICKS, 4)),
    "crossed": (crossed, wide(CLICKS, 13), ids(CLICKS, 26), wide(CLICKS)),
    "remembered": (remembered, ids(CLICKS, 100), ids(CLICKS), wide(CLICKS)),
    **{
        f"experts_{work.__name__}": (spoken(work), TEXT, TEXT)
        for work in (by_products, by_one, by_places, by_sorting, by_choice, by_slots, with_shared)
    },
}


def programs() -> Iterator[Callable[[], Program]]:
    for name, (loss, *inputs) in LOSSES.items():
        yield named(name, read_by, loss, optax.adamw(1e-3), *inputs)


if __name__ == "__main__":
    lower(__doc__, [*programs()], compressed=True, for_tpu=True)
