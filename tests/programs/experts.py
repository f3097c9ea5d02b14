"""Mixtures of experts, routed by one-hot dispatch and combine products or by sorting the tokens by expert."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.programs.lowering import array, lower, sgd

TOKENS, WIDTH, HIDDEN, EXPERTS, CHOICES, CAPACITY = 64, 16, 32, 8, 2, 16


def parameter_specs() -> Any:
    return {
        "router": array(WIDTH, EXPERTS),
        "up": array(EXPERTS, WIDTH, HIDDEN),
        "down": array(EXPERTS, HIDDEN, WIDTH),
    }


def routes(router: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights and expert numbers of the `CHOICES` best experts of each token."""
    weights, experts = lax.top_k(jax.nn.softmax(x @ router), CHOICES)
    return weights / weights.sum(-1, keepdims=True), experts


def run_experts(parameters: Any, batches: jax.Array) -> jax.Array:
    """`[expert, slot, width]` through each expert's own two matmuls."""
    hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", batches, parameters["up"]))
    return jnp.einsum("ecf,efd->ecd", hidden, parameters["down"])


def by_one_hot(parameters: Any, x: jax.Array) -> jax.Array:
    weights, experts = routes(parameters["router"], x)
    chosen = jax.nn.one_hot(experts, EXPERTS, dtype=x.dtype)  # token, choice, expert
    flat = chosen.reshape(TOKENS * CHOICES, EXPERTS)
    slot = ((jnp.cumsum(flat, axis=0) - 1) * flat).sum(-1).astype(jnp.int32).reshape(TOKENS, CHOICES)
    slots = jax.nn.one_hot(slot, CAPACITY, dtype=x.dtype)
    combine = jnp.einsum("tk,tke,tkc->tec", weights, chosen, slots)
    dispatch = (combine > 0).astype(x.dtype)
    outputs = run_experts(parameters, jnp.einsum("tec,td->ecd", dispatch, x))
    return jnp.einsum("tec,ecd->td", combine, outputs)


def by_sorting(parameters: Any, x: jax.Array) -> jax.Array:
    weights, experts = routes(parameters["router"], x)
    flat = experts.reshape(-1)
    order = jnp.argsort(flat)
    counts = jnp.zeros((EXPERTS,), jnp.int32).at[flat].add(1)
    begins = jnp.cumsum(counts) - counts
    expert = flat[order]
    slot = jnp.arange(TOKENS * CHOICES) - begins[expert]
    token = order // CHOICES
    batches = jnp.zeros((EXPERTS, CAPACITY, WIDTH), x.dtype).at[expert, slot].set(x[token], mode="drop")
    outputs = run_experts(parameters, batches)
    picked = outputs.at[expert, slot].get(mode="fill", fill_value=0) * weights.reshape(-1)[order][:, None]
    return jnp.zeros_like(x).at[token].add(picked)


def train(sort: bool) -> str:
    mix = by_sorting if sort else by_one_hot

    def loss(parameters: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.square(x + mix(parameters, x) - y).mean()

    def step(parameters: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, x, y)
        return sgd(parameters, gradients), value

    return lower(step, parameter_specs(), array(TOKENS, WIDTH), array(TOKENS, WIDTH), donate=[0])
