"""Programs as people write them in plain jax, nnx, linen, equinox and haiku, of kinds that the other files here do not have.

    python experiments/fidelity/zoo_twelfth.py FOLDER [NAME...]

Lowered as those of `zoo_layers.py`, with the same versions.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from jax import lax
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower, narrow, norm
from zoo import ADAMW, training
from zoo_layers import KEY, abstract_module

CLIPPED = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, b2=0.95, weight_decay=0.1))


def rotated(x: Any, positions: Any) -> Any:
    """Rotary positions: x of (batch, positions, heads, elements)."""
    half = x.shape[-1] // 2
    angles = positions[..., None] * 10000.0 ** (-jnp.arange(half, dtype=F32) / half)
    cos, sin = jnp.cos(angles)[..., None, :], jnp.sin(angles)[..., None, :]
    left, right = jnp.split(x.astype(F32), 2, -1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1).astype(x.dtype)


def llama_nnx_train() -> Program:
    """Llama with normalized grouped queries in nnx, 8 layers scanned, products kept, 64 sequences of 1024; bfloat16 on float32, AdamW."""
    from flax import nnx

    width, heads, groups, each, hidden, vocabulary = 1024, 16, 4, 64, 2816, 32000

    class Layer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            plain = {"use_bias": False, "dtype": BF16, "rngs": rngs}
            self.before, self.between = (nnx.RMSNorm(width, dtype=BF16, rngs=rngs) for _ in range(2))
            self.q = nnx.LinearGeneral(width, (heads, each), **plain)
            self.k, self.v = (nnx.LinearGeneral(width, (groups, each), **plain) for _ in range(2))
            self.q_norm, self.k_norm = (nnx.RMSNorm(each, dtype=BF16, rngs=rngs) for _ in range(2))
            self.out = nnx.LinearGeneral((heads, each), width, axis=(-2, -1), **plain)
            self.gate, self.up = (nnx.Linear(width, hidden, **plain) for _ in range(2))
            self.down = nnx.Linear(hidden, width, **plain)

        def __call__(self, x: Any) -> Any:
            normal = self.before(x)
            positions = jnp.arange(x.shape[1])[None]
            q = rotated(self.q_norm(self.q(normal)), positions)
            k = rotated(self.k_norm(self.k(normal)), positions)
            x = x + self.out(jax.nn.dot_product_attention(q, k, self.v(normal), is_causal=True))
            normal = self.between(x)
            return x + self.down(nnx.silu(self.gate(normal)) * self.up(normal))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.words = nnx.Embed(vocabulary, width, dtype=BF16, rngs=rngs)

            @nnx.split_rngs(splits=8)
            @nnx.vmap(in_axes=(0,), out_axes=0)
            def layers(rngs: nnx.Rngs) -> Layer:
                return Layer(rngs)

            self.layers = layers(rngs)
            self.norm = nnx.RMSNorm(width, dtype=BF16, rngs=rngs)
            self.head = nnx.Linear(width, vocabulary, use_bias=False, dtype=BF16, rngs=rngs)

        def __call__(self, ids: Any) -> Any:
            def run(x: Any, layer: Layer) -> Any:
                return layer(x)

            kept = nnx.remat(run, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
            x = nnx.scan(kept, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(self.words(ids), self.layers)
            return self.head(self.norm(x))

    graph, weights, rest = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))), nnx.Param, ...)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        logits = nnx.merge(graph, weights, rest)(ids)
        return optax.softmax_cross_entropy_with_integer_labels(logits.astype(F32), labels).mean()

    ids = Shape((64, 1024), I32)
    return training(loss, CLIPPED, weights, ids, ids)


def mla_train() -> Program:
    """DeepSeek's latent attention, 16 sorted experts and a shared one, 4 layers, 64 sequences of 512; bfloat16 weights, AdamW."""
    width, heads, each, turned, latent, vocabulary = 1024, 16, 64, 32, 256, 32000
    experts, hidden, chosen = 16, 512, 4
    square = {
        "q": (width, heads, each + turned), "down_kv": (width, latent + turned), "up_kv": (latent, heads, 2 * each),
        "o": (heads, each, width), "route": (width, experts), "gate": (experts, width, hidden), "up": (experts, width, hidden),
        "down": (experts, hidden, width), "s_gate": (width, 2 * hidden), "s_up": (width, 2 * hidden), "s_down": (2 * hidden, width),
        "before": (width,), "between": (width,), "latent": (latent,),
    }  # fmt: skip
    layer = {name: Shape(shape, BF16) for name, shape in square.items()}
    parameters = {"layers": [layer] * 4, "words": Shape((vocabulary, width), BF16)}

    def attend(x: Any, mine: Tree) -> Any:
        positions = jnp.arange(x.shape[1])[None]
        q = jnp.einsum("btd,dhe->bthe", x, mine["q"])
        q_plain, q_turned = q[..., :each], rotated(q[..., each:], positions)
        low = x @ mine["down_kv"]
        k_turned = rotated(low[..., None, latent:], positions)
        kv = jnp.einsum("btl,lhe->bthe", norm(low[..., :latent], mine["latent"]), mine["up_kv"])
        k = jnp.concatenate([kv[..., :each], jnp.broadcast_to(k_turned, q_turned.shape)], -1)
        q = jnp.concatenate([q_plain, q_turned], -1)
        scores = jnp.einsum("bqhe,bkhe->bhqk", q, k, preferred_element_type=F32) * (each + turned) ** -0.5
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e30)
        mixed = jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(scores).astype(BF16), kv[..., each:])
        return jnp.einsum("bqhe,hed->bqd", mixed, mine["o"])

    def dispatched(x: Any, mine: Tree) -> Any:
        """Of each sequence by itself, as many tokens an expert as it would have if all were asked alike, and a quarter more."""
        length = x.shape[1]
        capacity = length * chosen * 5 // (4 * experts)
        affinity = jax.nn.sigmoid((x @ mine["route"]).astype(F32))
        weight, which = lax.top_k(affinity, chosen)
        weight = (weight / weight.sum(-1, keepdims=True)).astype(BF16)

        def of(tokens: Any, weight: Any, which: Any) -> Any:
            flat = which.reshape(-1)
            order = jnp.argsort(flat)
            ranks = jnp.zeros_like(flat).at[order].set(jnp.arange(len(flat)))
            begins = jnp.cumsum(jnp.bincount(flat, length=experts)) - jnp.bincount(flat, length=experts)
            slot = ranks - begins[flat]
            place = jnp.where(slot < capacity, flat * capacity + slot, experts * capacity)
            rows = jnp.repeat(tokens, chosen, axis=0)
            sent = jnp.zeros((experts * capacity + 1, width), BF16).at[place].set(rows)[:-1]
            return sent.reshape(experts, capacity, width), place

        sent, place = jax.vmap(of)(x, weight, which)
        inside = jax.nn.silu(jnp.einsum("becd,edh->bech", sent, mine["gate"]))
        inside = inside * jnp.einsum("becd,edh->bech", sent, mine["up"])
        made = jnp.einsum("bech,ehd->becd", inside, mine["down"]).reshape(len(x), -1, width)
        made = jnp.pad(made, ((0, 0), (0, 1), (0, 0)))
        back = jnp.take_along_axis(made, place[..., None], 1).reshape(*which.shape, width)
        return jnp.einsum("btkd,btk->btd", back, weight)

    def loss(parameters: Tree, ids: Any, labels: Any) -> Any:
        x = parameters["words"][ids]
        for mine in parameters["layers"]:
            x = x + attend(norm(x, mine["before"]), mine)
            y = norm(x, mine["between"])
            shared = (jax.nn.silu(y @ mine["s_gate"]) * (y @ mine["s_up"])) @ mine["s_down"]
            x = x + shared + dispatched(y, mine)
        return cross_entropy(x @ parameters["words"].T, labels)

    ids = Shape((64, 512), I32)
    return training(loss, ADAMW, parameters, ids, ids)


def translate_train() -> Program:
    """An encoder and a decoder of four layers in equinox, dropout, smoothed labels, 256 pairs of 128 words; float32, Adam warmed up."""
    import equinox as eqx

    width, heads, vocabulary = 512, 8, 16000

    class Block(eqx.Module):
        attend: eqx.nn.MultiheadAttention
        cross: eqx.nn.MultiheadAttention | None
        up: eqx.nn.Linear
        down: eqx.nn.Linear
        norms: list[eqx.nn.LayerNorm]
        drop: eqx.nn.Dropout

        def __init__(self, crossed: bool, key: Any) -> None:
            keys = jax.random.split(key, 4)
            self.attend = eqx.nn.MultiheadAttention(heads, width, key=keys[0])
            self.cross = eqx.nn.MultiheadAttention(heads, width, key=keys[1]) if crossed else None
            self.up = eqx.nn.Linear(width, 4 * width, key=keys[2])
            self.down = eqx.nn.Linear(4 * width, width, key=keys[3])
            self.norms = [eqx.nn.LayerNorm(width) for _ in range(3)]
            self.drop = eqx.nn.Dropout(0.1)

        def __call__(self, x: Any, read: Any, mask: Any, crossing: Any, key: Any) -> Any:
            keys = jax.random.split(key, 3)
            x = jax.vmap(self.norms[0])(x + self.drop(self.attend(x, x, x, mask), key=keys[0]))
            if self.cross is not None:
                mixed = self.cross(x, read, read, crossing)
                x = jax.vmap(self.norms[1])(x + self.drop(mixed, key=keys[1]))
            inside = jax.nn.relu(jax.vmap(self.up)(x))
            return jax.vmap(self.norms[2])(x + self.drop(jax.vmap(self.down)(inside), key=keys[2]))

    class Model(eqx.Module):
        words: eqx.nn.Embedding
        encoder: list[Block]
        decoder: list[Block]

        def __init__(self, key: Any) -> None:
            keys = jax.random.split(key, 9)
            self.words = eqx.nn.Embedding(vocabulary, width, key=keys[0])
            self.encoder = [Block(False, k) for k in keys[1:5]]
            self.decoder = [Block(True, k) for k in keys[5:]]

        def __call__(self, source: Any, target: Any, key: Any) -> Any:
            keys = jax.random.split(key, 8)
            places = jnp.arange(len(source))[:, None] * 10000.0 ** (-jnp.arange(width // 2) / (width // 2))
            places = jnp.concatenate([jnp.sin(places), jnp.cos(places)], -1)
            there = source != 0
            x = jax.vmap(self.words)(source) * width**0.5 + places
            for block, k in zip(self.encoder, keys[:4], strict=True):
                x = block(x, None, there[None] & there[:, None], None, k)
            y = jax.vmap(self.words)(target) * width**0.5 + places
            causal = jnp.tril(jnp.ones((len(target), len(target)), bool))
            for block, k in zip(self.decoder, keys[4:], strict=True):
                y = block(y, x, causal, jnp.broadcast_to(there[None], (len(target), len(source))), k)
            return y @ self.words.weight.T

    weights, rest = abstract_module(Model)

    def loss(weights: Tree, source: Any, target: Any, labels: Any, key: Any) -> Any:
        keys = jax.random.split(key, len(source))
        logits = jax.vmap(eqx.combine(weights, rest))(source, target, keys)
        smooth = optax.smooth_labels(jax.nn.one_hot(labels, vocabulary), 0.1)
        losses = optax.softmax_cross_entropy(logits, smooth)
        return (losses * (labels != 0)).sum() / (labels != 0).sum()

    words = Shape((256, 128), I32)
    optimizer = optax.adam(optax.warmup_cosine_decay_schedule(0.0, 1e-3, 4000, 100000), b2=0.98)
    return training(loss, optimizer, weights, words, words, words, KEY)


def wideresnet_train() -> Program:
    """A wide ResNet (28 layers, 4 times as wide) in nnx, mixed pairs of 4096 images of 32 x 32; bfloat16 on float32, momentum."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, before: int, after: int, stride: int, rngs: nnx.Rngs) -> None:
            narrow = {"dtype": BF16, "rngs": rngs}
            self.first, self.second = nnx.BatchNorm(before, **narrow), nnx.BatchNorm(after, **narrow)
            self.one = nnx.Conv(before, after, (3, 3), stride, use_bias=False, **narrow)
            self.two = nnx.Conv(after, after, (3, 3), use_bias=False, **narrow)
            self.short = (
                nnx.Conv(before, after, (1, 1), stride, use_bias=False, **narrow) if before != after else None
            )

        def __call__(self, x: Any) -> Any:
            inside = nnx.relu(self.first(x))
            short = x if self.short is None else self.short(inside)
            return short + self.two(nnx.relu(self.second(self.one(inside))))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            narrow = {"dtype": BF16, "rngs": rngs}
            self.stem = nnx.Conv(3, 16, (3, 3), use_bias=False, **narrow)
            widths = [16] + [64] * 4 + [128] * 4 + [256] * 4
            strides = [1] * 4 + [2, 1, 1, 1] * 2
            self.blocks = nnx.List(
                [Block(a, b, s, rngs) for a, b, s in zip(widths[:-1], widths[1:], strides, strict=True)]
            )
            self.norm = nnx.BatchNorm(256, **narrow)
            self.head = nnx.Linear(256, 100, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(nnx.relu(self.norm(x)).mean((1, 2)).astype(F32))

    model = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    graph, weights, moving = nnx.split(model, nnx.Param, ...)
    optimizer = optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.1, 0.9, nesterov=True))

    def loss(weights: Tree, moving: Tree, images: Any, labels: Any, share: Any) -> tuple[Any, Tree]:
        model = nnx.merge(graph, weights, moving, copy=True)
        model.train()
        logits = model(share * images + (1 - share) * images[::-1])
        wanted = jax.nn.one_hot(labels, 100)
        losses = optax.softmax_cross_entropy(logits, share * wanted + (1 - share) * wanted[::-1])
        return losses.mean(), nnx.split(model, nnx.Param, ...)[2]

    def step(weights: Tree, moving: Tree, state: Tree, *batch: Any) -> tuple[Tree, Tree, Tree, Any]:
        (value, moving), gradients = jax.value_and_grad(loss, has_aux=True)(weights, moving, *batch)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), moving, state, value

    state = jax.eval_shape(optimizer.init, weights)
    batch = Shape((4096, 32, 32, 3), F32), Shape((4096,), I32), Shape((), F32)
    return step, (weights, moving, state, *batch), (0, 1, 2)


def dit_train() -> Program:
    """DiT B/2 in linen (adaLN-Zero), 256 latents of 32 x 32 x 4, a moving average of weights; bfloat16 on float32, AdamW."""
    from flax import linen as nn

    width, heads, patch = 768, 12, 2

    def shifted(x: Any, shift: Any, scale: Any) -> Any:
        return x * (1 + scale[:, None]) + shift[:, None]

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x: Any, told: Any) -> Any:
            six = nn.Dense(6 * width, dtype=BF16, kernel_init=nn.initializers.zeros)(nn.silu(told))
            shift, scale, gate, shift2, scale2, gate2 = jnp.split(six, 6, -1)
            normal = nn.LayerNorm(use_bias=False, use_scale=False, epsilon=1e-6, dtype=BF16)(x)
            mixed = nn.MultiHeadDotProductAttention(heads, dtype=BF16)(shifted(normal, shift, scale))
            x = x + gate[:, None] * mixed
            normal = nn.LayerNorm(use_bias=False, use_scale=False, epsilon=1e-6, dtype=BF16)(x)
            inside = nn.gelu(nn.Dense(4 * width, dtype=BF16)(shifted(normal, shift2, scale2)))
            return x + gate2[:, None] * nn.Dense(width, dtype=BF16)(inside)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x: Any, times: Any, classes: Any) -> Any:
            count = x.shape[0]
            x = nn.Conv(width, (patch, patch), (patch, patch), dtype=BF16)(x).reshape(count, -1, width)
            x = x + self.param("positions", nn.initializers.normal(0.02), (1, x.shape[1], width)).astype(BF16)
            waves = times[:, None] * jnp.exp(-jnp.arange(128) * (9.2 / 128))
            waves = jnp.concatenate([jnp.cos(waves), jnp.sin(waves)], -1)
            told = nn.Dense(width, dtype=BF16)(nn.silu(nn.Dense(width, dtype=BF16)(waves)))
            told = told + nn.Embed(1001, width, dtype=BF16)(classes)
            for _ in range(12):
                x = Block()(x, told)
            shift, scale = jnp.split(nn.Dense(2 * width, dtype=BF16)(nn.silu(told)), 2, -1)
            normal = nn.LayerNorm(use_bias=False, use_scale=False, dtype=BF16)(x)
            x = nn.Dense(patch * patch * 8, dtype=BF16)(shifted(normal, shift, scale))
            x = x.reshape(count, 16, 16, patch, patch, 8).transpose(0, 1, 3, 2, 4, 5)
            return x.reshape(count, 32, 32, 8).astype(F32)

    model = Model()

    def loss(weights: Tree, images: Any, noise: Any, times: Any, classes: Any) -> Any:
        alpha = jnp.cos(times * 1.57)[:, None, None, None]
        noised = alpha * images + jnp.sqrt(1 - alpha**2) * noise
        told, spread = jnp.split(model.apply(weights, noised, times * 1000, classes), 2, -1)
        return jnp.square(told - noise).mean() + 1e-3 * jnp.square(spread).mean()

    def step(weights: Tree, average: Tree, state: Tree, *batch: Any) -> tuple[Tree, Tree, Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(weights, *batch)
        updates, state = ADAMW.update(gradients, state, weights)
        weights = optax.apply_updates(weights, updates)
        return weights, optax.incremental_update(weights, average, 1e-4), state, value

    images, times, classes = Shape((256, 32, 32, 4), F32), Shape((256,), F32), Shape((256,), I32)
    weights = jax.eval_shape(model.init, KEY, images, times, classes)
    return (
        step,
        (weights, weights, jax.eval_shape(ADAMW.init, weights), images, images, times, classes),
        (0, 1, 2),
    )


def vit_registers_train() -> Program:
    """A ViT-S/14 with four registers in haiku, scaled and dropped paths, 512 images of 224; bfloat16 on float32, LAMB."""
    import haiku as hk

    width, heads = 384, 6

    def block(x: Any, rate: float) -> Any:
        def added(x: Any, change: Any, name: str) -> Any:
            scale = hk.get_parameter(name, (width,), init=hk.initializers.Constant(1e-5))
            there = jax.random.bernoulli(hk.next_rng_key(), 1 - rate, (len(x), 1, 1))
            return x + jnp.where(there, change * scale.astype(x.dtype) / (1 - rate), 0).astype(x.dtype)

        normal = hk.LayerNorm(-1, True, True)(x)
        q, k, v = jnp.split(hk.Linear(3 * width)(normal), 3, -1)
        q, k, v = (y.reshape(*y.shape[:2], heads, -1) for y in (q, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(x.shape)
        x = added(x, hk.Linear(width)(mixed), "one")
        inside = jax.nn.gelu(hk.Linear(4 * width)(hk.LayerNorm(-1, True, True)(x)))
        return added(x, hk.Linear(width)(inside), "two")

    def forward(images: Any) -> Any:
        x = hk.Conv2D(width, 14, 14, padding="VALID")(images).reshape(len(images), -1, width)
        first = hk.get_parameter("class", (1, 1, width), init=jnp.zeros)
        registers = hk.get_parameter("registers", (1, 4, width), init=jnp.zeros)
        positions = hk.get_parameter("positions", (1, x.shape[1] + 1, width), init=jnp.zeros)
        x = jnp.concatenate([jnp.broadcast_to(first, (len(x), 1, width)), x], 1) + positions
        x = jnp.concatenate([x[:, :1], jnp.broadcast_to(registers, (len(x), 4, width)), x[:, 1:]], 1)
        for layer in range(12):
            with hk.experimental.name_scope(f"layer{layer}"):
                x = block(x, 0.1 * layer / 11)
        x = hk.LayerNorm(-1, True, True)(x)
        return hk.Linear(1000)(jnp.concatenate([x[:, 0], x[:, 5:].mean(1)], -1))

    model = hk.transform(forward)

    def loss(weights: Tree, images: Any, labels: Any, key: Any) -> Any:
        logits = model.apply(narrow(weights), key, images.astype(BF16))
        return cross_entropy(logits, labels)

    images = Shape((512, 224, 224, 3), F32)
    weights = jax.eval_shape(model.init, KEY, images)
    return training(loss, optax.lamb(1e-3), weights, images, Shape((512,), I32), KEY)


def transducer_train() -> Program:
    """A transducer in linen: six attending layers over 512 frames, an LSTM over 63 letters, each frame with each letter; float32, Adam."""
    from flax import linen as nn

    width, letters = 512, 128

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, mask: Any) -> Any:
            x = x + nn.MultiHeadDotProductAttention(8)(nn.LayerNorm()(x), mask=mask)
            return x + nn.Dense(width)(nn.silu(nn.Dense(4 * width)(nn.LayerNorm()(x))))

    class Model(nn.Module):
        @nn.compact
        def __call__(self, frames: Any, lengths: Any, text: Any) -> Any:
            x = nn.Dense(width)(frames)
            mask = (jnp.arange(x.shape[1]) < lengths[:, None])[:, None, None]
            for _ in range(6):
                x = Layer()(x, mask)
            said = nn.Embed(letters, width)(text)
            said = nn.RNN(nn.OptimizedLSTMCell(width))(said)
            joint = nn.tanh(nn.Dense(256)(x[:, ::2])[:, :, None] + nn.Dense(256)(said)[:, None])
            return jax.nn.log_softmax(nn.Dense(letters)(joint))

    model = Model()

    def loss(weights: Tree, frames: Any, lengths: Any, text: Any) -> Any:
        told = model.apply(weights, frames, lengths, text)
        blank = told[..., 0]
        said = jnp.take_along_axis(told[:, :, :-1], text[:, None, 1:, None], -1)[..., 0]
        said = jnp.pad(said, ((0, 0), (0, 0), (1, 0)), constant_values=-1e30)

        def frame(alpha: Any, given: Any) -> tuple[Any, None]:
            stays, says = given

            def letter(before: Any, given: Any) -> tuple[Any, Any]:
                stays, says = given
                now = jnp.logaddexp(stays, before + says)
                return now, now

            _, alpha = lax.scan(letter, jnp.full(alpha.shape[:1], -1e30), ((alpha + stays).T, says.T))
            return alpha.T, None

        begin = jnp.full(blank[:, 0].shape, -1e30).at[:, 0].set(0.0)
        alpha, _ = lax.scan(frame, begin, (jnp.moveaxis(blank, 1, 0), jnp.moveaxis(said, 1, 0)))
        return -alpha[:, -1].mean()

    frames, lengths, text = Shape((128, 512, 80), F32), Shape((128,), I32), Shape((128, 64), I32)
    return training(
        loss, optax.adam(1e-3), jax.eval_shape(model.init, KEY, frames, lengths, text), frames, lengths, text
    )


def coca_train() -> Program:
    """CoCa in linen: a ViT, a text decoder half of which looks at it, contrasted, captioned, 512 pairs; bfloat16 on float32, AdamW."""
    from flax import linen as nn

    width, heads, vocabulary = 768, 12, 32000

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, read: Any = None, mask: Any = None) -> Any:
            many = {"num_heads": heads, "dtype": BF16}
            x = x + nn.MultiHeadDotProductAttention(**many)(nn.LayerNorm(dtype=BF16)(x), mask=mask)
            if read is not None:
                x = x + nn.MultiHeadDotProductAttention(**many)(nn.LayerNorm(dtype=BF16)(x), read)
            inside = nn.gelu(nn.Dense(4 * width, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x)))
            return x + nn.Dense(width, dtype=BF16)(inside)

    class Model(nn.Module):
        @nn.compact
        def __call__(self, images: Any, text: Any) -> Any:
            x = nn.Conv(width, (16, 16), (16, 16), dtype=BF16)(images).reshape(len(images), -1, width)
            x = x + self.param("places", nn.initializers.normal(0.02), x.shape[1:]).astype(BF16)
            for _ in range(6):
                x = Layer()(x)
            x = nn.LayerNorm(dtype=BF16)(x)
            asked = self.param("asked", nn.initializers.normal(0.02), (64, width)).astype(BF16)
            pooled = nn.MultiHeadDotProductAttention(heads, dtype=BF16)(
                jnp.broadcast_to(asked, (len(x), 64, width)), x
            )
            words = nn.Embed(vocabulary, width, dtype=BF16)
            y = words(text) + self.param(
                "order", nn.initializers.normal(0.02), (text.shape[1], width)
            ).astype(BF16)
            causal = nn.make_causal_mask(text)
            for layer in range(6):
                y = Layer()(y, pooled[:, 1:] if layer >= 3 else None, causal)
                if layer == 2:
                    whole = nn.Dense(width, dtype=BF16)(y[:, -1]).astype(F32)
            logits = words.attend(nn.LayerNorm(dtype=BF16)(y))
            seen = nn.Dense(width, dtype=BF16)(pooled[:, 0]).astype(F32)
            warmth = self.param("warmth", nn.initializers.constant(2.6), ())
            return seen, whole, jnp.exp(warmth), logits

    model = Model()

    def loss(weights: Tree, images: Any, text: Any, labels: Any) -> Any:
        seen, whole, warmth, logits = model.apply(weights, images, text)
        seen, whole = (x * lax.rsqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (seen, whole))
        each = warmth * seen @ whole.T
        own = jnp.arange(len(each))
        return (cross_entropy(each, own) + cross_entropy(each.T, own)) / 2 + 2 * cross_entropy(logits, labels)

    images, text = Shape((512, 224, 224, 3), F32), Shape((512, 64), I32)
    return training(loss, ADAMW, jax.eval_shape(model.init, KEY, images, text), images, text, text)


def qlora_train() -> Program:
    """Updates of rank 32 beside frozen int8 weights, 12 layers scanned and made again, 32 sequences of 1024; bfloat16, AdamW."""
    width, heads, hidden, layers, rank, vocabulary = 2048, 16, 5504, 12, 32, 32000
    sizes = {
        **dict.fromkeys("qkvo", (width, width)),
        "gate": (width, hidden),
        "up": (width, hidden),
        "down": (hidden, width),
    }
    frozen = {
        "words": Shape((vocabulary, width), BF16),
        "head": Shape((width, vocabulary), BF16),
        "norms": Shape((layers, 2, width), BF16),
        "ints": {name: Shape((layers, *size), jnp.int8) for name, size in sizes.items()},
        "scales": {name: Shape((layers, size[1]), F32) for name, size in sizes.items()},
    }
    trained = {
        name: {"a": Shape((layers, size[0], rank), F32), "b": Shape((layers, rank, size[1]), F32)}
        for name, size in sizes.items()
    }

    def loss(trained: Tree, frozen: Tree, ids: Any, labels: Any) -> Any:
        def layer(x: Any, mine: Tree) -> tuple[Any, None]:
            ints, scales, low, norms = mine

            def linear(y: Any, name: str) -> Any:
                weight = ints[name].astype(BF16) * scales[name].astype(BF16)
                lifted = (y @ low[name]["a"].astype(BF16)) @ low[name]["b"].astype(BF16)
                return y @ weight + lifted * 2.0

            y = norm(x, norms[0])
            places = jnp.arange(x.shape[1])[None]
            q, k, v = (linear(y, name).reshape(*x.shape[:2], heads, -1) for name in "qkv")
            mixed = jax.nn.dot_product_attention(rotated(q, places), rotated(k, places), v, is_causal=True)
            x = x + linear(mixed.reshape(x.shape), "o")
            y = norm(x, norms[1])
            return x + linear(jax.nn.silu(linear(y, "gate")) * linear(y, "up"), "down"), None

        stacked = frozen["ints"], frozen["scales"], trained, frozen["norms"]
        x, _ = lax.scan(jax.checkpoint(layer), frozen["words"][ids], stacked)
        return cross_entropy(x @ frozen["head"], labels)

    ids = Shape((32, 1024), I32)
    return training(loss, ADAMW, trained, frozen, ids, ids)


def griffin_train() -> Program:
    """Griffin in nnx: recurrences by associative scans, local attention in every third layer, 32 sequences of 2048; bfloat16, AdamW."""
    from flax import nnx

    width, heads, vocabulary, window = 768, 6, 32000, 512

    class Recurrent(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            narrow = {"dtype": BF16, "rngs": rngs}
            self.left, self.right, self.out = (nnx.Linear(width, width, **narrow) for _ in range(3))
            self.near = nnx.Conv(width, width, (4,), padding="CAUSAL", feature_group_count=width, **narrow)
            self.into, self.keep = (nnx.Linear(width, width, **narrow) for _ in range(2))
            self.rate = nnx.Param(jnp.ones((width,)))

        def __call__(self, x: Any) -> Any:
            y = self.near(self.right(x))
            into, keep = nnx.sigmoid(self.into(y).astype(F32)), nnx.sigmoid(self.keep(y).astype(F32))
            log = -8.0 * keep * nnx.softplus(self.rate[...])
            decay, given = jnp.exp(log), jnp.sqrt(1 - jnp.exp(2 * log)) * into * y.astype(F32)

            def joined(a: Any, b: Any) -> Any:
                return a[0] * b[0], a[1] * b[0] + b[1]

            _, state = lax.associative_scan(joined, (decay, given), axis=1)
            return self.out(nnx.gelu(self.left(x)) * state.astype(BF16))

    class Local(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            plain = {"use_bias": False, "dtype": BF16, "rngs": rngs}
            self.q, self.out = nnx.Linear(width, width, **plain), nnx.Linear(width, width, **plain)
            self.kv = nnx.Linear(width, 2 * width // heads, **plain)

        def __call__(self, x: Any) -> Any:
            batch, length, _ = x.shape
            places = jnp.arange(length)
            q = rotated(self.q(x).reshape(batch, length, heads, -1), places[None])
            k, v = jnp.split(self.kv(x)[:, :, None], 2, -1)
            ago = places[:, None] - places
            mask = (ago >= 0) & (ago < window)
            mixed = jax.nn.dot_product_attention(q, rotated(k, places[None]), v, mask=mask[None, None])
            return self.out(mixed.reshape(x.shape))

    class Layer(nnx.Module):
        def __init__(self, local: bool, rngs: nnx.Rngs) -> None:
            self.before, self.between = (nnx.RMSNorm(width, dtype=BF16, rngs=rngs) for _ in range(2))
            self.mix = Local(rngs) if local else Recurrent(rngs)
            self.gate, self.up = (nnx.Linear(width, 3 * width, dtype=BF16, rngs=rngs) for _ in range(2))
            self.down = nnx.Linear(3 * width, width, dtype=BF16, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.mix(self.before(x))
            y = self.between(x)
            return x + self.down(nnx.gelu(self.gate(y)) * self.up(y))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.words = nnx.Embed(vocabulary, width, dtype=BF16, rngs=rngs)
            self.layers = nnx.List([Layer(i % 3 == 2, rngs) for i in range(6)])
            self.norm = nnx.RMSNorm(width, dtype=BF16, rngs=rngs)

        def __call__(self, ids: Any) -> Any:
            x = self.words(ids) * BF16(width**0.5)
            for layer in self.layers:
                x = nnx.remat(lambda layer, x: layer(x))(layer, x)
            return 30.0 * jnp.tanh(self.words.attend(self.norm(x)).astype(F32) / 30.0)

    graph, weights, rest = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))), nnx.Param, ...)

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        return cross_entropy(nnx.merge(graph, weights, rest)(ids), labels)

    ids = Shape((32, 2048), I32)
    return training(loss, CLIPPED, weights, ids, ids)


def accumulated_train() -> Program:
    """GPT of 12 scanned layers in linen, nothing kept, four microbatches of 32 x 1024 by a scan; bfloat16 on float32, AdamW."""
    from flax import linen as nn

    width, heads, vocabulary = 768, 12, 50304

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, mask: Any) -> tuple[Any, None]:
            normal = nn.LayerNorm(dtype=BF16, use_bias=False)(x)
            x = x + nn.MultiHeadDotProductAttention(heads, dtype=BF16, use_bias=False)(normal, mask=mask)
            normal = nn.LayerNorm(dtype=BF16, use_bias=False)(x)
            inside = nn.gelu(nn.Dense(4 * width, dtype=BF16, use_bias=False)(normal))
            return x + nn.Dense(width, dtype=BF16, use_bias=False)(inside), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, ids: Any) -> Any:
            words = nn.Embed(vocabulary, width, dtype=BF16)
            x = words(ids) + nn.Embed(1024, width, dtype=BF16)(jnp.arange(ids.shape[1]))
            kept = nn.remat(Layer, policy=jax.checkpoint_policies.nothing_saveable, prevent_cse=False)
            stack = nn.scan(kept, {"params": 0}, length=12, split_rngs={"params": True}, in_axes=nn.broadcast)
            x, _ = stack()(x, nn.make_causal_mask(ids[:1]))
            return words.attend(nn.LayerNorm(dtype=BF16, use_bias=False)(x)).astype(F32)

    model = Model()

    def loss(weights: Tree, ids: Any, labels: Any) -> Any:
        logits = model.apply(weights, ids)
        total = jax.nn.logsumexp(logits, -1)
        chosen = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
        return (total - chosen).mean() + 1e-4 * (total**2).mean()

    def step(weights: Tree, state: Tree, ids: Any, labels: Any) -> tuple[Tree, Tree, Any]:
        def part(kept: Tree, batch: Any) -> tuple[Tree, Any]:
            value, gradients = jax.value_and_grad(loss)(weights, *batch)
            return jax.tree.map(jnp.add, kept, gradients), value

        zeros = jax.tree.map(jnp.zeros_like, weights)
        gradients, values = lax.scan(part, zeros, (ids, labels))
        updates, state = CLIPPED.update(jax.tree.map(lambda g: g / 4, gradients), state, weights)
        return optax.apply_updates(weights, updates), state, values.mean()

    ids = Shape((4, 32, 1024), I32)
    weights = jax.eval_shape(model.init, KEY, Shape((32, 1024), I32))
    return step, (weights, jax.eval_shape(CLIPPED.init, weights), ids, ids), (0, 1)


def wgan_train() -> Program:
    """A critic's step of WGAN-GP in haiku: the gradient of a gradient's norm, residual networks, 256 images of 64 x 64; float32, Adam."""
    import haiku as hk

    def up(x: Any, channels: int) -> Any:
        wide = jnp.repeat(jnp.repeat(x, 2, 1), 2, 2)
        y = hk.Conv2D(channels, 3)(jax.nn.relu(hk.LayerNorm((1, 2, 3), True, True)(wide)))
        y = hk.Conv2D(channels, 3)(jax.nn.relu(hk.LayerNorm((1, 2, 3), True, True)(y)))
        return y + hk.Conv2D(channels, 1)(wide)

    def down(x: Any, channels: int) -> Any:
        y = hk.Conv2D(channels, 3)(jax.nn.leaky_relu(x, 0.2))
        y = hk.Conv2D(channels, 3)(jax.nn.leaky_relu(y, 0.2))
        y = hk.avg_pool(y, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return y + hk.Conv2D(channels, 1)(hk.avg_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))

    def generator(z: Any) -> Any:
        x = hk.Linear(4 * 4 * 256)(z).reshape(-1, 4, 4, 256)
        for channels in (256, 128, 128, 64):
            x = up(x, channels)
        return jnp.tanh(hk.Conv2D(3, 3)(jax.nn.relu(x)))

    def critic(images: Any) -> Any:
        x = hk.Conv2D(64, 3)(images)
        for channels in (128, 128, 256, 256):
            x = down(x, channels)
        return hk.Linear(1)(x.reshape(len(x), -1))[:, 0]

    make, judge = (hk.without_apply_rng(hk.transform(f)) for f in (generator, critic))
    images, z = Shape((256, 64, 64, 3), F32), Shape((256, 128), F32)

    def loss(weights: Tree, maker: Tree, images: Any, z: Any, share: Any) -> Any:
        fake = make.apply(maker, z)
        between = share * images + (1 - share) * fake
        slope = jax.grad(lambda x: judge.apply(weights, x).sum())(between)
        length = jnp.sqrt(jnp.square(slope).sum((1, 2, 3)) + 1e-12)
        judged = judge.apply(weights, fake).mean() - judge.apply(weights, images).mean()
        return judged + 10.0 * jnp.square(length - 1).mean()

    weights, maker = jax.eval_shape(judge.init, KEY, images), jax.eval_shape(make.init, KEY, z)
    return training(loss, optax.adam(1e-4, 0.0, 0.9), weights, maker, images, z, Shape((256, 1, 1, 1), F32))


def paged_decode() -> Program:
    """A token for each of 128 sequences, keys and values in pages of 64 positions by a table, 8 layers scanned; bfloat16."""
    width, heads, groups, each, hidden, layers, vocabulary = 2048, 16, 4, 128, 5632, 8, 32000
    sequences, pages, page, most = 128, 4096, 64, 32
    sizes = {
        "q": (width, heads * each), "k": (width, groups * each), "v": (width, groups * each), "o": (heads * each, width),
        "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width), "before": (width,), "between": (width,),
    }  # fmt: skip
    weights = {
        "layers": {name: Shape((layers, *size), BF16) for name, size in sizes.items()},
        "words": Shape((vocabulary, width), BF16),
        "head": Shape((width, vocabulary), BF16),
    }
    cache = Shape((layers, pages, page, groups, each), BF16)

    def step(weights: Tree, keys: Any, values: Any, table: Any, lengths: Any, ids: Any) -> Any:
        own, offset = jnp.take_along_axis(table, (lengths // page)[:, None], 1)[:, 0], lengths % page
        there = jnp.arange(most * page) <= lengths[:, None]

        def layer(x: Any, mine: Tree) -> Any:
            w, keys, values = mine
            y = norm(x, w["before"])
            q, k, v = ((y @ w[n]).reshape(sequences, -1, each) for n in "qkv")
            q, k = (rotated(a[:, None], lengths[:, None])[:, 0] for a in (q, k))
            keys, values = keys.at[own, offset].set(k), values.at[own, offset].set(v)
            all_keys = keys[table].reshape(sequences, most * page, groups, each)
            all_values = values[table].reshape(sequences, most * page, groups, each)
            q = q.reshape(sequences, groups, heads // groups, each)
            scores = jnp.einsum("bgre,btge->bgrt", q, all_keys).astype(F32) * each**-0.5
            shares = jax.nn.softmax(jnp.where(there[:, None, None], scores, -1e30)).astype(BF16)
            mixed = jnp.einsum("bgrt,btge->bgre", shares, all_values).reshape(sequences, -1)
            x = x + mixed @ w["o"]
            y = norm(x, w["between"])
            return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"], (keys, values)

        x, (keys, values) = lax.scan(layer, weights["words"][ids], (weights["layers"], keys, values))
        return jnp.argmax(x @ weights["head"], -1), keys, values, lengths + 1

    ints = Shape((sequences,), I32)
    return step, (weights, cache, cache, Shape((sequences, most), I32), ints, ints), (1, 2, 4)


def chunk_prefill() -> Program:
    """512 tokens of each of 32 prompts behind 1536 others, into caches of 4096 positions, 12 layers with a list of caches; bfloat16."""
    width, heads, groups, each, hidden, vocabulary, most = 2048, 16, 8, 128, 8192, 32000, 4096
    sizes = {
        "q": (width, heads, each), "k": (width, groups, each), "v": (width, groups, each), "o": (heads, each, width),
        "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width), "before": (width,), "between": (width,),
    }  # fmt: skip
    layer = {name: Shape(size, BF16) for name, size in sizes.items()}
    weights = {"layers": [layer] * 12, "words": Shape((vocabulary, width), BF16)}
    cache = [{"k": Shape((32, most, groups, each), BF16), "v": Shape((32, most, groups, each), BF16)}] * 12

    def step(weights: Tree, cache: Tree, begin: Any, ids: Any) -> Any:
        places = begin + jnp.arange(ids.shape[1])
        seen = jnp.arange(most) <= places[:, None]
        x = weights["words"][ids]
        new: list[Tree] = []
        for mine, kept in zip(weights["layers"], cache, strict=True):
            y = norm(x, mine["before"])
            q, k, v = (jnp.einsum("btd,dhe->bthe", y, mine[n]) for n in "qkv")
            q, k = rotated(q, places[None]), rotated(k, places[None])
            keys = lax.dynamic_update_slice(kept["k"], k, (0, begin, 0, 0))
            values = lax.dynamic_update_slice(kept["v"], v, (0, begin, 0, 0))
            new.append({"k": keys, "v": values})
            q = q.reshape(*q.shape[:2], groups, heads // groups, each)
            scores = jnp.einsum("bqgre,bkge->bgrqk", q, keys, preferred_element_type=F32) * each**-0.5
            shares = jax.nn.softmax(jnp.where(seen, scores, -1e30)).astype(BF16)
            mixed = jnp.einsum("bgrqk,bkge->bqgre", shares, values).reshape(*x.shape[:2], heads, each)
            x = x + jnp.einsum("bthe,hed->btd", mixed, mine["o"])
            y = norm(x, mine["between"])
            x = x + (jax.nn.gelu(y @ mine["gate"]) * (y @ mine["up"])) @ mine["down"]
        return (x[:, -1] @ weights["words"].T).astype(F32), new

    return step, (weights, cache, Shape((), I32), Shape((32, 512), I32)), (1,)


def segment_fwd() -> Program:
    """A U-Net of residual blocks with group normalization in nnx at four scales, 64 images of 256 x 256 to masks; bfloat16 on float32."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, before: int, after: int, rngs: nnx.Rngs) -> None:
            narrow = {"dtype": BF16, "rngs": rngs}
            self.norms = nnx.List([nnx.GroupNorm(before, 16, **narrow), nnx.GroupNorm(after, 16, **narrow)])
            self.one = nnx.Conv(before, after, (3, 3), **narrow)
            self.two = nnx.Conv(after, after, (3, 3), **narrow)
            self.short = nnx.Conv(before, after, (1, 1), **narrow)

        def __call__(self, x: Any) -> Any:
            y = self.one(nnx.silu(self.norms[0](x)))
            return self.short(x) + self.two(nnx.silu(self.norms[1](y)))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            narrow = {"dtype": BF16, "rngs": rngs}
            self.stem = nnx.Conv(3, 32, (3, 3), **narrow)
            self.down = nnx.List([Block(a, b, rngs) for a, b in ((32, 64), (64, 128), (128, 256))])
            self.middle = Block(256, 256, rngs)
            self.up = nnx.List([Block(a, b, rngs) for a, b in ((512, 128), (256, 64), (128, 32))])
            self.last = nnx.Conv(32, 21, (1, 1), **narrow)

        def __call__(self, x: Any) -> Any:
            x = self.stem(x)
            kept: list[Any] = []
            for block in self.down:
                x = block(x)
                kept.append(x)
                x = nnx.max_pool(x, (2, 2), (2, 2))
            x = self.middle(x)
            for block in self.up:
                skip = kept.pop()
                x = jax.image.resize(x, (*skip.shape[:3], x.shape[-1]), "nearest")
                x = block(jnp.concatenate([x, skip], -1))
            return jnp.argmax(self.last(x), -1)

    graph, weights = nnx.split(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))

    def forward(weights: Tree, images: Any) -> Any:
        return nnx.merge(graph, weights)(images)

    return forward, (weights, Shape((64, 256, 256, 3), F32)), ()


PROGRAMS = (
    llama_nnx_train,
    mla_train,
    translate_train,
    wideresnet_train,
    dit_train,
    vit_registers_train,
    transducer_train,
    coca_train,
    qlora_train,
    griffin_train,
    accumulated_train,
    wgan_train,
    paged_decode,
    chunk_prefill,
    segment_fwd,
)

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True)
