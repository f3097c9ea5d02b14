"""Training steps in plain jax whose activations fill sixteen v5e chips: does what is said to fit compile?

Each is lowered on abstract shapes, as those of `programs.py`; batches are as large as plans for 16 chips of 15.75 GiB allow.

python experiments/fidelity/filling.py FOLDER
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax
from programs import BF16, F32, I32, Tree, layer_norm

Program = tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]


def adam(parameters: Tree, m: Tree, v: Tree, gradients: Tree) -> tuple[Tree, Tree, Tree]:
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, gradients)
    v = jax.tree.map(lambda a, b: 0.99 * a + 0.01 * b * b, v, gradients)
    moved = jax.tree.map(lambda a, b, c: a - 1e-3 * b / (jnp.sqrt(c) + 1e-8), parameters, m, v)
    return moved, m, v


def transformer(batch: int, *, is_remat: bool) -> Program:
    """Four layers of width 1024 under `lax.scan`, with clipped gradients and Adam."""
    layers, width, heads, vocabulary, length = 4, 1024, 16, 16384, 512

    def block(x: Any, w: Tree) -> Any:
        h = layer_norm(x, w["g1"]).astype(BF16)
        shape = (batch, length, heads, width // heads)
        q, k, v = ((h @ w[name].astype(BF16)).reshape(shape) for name in ("q", "k", "v"))
        scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(F32) / 8.0
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
        weights = jax.nn.softmax(scores).astype(BF16)
        x = x + jnp.einsum("bhts,bshd->bthd", weights, v).reshape(batch, length, width) @ w["o"].astype(BF16)
        h = layer_norm(x, w["g2"]).astype(BF16)
        return x + jax.nn.gelu(h @ w["u"].astype(BF16) + w["ub"].astype(BF16)) @ w["d"].astype(BF16)

    def loss(p: Tree, tokens: Any, targets: Any) -> Any:
        x = p["e"].astype(BF16)[tokens] + p["pos"].astype(BF16)
        run = jax.checkpoint(block) if is_remat else block
        x, _ = lax.scan(lambda x, w: (run(x, w), None), x, p["b"])
        logits = (layer_norm(x, p["gf"]).astype(BF16) @ p["e"].astype(BF16).T).astype(F32)
        total = jax.nn.logsumexp(logits, -1)
        return jnp.mean(total - jnp.take_along_axis(logits, targets[..., None], -1)[..., 0])

    def step(p: Tree, m: Tree, v: Tree, tokens: Any, targets: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(p, tokens, targets)
        size = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda x: x * jnp.minimum(1.0, 1.0 / size), gradients)
        return *adam(p, m, v, gradients), value

    stack = {name: Shape((layers, width, width), F32) for name in ("q", "k", "v", "o")}
    stack |= {"u": Shape((layers, width, 4 * width), F32), "d": Shape((layers, 4 * width, width), F32)}
    stack |= {"ub": Shape((layers, 4 * width), F32), "g1": Shape((layers, width), F32)}
    stack |= {"g2": Shape((layers, width), F32)}
    p = {"e": Shape((vocabulary, width), F32), "pos": Shape((length, width), F32), "gf": Shape((width,), F32)}
    ids = Shape((batch, length), I32)
    return step, ({**p, "b": stack},) * 3 + (ids, ids), (0, 1, 2)


def gpt_scan_train_fill() -> Program:
    return transformer(704, is_remat=False)


def gpt_scan_remat_train_fill() -> Program:
    return transformer(4096, is_remat=True)


def lstm_scan_train_fill() -> Program:
    steps, batch, width = 64, 66560, 1024

    def loss(p: Tree, x: Any, y: Any) -> Any:
        def cell(carried: Any, xt: Any) -> Any:
            h, s = carried
            i, f, g, o = jnp.split(xt @ p["wx"] + h @ p["wh"] + p["b"], 4, -1)
            s = jax.nn.sigmoid(f) * s + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(s)
            return (h, s), h

        zeros = jnp.zeros((batch, width))
        _, hidden = lax.scan(cell, (zeros, zeros), x)
        return jnp.mean((hidden @ p["o"] - y) ** 2)

    def step(p: Tree, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(p, x, y)
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, gradients), value

    p = {"wx": Shape((width, 4 * width), F32), "wh": Shape((width, 4 * width), F32)}
    p |= {"b": Shape((4 * width,), F32), "o": Shape((width, 256), F32)}
    return step, (p, Shape((steps, batch, width), F32), Shape((steps, batch, 256), F32)), (0,)


def mlp_adam_train_fill() -> Program:
    batch = 4194304

    def loss(p: Tree, x: Any, y: Any) -> Any:
        for weight, bias in p[:-1]:
            x = jax.nn.relu(x @ weight.astype(BF16) + bias.astype(BF16))
        return jnp.mean(((x @ p[-1][0].astype(BF16)).astype(F32) - y) ** 2)

    def step(p: Tree, m: Tree, v: Tree, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(p, x, y)
        return *adam(p, m, v, gradients), value

    sizes = ((2048, 8192), (8192, 8192), (8192, 512))
    p = [(Shape(size, F32), Shape(size[1:], F32)) for size in sizes]
    return step, (p, p, p, Shape((batch, 2048), BF16), Shape((batch, 512), F32)), (0, 1, 2)


PROGRAMS = (gpt_scan_train_fill, gpt_scan_remat_train_fill, lstm_scan_train_fill, mlp_adam_train_fill)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        step, abstract, donated = program()
        lowered = jax.jit(step, donate_argnums=donated).lower(*abstract)
        (folder / f"{program.__name__}.mlir").write_text(lowered.as_text())


if __name__ == "__main__":
    main()
