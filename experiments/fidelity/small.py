"""Small programs, one for each kind of op that partitioners treat in a way of its own; the rules for collectives were learnt on them.

Lowered and used like those of `programs.py`, on which nothing was learnt.

python experiments/fidelity/small.py FOLDER [NAME...]
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax
from programs import BF16, F32, I32, Tree, layer_norm, lower

Step = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]


def rms_norm(x: Any, scale: Any) -> Any:
    square = (x.astype(F32) ** 2).mean(-1, keepdims=True)
    return (x * lax.rsqrt(square + 1e-6)).astype(x.dtype) * scale


def descend(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Plain gradient descent: (parameters, batch...) to (parameters, loss)."""

    def step(parameters: Tree, *batch: Any) -> tuple[Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        return jax.tree.map(lambda a, b: a - 0.1 * b, parameters, gradients), value

    return step


def adam(loss: Callable[..., Any], *, clips: bool = False) -> Callable[..., Any]:
    """(parameters, means, squares, batch...) to the same and the loss; `clips` by the norm of all gradients."""

    def step(parameters: Tree, means: Tree, squares: Tree, *batch: Any) -> tuple[Tree, Tree, Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        if clips:
            norm = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(gradients)))
            gradients = jax.tree.map(lambda x: x * jnp.minimum(1.0, 1.0 / norm), gradients)
        means = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, means, gradients)
        squares = jax.tree.map(lambda a, b: 0.99 * a + 0.01 * b * b, squares, gradients)
        parameters = jax.tree.map(
            lambda a, b, c: a - 1e-3 * b / (jnp.sqrt(c) + 1e-8), parameters, means, squares
        )
        return parameters, means, squares, value

    return step


def gpt_scan_remat_train() -> Step:
    """Four decoder layers scanned, made anew in the backward pass, Adam with clipping."""
    layers, width, heads, vocabulary, batch, length = 4, 1024, 16, 16384, 32, 512

    def block(x: Any, w: Tree) -> Any:
        h = layer_norm(x, w["g1"]).astype(BF16)
        q, k, v = (
            (h @ w[n].astype(BF16)).reshape(batch, length, heads, width // heads) for n in ("q", "k", "v")
        )
        scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(F32) / 8.0
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores).astype(BF16), v)
        x = x + mixed.reshape(batch, length, width) @ w["o"].astype(BF16)
        h = layer_norm(x, w["g2"]).astype(BF16)
        return x + jax.nn.gelu(h @ w["u"].astype(BF16) + w["ub"].astype(BF16)) @ w["d"].astype(BF16)

    def loss(p: Tree, tokens: Any, targets: Any) -> Any:
        x = p["e"].astype(BF16)[tokens] + p["pos"].astype(BF16)
        x, _ = lax.scan(lambda x, w: (jax.checkpoint(block)(x, w), None), x, p["b"])
        logits = (layer_norm(x, p["gf"]).astype(BF16) @ p["e"].astype(BF16).T).astype(F32)
        chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    block_shapes = {n: Shape((layers, width, width), F32) for n in "qkvo"} | {
        "u": Shape((layers, width, 4 * width), F32),
        "d": Shape((layers, 4 * width, width), F32),
        "ub": Shape((layers, 4 * width), F32),
        "g1": Shape((layers, width), F32),
        "g2": Shape((layers, width), F32),
    }
    p = {
        "e": Shape((vocabulary, width), F32),
        "pos": Shape((length, width), F32),
        "gf": Shape((width,), F32),
        "b": block_shapes,
    }
    tokens = Shape((batch, length), I32)
    return adam(loss, clips=True), (p, p, p, tokens, tokens), (0, 1, 2)


def gqa_rope_fwd() -> Step:
    """Two layers of grouped-query attention with rotary positions and a gated MLP, bfloat16."""
    batch, length, width, heads, groups, head, hidden = 16, 1024, 2048, 16, 4, 128, 5632

    def rotated(x: Any) -> Any:
        angles = jnp.arange(length)[:, None] * (10000.0 ** (-jnp.arange(head // 2) / (head // 2)))
        cos, sin = jnp.cos(angles)[None, :, None], jnp.sin(angles)[None, :, None]
        a, b = jnp.split(x.astype(F32), 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)

    def forward(layers: list[Tree], x: Any) -> Any:
        for w in layers:
            h = rms_norm(x, w["g"])
            q = rotated((h @ w["q"]).reshape(batch, length, heads, head))
            k = rotated((h @ w["k"]).reshape(batch, length, groups, head))
            v = (h @ w["v"]).reshape(batch, length, groups, head)
            q = q.reshape(batch, length, groups, heads // groups, head)
            scores = jnp.einsum("btkgd,bskd->bkgts", q, k, preferred_element_type=F32) / head**0.5
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
            mixed = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores).astype(BF16), v)
            x = x + mixed.reshape(batch, length, heads * head) @ w["o"]
            h = rms_norm(x, w["g2"])
            x = x + (jax.nn.silu(h @ w["w1"]) * (h @ w["w3"])) @ w["w2"]
        return x

    shapes = {"g": (width,), "g2": (width,), "q": (width, heads * head), "k": (width, groups * head)}
    shapes |= {"v": (width, groups * head), "o": (heads * head, width)}
    shapes |= {"w1": (width, hidden), "w3": (width, hidden), "w2": (hidden, width)}
    layer = {name: Shape(shape, BF16) for name, shape in shapes.items()}
    return forward, ([layer] * 2, Shape((batch, length, width), BF16)), ()


def moe_onehot_fwd() -> Step:
    """16 experts by one-hot dispatch in each sequence."""
    batch, length, width, experts, hidden, capacity = 32, 256, 1024, 16, 4096, 64

    def forward(w: Tree, x: Any) -> Any:
        top, chosen = lax.top_k(jax.nn.softmax((x @ w["r"]).astype(F32)), 2)
        is_for = jax.nn.one_hot(chosen, experts, dtype=F32)
        flat = is_for.reshape(batch, length * 2, experts)
        place = (jnp.cumsum(flat, 1) * flat - 1).reshape(batch, length, 2, experts)
        slots = jax.nn.one_hot(place, capacity, dtype=BF16) * is_for.astype(BF16)[..., None]
        sent = jnp.einsum("btec,btd->becd", jnp.sum(slots, 2), x)
        worked = jnp.einsum("becf,efd->becd", jax.nn.gelu(jnp.einsum("becd,edf->becf", sent, w["u"])), w["d"])
        back = jnp.einsum("btk,btkec->btec", top.astype(BF16), slots)
        return x + jnp.einsum("btec,becd->btd", back, worked)

    shapes = {"r": (width, experts), "u": (experts, width, hidden), "d": (experts, hidden, width)}
    return (
        forward,
        ({n: Shape(s, BF16) for n, s in shapes.items()}, Shape((batch, length, width), BF16)),
        (),
    )


def moe_sort_fwd() -> Step:
    """16 experts by sorting tokens: argsort, gather and scatter-add."""
    rows, width, experts, hidden = 8192, 1024, 16, 2048

    def forward(w: Tree, x: Any) -> Any:
        top, chosen = lax.top_k(jax.nn.softmax((x @ w["r"]).astype(F32)), 2)
        order = jnp.argsort(chosen.reshape(-1))
        sent = x[order // 2].reshape(experts, rows * 2 // experts, width)
        worked = jnp.einsum("enf,efd->end", jax.nn.silu(jnp.einsum("end,edf->enf", sent, w["u"])), w["d"])
        worked = worked.reshape(rows * 2, width) * top.reshape(-1)[order][:, None].astype(BF16)
        return x + jnp.zeros_like(x).at[order // 2].add(worked)

    shapes = {"r": (width, experts), "u": (experts, width, hidden), "d": (experts, hidden, width)}
    return forward, ({n: Shape(s, BF16) for n, s in shapes.items()}, Shape((rows, width), BF16)), ()


def unet_groupnorm_train() -> Step:
    """Residual blocks with group norm at two scales, strided down, resized up, skips concatenated."""
    batch, size, width = 32, 64, 128

    def conv(x: Any, w: Any, stride: int = 1) -> Any:
        return lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def norm(x: Any, scale: Any, shift: Any, groups: int = 16) -> Any:
        n, h, w, c = x.shape
        y = x.reshape(n, h, w, groups, c // groups)
        mean = y.mean((1, 2, 4), keepdims=True)
        variance = ((y - mean) ** 2).mean((1, 2, 4), keepdims=True)
        return ((y - mean) * lax.rsqrt(variance + 1e-5)).reshape(n, h, w, c) * scale + shift

    def residual(x: Any, p: Tree) -> Any:
        h = conv(jax.nn.silu(norm(x, p["g1"], p["b1"])), p["c1"])
        h = conv(jax.nn.silu(norm(h, p["g2"], p["b2"])), p["c2"])
        return h + (conv(x, p["s"]) if "s" in p else x)

    def loss(p: Tree, x: Any, y: Any) -> Any:
        skip = residual(conv(x, p["in"]), p["r1"])
        low = residual(conv(skip, p["dn"], 2), p["r2"])
        high = jax.image.resize(low, (batch, size, size, 2 * width), "nearest")
        high = residual(jnp.concatenate([high, skip], -1), p["r3"])
        return jnp.mean((conv(high, p["out"]) - y) ** 2)

    def block(a: int, b: int) -> Tree:
        shapes = {"g1": (a,), "b1": (a,), "g2": (b,), "b2": (b,), "c1": (3, 3, a, b), "c2": (3, 3, b, b)}
        shapes |= {"s": (1, 1, a, b)} if a != b else {}
        return {name: Shape(shape, F32) for name, shape in shapes.items()}

    p = {"in": Shape((3, 3, 4, width), F32), "r1": block(width, width)}
    p |= {"dn": Shape((3, 3, width, 2 * width), F32), "r2": block(2 * width, 2 * width)}
    p |= {"r3": block(3 * width, width), "out": Shape((3, 3, width, 4), F32)}
    images = Shape((batch, size, size, 4), F32)
    return descend(loss), (p, images, images), (0,)


def lstm_scan_train() -> Step:
    """A recurrent layer of 1024 units scanned over 64 steps, and its gradient."""
    length, batch, width = 64, 128, 1024

    def loss(p: Tree, xs: Any, ys: Any) -> Any:
        def cell(carried: tuple[Any, Any], x: Any) -> tuple[tuple[Any, Any], Any]:
            h, s = carried
            enter, forget, new, leave = jnp.split(x @ p["wx"] + h @ p["wh"] + p["b"], 4, -1)
            s = jax.nn.sigmoid(forget) * s + jax.nn.sigmoid(enter) * jnp.tanh(new)
            h = jax.nn.sigmoid(leave) * jnp.tanh(s)
            return (h, s), h

        start = jnp.zeros((batch, width))
        return jnp.mean((lax.scan(cell, (start, start), xs)[1] @ p["o"] - ys) ** 2)

    shapes = {"wx": (width, 4 * width), "wh": (width, 4 * width), "b": (4 * width,), "o": (width, 256)}
    p = {name: Shape(shape, F32) for name, shape in shapes.items()}
    series = (Shape((length, batch, width), F32), Shape((length, batch, 256), F32))
    return descend(loss), (p, *series), (0,)


def embed_bag_train() -> Step:
    """26 lookups of narrow rows for each of 4096 examples, and an MLP."""
    rows, width, batch, bags = 262144, 128, 4096, 26

    def loss(p: Tree, ids: Any, dense: Any, y: Any) -> Any:
        h = jnp.concatenate([p["t"][ids].reshape(batch, bags * width), dense], -1)
        for w, b in p["mlp"]:
            h = jax.nn.relu(h @ w + b)
        z = (h @ p["o"])[:, 0]
        return jnp.mean(jax.nn.softplus(z) - y * z)

    first, second = (bags * width + 64, 1024), (1024, 512)
    mlp = [(Shape(size, F32), Shape(size[1:], F32)) for size in (first, second)]
    p = {"t": Shape((rows, width), F32), "mlp": mlp, "o": Shape((512, 1), F32)}
    batches = (Shape((batch, bags), I32), Shape((batch, 64), F32), Shape((batch,), F32))
    return descend(loss), (p, *batches), (0,)


def linalg_iter() -> Step:
    """Eight steps of an iteration on 64 matrices, their triangle, trace and square."""
    count, size = 64, 512

    def forward(a: Any, b: Any) -> Any:
        def body(x: Any, _: None) -> tuple[Any, Any]:
            rest = b - jnp.einsum("bij,bjk->bik", a, x)
            norm = jnp.sqrt(jnp.sum(rest * rest, (1, 2), keepdims=True))
            return x + rest / (1 + norm), norm[:, 0, 0]

        x, norms = lax.scan(body, jnp.zeros_like(b), None, length=8)
        y = 2 * x - jnp.einsum("bij,bjk,bkl->bil", x, a, x)
        lower_part = jnp.tril(y, -1) + jnp.eye(size)
        trace = jnp.trace(lower_part, axis1=1, axis2=2)
        return y, norms, trace, jnp.swapaxes(lower_part, 1, 2) @ lower_part

    matrices = Shape((count, size, size), F32)
    return forward, (matrices, matrices), ()


def pooling_fwd() -> Step:
    """Overlapping and disjoint windows between convolutions, strided and not."""

    def conv(x: Any, w: Any, stride: int) -> Any:
        return lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def forward(x: Any, w: Any, w2: Any) -> Any:
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        x = lax.reduce_window(conv(x, w, 1), 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
        return conv(x, w2, 2).mean((1, 2))

    shapes = ((32, 128, 128, 64), (3, 3, 64, 256), (3, 3, 256, 512))
    return forward, tuple(Shape(shape, F32) for shape in shapes), ()


def scan_sort_ops() -> Step:
    """Running sums and maxima, sorts, the largest few, reversing and rolling rows of a product."""

    def forward(x: Any, w: Any) -> Any:
        y = x @ w
        sums = jnp.cumsum(y, 0)
        top, where = lax.top_k(sums, 8)
        turned = jnp.flip(y, 1) + jnp.roll(y, 3, 0)
        largest = lax.cummax(y, axis=1)
        rolled = jnp.concatenate([y[1:], y[:1]], 0) @ w.T
        return (
            *(jnp.argmax(sums, -1), jnp.sort(y, -1)[:, :64], top, where),
            *(turned.sum(1), largest.sum(0), rolled),
        )

    return forward, (Shape((4096, 1024), F32), Shape((1024, 2048), F32)), ()


def vocab_xent_train() -> Step:
    """Cross entropy over 131,072 classes with momentum."""
    classes, width, rows = 131072, 1024, 4096

    def loss(p: Tree, x: Any, labels: Any) -> Any:
        logits = jax.nn.relu(x @ p["h"]) @ p["w"]
        chosen = jnp.take_along_axis(logits, labels[:, None], 1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)

    def step(p: Tree, momenta: Tree, x: Any, labels: Any) -> tuple[Tree, Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(p, x, labels)
        momenta = jax.tree.map(lambda a, b: 0.9 * a + b, momenta, gradients)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, momenta), momenta, value

    p = {"h": Shape((width, width), F32), "w": Shape((width, classes), F32)}
    return step, (p, p, Shape((rows, width), F32), Shape((rows,), I32)), (0, 1)


def decode_kv() -> Step:
    """One token into the caches of four layers, scanned, grouped-query attention."""
    batch, width, heads, groups, head, length, layers = 32, 2048, 16, 4, 128, 2048, 4

    def step(weights: Tree, caches: Any, x: Any, position: Any) -> Any:
        def layer(x: Any, mine: Any) -> Any:
            w, (keys, values) = mine
            h = rms_norm(x, w["g"])
            q = (h @ w["q"]).reshape(batch, groups, heads // groups, head)
            k = (h @ w["k"]).reshape(batch, 1, groups, head)
            v = (h @ w["v"]).reshape(batch, 1, groups, head)
            keys = lax.dynamic_update_slice(keys, k, (0, position, 0, 0))
            values = lax.dynamic_update_slice(values, v, (0, position, 0, 0))
            scores = jnp.einsum("bkgd,btkd->bkgt", q, keys).astype(F32)
            scores = jnp.where(jnp.arange(length) <= position, scores, -1e9)
            mixed = jnp.einsum("bkgt,btkd->bkgd", jax.nn.softmax(scores).astype(BF16), values)
            x = x + mixed.reshape(batch, width) @ w["o"]
            h = rms_norm(x, w["g2"])
            return x + (jax.nn.silu(h @ w["a"]) * (h @ w["b"])) @ w["c"], (keys, values)

        return lax.scan(layer, x, (weights, caches))

    shapes = {"g": (width,), "g2": (width,), "q": (width, width), "k": (width, groups * head)}
    shapes |= {"v": (width, groups * head), "o": (width, width)}
    shapes |= {"a": (width, 8192), "b": (width, 8192), "c": (8192, width)}
    weights = {name: Shape((layers, *shape), BF16) for name, shape in shapes.items()}
    caches = (Shape((layers, batch, length, groups, head), BF16),) * 2
    return step, (weights, caches, Shape((batch, width), BF16), Shape((), I32)), (1,)


def graph_attn_fwd() -> Step:
    """Attention over the edges of a graph: lookups and segment sums and maxima."""
    nodes, edges, width = 16384, 65536, 256

    def forward(layers: list[Tree], x: Any, source: Any, target: Any) -> Any:
        for w in layers:
            h = x @ w["w"]
            scores = jax.nn.leaky_relu((h @ w["a"])[source] + (h @ w["b"])[target])
            largest = jax.ops.segment_max(scores, target, nodes)
            weights = jnp.exp(scores - largest[target])
            total = jax.ops.segment_sum(weights, target, nodes)
            sent = h[source] * (weights / total[target])[:, None]
            x = jax.nn.elu(jax.ops.segment_sum(sent, target, nodes))
        return x

    layer = {"w": Shape((width, width), F32), "a": Shape((width,), F32), "b": Shape((width,), F32)}
    ends = Shape((edges,), I32)
    return forward, ([layer] * 2, Shape((nodes, width), F32), ends, ends), ()


def mixer_odd_fwd() -> Step:
    """Two mixer blocks of 100 tokens, which meshes of 16 do not divide."""
    batch, tokens, width = 64, 100, 768

    def forward(layers: list[Tree], x: Any) -> Any:
        for w in layers:
            h = jnp.swapaxes(layer_norm(x, w["g"]), 1, 2)
            x = x + jnp.swapaxes(jax.nn.gelu(h @ w["t1"]) @ w["t2"], 1, 2)
            x = x + jax.nn.gelu(layer_norm(x, w["g2"]) @ w["c1"] + w["b"]) @ w["c2"]
        return jax.nn.softmax(x.mean(1) @ layers[0]["head"])

    shapes = {"g": (width,), "g2": (width,), "t1": (tokens, 384), "t2": (384, tokens)}
    shapes |= {"c1": (width, 4 * width), "b": (4 * width,), "c2": (4 * width, width), "head": (width, 1000)}
    layer = {name: Shape(shape, F32) for name, shape in shapes.items()}
    return forward, ([layer] * 2, Shape((batch, tokens, width), F32)), ()


def mlp_adam_train() -> Step:
    """Three dense layers in bfloat16 on float32 weights, Adam."""

    def loss(p: Tree, x: Any, y: Any) -> Any:
        for w, b in p[:-1]:
            x = jax.nn.relu(x @ w.astype(BF16) + b.astype(BF16))
        return jnp.mean(((x @ p[-1][0].astype(BF16)).astype(F32) - y) ** 2)

    sizes = ((2048, 8192), (8192, 8192), (8192, 512))
    p = [(Shape(size, F32), Shape(size[1:], F32)) for size in sizes]
    return adam(loss), (p, p, p, Shape((2048, 2048), BF16), Shape((2048, 512), F32)), (0, 1, 2)


PROGRAMS = (
    *(gpt_scan_remat_train, gqa_rope_fwd, moe_onehot_fwd, moe_sort_fwd, unet_groupnorm_train),
    *(lstm_scan_train, embed_bag_train, linalg_iter, pooling_fwd, scan_sort_ops, vocab_xent_train),
    *(decode_kv, graph_attn_fwd, mixer_odd_fwd, mlp_adam_train),
)


if __name__ == "__main__":
    lower(__doc__, PROGRAMS)
