"""One transformer trained in many ways: losses of words with their heads, and objectives of other kinds.

    JAX_PLATFORMS=cpu python experiments/fidelity/objectives.py FOLDER [NAME...]

Four layers of width 1024, 64 sequences of 1024 tokens of 32000 words, bfloat16 on float32 weights, AdamW, state donated. A loss is named
with what is done to the logits (`onehot_cap`); see `HEADS`. Lowered with jax 0.10.2 and optax 0.2.8 on abstract shapes.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from jax import lax
from programs import BF16, F32, I32, Program, Tree, lower, named

WORDS, WIDTH, HEADS_OF, LAYERS, BATCH, LENGTH = 32000, 1024, 16, 4, 64, 1024
ADAMW = optax.adamw(1e-3)
IDS, WEIGHTS = Shape((BATCH, LENGTH), I32), Shape((BATCH, LENGTH), F32)
PATCHES = Shape((256, 256, 768), BF16)
IMAGES, TEXTS = Shape((256, 256, 768), BF16), Shape((256, 128), I32)
KEY = Shape((2,), jnp.uint32)


def narrow(x: Any) -> Any:
    return x.astype(BF16)


def block_weights() -> Tree:
    head = WIDTH // HEADS_OF
    return {
        **{name: Shape((WIDTH, HEADS_OF, head), F32) for name in "qkv"},
        "o": Shape((HEADS_OF, head, WIDTH), F32),
        "up": Shape((WIDTH, 4 * WIDTH), F32),
        "down": Shape((4 * WIDTH, WIDTH), F32),
        "first": Shape((WIDTH,), F32),
        "second": Shape((WIDTH,), F32),
    }


def tower(**others: Any) -> Tree:
    return {"layers": [block_weights() for _ in range(LAYERS)], "norm": Shape((WIDTH,), F32), **others}


def words(**others: Any) -> Tree:
    return tower(table=Shape((WORDS, WIDTH), F32), **others)


def speaker(**others: Any) -> Tree:
    return words(head=Shape((WIDTH, WORDS), F32), **others)


def norm(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def encoded(w: Tree, x: Any, *, is_causal: bool = True) -> Any:
    length = x.shape[1]
    mask = jnp.tril(jnp.ones((length, length), bool))
    for layer in w["layers"]:
        h = norm(x, layer["first"])
        q, k, v = (jnp.einsum("btd,dhe->bthe", h, narrow(layer[name])) for name in "qkv")
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k) / 8
        if is_causal:
            scores = jnp.where(mask, scores, jnp.asarray(-1e9, scores.dtype))
        probabilities = narrow(jax.nn.softmax(scores.astype(F32), -1))
        mixed = jnp.einsum("bhqk,bkhe->bqhe", probabilities, v)
        x = x + jnp.einsum("bqhe,hed->bqd", mixed, narrow(layer["o"]))
        h = norm(x, layer["second"])
        x = x + jax.nn.gelu(h @ narrow(layer["up"])) @ narrow(layer["down"])
    return norm(x, w["norm"])


def read(w: Tree, ids: Any, *, is_causal: bool = True) -> Any:
    return encoded(w, narrow(w["table"])[ids], is_causal=is_causal)


def logits(w: Tree, ids: Any, *, wide: bool = False, cap: float = 0.0) -> Any:
    head = w["head"] if "head" in w else w["table"].T
    out = jnp.einsum("btd,dv->btv", read(w, ids), narrow(head), preferred_element_type=F32 if wide else BF16)
    return cap * jnp.tanh(out / cap) if cap else out


HEADS: dict[str, dict[str, Any]] = {
    "bf": {},
    "f32": {"wide": True},
    "tied": {},
    "cap": {"wide": True, "cap": 30.0},
    "capbf": {"cap": 30.0},
}


def integer(z: Any, labels: Any, weights: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(z.astype(F32), labels).mean()


def weighted(z: Any, labels: Any, weights: Any) -> Any:
    each = optax.softmax_cross_entropy_with_integer_labels(z.astype(F32), labels)
    return (each * weights).sum() / weights.sum()


def picked(z: Any, labels: Any, weights: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(z.astype(F32)), labels[..., None], -1).mean()


def onehot(z: Any, labels: Any, weights: Any) -> Any:
    return optax.softmax_cross_entropy(z.astype(F32), jax.nn.one_hot(labels, WORDS)).mean()


def smooth(z: Any, labels: Any, weights: Any) -> Any:
    return optax.softmax_cross_entropy(
        z.astype(F32), optax.smooth_labels(jax.nn.one_hot(labels, WORDS), 0.1)
    ).mean()


def summed(z: Any, labels: Any, weights: Any) -> Any:
    each = -(jax.nn.one_hot(labels, WORDS, dtype=z.dtype) * jax.nn.log_softmax(z)).sum(-1)
    return (each * weights).sum() / weights.sum()


def product(z: Any, labels: Any, weights: Any) -> Any:
    each = jnp.einsum("btv,btv->bt", jax.nn.one_hot(labels, WORDS), jax.nn.log_softmax(z.astype(F32)))
    return -each.mean()


def selected(z: Any, labels: Any, weights: Any) -> Any:
    z = z.astype(F32)
    is_label = lax.broadcasted_iota(I32, z.shape, 2) == labels[..., None]
    each = jax.nn.logsumexp(z, -1) - jnp.where(is_label, z, 0.0).sum(-1)
    return (each * weights).sum() / weights.sum()


def penalized(z: Any, labels: Any, weights: Any) -> Any:
    z = z.astype(F32)
    total = jax.nn.logsumexp(z, -1)
    return (total - jnp.take_along_axis(z, labels[..., None], -1)[..., 0] + 1e-4 * total**2).mean()


@jax.custom_vjp
def by_hand(z: Any, targets: Any) -> Any:
    return by_hand_forward(z, targets)[0]


def by_hand_forward(z: Any, targets: Any) -> Any:
    shifted = z - z.max(-1, keepdims=True)
    exponentials = jnp.exp(shifted)
    total = exponentials.sum(-1, keepdims=True)
    return -(targets * (shifted - jnp.log(total))).sum(-1), (z, targets, exponentials, total)


def by_hand_backward(kept: Any, back: Any) -> Any:
    z, targets, exponentials, total = kept
    return (back[..., None] * (exponentials / total - targets)).astype(z.dtype), None


by_hand.defvjp(by_hand_forward, by_hand_backward)


def custom(z: Any, labels: Any, weights: Any) -> Any:
    each = by_hand(z, jax.nn.one_hot(labels, WORDS)) * (weights != 0)
    return each.sum() / (weights.sum() + 1e-8)


LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    one.__name__: one
    for one in (
        integer, weighted, picked, onehot, smooth, summed, product, selected, penalized, custom,
    )
}  # fmt: skip


def loss_train(loss: Callable[[Any, Any, Any], Any], head: str, *, measures: bool = False) -> Program:
    def objective(w: Tree, ids: Any, labels: Any, weights: Any) -> Any:
        z = logits(w, ids, **HEADS[head])
        return loss(z, labels, weights), (z.argmax(-1) == labels).mean() if measures else 0.0

    return trained(objective, words() if head == "tied" else speaker(), IDS, IDS, WEIGHTS)


def trained(objective: Callable[..., Any], weights: Tree, *inputs: Any) -> Program:
    """`objective` gives a loss and something to report."""

    def step(state: Any, *inputs: Any) -> Any:
        w, moments = state
        (loss, told), gradients = jax.value_and_grad(objective, has_aux=True)(w, *inputs)
        updates, moments = ADAMW.update(gradients, moments, w)
        return (optax.apply_updates(w, updates), moments), loss, told

    state = weights, jax.eval_shape(ADAMW.init, weights)
    return step, (state, *inputs), (0,)


def denoising() -> Program:
    """Noise drawn in the step, a schedule of cosines, mean squared error."""

    def objective(w: Tree, x: Any, key: Any) -> Any:
        drawn, timed = jax.random.split(key)
        noise = jax.random.normal(drawn, x.shape, BF16)
        t = jax.random.uniform(timed, (x.shape[0], 1, 1))
        a, b = narrow(jnp.cos(t * jnp.pi / 2)), narrow(jnp.sin(t * jnp.pi / 2))
        h = (a * x + b * noise) @ narrow(w["enter"]) + b * narrow(w["time"])
        out = encoded(w, h, is_causal=False) @ narrow(w["leave"])
        return jnp.mean((out.astype(F32) - noise.astype(F32)) ** 2), t.mean()

    w = tower(enter=Shape((768, WIDTH), F32), leave=Shape((WIDTH, 768), F32), time=Shape((WIDTH,), F32))
    return trained(objective, w, PATCHES, KEY)


def pooled(w: Tree, x: Any) -> Any:
    out = jnp.mean(x.astype(F32), 1) @ w["project"]
    return out / jnp.linalg.norm(out, axis=-1, keepdims=True)


def contrastive(*, sigmoid: bool = False) -> Program:
    """Images and texts, as CLIP or SigLIP."""

    def objective(w: Tree, x: Any, ids: Any) -> Any:
        images = pooled(w["image"], encoded(w["image"], x @ narrow(w["image"]["enter"]), is_causal=False))
        texts = pooled(w["text"], read(w["text"], ids))
        z = images @ texts.T * jnp.exp(w["scale"])
        labels = jnp.arange(z.shape[0])
        if sigmoid:
            signs = 2 * jnp.eye(z.shape[0]) - 1
            return -jax.nn.log_sigmoid(signs * z).sum(-1).mean(), z.mean()
        both = (optax.softmax_cross_entropy_with_integer_labels(one, labels).mean() for one in (z, z.T))
        return sum(both) / 2, (z.argmax(-1) == labels).mean()

    w = {
        "image": tower(enter=Shape((768, WIDTH), F32), project=Shape((WIDTH, 512), F32)),
        "text": words(project=Shape((WIDTH, 512), F32)),
        "scale": Shape((), F32),
    }
    return trained(objective, w, IMAGES, TEXTS)


def distilled() -> Program:
    """Both models' words, by the divergence of their distributions and the labels."""

    def objective(w: Tree, teacher: Tree, ids: Any, labels: Any) -> Any:
        z, z_teacher = logits(w, ids), lax.stop_gradient(logits(teacher, ids))
        p = jax.nn.log_softmax(z.astype(F32) / 2)
        q = jax.nn.log_softmax(z_teacher.astype(F32) / 2)
        divergence = (jnp.exp(q) * (q - p)).sum(-1).mean()
        return integer(z, labels, None) + 4 * divergence, divergence

    return trained(objective, speaker(), speaker(), IDS, IDS)


def preferred() -> Program:
    """Pairs of answers against a model that stays, as DPO."""

    def likelihood(w: Tree, ids: Any, labels: Any, weights: Any) -> Any:
        z = logits(w, ids).astype(F32)
        each = jnp.take_along_axis(jax.nn.log_softmax(z), labels[..., None], -1)[..., 0]
        return (each * weights).sum(-1)

    def objective(w: Tree, kept: Tree, ids: Any, labels: Any, weights: Any) -> Any:
        ours, theirs = (likelihood(one, ids, labels, weights) for one in (w, kept))
        (chosen, rejected) = jnp.split(ours - lax.stop_gradient(theirs), 2)
        margin = 0.1 * (chosen - rejected)
        return -jax.nn.log_sigmoid(margin).mean(), (margin > 0).mean()

    return trained(objective, speaker(), speaker(), IDS, IDS, WEIGHTS)


def rewarded() -> Program:
    """Clipped ratios to what was likely, a value of every word, and the entropy of all words."""

    def objective(w: Tree, ids: Any, actions: Any, before: Any, returns: Any) -> Any:
        h = read(w, ids)
        z = (h @ narrow(w["head"])).astype(F32)
        p = jax.nn.log_softmax(z)
        likely = jnp.take_along_axis(p, actions[..., None], -1)[..., 0]
        ratio = jnp.exp(likely - before)
        advantage = returns - returns.mean()
        clipped = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        value = (h @ narrow(w["value"])).astype(F32)[..., 0]
        entropy = -(jnp.exp(p) * p).sum(-1).mean()
        return -clipped.mean() + 0.5 * ((value - returns) ** 2).mean() - 0.01 * entropy, entropy

    return trained(objective, speaker(value=Shape((WIDTH, 1), F32)), IDS, IDS, WEIGHTS, WEIGHTS)


def masked_positions() -> Program:
    """One word in eight is asked for, gathered in front of the head, as BERT's original code does."""

    def objective(w: Tree, ids: Any, positions: Any, labels: Any) -> Any:
        h = read(w, ids, is_causal=False)
        h = jnp.take_along_axis(h, positions[..., None], 1)
        h = norm(jax.nn.gelu(h @ narrow(w["dense"])), w["last"])
        z = jnp.einsum("bpd,vd->bpv", h, narrow(w["table"])) + narrow(w["bias"])
        return integer(z, labels, None), (z.argmax(-1) == labels).mean()

    w = words(dense=Shape((WIDTH, WIDTH), F32), last=Shape((WIDTH,), F32), bias=Shape((WORDS,), F32))
    return trained(objective, w, IDS, Shape((BATCH, 128), I32), Shape((BATCH, 128), I32))


def spans() -> Program:
    """Where an answer begins and ends."""

    def objective(w: Tree, ids: Any, begin: Any, end: Any) -> Any:
        z = (read(w, ids, is_causal=False) @ narrow(w["ends"])).astype(F32)
        both = (
            optax.softmax_cross_entropy_with_integer_labels(z[..., i], at).mean()
            for i, at in enumerate((begin, end))
        )
        return sum(both) / 2, z.mean()

    return trained(
        objective, words(ends=Shape((WIDTH, 2), F32)), IDS, Shape((BATCH,), I32), Shape((BATCH,), I32)
    )


def several_words() -> Program:
    """Four heads for the next four words, one block each behind the trunk."""

    def objective(w: Tree, ids: Any, labels: Any) -> Any:
        h = read(w, ids)
        total: Any = 0.0
        for number, one in enumerate(w["ahead"]):
            z = norm(jax.nn.gelu(h @ narrow(one["dense"])), one["norm"]) @ narrow(w["head"])
            total = total + integer(z, jnp.roll(labels, -number, 1), None)
        return total / len(w["ahead"]), 0.0

    ahead = [{"dense": Shape((WIDTH, WIDTH), F32), "norm": Shape((WIDTH,), F32)} for _ in range(4)]
    return trained(objective, speaker(ahead=ahead), IDS, IDS)


def in_chunks() -> Program:
    """The loss of eight pieces of every sequence one after the other, logits made again."""

    def objective(w: Tree, ids: Any, labels: Any) -> Any:
        h = read(w, ids).reshape(BATCH, 8, LENGTH // 8, WIDTH).transpose(1, 0, 2, 3)
        y = labels.reshape(BATCH, 8, LENGTH // 8).transpose(1, 0, 2)

        @jax.checkpoint
        def piece(total: Any, one: Any) -> Any:
            return total + integer(one[0] @ narrow(w["head"]), one[1], None), None

        return lax.scan(piece, jnp.zeros(()), (h, y))[0] / 8, 0.0

    return trained(objective, speaker(), IDS, IDS)


def filled_in() -> Program:
    """Three patches of four are left out at random and made again behind a small decoder, as masked autoencoders do."""

    def objective(w: Tree, x: Any, key: Any) -> Any:
        batch, count, _ = x.shape
        order = jnp.argsort(jax.random.uniform(key, (batch, count)), axis=1)
        kept = jnp.take_along_axis(x, order[:, : count // 4, None], 1)
        h = encoded(w["encoder"], kept @ narrow(w["enter"]), is_causal=False)
        blank = jnp.broadcast_to(narrow(w["blank"]), (batch, count - count // 4, WIDTH))
        back = jnp.argsort(order, axis=1)
        h = jnp.take_along_axis(jnp.concatenate([h, blank], 1), back[..., None], 1)
        out = encoded(w["decoder"], h, is_causal=False) @ narrow(w["leave"])
        is_left_out = (back >= count // 4).astype(F32)
        each = ((out.astype(F32) - x.astype(F32)) ** 2).mean(-1)
        return (each * is_left_out).sum() / is_left_out.sum(), 0.0

    decoder = tower()
    decoder["layers"] = decoder["layers"][:2]
    w = {
        "encoder": tower(), "decoder": decoder, "enter": Shape((768, WIDTH), F32),
        "leave": Shape((WIDTH, 768), F32), "blank": Shape((WIDTH,), F32),
    }  # fmt: skip
    return trained(objective, w, PATCHES, KEY)


def followed() -> Program:
    """Two views of each image; a network that follows in averages says what is asked for, over 8192 prototypes, as DINO."""

    def seen(w: Tree, x: Any) -> Any:
        return jnp.mean(encoded(w, x @ narrow(w["enter"]), is_causal=False), 1) @ narrow(w["project"])

    def step(state: Any, x: Any, y: Any) -> Any:
        w, mean, moments, center = state

        def objective(w: Tree) -> Any:
            asked = [seen(mean, one).astype(F32) for one in (x, y)]
            asked = [lax.stop_gradient(jax.nn.softmax((one - center) / 0.04)) for one in asked]
            given = [jax.nn.log_softmax(seen(w, one).astype(F32) / 0.1) for one in (y, x)]
            each = [-(a * g).sum(-1).mean() for a, g in zip(asked, given, strict=True)]
            return sum(each) / 2, jnp.concatenate(asked).mean(0)

        (loss, seen_mean), gradients = jax.value_and_grad(objective, has_aux=True)(w)
        updates, moments = ADAMW.update(gradients, moments, w)
        w = optax.apply_updates(w, updates)
        mean = jax.tree.map(lambda a, b: 0.996 * a + 0.004 * b, mean, w)
        return (w, mean, moments, 0.9 * center + 0.1 * seen_mean), loss

    w = tower(enter=Shape((768, WIDTH), F32), project=Shape((WIDTH, 8192), F32))
    state = w, w, jax.eval_shape(ADAMW.init, w), Shape((8192,), F32)
    return step, (state, PATCHES, PATCHES), (0,)


def many_labels() -> Program:
    """4096 classes at once of each sequence, focal loss."""

    def objective(w: Tree, ids: Any, labels: Any) -> Any:
        z = (read(w, ids, is_causal=False)[:, 0] @ narrow(w["classes"])).astype(F32)
        each = optax.sigmoid_focal_loss(z, labels, alpha=0.25, gamma=2.0)
        return each.sum(-1).mean(), ((z > 0) == (labels > 0)).mean()

    return trained(objective, words(classes=Shape((WIDTH, 4096), F32)), IDS, Shape((BATCH, 4096), F32))


def reconstructed() -> Program:
    """An encoder, a normal distribution drawn from, a decoder: a variational autoencoder of patches."""

    def objective(w: Tree, x: Any, key: Any) -> Any:
        h = encoded(w["encoder"], x @ narrow(w["enter"]), is_causal=False)
        mean, spread = jnp.split((h @ narrow(w["bottle"])).astype(F32), 2, -1)
        z = mean + jnp.exp(spread / 2) * jax.random.normal(key, mean.shape)
        out = encoded(w["decoder"], narrow(z) @ narrow(w["open"]), is_causal=False) @ narrow(w["leave"])
        error = ((out.astype(F32) - x.astype(F32)) ** 2).mean()
        divergence = -0.5 * (1 + spread - mean**2 - jnp.exp(spread)).mean()
        return error + 1e-3 * divergence, divergence

    w = {
        "encoder": tower(), "decoder": tower(), "enter": Shape((768, WIDTH), F32), "bottle": Shape((WIDTH, 128), F32),
        "open": Shape((64, WIDTH), F32), "leave": Shape((WIDTH, 768), F32),
    }  # fmt: skip
    return trained(objective, w, PATCHES, KEY)


OBJECTIVES = (
    denoising, contrastive, distilled, preferred, rewarded, masked_positions, spans, several_words, in_chunks, filled_in,
    followed, many_labels, reconstructed,
)  # fmt: skip


def programs() -> Iterator[Callable[[], Program]]:
    for (name, loss), head in itertools.product(LOSSES.items(), HEADS):
        yield named(f"{name}_{head}", loss_train, loss, head)
    for name in ("integer", "onehot"):
        yield named(f"{name}_measured", loss_train, LOSSES[name], "bf", measures=True)
    yield from OBJECTIVES
    yield named("contrastive_sigmoid", contrastive, sigmoid=True)


if __name__ == "__main__":
    lower(__doc__, [*programs()], compressed=True, for_tpu=True)
