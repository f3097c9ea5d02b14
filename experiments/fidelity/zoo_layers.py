"""Programs built of the layers of packages: haiku, equinox, flax's linen and nnx. `zoo.py` lowers them and has how.

Architectures by name: Perceiver AR, PPO on a gated transformer, mixture of experts with capacity (GShard), U-ViT, S5, GPT-NeoX with
low-rank updates, SoundStream's tokenizer, DLRM, a graph transformer, decoding with windows of keys and values.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from jax import lax
from programs import BF16, F32, I32, Program, Tree, cross_entropy, narrow
from zoo import ADAMW, training

KEY = Shape((2,), jnp.uint32)


def perceiver_ar_train() -> Program:
    """Perceiver AR in haiku: 512 latents look at 2048 tokens once and at each other in four layers, 64 sequences; float32, AdamW."""
    import haiku as hk

    width, heads, latents = 768, 12, 512

    def attend(x: Any, read: Any, offset: int, name: str) -> Any:
        mask = jnp.arange(read.shape[1]) <= jnp.arange(x.shape[1])[:, None] + offset
        normal = [hk.LayerNorm(-1, True, True)(v) for v in (x, read)]
        attention = hk.MultiHeadAttention(
            heads, width // heads, w_init=hk.initializers.VarianceScaling(), name=name
        )
        x = x + attention(normal[0], normal[1], normal[1], mask[None, None])
        hidden = hk.Linear(4 * width)(hk.LayerNorm(-1, True, True)(x))
        return x + hk.Linear(width)(jax.nn.gelu(hidden))

    def forward(ids: Any) -> Any:
        positions = hk.get_parameter("positions", (ids.shape[1], width), init=jnp.zeros)
        embedded = hk.Embed(16384, width)(ids) + positions
        x = attend(embedded[:, -latents:], embedded, ids.shape[1] - latents, "cross")
        for _ in range(4):
            x = attend(x, x, 0, "self")
        return hk.Linear(16384)(hk.LayerNorm(-1, True, True)(x))

    model = hk.without_apply_rng(hk.transform(forward))
    ids, labels = Shape((64, 2048), I32), Shape((64, latents), I32)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(model.apply(weights, ids), labels)

    return training(loss, ADAMW, jax.eval_shape(model.init, KEY, ids), ids, labels)


def ppo_train() -> Program:
    """PPO on a causal transformer of six layers in haiku, distributions by distrax, 128 games of 256 steps; bfloat16 on float32, Adam."""
    import distrax
    import haiku as hk

    width, heads, actions = 512, 8, 18

    def forward(seen: Any) -> tuple[Any, Any]:
        x = hk.Linear(width)(seen)
        x = x + hk.get_parameter("positions", (seen.shape[1], width), init=jnp.zeros).astype(x.dtype)
        causal = jnp.tril(jnp.ones((seen.shape[1],) * 2, bool))[None, None]
        for _ in range(6):
            normal = hk.LayerNorm(-1, True, True)(x)
            attention = hk.MultiHeadAttention(heads, width // heads, w_init=hk.initializers.VarianceScaling())
            mixed = attention(normal, normal, normal, causal)
            x = hk.BatchApply(hk.GRU(width))(mixed, x)[0]  # gated instead of added
            hidden = hk.Linear(4 * width)(hk.LayerNorm(-1, True, True)(x))
            x = x + hk.Linear(width)(jax.nn.relu(hidden))
        return hk.Linear(actions)(x).astype(F32), hk.Linear(1)(x)[..., 0].astype(F32)

    model = hk.without_apply_rng(hk.transform(forward))
    games, steps = 128, 256

    def loss(weights: Tree, seen: Any, taken: Any, before: Any, gained: Any, returns: Any) -> Any:
        logits, values = model.apply(narrow(weights), seen.astype(BF16))
        chosen = distrax.Categorical(logits=logits)
        ratio = jnp.exp(chosen.log_prob(taken) - before)
        gained = (gained - gained.mean()) / (gained.std() + 1e-6)
        clipped = jnp.minimum(ratio * gained, jnp.clip(ratio, 0.8, 1.2) * gained)
        return -clipped.mean() + 0.5 * jnp.square(values - returns).mean() - 0.01 * chosen.entropy().mean()

    seen, told = Shape((games, steps, 512), F32), Shape((games, steps), F32)
    weights = jax.eval_shape(model.init, KEY, seen)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(3e-4))
    return training(loss, optimizer, weights, seen, Shape(told.shape, I32), told, told, told)


def moe_train() -> Program:
    """Two dense layers and two of 16 experts with capacity (GShard's einsums) in linen, 64 sequences of 512; bfloat16 on float32, AdamW."""
    from flax import linen as nn

    width, hidden, experts, vocabulary = 1024, 2816, 16, 32000

    class Experts(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            capacity = 2 * x.shape[1] // experts
            gates = jax.nn.softmax(nn.Dense(experts, dtype=F32)(x))
            kept, chosen = lax.top_k(gates, 2)
            asked = jax.nn.one_hot(chosen, experts, dtype=F32)  # group, token, which, expert
            flat = asked.reshape(x.shape[0], -1, experts)
            place = ((jnp.cumsum(flat, 1) - 1) * flat).reshape(asked.shape).astype(I32)
            slot = jax.nn.one_hot(place, capacity, dtype=BF16) * asked[..., None].astype(BF16)
            sent = slot.sum(2)
            weighed = (slot * kept[..., None, None].astype(BF16)).sum(2)
            up = self.param("up", nn.initializers.lecun_normal(), (experts, width, hidden)).astype(BF16)
            down = self.param("down", nn.initializers.lecun_normal(), (experts, hidden, width)).astype(BF16)
            inside = jnp.einsum("gtec,gtd->egcd", sent, x)
            inside = jnp.einsum("egch,ehd->egcd", jax.nn.gelu(jnp.einsum("egcd,edh->egch", inside, up)), down)
            return jnp.einsum("gtec,egcd->gtd", weighed, inside)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, ids: Any) -> Any:
            x = nn.Embed(vocabulary, width, dtype=BF16)(ids)
            causal = nn.make_causal_mask(ids)
            for layer in range(4):
                normal = nn.RMSNorm(dtype=BF16)(x)
                x = x + nn.MultiHeadDotProductAttention(16, dtype=BF16, use_bias=False)(normal, mask=causal)
                normal = nn.RMSNorm(dtype=BF16)(x)
                if layer % 2:
                    x = x + Experts()(normal)
                else:
                    x = x + nn.Dense(width, dtype=BF16)(nn.silu(nn.Dense(4 * width, dtype=BF16)(normal)))
            return nn.Dense(vocabulary, dtype=BF16, use_bias=False)(nn.RMSNorm(dtype=BF16)(x))

    model, words = Model(), Shape((64, 512), I32)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(model.apply(weights, ids), labels)

    return training(loss, ADAMW, jax.eval_shape(model.init, KEY, words), words, words)


def uvit_train() -> Program:
    """U-ViT in nnx: seven blocks with long skips, time and class as tokens, 256 latents of 32 x 32 x 4; bfloat16 on float32, AdamW."""
    from flax import nnx

    width, heads, patch = 768, 12, 2

    class Block(nnx.Module):
        def __init__(self, skips: bool, rngs: nnx.Rngs) -> None:
            narrow = {"dtype": BF16, "rngs": rngs}
            self.merge = nnx.Linear(2 * width, width, **narrow) if skips else None
            self.before, self.between = nnx.LayerNorm(width, **narrow), nnx.LayerNorm(width, **narrow)
            self.qkv = nnx.Linear(width, 3 * width, use_bias=False, **narrow)
            self.out = nnx.Linear(width, width, **narrow)
            self.up, self.down = (
                nnx.Linear(width, 4 * width, **narrow),
                nnx.Linear(4 * width, width, **narrow),
            )

        def __call__(self, x: Any, skip: Any = None) -> Any:
            if self.merge is not None:
                x = self.merge(jnp.concatenate([x, skip], -1))
            cut = self.qkv(self.before(x)).reshape(*x.shape[:2], 3, heads, width // heads)
            mixed = jax.nn.dot_product_attention(cut[:, :, 0], cut[:, :, 1], cut[:, :, 2])
            x = x + self.out(mixed.reshape(x.shape))
            return x + self.down(jax.nn.gelu(self.up(self.between(x))))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            narrow = {"dtype": BF16, "rngs": rngs}
            self.cut = nnx.Conv(4, width, (patch, patch), (patch, patch), **narrow)
            self.classes = nnx.Embed(1001, width, **narrow)
            self.time = nnx.Linear(256, width, **narrow)
            self.positions = nnx.Param(jnp.zeros((258, width)))
            self.down = nnx.List([Block(False, rngs) for _ in range(3)])
            self.middle = Block(False, rngs)
            self.up = nnx.List([Block(True, rngs) for _ in range(3)])
            self.norm = nnx.LayerNorm(width, **narrow)
            self.back = nnx.Linear(width, patch * patch * 4, **narrow)
            self.smooth = nnx.Conv(4, 4, (3, 3), rngs=rngs)

        def __call__(self, images: Any, times: Any, classes: Any) -> Any:
            patches = self.cut(images).reshape(len(images), -1, width)
            waves = times[:, None] * jnp.exp(-jnp.arange(128) * (9.2 / 128))
            told = self.time(jnp.concatenate([jnp.cos(waves), jnp.sin(waves)], -1))
            x = jnp.concatenate([told[:, None], self.classes(classes)[:, None], patches], 1)
            x = x + self.positions[...].astype(BF16)
            kept: list[Any] = []
            for block in self.down:
                x = block(x)
                kept.append(x)
            x = self.middle(x)
            for block in self.up:
                x = block(x, kept.pop())
            x = self.back(self.norm(x))[:, 2:].reshape(len(images), 16, 16, patch, patch, 4)
            return self.smooth(x.transpose(0, 1, 3, 2, 4, 5).reshape(images.shape).astype(F32))

    model = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    graph, weights, rest = nnx.split(model, nnx.Param, ...)

    def loss(weights: Tree, images: Any, noise: Any, times: Any, classes: Any) -> Any:
        alpha = jnp.cos(times * 1.57)[:, None, None, None]
        noised = alpha * images + jnp.sqrt(1 - alpha**2) * noise
        told = nnx.merge(graph, weights, rest)(noised, times * 1000, classes)
        return jnp.square(told - noise).mean()

    images = Shape((256, 32, 32, 4), F32)
    return training(loss, ADAMW, weights, images, images, Shape((256,), F32), Shape((256,), I32))


def abstract_module(build: Any) -> tuple[Tree, Tree]:
    """The shapes of an equinox module's arrays, and the rest of it."""
    import equinox as eqx

    return eqx.partition(eqx.filter_eval_shape(build, KEY), lambda leaf: isinstance(leaf, Shape))


def s5_train() -> Program:
    """S5 in equinox: six layers of diagonal states by an associative scan, 64 sequences of 2048 samples; float32, AdamW."""
    import equinox as eqx

    width, states = 384, 128

    class Layer(eqx.Module):
        rates: Any
        into: Any
        out: Any
        skip: Any
        norm: eqx.nn.LayerNorm
        gate: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 4)
            self.rates = jax.random.normal(keys[0], (states,))
            self.into = jax.random.normal(keys[1], (width, states))
            self.out = jax.random.normal(keys[2], (states, width))
            self.skip = jnp.ones((width,))
            self.norm = eqx.nn.LayerNorm(width)
            self.gate = eqx.nn.Linear(width, width, key=keys[3])

        def __call__(self, x: Any) -> Any:
            normal = jax.vmap(self.norm)(x)
            kept = jnp.broadcast_to(jnp.exp(-jnp.exp(self.rates)), (len(x), states))

            def joined(left: Any, right: Any) -> Any:
                return left[0] * right[0], left[1] * right[0] + right[1]

            _, seen = lax.associative_scan(joined, (kept, normal @ self.into))
            y = jax.nn.gelu(seen @ self.out + self.skip * normal)
            return x + y * jax.nn.sigmoid(jax.vmap(self.gate)(y))

    class Model(eqx.Module):
        first: eqx.nn.Linear
        layers: list[Layer]
        last: eqx.nn.Linear

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 8)
            self.first = eqx.nn.Linear(4, width, key=keys[0])
            self.layers = [Layer(k) for k in keys[1:7]]
            self.last = eqx.nn.Linear(width, 35, key=keys[7])

        def __call__(self, samples: Any) -> Any:
            x = jax.vmap(self.first)(samples)
            for layer in self.layers:
                x = layer(x)
            return self.last(x.mean(0))

    weights, rest = abstract_module(Model)

    def loss(weights: Tree, samples: Any, labels: Any) -> Any:
        return cross_entropy(jax.vmap(eqx.combine(weights, rest))(samples), labels)

    return training(loss, ADAMW, weights, Shape((64, 2048, 4), F32), Shape((64,), I32))


def lora_train() -> Program:
    """GPT-NeoX in equinox (attention and perceptron side by side), four frozen layers of bfloat16, updates of rank 16; AdamW."""
    import equinox as eqx

    width, heads, vocabulary, turned = 3072, 24, 50432, 32

    class Adapted(eqx.Module):
        frozen: Any
        bias: Any
        down: Any
        up: Any

        def __init__(self, key: Any, inputs: int, outputs: int) -> None:
            self.frozen = jax.random.normal(key, (inputs, outputs), BF16)
            self.bias = jnp.zeros((outputs,), BF16)
            self.down, self.up = jnp.zeros((inputs, 16)), jnp.zeros((16, outputs))

        def __call__(self, x: Any) -> Any:
            low = (x @ self.down.astype(BF16)) @ self.up.astype(BF16)
            return x @ self.frozen + self.bias + 2.0 * low

    class Layer(eqx.Module):
        before: eqx.nn.LayerNorm
        beside: eqx.nn.LayerNorm
        qkv: Adapted
        dense: Adapted
        up: Adapted
        down: Adapted

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 4)
            self.before = eqx.nn.LayerNorm(width, dtype=BF16)
            self.beside = eqx.nn.LayerNorm(width, dtype=BF16)
            self.qkv, self.dense = Adapted(keys[0], width, 3 * width), Adapted(keys[1], width, width)
            self.up, self.down = Adapted(keys[2], width, 4 * width), Adapted(keys[3], 4 * width, width)

        def __call__(self, x: Any) -> Any:
            length, size = x.shape[0], width // heads
            q, k, v = jnp.split(self.qkv(jax.vmap(self.before)(x)).reshape(length, heads, 3 * size), 3, -1)
            q, k = rotated(q, turned), rotated(k, turned)
            scores = jnp.einsum("qhd,khd->hqk", q, k).astype(F32) * size**-0.5
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
            mixed = jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores).astype(BF16), v)
            inside = jax.nn.gelu(self.up(jax.vmap(self.beside)(x)), approximate=False)
            return x + self.dense(mixed.reshape(length, width)) + self.down(inside)

    class Model(eqx.Module):
        table: Any
        layers: list[Layer]
        head: Any

        def __init__(self, key: Any) -> None:
            self.table = jnp.zeros((vocabulary, width), BF16)
            self.layers = [Layer(k) for k in jax.random.split(key, 4)]
            self.head = jnp.zeros((width, vocabulary), BF16)

        def __call__(self, ids: Any) -> Any:
            x = self.table[ids]
            for layer in self.layers:
                x = layer(x)
            return x @ self.head

    arrays, rest = abstract_module(Model)
    learnt, frozen = eqx.partition(arrays, lambda leaf: leaf.dtype == F32)

    def loss(learnt: Tree, frozen: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(jax.vmap(eqx.combine(learnt, frozen, rest))(ids), labels)

    words = Shape((64, 512), I32)
    return training(loss, ADAMW, learnt, frozen, words, words)


def rotated(x: Any, turned: int) -> Any:
    """The first `turned` elements of each head are turned by its position (dimension -3)."""
    angles = jnp.arange(x.shape[-3])[:, None] * 10000.0 ** (-jnp.arange(0, turned, 2) / turned)
    angles = jnp.concatenate([angles, angles], -1)[:, None]
    first, rest = x[..., :turned].astype(F32), x[..., turned:]
    halves = jnp.split(first, 2, -1)
    first = first * jnp.cos(angles) + jnp.concatenate([-halves[1], halves[0]], -1) * jnp.sin(angles)
    return jnp.concatenate([first.astype(x.dtype), rest], -1)


def tokenizer_train() -> Program:
    """SoundStream's shape in equinox: one-dimensional convolutions, ELU, four residual codebooks, 128 clips of 8192; float32, Adam."""
    import equinox as eqx

    class Unit(eqx.Module):
        wide: eqx.nn.Conv1d
        narrow: eqx.nn.Conv1d

        def __init__(self, key: Any, channels: int, dilation: int) -> None:
            keys = jax.random.split(key)
            self.wide = eqx.nn.Conv1d(channels, channels, 7, padding="SAME", dilation=dilation, key=keys[0])
            self.narrow = eqx.nn.Conv1d(channels, channels, 1, key=keys[1])

        def __call__(self, x: Any) -> Any:
            return x + self.narrow(jax.nn.elu(self.wide(jax.nn.elu(x))))

    class Model(eqx.Module):
        encoder: list[Any]
        books: Any
        decoder: list[Any]

        def __init__(self, key: Any) -> None:
            keys = iter(jax.random.split(key, 40))
            sizes = ((64, 128, 2), (128, 256, 4), (256, 512, 4))
            self.encoder = [eqx.nn.Conv1d(1, 64, 7, padding="SAME", key=next(keys))]
            for few, many, stride in sizes:
                self.encoder += [Unit(next(keys), few, d) for d in (1, 3)]
                self.encoder.append(eqx.nn.Conv1d(few, many, 2 * stride, stride, "SAME", key=next(keys)))
            self.books = jax.random.normal(next(keys), (4, 1024, 512))
            self.decoder = []
            for few, many, stride in reversed(sizes):
                up = eqx.nn.ConvTranspose1d(many, few, 2 * stride, stride, padding="SAME", key=next(keys))
                self.decoder += [up, *(Unit(next(keys), few, d) for d in (1, 3))]
            self.decoder.append(eqx.nn.Conv1d(64, 1, 7, padding="SAME", key=next(keys)))

        def __call__(self, clip: Any) -> tuple[Any, Any]:
            x = clip[None]
            for part in self.encoder:
                x = part(x)
            left, told, missed = x.T, jnp.zeros_like(x.T), 0.0
            for book in self.books:
                far = -2 * left @ book.T + jnp.square(book).sum(-1)
                nearest = book[jnp.argmin(far, -1)]
                missed += jnp.square(lax.stop_gradient(left) - nearest).mean()
                told, left = told + nearest, left - lax.stop_gradient(nearest)
            y = (x.T + lax.stop_gradient(told - x.T)).T
            for part in self.decoder:
                y = part(jax.nn.elu(y))
            return y[0], missed

    weights, rest = abstract_module(Model)

    def loss(weights: Tree, clips: Any) -> Any:
        made, missed = jax.vmap(eqx.combine(weights, rest))(clips)
        return jnp.abs(made - clips).mean() + missed.mean()

    return training(loss, optax.adam(1e-4, b1=0.5, b2=0.9), weights, Shape((128, 8192), F32))


def dlrm_train() -> Program:
    """DLRM in linen: 12 tables of 200000 x 64 with bags of 8, crossed by products, 32768 rows; float32, Adagrad and momentum."""
    from flax import linen as nn

    tables, bag, width = 12, 8, 64

    class Model(nn.Module):
        @nn.compact
        def __call__(self, dense: Any, bags: Any, weights: Any) -> Any:
            for size in (512, 256, width):
                dense = nn.relu(nn.Dense(size)(dense))
            found = [dense]
            for table in range(tables):
                rows = nn.Embed(200_000, width, name=f"table{table}")(bags[:, table])
                found.append((rows * weights[:, table, :, None]).sum(1))
            stacked = jnp.stack(found, 1)
            crossed = jnp.einsum("btd,bud->btu", stacked, stacked)
            pairs = crossed[(slice(None), *jnp.tril_indices(tables + 1, -1))]
            x = jnp.concatenate([dense, pairs], -1)
            for size in (1024, 1024, 512):
                x = nn.relu(nn.Dense(size)(x))
            return nn.Dense(1)(x)[:, 0]

    model, rows = Model(), 32768
    batch = (Shape((rows, 13), F32), Shape((rows, tables, bag), I32), Shape((rows, tables, bag), F32))

    def loss(weights: Tree, dense: Any, bags: Any, weighed: Any, clicked: Any) -> Any:
        return optax.sigmoid_binary_cross_entropy(model.apply(weights, dense, bags, weighed), clicked).mean()

    def kinds(weights: Tree) -> Tree:
        return {"params": {name: "table" if "table" in name else "dense" for name in weights["params"]}}

    weights = jax.eval_shape(model.init, KEY, *batch)
    optimizer = optax.multi_transform(
        {"table": optax.adagrad(1e-2), "dense": optax.sgd(1e-2, 0.9)}, kinds(weights)
    )
    return training(loss, optimizer, weights, *batch, Shape((rows,), F32))


def graph_train() -> Program:
    """A graph transformer in haiku with jraph's softmax over edges, 32768 nodes and 262144 edges, four layers; float32, AdamW."""
    import haiku as hk
    import jraph

    width, heads, nodes, edges = 256, 8, 32768, 262144

    def forward(x: Any, along: Any, senders: Any, receivers: Any) -> Any:
        x, along = hk.Linear(width)(x), hk.Linear(width)(along)
        for _ in range(4):
            normal = hk.LayerNorm(-1, True, True)(x)
            cut = [hk.Linear(width)(normal).reshape(nodes, heads, -1) for _ in range(3)]
            bias = hk.Linear(heads)(along)
            scores = (cut[0][receivers] * cut[1][senders]).sum(-1) * (width // heads) ** -0.5 + bias
            weighed = jraph.segment_softmax(scores, receivers, nodes)
            mixed = jax.ops.segment_sum(cut[2][senders] * weighed[..., None], receivers, nodes)
            x = x + hk.Linear(width)(mixed.reshape(nodes, width))
            x = x + hk.Linear(width)(jax.nn.silu(hk.Linear(2 * width)(hk.LayerNorm(-1, True, True)(x))))
        return hk.Linear(1)(x)[:, 0]

    model = hk.without_apply_rng(hk.transform(forward))
    ends = Shape((edges,), I32)
    inputs = (Shape((nodes, 64), F32), Shape((edges, 16), F32), ends, ends)

    def loss(weights: Tree, *batch: Any) -> Any:
        return jnp.abs(model.apply(weights, *batch[:-1]) - batch[-1]).mean()

    return training(loss, ADAMW, jax.eval_shape(model.init, KEY, *inputs), *inputs, Shape((nodes,), F32))


def sliding_decode() -> Program:
    """One token of eight layers in linen, bfloat16: 128 sequences, keys and values of 4096 positions, rings of 1024 in three of four."""
    from flax import linen as nn

    width, heads, shared, size, vocabulary = 2048, 16, 4, 128, 65536

    class Attention(nn.Module):
        @nn.compact
        def __call__(self, x: Any, keys: Any, values: Any, position: Any) -> tuple[Any, Any, Any]:
            narrow = {"dtype": BF16, "param_dtype": BF16, "use_bias": False}
            rows, kept = x.shape[0], keys.shape[1]
            q = nn.Dense(heads * size, **narrow)(x).reshape(rows, shared, heads // shared, size)
            made = (nn.Dense(shared * size, **narrow)(x).reshape(rows, 1, shared, size) for _ in range(2))
            at = (0, position % kept, 0, 0)
            keys, values = (
                lax.dynamic_update_slice(a, b, at) for a, b in zip((keys, values), made, strict=True)
            )
            scores = jnp.einsum("bgqd,bkgd->bgqk", q, keys).astype(F32) * size**-0.5
            scores = jnp.where(jnp.arange(kept) <= position, scores, -1e9)
            mixed = jnp.einsum("bgqk,bkgd->bgqd", jax.nn.softmax(scores).astype(BF16), values)
            return nn.Dense(width, **narrow)(mixed.reshape(rows, -1)), keys, values

    class Model(nn.Module):
        @nn.compact
        def __call__(self, ids: Any, caches: Any, position: Any) -> tuple[Any, Any]:
            narrow = {"dtype": BF16, "param_dtype": BF16, "use_bias": False}
            x = nn.Embed(vocabulary, width, dtype=BF16, param_dtype=BF16)(ids)
            after: list[Any] = []
            for keys, values in caches:
                mixed, *cache = Attention()(nn.RMSNorm(dtype=BF16)(x), keys, values, position)
                after.append(tuple(cache))
                x = x + mixed
                normal = nn.RMSNorm(dtype=BF16)(x)
                gate, up = (nn.Dense(3 * width, **narrow)(normal) for _ in range(2))
                x = x + nn.Dense(width, **narrow)(nn.silu(gate) * up)
            return nn.Dense(vocabulary, **narrow)(x).argmax(-1).astype(I32), after

    model, rows = Model(), 128
    caches = [(Shape((rows, 4096 if n % 4 == 3 else 1024, shared, size), BF16),) * 2 for n in range(8)]
    ids, position = Shape((rows,), I32), Shape((), I32)
    weights = jax.eval_shape(model.init, KEY, ids, caches, position)

    def step(caches: Tree, weights: Tree, ids: Any, position: Any) -> tuple[Any, Tree]:
        told, caches = model.apply(weights, ids, caches, position)
        return told, caches

    return step, (caches, weights, ids, position), (0,)


PROGRAMS = (
    perceiver_ar_train,
    ppo_train,
    moe_train,
    uvit_train,
    s5_train,
    lora_train,
    tokenizer_train,
    dlrm_train,
    graph_train,
    sliding_decode,
)
