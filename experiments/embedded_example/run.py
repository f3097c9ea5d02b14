"""Writes the training step that `autoshard plan` plans when it is given no model: `python run.py [OUTPUT]`.

A decoder-only transformer as it would be trained for real, only shorter: float32 master weights, bfloat16
matmuls, Adam, the state donated. No mesh and no sharding; locations are the jax names of the operations.
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxlib.mlir import ir

LAYERS, BATCH, SEQUENCE, WIDTH, HEADS, HIDDEN, VOCABULARY = 2, 64, 512, 512, 8, 2048, 8192
HEAD_WIDTH = WIDTH // HEADS
EXAMPLE = Path(__file__).parents[2] / "autoshard" / "examples" / "transformer_train.mlir"


def parameter_specs() -> Any:
    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    layer = {
        "attention": {
            "norm": array(WIDTH),
            "q": array(WIDTH, HEADS, HEAD_WIDTH),
            "k": array(WIDTH, HEADS, HEAD_WIDTH),
            "v": array(WIDTH, HEADS, HEAD_WIDTH),
            "out": array(HEADS, HEAD_WIDTH, WIDTH),
        },
        "mlp": {"norm": array(WIDTH), "up": array(WIDTH, HIDDEN), "down": array(HIDDEN, WIDTH)},
    }
    return {
        "embedding": array(VOCABULARY, WIDTH),
        "position": array(SEQUENCE, WIDTH),
        "layers": [layer] * LAYERS,
        "norm": array(WIDTH),
        "unembedding": array(WIDTH, VOCABULARY),
    }


def bf16(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16)


def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    x32 = x.astype(jnp.float32)
    return bf16(x32 * lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + 1e-6) * scale)


def attention(weights: Any, x: jax.Array) -> jax.Array:
    normed = rms_norm(x, weights["norm"])
    q, k, v = (jnp.einsum("bsd,dhe->bshe", normed, bf16(weights[name])) for name in ("q", "k", "v"))
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k, preferred_element_type=jnp.float32) / HEAD_WIDTH**0.5
    causal = jnp.tril(jnp.ones((SEQUENCE, SEQUENCE), bool))
    probabilities = bf16(jax.nn.softmax(jnp.where(causal, scores, -1e9)))
    mixed = jnp.einsum("bhqk,bkhe->bqhe", probabilities, v)
    return jnp.einsum("bqhe,hed->bqd", mixed, bf16(weights["out"]))


def mlp(weights: Any, x: jax.Array) -> jax.Array:
    return jax.nn.gelu(rms_norm(x, weights["norm"]) @ bf16(weights["up"])) @ bf16(weights["down"])


def loss(params: Any, batch: Any) -> jax.Array:
    x = bf16(params["embedding"])[batch["tokens"]] + bf16(params["position"])
    for number, weights in enumerate(params["layers"]):
        with jax.named_scope(f"layer{number}"):
            x = x + attention(weights["attention"], x)
            x = x + mlp(weights["mlp"], x)
    logits = jnp.matmul(
        rms_norm(x, params["norm"]), bf16(params["unembedding"]), preferred_element_type=jnp.float32
    )
    log_probs = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(log_probs, batch["targets"][..., None], axis=-1).mean()


def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    value, gradients = jax.value_and_grad(loss)(state["params"], batch)
    step = state["step"] + 1
    decay1, decay2 = (1 - rate ** step.astype(jnp.float32) for rate in (0.9, 0.999))
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], gradients)
    nu = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * jnp.square(g), state["nu"], gradients)
    params = jax.tree.map(
        lambda p, m, v: p - 3e-4 * (m / decay1) / (jnp.sqrt(v / decay2) + 1e-8), state["params"], mu, nu
    )
    return {"params": params, "mu": mu, "nu": nu, "step": step}, value


def lower() -> str:
    params = parameter_specs()
    tokens = jax.ShapeDtypeStruct((BATCH, SEQUENCE), jnp.int32)
    state = {"params": params, "mu": params, "nu": params, "step": jax.ShapeDtypeStruct((), jnp.int32)}
    batch = {"tokens": tokens, "targets": tokens}
    module = jax.jit(train_step, donate_argnums=0).lower(state, batch).compiler_ir("stablehlo")
    with module.context:
        name_arguments(module)
        module.operation.walk(keep_only_name_of_location)
        return module.operation.get_asm(enable_debug_info=True)


def name_arguments(module: Any) -> None:
    main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
    attributes = []
    for old, argument in zip(main.arg_attrs, main.arguments, strict=True):
        entries = {entry.name: entry.attr for entry in ir.DictAttr(old)}
        entries["jax.arg_name"] = ir.StringAttr.get(argument.location.name_str)
        attributes.append(ir.DictAttr.get(entries))
        argument.set_location(ir.Location.unknown())
    main.arg_attrs = ir.ArrayAttr.get(attributes)


def keep_only_name_of_location(op: Any) -> ir.WalkResult:
    """Files and lines mean nothing to the reader of the example and triple its size."""
    named = isinstance(op.location, ir.NameLoc)
    op.location = ir.Location.name(op.location.name_str) if named else ir.Location.unknown()
    return ir.WalkResult.ADVANCE


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", nargs="?", type=Path, default=EXAMPLE)
    parser.parse_args().output.write_text(lower())
