"""A program each for matmuls, convolutions, gathers, loops, complex numbers and random bits."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.programs.lowering import array, cross_entropy, lower, sgd


def mlp_train() -> str:
    def loss(parameters: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x @ parameters["w1"] + parameters["b1"])
        log_probs = jax.nn.log_softmax(hidden @ parameters["w2"] + parameters["b2"])
        return -(log_probs * jax.nn.one_hot(labels, 8)).sum(-1).mean()

    def step(parameters: Any, x: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, x, labels)
        return sgd(parameters, gradients), value

    parameters = {"w1": array(32, 64), "b1": array(64), "w2": array(64, 8), "b2": array(8)}
    return lower(step, parameters, array(32, 32), array(32, dtype=jnp.int32), donate=[0])


def convnet_train() -> str:
    """Two convolutions, batch normalisation with running statistics, a max pool, SGD with momentum."""

    def normalise(x: jax.Array, weights: Any, old: Any) -> tuple[jax.Array, Any]:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        new = {"mean": 0.9 * old["mean"] + 0.1 * mean, "variance": 0.9 * old["variance"] + 0.1 * variance}
        return (x - mean) * lax.rsqrt(variance + 1e-5) * weights["scale"] + weights["bias"], new

    def block(x: jax.Array, weights: Any, old: Any, stride: int) -> tuple[jax.Array, Any]:
        x = lax.conv_general_dilated(
            x, weights["kernel"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x, new = normalise(x, weights, old)
        return jax.nn.relu(x), new

    def loss(parameters: Any, statistics: Any, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, Any]:
        x, first = block(images, parameters["first"], statistics["first"], 1)
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x, second = block(x, parameters["second"], statistics["second"], 2)
        logits = x.mean((1, 2)) @ parameters["head"]
        return cross_entropy(logits, labels), {"first": first, "second": second}

    def decay(momentum: jax.Array, gradient: jax.Array) -> jax.Array:
        return 0.9 * momentum + gradient

    def step(state: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, jax.Array]:
        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(
            state["params"], state["statistics"], images, labels
        )
        momentum = jax.tree.map(decay, state["momentum"], gradients)
        return {
            "params": sgd(state["params"], momentum),
            "momentum": momentum,
            "statistics": statistics,
        }, value

    def block_specs(inputs: int, outputs: int) -> Any:
        return {"kernel": array(3, 3, inputs, outputs), "scale": array(outputs), "bias": array(outputs)}

    parameters = {"first": block_specs(4, 8), "second": block_specs(8, 16), "head": array(16, 8)}
    statistics = {
        "first": {"mean": array(8), "variance": array(8)},
        "second": {"mean": array(16), "variance": array(16)},
    }
    state = {"params": parameters, "momentum": parameters, "statistics": statistics}
    return lower(step, state, array(16, 16, 16, 4), array(16, dtype=jnp.int32), donate=[0])


def embedding_train() -> str:
    """A lookup, a softmax over the vocabulary, and the scatter-add that is the lookup's gradient."""

    def loss(parameters: Any, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        x = parameters["table"][tokens].mean(1)
        return cross_entropy(x @ parameters["output"], targets)

    def step(parameters: Any, tokens: jax.Array, targets: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, tokens, targets)
        return sgd(parameters, gradients), value

    parameters = {"table": array(128, 16), "output": array(16, 128)}
    i32 = jnp.int32
    return lower(step, parameters, array(32, 8, dtype=i32), array(32, dtype=i32), donate=[0])


def rnn_train() -> str:
    """A gated recurrent layer over 12 steps, forwards and backwards, as while loops."""

    def cell(parameters: Any, state: jax.Array, x: jax.Array) -> jax.Array:
        mixed = x @ parameters["input"] + state @ parameters["recurrent"] + parameters["bias"]
        gate, candidate = jnp.split(mixed, 2, axis=-1)
        gate = jax.nn.sigmoid(gate)
        return gate * state + (1 - gate) * jnp.tanh(candidate)

    def loss(parameters: Any, xs: jax.Array, y: jax.Array) -> jax.Array:
        def body(state: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
            state = cell(parameters, state, x)
            return state, state.mean()

        state, means = lax.scan(body, jnp.zeros((16, 32)), xs)
        return jnp.square(state @ parameters["output"] - y).mean() + means.mean()

    def step(parameters: Any, xs: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, xs, y)
        return sgd(parameters, gradients), value

    parameters = {
        "input": array(8, 64),
        "recurrent": array(32, 64),
        "bias": array(64),
        "output": array(32, 8),
    }
    return lower(step, parameters, array(12, 16, 8), array(16, 8), donate=[0])


def fixed_point() -> str:
    """A while loop whose trip count depends on data."""

    def solve(matrix: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
            x, count = state
            return (jnp.abs(matrix @ x * 0.1 + b - x).max() > 1e-3) & (count < 50)

        def body(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            x, count = state
            return matrix @ x * 0.1 + b, count + 1

        return lax.while_loop(unfinished, body, (b, jnp.int32(0)))

    return lower(solve, array(32, 32), array(32, 16))


def fft_mixer() -> str:
    """Token mixing by Fourier transforms with a learned complex filter, and the gradient of that filter."""

    def loss(parameters: Any, x: jax.Array) -> jax.Array:
        spectrum = jnp.fft.fft(x.astype(jnp.complex64), axis=1)
        mixed = jnp.fft.ifft(spectrum * lax.complex(parameters["re"], parameters["im"]), axis=1)
        return jnp.abs(jnp.real(mixed) @ parameters["output"]).mean()

    def step(parameters: Any, x: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, x)
        return sgd(parameters, gradients), value, jnp.fft.rfft(x, axis=1)

    parameters = {"re": array(32, 16), "im": array(32, 16), "output": array(16, 8)}
    return lower(step, parameters, array(16, 32, 16), donate=[0])


def dropout_train() -> str:
    """Random bits from a carried key (threefry, by function calls) decide which units are kept."""

    def loss(parameters: Any, key: jax.Array, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(x @ parameters["w1"])
        kept = jax.random.bernoulli(key, 0.75, hidden.shape)
        return jnp.square(jnp.where(kept, hidden, 0) @ parameters["w2"]).mean()

    def step(parameters: Any, key: jax.Array, x: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        use, key = jax.random.split(key)
        value, gradients = jax.value_and_grad(loss)(parameters, use, x)
        return sgd(parameters, gradients), key, value

    parameters = {"w1": array(16, 32), "w2": array(32, 8)}
    return lower(step, parameters, array(2, dtype=jnp.uint32), array(32, 16), donate=[0, 1])


def gated_train(dtype: str) -> str:
    """A training step of three blocks of gated perceptrons, of whose normalized rows two products read each."""

    def loss(blocks: Any, x: jax.Array) -> jax.Array:
        for scale, gate, up, down in blocks:
            n = (x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale).astype(dtype)
            x = x + (jnp.tanh(n @ gate.astype(dtype)) * (n @ up.astype(dtype))) @ down.astype(dtype)
        return jnp.sum(x * x)

    def update(blocks: Any, x: jax.Array) -> Any:
        return sgd(blocks, jax.grad(loss)(blocks, x))

    block = array(1024), array(1024, 4096), array(1024, 4096), array(4096, 1024)
    return lower(update, [block] * 3, array(512, 512, 1024), donate=(0,))
