"""Training steps and forward passes whose architectures are drawn at random: which choices of whoever writes a model are mispriced?

Transformers and convnets in plain jax. Every choice that changes what XLA keeps is drawn from a seed by itself: normalization, biases,
activation function, positions, mask, where attention has its heads, grouped queries, precision, rematerialization, scan, head, loss,
dropout, optimizer, widths; then the slice. So that a figure that is off in what some choice has in common shows as that choice's.

python experiments/fidelity/drawn.py FOLDER --seeds 0 24 [--only transformer|convnet] [--forward]
                                     [--large] [--time-limit 30] [--again] [--table TABLE]

Writes FOLDER/SEED.mlir, SEED.json (the choices), SEED.planned.mlir, SEED.plan.json and SEED.compiled.json (what `autoshard compile`
says), of forward passes FOLDER/SEED-forward.mlir and so on; what is there is not made again. Prints a row for each, then of each choice
with four or more how many are within 10 % and the median ratio.
"""

import argparse
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pandas as pd
from jax import ShapeDtypeStruct as Shape
from jax import lax
from programs import BF16, F32, I32, Program, Tree, cross_entropy
from zoo import training

Choices = dict[str, Any]
Apply = Callable[[Any, Tree], Any]
SLICES = {
    "tpu:v5e:4x4": ("tpu-v5e", "x=4,y=4"),
    "tpu:v5e:2x4": ("tpu-v5e", "x=2,y=4"),
    "tpu:v5e:4x8": ("tpu-v5e", "x=4,y=8"),
    "tpu:v6e:4x4": ("tpu-v6e", "x=4,y=4"),
    "tpu:v6e:2x4": ("tpu-v6e", "x=2,y=4"),
    "tpu:v5p:2x2x4": ("tpu-v5p", "x=4,y=4"),
    "tpu:v5p:2x2x2": ("tpu-v5p", "x=2,y=4"),
}
LARGE_SLICES = {
    "tpu:v5e:8x8": ("tpu-v5e", "x=8,y=8"),
    "tpu:v6e:8x8": ("tpu-v6e", "x=8,y=8"),
    "tpu:v5p:4x4x4": ("tpu-v5p", "x=4,y=16"),
}
DEVICES = {name: math.prod(map(int, name.split(":")[2].split("x"))) for name in SLICES | LARGE_SLICES}

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "exact_gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "squared_relu": lambda x: jnp.square(jax.nn.relu(x)),
    "leaky": jax.nn.leaky_relu,
    "mish": jax.nn.mish,
}


def transformer_choices(draw: random.Random) -> Choices:
    width = draw.choice((768, 1024, 1536, 2048))
    heads = width // draw.choice((64, 64, 128))
    dtype = draw.choice(("mixed", "mixed", "bf16", "f32"))
    return {
        "family": "transformer",
        "width": width,
        "heads": heads,
        "groups": draw.choice((heads, heads, max(1, heads // 4))),
        "hidden": draw.choice((8 * width // 3 // 128 * 128, 4 * width)),
        "layers": draw.choice((4, 6, 8)),
        "sequence": draw.choice((256, 512, 1024, 2048)),
        "sequences": draw.choice((2, 4, 8)),  # a device
        "vocabulary": draw.choice((8192, 32000, 50304)),
        "norm": draw.choice(("layer", "rms", "layer_narrow")),
        "has_bias": draw.choice((True, False)),
        "activation": draw.choice(("relu", "gelu", "exact_gelu", "silu", "squared_relu")),
        "is_gated": draw.choice((True, False)),
        "positions": draw.choice(("learned", "rotary", "rotary_halves", "bias", "alibi", "none")),
        "mask": draw.choice(("causal", "causal_large", "padding", "none")),
        "attention": draw.choice(("heads_inside", "heads_outside", "library", "one_product")),
        "softmax": draw.choice(("f32", "own")),
        "dtype": dtype,
        "remat": draw.choice(("none", "none", "full", "dots")),
        "is_scanned": draw.choice((True, False)),
        "head": draw.choice(("tied", "apart", "biased", "pooled")),
        "loss": draw.choice(("picked", "one_hot", "logsumexp", "optax")),
        "dropout": draw.choice((0.0, 0.0, 0.1)),
        "is_post": draw.choice((False, False, True)),
        "optimizer": draw.choice(("sgd", "momentum", "adam", "adamw_clipped", "adafactor", "lion", "none")),
    }


def convnet_choices(draw: random.Random) -> Choices:
    return {
        "family": "convnet",
        "width": draw.choice((64, 96, 128)),
        "image": draw.choice((128, 160, 224)),
        "images": draw.choice((16, 32, 64, 128)),  # a device
        "blocks": draw.choice((1, 2, 3)),
        "stem": draw.choice(("seven", "patch", "three")),
        "block": draw.choice(("basic", "bottleneck", "depthwise", "inverted", "plain")),
        "norm": draw.choice(("batch", "group", "layer", "none")),
        "has_bias": draw.choice((True, False)),
        "activation": draw.choice(("relu", "gelu", "silu", "leaky", "mish")),
        "has_gates": draw.choice((True, False, False)),
        "pool": draw.choice(("strides", "max", "average")),
        "dtype": draw.choice(("mixed", "bf16", "f32")),
        "remat": draw.choice(("none", "none", "full")),
        "head": draw.choice(("classes", "upsampled")),
        "optimizer": draw.choice(("sgd", "momentum", "adam", "adamw_clipped", "none")),
    }


def optimizer_of(name: str) -> optax.GradientTransformation:
    return {
        "sgd": lambda: optax.sgd(1e-3),
        "momentum": lambda: optax.sgd(1e-3, momentum=0.9),
        "adam": lambda: optax.adam(1e-3),
        "adamw_clipped": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)),
        "adafactor": lambda: optax.adafactor(1e-3),
        "lion": lambda: optax.lion(1e-4),
    }[name]()


def transformer(c: Choices, devices: int) -> Program:
    width, heads, groups, hidden = c["width"], c["heads"], c["groups"], c["hidden"]
    each, kept = width // heads, BF16 if c["dtype"] == "bf16" else F32
    used = F32 if c["dtype"] == "f32" else BF16
    batch, positions = c["sequences"] * devices, c["sequence"]
    act = ACTIVATIONS[c["activation"]]

    def normalized(x: Any, w: Tree) -> Any:
        wide = x if c["norm"] == "layer_narrow" else x.astype(F32)
        if c["norm"] == "rms":
            wide = wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
            return (wide * w["scale"]).astype(x.dtype)
        mean = wide.mean(-1, keepdims=True)
        wide = (wide - mean) * lax.rsqrt(jnp.var(wide, -1, keepdims=True) + 1e-5)
        return (wide * w["scale"] + w["shift"]).astype(x.dtype)

    def dense(x: Any, w: Tree) -> Any:
        made = x @ w["w"].astype(used)
        return made + w["b"].astype(used) if "b" in w else made

    def rotated(x: Any) -> Any:
        half = each // 2
        angles = jnp.arange(positions, dtype=F32)[:, None] * 10000.0 ** (-jnp.arange(half, dtype=F32) / half)
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        if c["positions"] == "rotary_halves":
            cos, sin = (
                jnp.concatenate([cos, cos], -1).astype(x.dtype),
                jnp.concatenate([sin, sin], -1).astype(x.dtype),
            )
            left, right = jnp.split(x, 2, -1)
            return x * cos + jnp.concatenate([-right, left], -1) * sin
        left, right = jnp.split(x.astype(F32), 2, -1)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], -1).astype(x.dtype)

    def dropped(x: Any, key: Any) -> Any:
        if not c["dropout"]:
            return x
        keep = jax.random.bernoulli(key, 1 - c["dropout"], x.shape)
        return jnp.where(keep, x / jnp.asarray(1 - c["dropout"], x.dtype), jnp.zeros((), x.dtype))

    def attended(x: Any, w: Tree, bias: Any, padding: Any) -> Any:
        if c["attention"] == "one_product" and groups == heads:
            q, k, v = (
                part.reshape(batch, positions, heads, each) for part in jnp.split(dense(x, w["qkv"]), 3, -1)
            )
        else:
            q = dense(x, w["q"]).reshape(batch, positions, heads, each)
            k, v = (dense(x, w[name]).reshape(batch, positions, groups, each) for name in "kv")
        if c["positions"].startswith("rotary"):
            q, k = rotated(q), rotated(k)
        causal = jnp.tril(jnp.ones((positions, positions), bool))
        mask = None
        if c["mask"].startswith("causal"):
            mask = causal[None, None]
        elif c["mask"] == "padding":
            mask = padding[:, None, None, :]
        if c["attention"] == "library":
            given = None if bias is None else bias.astype(q.dtype)
            made = jax.nn.dot_product_attention(q, k, v, given, mask)
            return dense(made.reshape(batch, positions, width), w["out"])
        if groups != heads:
            k, v = (jnp.repeat(part, heads // groups, 2) for part in (k, v))
        if c["attention"] == "heads_outside":
            q, k, v = (part.transpose(0, 2, 1, 3) for part in (q, k, v))
            scores = q @ k.swapaxes(-1, -2) / math.sqrt(each)
        else:
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(each)
        if c["softmax"] == "f32":
            scores = scores.astype(F32)
        if bias is not None:
            scores = scores + bias.astype(scores.dtype)
        if mask is not None:
            low = -1e4 if c["mask"] != "causal_large" else jnp.finfo(scores.dtype).min
            scores = jnp.where(mask, scores, jnp.asarray(low, scores.dtype))
        weights = jax.nn.softmax(scores, -1).astype(x.dtype)
        is_outside = c["attention"] == "heads_outside"
        made = (weights @ v).swapaxes(1, 2) if is_outside else jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return dense(made.reshape(batch, positions, width), w["out"])

    def perceptron(x: Any, w: Tree) -> Any:
        made = dense(x, w["up"])
        made = act(dense(x, w["gate"])) * made if c["is_gated"] else act(made)
        return dense(made, w["down"])

    def layer(x: Any, w: Tree, bias: Any, padding: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        if c["is_post"]:
            x = normalized(x + dropped(attended(x, w, bias, padding), one), w["before"])
            return normalized(x + dropped(perceptron(x, w), two), w["between"])
        x = x + dropped(attended(normalized(x, w["before"]), w, bias, padding), one)
        return x + dropped(perceptron(normalized(x, w["between"]), w), two)

    if c["remat"] == "full":
        layer = jax.checkpoint(layer)
    elif c["remat"] == "dots":
        layer = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)

    def linear(inputs: int, outputs: int) -> Tree:
        found = {"w": Shape((inputs, outputs), kept)}
        return found | ({"b": Shape((outputs,), kept)} if c["has_bias"] else {})

    def norm_weights() -> Tree:
        scale = Shape((width,), kept)
        return {"scale": scale} if c["norm"] == "rms" else {"scale": scale, "shift": scale}

    one = {
        "before": norm_weights(),
        "between": norm_weights(),
        "out": linear(width, width),
        "up": linear(width, hidden),
        "down": linear(hidden, width),
    }
    if c["is_gated"]:
        one["gate"] = linear(width, hidden)
    if c["attention"] == "one_product" and groups == heads:
        one["qkv"] = linear(width, 3 * width)
    else:
        one |= {
            "q": linear(width, width),
            "k": linear(width, groups * each),
            "v": linear(width, groups * each),
        }
    layers = jax.tree.map(lambda s: Shape((c["layers"], *s.shape), s.dtype), one)
    stack = layers if c["is_scanned"] else [one] * c["layers"]
    weights: Tree = {"stack": stack, "words": Shape((c["vocabulary"], width), kept), "last": norm_weights()}
    if c["positions"] == "learned":
        weights["places"] = Shape((positions, width), kept)
    if c["positions"] == "bias":
        weights["bias"] = Shape((heads, positions, positions), kept)
    if c["head"] != "tied":
        outputs = 1000 if c["head"] == "pooled" else c["vocabulary"]
        weights["head"] = {"w": Shape((width, outputs), kept)}
        if c["head"] == "biased":
            weights["head"]["b"] = Shape((outputs,), kept)

    def logits_of(weights: Tree, ids: Any, padding: Any, seed: Any) -> Any:
        x = weights["words"].astype(used)[ids]
        if c["positions"] == "learned":
            x = x + weights["places"].astype(used)
        bias = None
        if c["positions"] == "bias":
            bias = weights["bias"][None]
        elif c["positions"] == "alibi":
            slopes = 2.0 ** (-8 * jnp.arange(1, heads + 1, dtype=F32) / heads)
            places = jnp.arange(positions, dtype=F32)
            bias = (slopes[:, None, None] * (places[None, :] - places[:, None]))[None]
        keys = jax.random.split(jax.random.key(seed), c["layers"])
        if c["is_scanned"]:
            x, _ = lax.scan(
                lambda x, one: (layer(x, one[0], bias, padding, one[1]), None), x, (weights["stack"], keys)
            )
        else:
            for number, w in enumerate(weights["stack"]):
                x = layer(x, w, bias, padding, keys[number])
        x = normalized(x, weights["last"])
        if c["head"] == "pooled":
            x = x.mean(1) if c["mask"] != "padding" else x[:, 0]
        return x @ weights["words"].astype(used).T if c["head"] == "tied" else dense(x, weights["head"])

    def loss(weights: Tree, ids: Any, labels: Any, padding: Any, seed: Any) -> Any:
        logits = logits_of(weights, ids, padding, seed)
        if c["loss"] == "picked":
            return cross_entropy(logits, labels)
        wide = logits.astype(F32)
        if c["loss"] == "optax":
            return optax.softmax_cross_entropy_with_integer_labels(wide, labels).mean()
        if c["loss"] == "one_hot":
            return -(jax.nn.one_hot(labels, wide.shape[-1]) * jax.nn.log_softmax(wide)).sum(-1).mean()
        picked = jnp.take_along_axis(wide, labels[..., None], -1)[..., 0]
        return (jax.nn.logsumexp(wide, -1) - picked).mean()

    ids = Shape((batch, positions), I32)
    labels = Shape((batch,), I32) if c["head"] == "pooled" else ids
    padding = Shape((batch, positions), jnp.bool_)
    if c["optimizer"] == "none":
        return logits_of, (weights, ids, padding, Shape((), I32)), ()
    return training(loss, optimizer_of(c["optimizer"]), weights, ids, labels, padding, Shape((), I32))


def convnet(c: Choices, devices: int) -> Program:
    width, act = c["width"], ACTIVATIONS[c["activation"]]
    kept, used = BF16 if c["dtype"] == "bf16" else F32, F32 if c["dtype"] == "f32" else BF16
    shapes: dict[str, Any] = {}

    def weight(name: str, *dims: int) -> Callable[[Tree], Any]:
        shapes[name] = Shape(dims, kept)
        return lambda w: w[name]

    def convolved(name: str, inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> Apply:
        filters = weight(f"{name}.w", size, size, inputs // groups, outputs)
        biases = weight(f"{name}.b", outputs) if c["has_bias"] else None

        def apply(x: Any, w: Tree) -> Any:
            numbers = ("NHWC", "HWIO", "NHWC")
            strides, padding = (stride, stride), "SAME"
            made = lax.conv_general_dilated(
                x,
                filters(w).astype(used),
                strides,
                padding,
                dimension_numbers=numbers,
                feature_group_count=groups,
            )
            return made + biases(w).astype(used) if biases else made

        return apply

    def normalized(name: str, channels: int) -> Apply:
        if c["norm"] == "none":
            return lambda x, _: x
        scale, shift = weight(f"{name}.scale", channels), weight(f"{name}.shift", channels)

        def apply(x: Any, w: Tree) -> Any:
            wide = x.astype(F32)
            if c["norm"] == "group":
                wide = wide.reshape(*x.shape[:3], math.gcd(16, x.shape[3]), -1)
            over = {"batch": (0, 1, 2), "group": (1, 2, 4), "layer": (3,)}[c["norm"]]
            mean = wide.mean(over, keepdims=True)
            wide = ((wide - mean) * lax.rsqrt(wide.var(over, keepdims=True) + 1e-5)).reshape(x.shape)
            return (wide * scale(w) + shift(w)).astype(x.dtype)

        return apply

    def gates(name: str, channels: int) -> Apply:
        down, up = (
            weight(f"{name}.down", channels, channels // 4),
            weight(f"{name}.up", channels // 4, channels),
        )

        def apply(x: Any, w: Tree) -> Any:
            made = act(x.mean((1, 2)) @ down(w).astype(used)) @ up(w).astype(used)
            return x * jax.nn.sigmoid(made)[:, None, None]

        return apply if c["has_gates"] else lambda x, _: x

    def chain(name: str, inputs: int, parts: list[tuple[int, int, int, bool]], stride: int) -> Apply:
        """Convolutions (channels, size, groups, whether an activation follows), the first one of size beyond one with the stride."""
        steps: list[Apply] = []
        channels, left = inputs, stride
        for number, (outputs, size, groups, is_active) in enumerate(parts):
            own = left if size > 1 else 1
            left = 1 if size > 1 else left
            steps.append(convolved(f"{name}.{number}", channels, outputs, size, own, groups))
            steps.append(normalized(f"{name}.{number}n", outputs))
            if is_active:
                steps.append(lambda x, _: act(x))
            channels = outputs
        steps.append(gates(f"{name}.gates", channels))

        def apply(x: Any, w: Tree) -> Any:
            for step in steps:
                x = step(x, w)
            return x

        return apply

    def block(name: str, inputs: int, outputs: int, stride: int) -> Apply:
        wide = {"inverted": 4 * inputs, "bottleneck": outputs // 4}.get(c["block"], outputs)
        parts = {
            "basic": [(outputs, 3, 1, True), (outputs, 3, 1, False)],
            "plain": [(outputs, 3, 1, True)],
            "bottleneck": [(wide, 1, 1, True), (wide, 3, 1, True), (outputs, 1, 1, False)],
            "inverted": [(wide, 1, 1, True), (wide, 3, wide, True), (outputs, 1, 1, False)],
            "depthwise": [(inputs, 7, inputs, False), (4 * outputs, 1, 1, True), (outputs, 1, 1, False)],
        }[c["block"]]
        body = chain(name, inputs, parts, stride)
        is_same = inputs == outputs and stride == 1
        beside = None if is_same else convolved(f"{name}.beside", inputs, outputs, 1, stride)

        def apply(x: Any, w: Tree) -> Any:
            made = body(x, w)
            if c["block"] == "plain":
                return made
            made = made + (beside(x, w) if beside else x)
            return made if c["block"] in ("inverted", "depthwise") else act(made)

        return jax.checkpoint(apply) if c["remat"] == "full" else apply

    stem = {"seven": (7, 2), "patch": (4, 4), "three": (3, 2)}[c["stem"]]
    steps: list[Apply] = [convolved("stem", 3, width, *stem), normalized("stem.n", width)]
    channels = width
    for stage in range(3):
        for number in range(c["blocks"]):
            outputs, is_first = width * 2**stage, number == 0 and stage > 0
            stride = 2 if is_first and c["pool"] == "strides" else 1
            if is_first and c["pool"] != "strides":
                is_max = c["pool"] == "max"

                def pooled(x: Any, _: Tree, is_max: bool = is_max) -> Any:
                    window = (1, 2, 2, 1)
                    if is_max:
                        return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
                    return lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") / 4

                steps.append(pooled)
            steps.append(block(f"s{stage}.{number}", channels, outputs, stride))
            channels = outputs
    if c["head"] == "classes":
        dense = weight("head", channels, 1000)
        steps.append(lambda x, w: x.mean((1, 2)) @ dense(w).astype(used))
    else:
        last = convolved("head", channels, 32, 1)

        def upsampled(x: Any, w: Tree) -> Any:
            made = last(x, w)
            return jax.image.resize(
                made, (made.shape[0], 4 * made.shape[1], 4 * made.shape[2], 32), "bilinear"
            )

        steps.append(upsampled)

    def logits_of(w: Tree, images: Any) -> Any:
        x = images.astype(used)
        for step in steps:
            x = step(x, w)
        return x

    images = Shape((c["images"] * devices, c["image"], c["image"], 3), F32)
    made = jax.eval_shape(logits_of, dict(shapes), images)

    def loss(w: Tree, images: Any, labels: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(
            logits_of(w, images).astype(F32), labels
        ).mean()

    if c["optimizer"] == "none":
        return logits_of, (shapes, images), ()
    return training(loss, optimizer_of(c["optimizer"]), shapes, images, Shape(made.shape[:-1], I32))


FAMILIES = {"transformer": (transformer_choices, transformer), "convnet": (convnet_choices, convnet)}


def choices_of(seed: int, only: str | None, is_forward: bool, *, is_large: bool = False) -> Choices:
    draw = random.Random(seed)
    family = only or draw.choice(("transformer", "transformer", "convnet"))
    slices = LARGE_SLICES if is_large else SLICES
    choices = {"target": draw.choice(list(slices)), **FAMILIES[family][0](draw)}
    return choices | {"optimizer": "none"} if is_forward else choices


def lowered(choices: Choices) -> str:
    step, abstract, donated = FAMILIES[choices["family"]][1](choices, DEVICES[choices["target"]])
    return jax.jit(step, donate_argnums=donated, keep_unused=True).lower(*abstract).as_text()


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autoshard", *map(str, words)], capture_output=True, text=True
    )


def row_of(seed: int, arguments: argparse.Namespace) -> Choices | None:
    """Choices, what is predicted and what is compiled, MB; None where there is no plan, or it does not compile."""
    base = arguments.folder / (f"{seed}-forward" if arguments.forward else str(seed))
    module, said = base.with_suffix(".mlir"), base.with_suffix(".compiled.json")
    plan, planned = base.with_suffix(".plan.json"), base.with_suffix(".planned.mlir")
    choices = choices_of(seed, arguments.only, arguments.forward, is_large=arguments.large)
    target = choices["target"]
    hardware, mesh = (SLICES | LARGE_SLICES)[target]
    setting = ("--hardware", hardware, "--topology", target.split(":")[2])
    base.with_suffix(".json").write_text(json.dumps(choices))
    if not module.exists():
        module.write_text(lowered(choices))
    if not plan.exists():
        limit = ("--mesh", mesh, "--time-limit", str(arguments.time_limit))
        done = run("plan", module, *setting, *limit, "-o", planned, "--plan-out", plan)
        if done.returncode:
            print(seed, target, done.stderr.strip()[-300:], flush=True)
            return None
    if not said.exists():
        done = run("compile", planned, "--target", target, "--plan", plan, "--json")
        if not done.stdout:
            print(seed, target, done.stderr.strip()[-300:], flush=True)
            return None
        said.write_text(done.stdout)
    found = json.loads(said.read_text())
    predicted, memory = found["prediction"]["peak_bytes"], found["compiled"]["memory"]
    if memory is None:
        print(seed, target, "does not compile", flush=True)
        return None
    taken, first = memory["total_bytes"], predicted
    if arguments.again:
        predicted = json.loads(run("cost", planned, *setting, "--json").stdout)["predicted"]["peak_bytes"]
    return {
        "seed": seed,
        **choices,
        "compiled_mb": round(taken / 1e6),
        "predicted_mb": round(predicted / 1e6),
        "ratio": round(taken / predicted, 3),
        "first_ratio": round(taken / first, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 24), help="from, to (without)")
    parser.add_argument("--only", choices=tuple(FAMILIES))
    parser.add_argument("--forward", action="store_true", help="forward passes only")
    parser.add_argument("--large", action="store_true", help="on slices of 64 chips")
    parser.add_argument("--time-limit", type=int, default=30)
    parser.add_argument("--again", action="store_true", help="predict what is there by today's version")
    parser.add_argument("--table", type=Path, help="add the rows to this table")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in range(*arguments.seeds):
        row = row_of(seed, arguments)
        if row:
            rows.append(row)
            print(
                f"{seed:4} {row['target']:14} {row['family']:12} {row['compiled_mb']:6} MB {row['ratio']:.3f}",
                flush=True,
            )
    table = pd.DataFrame(rows)
    if arguments.table is not None:
        before = [pd.read_csv(arguments.table)] if arguments.table.exists() else []
        pd.concat([*before, table]).to_csv(arguments.table, index=False)
    table["within"] = table["ratio"].between(0.9, 1.1)
    print(f"{int(table['within'].sum())} of {len(table)} within 10 %")
    for name in table.columns.difference(
        ["seed", "predicted_mb", "compiled_mb", "ratio", "first_ratio", "within"]
    ):
        for value, mine in table.groupby(name):
            if len(mine) >= 4:
                print(
                    f"{name} {value}: {int(mine['within'].sum())} of {len(mine)}, median {mine['ratio'].median():.3f}"
                )


if __name__ == "__main__":
    main()
