"""Vision models of equimo (equinox), of kinds that the tables of this folder had not seen.

    python experiments/fidelity/zoo_equimo.py FOLDER [NAME...]

Lowered with jax 0.10.2, equimo 1.1.0, equinox 0.13.8, optax 0.2.8 (Python 3.11, JAX_PLATFORMS=cpu).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, I32, Program, Tree, cross_entropy, lower

ADAMW = optax.adamw(1e-3)


def vision_train(build: Callable[[Any], Any], images: Any, to: Any, optimizer: Any = ADAMW) -> Program:
    """A classifier that is built of a key, one image at a time by `vmap` with a key each; its weights in float32, read as `to`."""
    shapes = eqx.filter_eval_shape(build, Shape((2,), jnp.uint32))
    weights, rest = eqx.partition(
        shapes, lambda a: isinstance(a, Shape) and jnp.issubdtype(a.dtype, jnp.floating)
    )

    def loss(weights: Tree, images: Any, labels: Any, key: Any) -> Any:
        model = eqx.combine(jax.tree.map(lambda w: w.astype(to), weights), rest)
        keys = jax.random.split(key, len(images))
        answer = jax.vmap(lambda image, key: model(image, key=key, inference=False))(images.astype(to), keys)
        return cross_entropy(answer, labels)

    def step(weights: Tree, state: Tree, images: Any, labels: Any, key: Any) -> tuple[Tree, Tree, Any]:
        value, gradients = jax.value_and_grad(loss)(weights, images, labels, key)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, value

    state = jax.eval_shape(optimizer.init, weights)
    return step, (weights, state, images, Shape(images.shape[:1], I32), Shape((2,), jnp.uint32)), (0, 1)


def mlla_train() -> Program:
    """Linear attention as in Mamba, tiny, with paths that are dropped, 256 images; float32, AdamW."""
    from equimo.models.mlla import Mlla

    def build(key: Any) -> Any:
        return Mlla(
            img_size=224, in_channels=3, dim=64, depths=[2, 4, 8, 4], num_heads=[2, 4, 8, 16], num_classes=1000,
            drop_path_rate=0.1, key=key,
        )  # fmt: skip

    return vision_train(build, Shape((256, 3, 224, 224), F32), F32)


def vssd_train() -> Program:
    """State spaces without a direction, small, 256 images; bfloat16 on float32, AdamW."""
    from equimo.models.vssd import Vssd

    def build(key: Any) -> Any:
        return Vssd(
            img_size=224,
            in_channels=3,
            dim=64,
            depths=[3, 4, 21, 5],
            num_heads=[2, 4, 8, 16],
            num_classes=1000,
            key=key,
        )

    return vision_train(build, Shape((256, 3, 224, 224), F32), BF16)


PROGRAMS = (mlla_train, vssd_train)

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True, for_tpu=True)
