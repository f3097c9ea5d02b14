"""How JAX programs say shardings and state: explicit sharding mode, `shard_map`, constraints that leave dimensions open, gradient
accumulation, pipelines, policies of rematerialisation, generators of random numbers, ragged products, decode loops.

Lowered on abstract devices, those that name shardings on a mesh x=4,y=4; nothing was tuned on them.

python experiments/fidelity/idioms.py FOLDER [NAME...]
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from programs import BF16, F32, I32, Tree
from small import descend

WIDTH, HIDDEN, BATCH, LENGTH, LAYERS = 1024, 4096, 64, 512, 4
AUTO, EXPLICIT = (
    AbstractMesh((4, 4), ("x", "y"), axis_types=(kind,) * 2) for kind in (AxisType.Auto, AxisType.Explicit)
)
FREE = P.UNCONSTRAINED


def weights(*, layers: int = LAYERS, dtype: Any = BF16) -> list[Tree]:
    return [
        {"in": Shape((WIDTH, HIDDEN), dtype), "out": Shape((HIDDEN, WIDTH), dtype)} for _ in range(layers)
    ]


def activations(sharding: NamedSharding | None = None, batch: int = BATCH) -> Shape:
    return Shape((batch, LENGTH, WIDTH), BF16, sharding=sharding)


def power(x: Any) -> Any:
    return jnp.mean(x.astype(F32) ** 2)


def explicit_train() -> Any:
    """A scanned perceptron with rematerialisation; every value's type has a sharding."""

    def loss(parameters: Tree, x: Any) -> Any:
        def layer(x: Any, w: Tree) -> tuple[Any, None]:
            h = jax.nn.gelu(jnp.einsum("btd,df->btf", x, w["in"], out_sharding=P("x", None, "y")))
            return x + jnp.einsum("btf,fd->btd", h, w["out"], out_sharding=P("x", None, None)), None

        return power(lax.scan(jax.checkpoint(layer), x, parameters)[0])

    ends = {"in": P(None, None, "y"), "out": P(None, "y", None)}
    shapes = {"in": (LAYERS, WIDTH, HIDDEN), "out": (LAYERS, HIDDEN, WIDTH)}
    with jax.sharding.use_abstract_mesh(EXPLICIT):
        p = {name: Shape(shapes[name], BF16, sharding=NamedSharding(EXPLICIT, ends[name])) for name in ends}
        x = activations(NamedSharding(EXPLICIT, P("x", None, None)))
        return jax.jit(descend(loss), donate_argnums=0).trace(p, x)


def explicit_transformer_train(*, is_scanned: bool) -> Any:
    """A decoder with tied embeddings and momentum, Megatron's shardings, layers one by one or scanned with rematerialisation."""
    heads, words = 16, 32768

    def norm(x: Any, gain: Any) -> Any:
        wide = x.astype(F32)
        return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(BF16) * gain

    def layer(x: Any, w: Tree) -> Any:
        h = norm(x, w["before"])
        q, k, v = (jnp.einsum("btd,dhk->bthk", h, w[n], out_sharding=P("x", None, "y", None)) for n in "qkv")
        scores = jnp.einsum("bthk,bshk->bhts", q, k).astype(F32) / 8
        past = jnp.arange(LENGTH)[:, None] >= jnp.arange(LENGTH)[None, :]
        shares = jax.nn.softmax(jnp.where(past, scores, -1e9), -1).astype(BF16)
        mixed = jnp.einsum("bhts,bshk->bthk", shares, v)
        x = x + jnp.einsum("bthk,hkd->btd", mixed, w["o"], out_sharding=P("x", None, None))
        h = jnp.einsum("btd,df->btf", norm(x, w["after"]), w["in"], out_sharding=P("x", None, "y"))
        return x + jnp.einsum(
            "btf,fd->btd", jax.nn.gelu(h + w["bias"]), w["out"], out_sharding=P("x", None, None)
        )

    def loss(parameters: Tree, tokens: Any, labels: Any) -> Any:
        x = parameters["words"].at[tokens].get(out_sharding=P("x", None, None))
        if is_scanned:
            x, _ = lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, parameters["layers"])
        else:
            for w in parameters["layers"]:
                x = layer(x, w)
        logits = jnp.einsum("btd,vd->btv", x, parameters["words"], out_sharding=P("x", None, "y")).astype(F32)
        picked = jnp.sum(jnp.where(labels[..., None] == jnp.arange(words), logits, 0), -1)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - picked)

    def step(parameters: Tree, means: Tree, *batch: Any) -> tuple[Tree, Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        means = jax.tree.map(lambda m, g: 0.9 * m + g.astype(F32), means, gradients)
        return jax.tree.map(lambda p, m: (p - 1e-3 * m).astype(BF16), parameters, means), means, value

    def given(shape: tuple[int, ...], *spec: str | None, dtype: Any = BF16) -> Shape:
        return Shape(shape, dtype, sharding=NamedSharding(EXPLICIT, P(*spec)))

    size, stack = WIDTH // heads, (LAYERS,) if is_scanned else ()
    specs = {"before": (None,), "after": (None,), "bias": ("y",), "in": (None, "y"), "out": ("y", None)}
    specs |= {**dict.fromkeys("qkv", (None, "y", None)), "o": ("y", None, None)}
    shapes = {"before": (WIDTH,), "after": (WIDTH,), "bias": (HIDDEN,)}
    shapes |= {"in": (WIDTH, HIDDEN), "out": (HIDDEN, WIDTH), "o": (heads, size, WIDTH)}
    shapes |= dict.fromkeys("qkv", (WIDTH, heads, size))
    one = {n: given((*stack, *shapes[n]), *[None] * len(stack), *specs[n]) for n in specs}
    with jax.sharding.use_abstract_mesh(EXPLICIT):
        p = {"words": given((words, WIDTH), "y", None), "layers": one if is_scanned else [one] * LAYERS}
        means = jax.tree.map(lambda w: Shape(w.shape, F32, sharding=w.sharding), p)
        batch = [given((BATCH, LENGTH), "x", None, dtype=I32)] * 2
        return jax.jit(step, donate_argnums=(0, 1)).trace(p, means, *batch)


def shard_map_train(batch: int = BATCH, layers: int = 2) -> Any:
    """Perceptrons in a `shard_map` that sums over y, products between them that are planned."""

    def inside(w: Any, v: Any, x: Any) -> Any:
        return lax.psum(jax.nn.gelu(x @ w) @ v, "y")

    mapped = jax.shard_map(inside, mesh=AUTO, in_specs=(P(None, "y"), P("y", None), P("x")), out_specs=P("x"))

    def loss(parameters: Tree, x: Any) -> Any:
        for w in parameters:
            x = (x + mapped(w["in"], w["out"], x)) @ w["next"]
        return power(x)

    p = [{**w, "next": Shape((WIDTH, WIDTH), BF16)} for w in weights(layers=layers)]
    with jax.sharding.use_abstract_mesh(AUTO):
        x = activations(NamedSharding(AUTO, P("x")), batch)
        return jax.jit(descend(loss), donate_argnums=0).trace(p, x)


def open_dims_fwd() -> Any:
    """Constraints with unconstrained dimensions."""

    def forward(w: Any, v: Any, x: Any) -> Any:
        h = lax.with_sharding_constraint(jax.nn.relu(x @ w), NamedSharding(AUTO, P("x", FREE, "y")))
        return lax.with_sharding_constraint(h @ v, NamedSharding(AUTO, P(FREE, FREE, None)))

    (w,) = weights(layers=1)
    with jax.sharding.use_abstract_mesh(AUTO):
        return jax.jit(forward).trace(w["in"], w["out"], activations(NamedSharding(AUTO, P("x"))))


def ragged_moe_fwd() -> Any:
    """A mixture of experts by sorting and `ragged_dot`."""
    experts = 16

    def forward(router: Any, w: Any, v: Any, x: Any) -> Any:
        rows = x.reshape(-1, WIDTH)
        scores, chosen = lax.top_k((rows @ router).astype(F32), 2)
        flat = chosen.reshape(-1)
        order = jnp.argsort(flat)
        sizes = jnp.bincount(flat, length=experts).astype(I32)
        h = jax.nn.silu(lax.ragged_dot(jnp.repeat(rows, 2, axis=0)[order], w, sizes))
        y = lax.ragged_dot(h, v, sizes)[jnp.argsort(order)].reshape(-1, 2, WIDTH)
        return (y * jax.nn.softmax(scores).astype(BF16)[..., None]).sum(1).reshape(x.shape)

    shapes = (WIDTH, experts), (experts, WIDTH, HIDDEN // 2), (experts, HIDDEN // 2, WIDTH)
    return jax.jit(forward).trace(*(Shape(shape, BF16) for shape in shapes), activations())


def dropout(generator: str, *, remat: bool) -> Any:
    """Dropout with one of JAX's generators, with a policy of rematerialisation or none."""

    def layer(w: Tree, x: Any, key: Any) -> Any:
        h = checkpoint_name(jax.nn.gelu(x @ w["in"]), "hidden")
        return x + jnp.where(jax.random.bernoulli(key, 0.9, h.shape), h / 0.9, 0).astype(BF16) @ w["out"]

    policy = jax.checkpoint_policies.save_only_these_names("hidden")
    apply = jax.checkpoint(layer, policy=policy) if remat else layer

    def loss(parameters: Tree, x: Any, key: Any) -> Any:
        for w, one in zip(parameters, jax.random.split(key, LAYERS), strict=True):
            x = apply(w, x, one)
        return power(x)

    key = jax.eval_shape(lambda: jax.random.key(0, impl=generator))
    return jax.jit(descend(loss), donate_argnums=0).trace(weights(), activations(), key)


def accumulation_train() -> Any:
    """Gradients of eight parts of a batch added up in float32, clipped, momentum."""

    def loss(parameters: Tree, x: Any) -> Any:
        for w in parameters:
            x = x + jax.nn.gelu(x @ w["in"]) @ w["out"]
        return power(x)

    def step(parameters: Tree, means: Tree, x: Any) -> tuple[Tree, Tree, Any]:
        def part(total: Tree, x: Any) -> tuple[Tree, Any]:
            value, gradients = jax.value_and_grad(loss)(parameters, x)
            return jax.tree.map(lambda a, b: a + b.astype(F32), total, gradients), value

        zeros = jax.tree.map(lambda w: jnp.zeros(w.shape, F32), parameters)
        total, values = lax.scan(part, zeros, x.reshape(8, -1, LENGTH, WIDTH))
        norm = jnp.sqrt(sum(jnp.sum(one**2) for one in jax.tree.leaves(total)))
        means = jax.tree.map(lambda m, g: 0.9 * m + jnp.minimum(1.0, 1.0 / norm) * g, means, total)
        return jax.tree.map(lambda w, m: w - (1e-3 * m).astype(BF16), parameters, means), means, values.mean()

    with jax.sharding.use_abstract_mesh(AUTO):
        x = activations(NamedSharding(AUTO, P("x")), 4 * BATCH)
        return jax.jit(step, donate_argnums=(0, 1)).trace(weights(), weights(dtype=F32), x)


def pipeline_fwd() -> Any:
    """Four stages on x that hand microbatches on by `ppermute`; y is planned."""
    stages, parts, rows = 4, 16, 512

    def inside(w: Any, x: Any) -> Any:
        stage = lax.axis_index("x")

        def tick(t: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            now, done = state
            now = jax.nn.relu(jnp.where(stage == 0, x[jnp.minimum(t, parts - 1)], now) @ w[0])
            after = lax.dynamic_update_index_in_dim(done, now, jnp.maximum(t - stages + 1, 0), 0)
            done = jnp.where(stage == stages - 1, after, done)
            return lax.ppermute(now, "x", [(i, (i + 1) % stages) for i in range(stages)]), done

        start = jnp.zeros(x.shape[1:], x.dtype), jnp.zeros_like(x)
        start = tuple(lax.pcast(one, ("x",), to="varying") for one in start)
        _, done = lax.fori_loop(0, parts + stages - 1, tick, start)
        return lax.psum(jnp.where(stage == stages - 1, done, 0), "x")

    mapped = jax.shard_map(inside, mesh=AUTO, in_specs=(P("x"), P()), out_specs=P(), axis_names={"x"})
    with jax.sharding.use_abstract_mesh(AUTO):
        shapes = (stages, WIDTH, WIDTH), (parts, rows, WIDTH)
        return jax.jit(mapped).trace(*(Shape(shape, BF16) for shape in shapes))


def decode_while() -> Any:
    """A decode loop whose cache is donated."""

    def step(w: Tree, cache: Any, x: Any) -> tuple[Any, Any]:
        def token(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            at, cache, x = state
            cache = lax.dynamic_update_slice(cache, (x @ w["k"])[:, None], (0, at, 0))
            scores = jax.nn.softmax(jnp.einsum("bd,btd->bt", x @ w["q"], cache).astype(F32)).astype(BF16)
            return at + 1, cache, jnp.tanh(jnp.einsum("bt,btd->bd", scores, cache) @ w["o"])

        return lax.while_loop(lambda state: state[0] < 64, token, (0, cache, x))[1:]

    w = {name: Shape((WIDTH, WIDTH), BF16) for name in "qko"}
    shapes = (BATCH, 4 * LENGTH, WIDTH), (BATCH, WIDTH)
    return jax.jit(step, donate_argnums=1).trace(w, *(Shape(shape, BF16) for shape in shapes))


PROGRAMS: dict[str, Callable[[], Any]] = {
    **{one.__name__: one for one in (explicit_train, shard_map_train, open_dims_fwd, ragged_moe_fwd)},
    **{one.__name__: one for one in (accumulation_train, pipeline_fwd, decode_while)},
    "explicit_transformer_train": partial(explicit_transformer_train, is_scanned=False),
    "explicit_transformer_scan_train": partial(explicit_transformer_train, is_scanned=True),
    "shard_map_large_train": partial(shard_map_train, batch=16 * BATCH, layers=3),
    "dropout_threefry_remat_train": partial(dropout, "threefry2x32", remat=True),
    "dropout_rbg_remat_train": partial(dropout, "rbg", remat=True),
    "dropout_rbg_train": partial(dropout, "rbg", remat=False),
}


@click.command(help=__doc__)
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("names", nargs=-1, type=click.Choice(list(PROGRAMS)))
def main(folder: Path, names: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or PROGRAMS:
        text = PROGRAMS[name]().lower(lowering_platforms=("tpu",)).as_text()
        (folder / f"{name}.mlir").write_text(text)
        click.echo(f"{name}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
