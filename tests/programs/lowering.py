"""Lowers a jax function on abstract shapes to StableHLO text whose `jax.arg_name` are jax tree paths."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxlib.mlir import ir


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def lower(function: Callable[..., Any], *arguments: Any, donate: Sequence[int] = ()) -> str:
    """Module text; `donate` lists the positions of the arguments whose buffers the results may take over."""
    module: Any = jax.jit(function, donate_argnums=tuple(donate)).lower(*arguments).compiler_ir("stablehlo")
    main: Any = next(op for op in module.body.operations if "main" in str(op.attributes["sym_name"]))
    with module.context:
        main.arg_attrs = ir.ArrayAttr.get(
            [
                ir.DictAttr.get(
                    {**_entries(attributes), "jax.arg_name": ir.StringAttr.get(argument.location.name_str)}
                )
                for attributes, argument in zip(main.arg_attrs, main.arguments, strict=True)
            ]
        )
    return str(module)


def _entries(attributes: Any) -> dict[str, Any]:
    return {entry.name: entry.attr for entry in ir.DictAttr(attributes)}


def zeros_like_specs(tree: Any) -> Any:
    """The same tree of abstract arrays, as float32: the moments of an optimiser."""

    def zeros(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return array(*leaf.shape)

    return jax.tree.map(zeros, tree)


def sgd(parameters: Any, gradients: Any, rate: float = 0.1) -> Any:
    def update(parameter: jax.Array, gradient: jax.Array) -> jax.Array:
        return parameter - rate * gradient

    return jax.tree.map(update, parameters, gradients)


def adam(state: Any, gradients: Any, rate: float = 1e-2) -> Any:
    """One Adam step on `{"params", "mu", "nu", "step"}` with bias correction."""
    step = state["step"] + 1
    power = step.astype(jnp.float32)

    def first_moment(m: jax.Array, g: jax.Array) -> jax.Array:
        return 0.9 * m + 0.1 * g

    def second_moment(v: jax.Array, g: jax.Array) -> jax.Array:
        return 0.99 * v + 0.01 * jnp.square(g)

    mu = jax.tree.map(first_moment, state["mu"], gradients)
    nu = jax.tree.map(second_moment, state["nu"], gradients)

    def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        return p - rate * (m / (1 - 0.9**power)) / (jnp.sqrt(v / (1 - 0.99**power)) + 1e-8)

    return {"params": jax.tree.map(update, state["params"], mu, nu), "mu": mu, "nu": nu, "step": step}


def adam_state(parameters: Any) -> Any:
    return {
        "params": parameters,
        "mu": zeros_like_specs(parameters),
        "nu": zeros_like_specs(parameters),
        "step": array(dtype=jnp.int32),
    }


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean negative log likelihood, picked out of the log-softmax by a gather."""
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(log_probs, labels[..., None], axis=-1).mean()
