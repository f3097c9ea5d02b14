"""One transformer trained under many policies: types, precision, what is made again, what is dropped, how scores are masked, how it is
updated, and with one sequence a device.

    JAX_PLATFORMS=cpu python experiments/fidelity/policies.py FOLDER [NAME...]

The transformer of `objectives.py` with labels picked from its logits. Lowered with jax 0.10.2 and optax 0.2.8 on abstract shapes.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from jax import lax
from objectives import BATCH, HEADS_OF, IDS, KEY, LAYERS, LENGTH, WIDTH, block_weights, norm, speaker
from programs import BF16, F32, Program, Reader, Tree, lower, named

Block = Callable[[Tree, Any], Any]


def of_type(tree: Tree, dtype: Any) -> Tree:
    return jax.tree.map(lambda x: Shape(x.shape, dtype), tree)


def block(
    layer: Tree, x: Any, *, precision: Any = None, keys: Any = None, groups: int = 0, mask: Any = None
) -> Any:
    """In the type of `x`; with keys a tenth of probabilities and of what is added is dropped. groups: of queries that share keys; mask: of
    words, beside that of what comes later."""
    product = partial(jnp.einsum, precision=precision)

    def cast(name: str) -> Any:
        return layer[name].astype(x.dtype)

    def dropped(x: Any, number: int) -> Any:
        if keys is None:
            return x
        return jnp.where(jax.random.bernoulli(keys[number], 0.9, x.shape), x / 0.9, 0).astype(x.dtype)

    h = norm(x, layer["first"])
    q, k, v = (product("btd,dhe->bthe", h, cast(name)) for name in "qkv")
    size = WIDTH // HEADS_OF
    if groups:
        q = q.reshape(*q.shape[:2], groups, HEADS_OF // groups, size)
    scores = product("bqgje,bkge->bgjqk" if groups else "bqhe,bkhe->bhqk", q, k) / size**0.5
    seen = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    if mask is not None:
        seen = seen & mask.reshape(-1, *[1] * (scores.ndim - 2), LENGTH)
    scores = jnp.where(seen, scores.astype(F32), -1e30)
    p = dropped(jax.nn.softmax(scores, -1).astype(x.dtype), 0)
    mixed = product("bgjqk,bkge->bqgje" if groups else "bhqk,bkhe->bqhe", p, v)
    out = product("bqhe,hed->bqd", mixed.reshape(*x.shape[:2], HEADS_OF, size), cast("o"))
    x = x + dropped(out, 1)
    h = norm(x, layer["second"])
    hidden = jax.nn.gelu(product("btd,df->btf", h, cast("up")))
    return x + dropped(product("btf,fd->btd", hidden, cast("down")), 2)


def picked_loss(w: Tree, x: Any, labels: Any, precision: Any = None) -> Any:
    z = jnp.einsum("btd,dv->btv", norm(x, w["norm"]), w["head"].astype(x.dtype), precision=precision)
    return optax.softmax_cross_entropy_with_integer_labels(z.astype(F32), labels).mean()


def stepped(
    loss: Callable[..., Any], w: Tree, optimizer: optax.GradientTransformation, *inputs: Any
) -> Program:
    def step(state: Any, *inputs: Any) -> Any:
        w, moments = state
        found, gradients = jax.value_and_grad(loss)(w, *inputs)
        updates, moments = optimizer.update(gradients, moments, w)
        return (optax.apply_updates(w, updates), moments), found

    return step, ((w, jax.eval_shape(optimizer.init, w)), *inputs), (0,)


def read_by(loss: Callable[..., Any], optimizer: optax.GradientTransformation, *inputs: Any) -> Program:
    """A step of the weights that a loss asks its reader for, of `inputs`."""
    weights = Reader()
    jax.eval_shape(lambda *inputs: loss(weights, *inputs), *inputs)

    def of(w: Tree, *inputs: Any) -> Any:
        return loss(Reader(w), *inputs)

    return stepped(of, weights.shapes, optimizer, *inputs)


def trained(
    *,
    held: Any = F32,
    computed: Any = BF16,
    precision: Any = None,
    optimizer: optax.GradientTransformation | None = None,
    made_again: Callable[[Block], Block] | None = None,
    is_scanned: bool = False,
    drops: bool = False,
    groups: int = 0,
    pads: bool = False,
    batch: int = BATCH,
) -> Program:
    def loss(w: Tree, ids: Any, labels: Any, key: Any = None) -> Any:
        x, mask = w["table"].astype(computed)[ids], ids > 0 if pads else None

        def run(layer: Tree, x: Any, keys: Any = None) -> Any:
            return block(layer, x, precision=precision, keys=keys, groups=groups, mask=mask)

        run = made_again(run) if made_again is not None else run
        keys = jax.random.split(key, (LAYERS, 3)) if drops else [None] * LAYERS
        if is_scanned:
            x, _ = lax.scan(lambda x, layer: (run(layer, x), None), x, w["layers"])
        else:
            for layer, mine in zip(w["layers"], keys, strict=True):
                x = run(layer, x, mine)
        return picked_loss(w, x, labels, precision)

    w = of_type(speaker(), held)
    if groups:
        few = Shape((WIDTH, groups, WIDTH // HEADS_OF), held)
        w["layers"] = [{**layer, "k": few, "v": few} for layer in w["layers"]]
    if is_scanned:
        w["layers"] = jax.tree.map(lambda x: Shape((LAYERS, *x.shape), held), block_weights())
    ids = Shape((batch, LENGTH), IDS.dtype)
    inputs = (ids, ids, KEY) if drops else (ids, ids)
    return stepped(loss, w, optimizer or optax.adamw(1e-3), *inputs)


def accumulated(parts: int = 4) -> Program:
    """Gradients of microbatches added up in a scan, clipped."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def loss(w: Tree, ids: Any, labels: Any) -> Any:
        x = w["table"].astype(BF16)[ids]
        for layer in w["layers"]:
            x = block(layer, x)
        return picked_loss(w, x, labels)

    def step(state: Any, ids: Any, labels: Any) -> Any:
        w, moments = state

        def part(total: Any, one: Any) -> Any:
            found, gradients = jax.value_and_grad(loss)(w, *one)
            return jax.tree.map(jnp.add, total, gradients), found

        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), w)
        split = (one.reshape(parts, BATCH // parts, LENGTH) for one in (ids, labels))
        gradients, found = lax.scan(part, zeros, tuple(split))
        updates, moments = optimizer.update(jax.tree.map(lambda x: x / parts, gradients), moments, w)
        return (optax.apply_updates(w, updates), moments), found.mean()

    w = speaker()
    return step, ((w, jax.eval_shape(optimizer.init, w)), IDS, IDS), (0,)


KEPT_PRODUCTS = partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
POLICIES: dict[str, dict[str, Any]] = {
    "mixed": {},
    "wide": {"computed": F32},
    "wide_exact": {"computed": F32, "precision": lax.Precision.HIGHEST},
    "narrow": {"held": BF16},
    "narrow_sgd": {"held": BF16, "optimizer": optax.sgd(1e-3)},
    "made_again": {"made_again": jax.checkpoint},
    "products_kept": {"made_again": KEPT_PRODUCTS},
    "scanned": {"is_scanned": True},
    "scanned_again": {"is_scanned": True, "made_again": jax.checkpoint},
    "scanned_products_kept": {"is_scanned": True, "made_again": KEPT_PRODUCTS},
    "scanned_wide": {"is_scanned": True, "computed": F32},
    "dropped": {"drops": True},
    "padded": {"pads": True},
    "grouped": {"groups": 4},
    "grouped_padded": {"groups": 4, "pads": True},
    "one": {"batch": 16},
    "one_padded": {"batch": 16, "pads": True},
    "one_grouped": {"batch": 16, "groups": 4},
    "one_scanned_again": {"batch": 16, "is_scanned": True, "made_again": jax.checkpoint},
    "momentum": {"optimizer": optax.sgd(1e-3, momentum=0.9)},
    "lion": {"optimizer": optax.lion(1e-4)},
    "adafactor": {"optimizer": optax.adafactor(1e-3)},
    "clipped": {"optimizer": optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))},
    "averaged": {"optimizer": optax.chain(optax.adamw(1e-3), optax.ema(0.999))},
}


def programs() -> Iterator[Callable[[], Program]]:
    for name, policy in POLICIES.items():
        yield named(name, trained, **policy)
    yield accumulated


if __name__ == "__main__":
    lower(__doc__, [*programs()], compressed=True, for_tpu=True)
