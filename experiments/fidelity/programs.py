"""Programs of our own for the studies, in plain jax: written for them, not to look like any model, and no cost model was fitted to them.

Each is lowered on abstract shapes, so nothing is computed and the text is the same each time. Training steps donate their state.

python experiments/fidelity/programs.py FOLDER [NAME...]
"""

import argparse
import gzip
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax

Tree = Any
Program = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]
"""A function, its abstract arguments, and which of these are donated."""
BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32


def added(left: Tree, a: float, right: Tree, b: float) -> Tree:
    def of(x: Any, y: Any) -> Any:
        return a * x + b * y

    return jax.tree.map(of, left, right)


def narrow(tree: Tree) -> Tree:
    def of(x: Any) -> Any:
        return x.astype(BF16)

    return jax.tree.map(of, tree)


def sgd(loss: Callable[..., Any], rate: float = 1e-3) -> Callable[..., Any]:
    """A training step with momentum: (parameters, momenta, batch...) to (parameters, momenta, loss)."""

    def step(parameters: Tree, momenta: Tree, *batch: Any) -> tuple[Tree, Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        momenta = added(momenta, 0.9, gradients, 1.0)
        return added(parameters, 1.0, momenta, -rate), momenta, value

    return step


def cross_entropy(logits: Any, labels: Any) -> Any:
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits.astype(F32)), labels[..., None], -1)
    return -chosen.mean()


def norm(x: Any, scale: Any) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def layer_norm(x: Any, scale: Any) -> Any:
    x = x.astype(F32)
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale


def attention(x: Any, layer: Tree, heads: int) -> Any:
    batch, length, width = x.shape
    q, k, v = ((x @ layer[name]).reshape(batch, length, heads, width // heads) for name in ("q", "k", "v"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32) * (width // heads) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(x.dtype), v)
    return mixed.reshape(batch, length, width) @ layer["o"]


def gpt_train() -> Program:
    """Four decoder layers of width 1024 in bfloat16 on float32 weights, 64 sequences of 512 tokens."""
    width, vocabulary = 1024, 32000
    layer = {name: Shape((width, width), F32) for name in "qkvo"}
    layer |= {"up": Shape((width, 4 * width), F32), "down": Shape((4 * width, width), F32)}
    layer |= {"before": Shape((width,), F32), "between": Shape((width,), F32)}
    parameters = {"layers": [layer] * 4, "embedding": Shape((vocabulary, width), F32)}

    def loss(parameters: Tree, tokens: Any) -> Any:
        cast = narrow(parameters)
        x = cast["embedding"][tokens[:, :-1]]
        for mine in cast["layers"]:
            x = x + attention(norm(x, mine["before"]), mine, heads=16)
            x = x + jax.nn.gelu(norm(x, mine["between"]) @ mine["up"]) @ mine["down"]
        return cross_entropy(x @ cast["embedding"].T, tokens[:, 1:])

    return sgd(loss), (parameters, parameters, Shape((64, 513), I32)), (0, 1)


def mlp_train() -> Program:
    """Six dense layers, 2048 to 8192 and back, 8192 rows, float32."""
    sizes = [(2048, 8192), (8192, 2048)] * 3
    parameters = [{"w": Shape(size, F32), "b": Shape(size[1:], F32)} for size in sizes]

    def loss(parameters: Tree, x: Any, y: Any) -> Any:
        for mine in parameters:
            x = jax.nn.relu(x @ mine["w"] + mine["b"])
        return ((x - y) ** 2).mean()

    rows = Shape((8192, 2048), F32)
    return sgd(loss), (parameters, parameters, rows, rows), (0, 1)


def moe_fwd() -> Program:
    """Two layers of attention and 16 experts, top-2 routing by one-hot dispatch and combine products, bfloat16."""
    width, hidden, experts, capacity = 1024, 4096, 16, 128
    layer = {name: Shape((width, width), BF16) for name in "qkvo"}
    layer |= {"router": Shape((width, experts), BF16), "scale": Shape((width,), BF16)}
    layer |= {"up": Shape((experts, width, hidden), BF16), "down": Shape((experts, hidden, width), BF16)}

    def mixture(x: Any, mine: Tree) -> Any:
        weights, chosen = lax.top_k(jax.nn.softmax((x @ mine["router"]).astype(F32)), 2)
        is_for = jax.nn.one_hot(chosen, experts)
        place = (jnp.cumsum(is_for.sum(2), axis=1)[:, :, None] - 1) * is_for
        slots = jax.nn.one_hot(place.astype(I32), capacity) * is_for[..., None]
        dispatch, combine = slots.sum(2).astype(BF16), (slots * weights[..., None, None]).sum(2).astype(BF16)
        sent = jnp.einsum("gsec,gsm->egcm", dispatch, x)
        worked = jax.nn.relu(jnp.einsum("egcm,emh->egch", sent, mine["up"]))
        return jnp.einsum("gsec,egcm->gsm", combine, jnp.einsum("egch,ehm->egcm", worked, mine["down"]))

    def forward(parameters: Tree, x: Any) -> Any:
        for mine in parameters:
            x = x + attention(norm(x, mine["scale"]), mine, heads=8)
            x = x + mixture(norm(x, mine["scale"]), mine)
        return x

    return forward, ([layer] * 2, Shape((32, 512, width), BF16)), ()


def unet_train() -> Program:
    """Convolutions at three scales down and up again with skips, 64 images of 128x128, bfloat16."""
    widths = (64, 128, 256)

    def kernel(a: int, b: int, size: int = 3) -> Any:
        return Shape((size, size, a, b), F32)

    down = [{"a": kernel(a, b), "b": kernel(b, b)} for a, b in zip((3, *widths), widths, strict=False)]
    up = [{"a": kernel(b + a, a), "b": kernel(a, a)} for a, b in pairwise(widths)]
    parameters = {"down": down, "up": up, "out": kernel(widths[0], 3, 1)}

    def conv(x: Any, weight: Any) -> Any:
        return lax.conv_general_dilated(
            x, weight.astype(BF16), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def block(x: Any, mine: Tree) -> Any:
        return jax.nn.relu(conv(jax.nn.relu(conv(x, mine["a"])), mine["b"]))

    def loss(parameters: Tree, noisy: Any, clean: Any) -> Any:
        x, skips = noisy.astype(BF16), []
        for level, mine in enumerate(parameters["down"]):
            if level:
                x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID").astype(BF16)
            x = block(x, mine)
            skips.append(x)
        for mine, skip in zip(parameters["up"][::-1], skips[-2::-1], strict=True):
            wide = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
            x = block(jnp.concatenate([wide, skip], axis=-1), mine)
        return ((conv(x, parameters["out"]).astype(F32) - clean) ** 2).mean()

    images = Shape((64, 128, 128, 3), F32)
    return sgd(loss), (parameters, parameters, images, images), (0, 1)


def decode() -> Program:
    """One token of 64 sequences into the key and value caches of four layers, bfloat16."""
    width, heads, length, batch, vocabulary = 2048, 16, 1024, 64, 32000
    layer = {name: Shape((width, width), BF16) for name in "qkvo"}
    layer |= {"up": Shape((width, 4 * width), BF16), "down": Shape((4 * width, width), BF16)}
    layer |= {"scale": Shape((width,), BF16)}
    cache = {name: Shape((batch, length, heads, width // heads), BF16) for name in ("keys", "values")}

    def step(parameters: Tree, caches: Tree, tokens: Any, position: Any) -> tuple[Any, Tree]:
        x = parameters["embedding"][tokens]
        written: list[Tree] = []
        for mine, had in zip(parameters["layers"], caches, strict=True):
            y = norm(x, mine["scale"])
            q, k, v = ((y @ mine[n]).reshape(batch, 1, heads, width // heads) for n in ("q", "k", "v"))
            keys = lax.dynamic_update_slice(had["keys"], k, (0, position, 0, 0))
            values = lax.dynamic_update_slice(had["values"], v, (0, position, 0, 0))
            written.append({"keys": keys, "values": values})
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, keys).astype(F32)
            scores = jnp.where(jnp.arange(length) <= position, scores, -1e9)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(BF16), values)
            x = x + mixed.reshape(batch, width) @ mine["o"]
            x = x + jax.nn.gelu(norm(x, mine["scale"]) @ mine["up"]) @ mine["down"]
        return jnp.argmax(x @ parameters["embedding"].T, -1), written

    parameters = {"layers": [layer] * 4, "embedding": Shape((vocabulary, width), BF16)}
    return step, (parameters, [cache] * 4, Shape((batch,), I32), Shape((), I32)), (1,)


def lstm_train() -> Program:
    """A recurrent layer of 2048 units scanned over 64 steps, and its gradient, float32."""
    width, batch, length = 2048, 512, 64
    parameters = {"in": Shape((width, 4 * width), F32), "state": Shape((width, 4 * width), F32)}

    def loss(parameters: Tree, xs: Any, ys: Any) -> Any:
        def step(carried: tuple[Any, Any], x: Any) -> tuple[tuple[Any, Any], Any]:
            state, cell = carried
            gates = x @ parameters["in"] + state @ parameters["state"]
            enter, forget, leave, new = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
            state = jax.nn.sigmoid(leave) * jnp.tanh(cell)
            return (state, cell), state

        start = jnp.zeros((batch, width), F32)
        return ((lax.scan(step, (start, start), xs)[1] - ys) ** 2).mean()

    series = Shape((length, batch, width), F32)
    return sgd(loss), (parameters, parameters, series, series), (0, 1)


def recommender_train() -> Program:
    """Two towers on gathered embeddings, each row of a batch of 8192 against all others, float32."""
    width, users, items, rows = 512, 2**18, 2**20, 8192
    tower = [Shape((4 * width, 2048), F32), Shape((2048, 2048), F32), Shape((2048, width), F32)]
    parameters = {"users": Shape((users, width), F32), "items": Shape((items, width), F32)}
    parameters |= {"left": tower, "right": tower}

    def loss(parameters: Tree, left: Any, right: Any) -> Any:
        ends: list[Any] = []
        for name, table, ids in (("left", "users", left), ("right", "items", right)):
            x = parameters[table][ids].reshape(rows, 4 * width)
            for weight in parameters[name][:-1]:
                x = jax.nn.relu(x @ weight)
            ends.append(x @ parameters[name][-1])
        return cross_entropy(ends[0] @ ends[1].T, jnp.arange(rows))

    def step(parameters: Tree, left: Any, right: Any) -> tuple[Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(parameters, left, right)
        return added(parameters, 1.0, gradients, -0.1), value

    ids = Shape((rows, 4), I32)
    return step, (parameters, ids, ids), (0,)


def named(name: str, make: Callable[..., Program], *given: Any, **options: Any) -> Callable[[], Program]:
    """One of several programs that one function makes."""

    def program() -> Program:
        return make(*given, **options)

    program.__name__ = name
    return program


class Reader:
    """Of weights by name; of none, where `weights` is None, of zeros whose shapes it notes."""

    def __init__(self, weights: Tree | None = None) -> None:
        self.weights, self.shapes = weights, dict[str, Any]()

    def __call__(self, name: str, *shape: int) -> Any:
        if self.weights is not None:
            return self.weights[name]
        self.shapes[name] = Shape(shape, F32)
        return jnp.zeros(shape, F32)


PROGRAMS = (gpt_train, mlp_train, moe_fwd, unet_train, decode, lstm_train, recommender_train)


def lower(
    description: str | None,
    programs: Sequence[Callable[[], Any]],
    *,
    compressed: bool = False,
    for_tpu: bool = False,
) -> None:
    """The command line of a file of programs: each into a folder, as text (compressed: .mlir.gz)."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(p.__name__ for p in programs)}; default all")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for program in programs:
        if not arguments.names or program.__name__ in arguments.names:
            step, abstract, donated = program()
            traced = jax.jit(step, donate_argnums=donated, keep_unused=True).trace(*abstract)
            lowered = traced.lower(lowering_platforms=("tpu",)) if for_tpu else traced.lower()
            file, text = arguments.folder / f"{program.__name__}.mlir", lowered.as_text()
            if compressed:
                file.with_suffix(".mlir.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
            else:
                file.write_text(text)


if __name__ == "__main__":
    lower(__doc__, PROGRAMS)
