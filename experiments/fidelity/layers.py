"""Do predicted peaks hold for stacks of one layer each? Training steps of six layers, data parallel on 16 devices, priced and compiled.

Perceptrons with one activation function each, with and without biases, gated ones whose gate comes from the same product or another,
attention, convolutions; bfloat16 and float32. What a stack takes beyond its arguments is what XLA keeps of layers for the backward pass.
Results in results/layers.csv: a row for each layer and target.

python experiments/fidelity/layers.py FOLDER [--target tpu:v5e:4x4...] [NAME...]
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import ShapeDtypeStruct as Shape
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from programs import BF16, F32

RESULTS = Path(__file__).parent / "results" / "layers.csv"
TARGETS = ("tpu:v5e:4x4", "tpu:v5p:2x2x4", "tpu:v6e:4x4")
LAYERS, HEADS, POSITIONS, WIDTH, HIDDEN, IMAGE, CHANNELS = 6, 8, 512, 512, 2048, 64, 128
Weights = dict[str, tuple[int, ...]]
Layer = tuple[Weights, Callable[[Any, dict[str, Any]], Any]]

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "leaky": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "tanh": jnp.tanh,
    "softplus": jax.nn.softplus,
    "clip": lambda x: jnp.clip(x, -1, 1),
}


def perceptron(act: Callable[[Any], Any], *, has_bias: bool) -> Layer:
    weights: Weights = {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    if has_bias:
        weights |= {"b": (HIDDEN,), "c": (WIDTH,)}

    def layer(x: Any, w: dict[str, Any]) -> Any:
        made = x @ w["up"] + (w["b"] if has_bias else 0)
        return x + act(made) @ w["down"] + (w["c"] if has_bias else 0)

    return weights, layer


def gated(act: Callable[[Any], Any], way: str) -> Layer:
    """The gate and what it gates from two products, or from one: one behind the other, or stacked."""
    up = {"apart": (WIDTH, HIDDEN), "behind": (WIDTH, 2 * HIDDEN), "stacked": (2, WIDTH, HIDDEN)}[way]
    weights: Weights = {"up": up, "down": (HIDDEN, WIDTH)}
    if way == "apart":
        weights |= {"gate": (WIDTH, HIDDEN)}

    def layer(x: Any, w: dict[str, Any]) -> Any:
        if way == "apart":
            gate, value = x @ w["gate"], x @ w["up"]
        elif way == "behind":
            gate, value = jnp.split(x @ w["up"], 2, axis=-1)
        else:
            gate, value = jnp.einsum("btd,cdf->cbtf", x, w["up"])
        return x + (act(gate) * value) @ w["down"]

    return weights, layer


def attention(way: str) -> Layer:
    """Queries, keys and values from three products, or from one: one behind the other, or stacked."""
    size = WIDTH // HEADS
    given = {"apart": (WIDTH, HEADS, size), "behind": (WIDTH, 3 * WIDTH), "stacked": (3, WIDTH, HEADS, size)}
    names = ("q", "k", "v") if way == "apart" else ("qkv",)
    weights: Weights = dict.fromkeys(names, given[way]) | {"out": (WIDTH, WIDTH)}

    def layer(x: Any, w: dict[str, Any]) -> Any:
        if way == "apart":
            q, k, v = (jnp.einsum("btd,dhk->bthk", x, w[name]) for name in names)
        elif way == "behind":
            parts = jnp.split(x @ w["qkv"], 3, axis=-1)
            q, k, v = (part.reshape(*x.shape[:2], HEADS, size) for part in parts)
        else:
            q, k, v = jnp.einsum("btd,cdhk->cbthk", x, w["qkv"])
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / math.sqrt(size)
        weighed = jax.nn.softmax(scores.astype(F32)).astype(x.dtype)
        return x + jnp.einsum("bhts,bshk->bthk", weighed, v).reshape(x.shape) @ w["out"]

    return weights, layer


def convolution(act: Callable[[Any], Any], *, has_bias: bool) -> Layer:
    weights: Weights = {"filter": (3, 3, CHANNELS, CHANNELS)} | ({"b": (CHANNELS,)} if has_bias else {})

    def layer(x: Any, w: dict[str, Any]) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        made = lax.conv_general_dilated(x, w["filter"], (1, 1), "SAME", dimension_numbers=numbers)
        return act(made + (w["b"] if has_bias else 0))

    return weights, layer


def layers() -> dict[str, tuple[Layer, tuple[int, ...]]]:
    """By name, with the shape of what comes in."""
    found: dict[str, tuple[Layer, tuple[int, ...]]] = {}
    for name, act in ACTIVATIONS.items():
        for has_bias in (False, True):
            suffix = "_bias" if has_bias else ""
            found[f"mlp_{name}{suffix}"] = perceptron(act, has_bias=has_bias), (1024, POSITIONS, WIDTH)
            shape = (1024, IMAGE, IMAGE, CHANNELS)
            found[f"conv_{name}{suffix}"] = convolution(act, has_bias=has_bias), shape
    for way in ("apart", "behind", "stacked"):
        for name in ("silu", "gelu", "relu"):
            found[f"gated_{name}_{way}"] = gated(ACTIVATIONS[name], way), (1024, POSITIONS, WIDTH)
        found[f"attention_{way}"] = attention(way), (512, POSITIONS, WIDTH)
    return found


def lowered(layer: Layer, shape: tuple[int, ...], dtype: Any) -> str:
    """A step of gradient descent on a stack, the batch split over all devices."""
    weights, apply = layer
    mesh = Mesh(np.asarray(jax.devices()[:16]), ("x",))
    whole, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("x",)))

    def loss(stack: list[dict[str, Any]], x: Any) -> Any:
        for w in stack:
            x = apply(x, w)
        return jnp.mean(x.astype(F32) ** 2)

    def lowered_by(w: Any, gradient: Any) -> Any:
        return w - jnp.asarray(0.1, w.dtype) * gradient

    def step(stack: list[dict[str, Any]], x: Any) -> Any:
        return jax.tree.map(lowered_by, stack, jax.grad(loss)(stack, x))

    stack = [{name: Shape(dims, dtype) for name, dims in weights.items()}] * LAYERS
    shardings = [dict.fromkeys(weights, whole)] * LAYERS
    jitted = jax.jit(step, in_shardings=(shardings, split), donate_argnums=0)
    return jitted.lower(stack, Shape(shape, dtype)).as_text()


def compiled(module: Path, target: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "autoshard", "compile", str(module), "--target", target, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def rows(folder: Path, names: list[str], targets: list[str]) -> Iterator[dict[str, Any]]:
    for name, (layer, shape) in layers().items():
        for dtype, label in ((BF16, "bf16"), (F32, "f32")):
            if names and name not in names:
                continue
            module = folder / f"{name}_{label}.mlir"
            module.write_text(lowered(layer, shape, dtype))
            for target in targets:
                said = compiled(module, target)
                predicted = said["prediction"]["peak_bytes"]
                taken = said["compiled"]["memory"]["total_bytes"]
                yield {
                    "layer": name,
                    "dtype": label,
                    "target": target,
                    "predicted_bytes": predicted,
                    "compiled_bytes": taken,
                    "ratio": round(taken / predicted, 4),
                }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="of the layers; default all")
    parser.add_argument("--target", nargs="+", default=list(TARGETS))
    parser.add_argument("--table", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    for row in rows(given.folder, given.names, given.target):
        found.append(row)
        print(f"{row['layer']:28} {row['dtype']:5} {row['target']:14} {row['ratio']:.3f}", flush=True)
    table = pd.DataFrame(found)
    table.to_csv(given.table, index=False)
    for target, mine in table.groupby("target"):
        print(f"{target}: {int(mine['ratio'].between(0.9, 1.1).sum())} of {len(mine)} within 10 %")


if __name__ == "__main__":
    main()
