"""Training steps of MLP-Mixers: blocks of a branch that is transposed and one that is not, from timm and in plain jax.

What the compiler keeps of hidden values depends on how many images a device has, how many patches an image, how many blocks there are and
how normalizations read the sums (`autoshard/program/turned.py`). Names say blocks and images a device (of 64).

    python experiments/fidelity/mixers.py FOLDER [NAME...]

Lowered with jax 0.10.2, torch 2.13.0, torchax 0.0.13, timm 1.0.31 (Python 3.11, JAX_PLATFORMS=cpu). Plan each for `--mesh x=8,y=8
--hardware tpu-v5e`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, Program, Tree, lower, named
from zoo_torch import images_train, torch_model

DEVICES, WIDTH, HIDDEN, TOKENS, PATCH = 64, 1024, 4096, 512, 16


def of_timm(blocks: int, images: int, side: int, function: str) -> Program:
    """timm's, weights and images in bfloat16, SGD."""
    import torch
    from timm.layers import GELUTanh
    from timm.models.mlp_mixer import MlpMixer

    functions = {"gelu": torch.nn.GELU, "tanh": GELUTanh, "silu": torch.nn.SiLU}
    run, weights, buffers = torch_model(
        lambda: MlpMixer(
            num_blocks=blocks, embed_dim=WIDTH, img_size=PATCH * side, act_layer=functions[function]
        )
    )
    weights = {name: Shape(each.shape, BF16) for name, each in weights.items()}
    given = Shape((images * DEVICES, 3, PATCH * side, PATCH * side), BF16)
    return images_train(run, weights, buffers, given, optax.sgd(1e-3))


def of_jax(blocks: int, images: int, dtype: Any, narrow: bool) -> Program:
    """The same with a normalization that reads its operand widened, or narrow and widened as torch's does."""
    patches = (224 // PATCH) ** 2

    def norm(x: Any, scale: Any, shift: Any) -> Any:
        wide = x.astype(F32)
        mean, variance = wide.mean(-1, keepdims=True), wide.var(-1, keepdims=True)
        if narrow:
            mean, variance, wide = mean.astype(dtype), variance.astype(dtype), x
        return ((wide - mean) * jax.lax.rsqrt(variance + 1e-6)).astype(dtype) * scale + shift

    def dense(x: Any, weight: Any, bias: Any) -> Any:
        return jax.lax.dot_general(x, weight, (((2,), (1,)), ((), ()))) + bias

    def gelu(x: Any) -> Any:
        return 0.5 * x * jax.lax.erfc(-x * jnp.asarray(0.5**0.5, dtype))

    def loss(weights: Tree, images: Any) -> Any:
        first, *rest = weights
        windows = (PATCH, PATCH)
        names = ("NCHW", "OIHW", "NCHW")
        x = jax.lax.conv_general_dilated(images, first["w"], windows, "VALID", dimension_numbers=names)
        x = jnp.swapaxes(x.reshape(x.shape[0], WIDTH, patches), 1, 2)
        for block in rest:
            y = jnp.swapaxes(norm(x, *block["norm1"]), 1, 2)
            x = x + jnp.swapaxes(dense(gelu(dense(y, *block["in1"])), *block["out1"]), 1, 2)
            x = x + dense(gelu(dense(norm(x, *block["norm2"]), *block["in2"])), *block["out2"])
        logits = (x.mean(1) @ first["head"]).astype(F32)
        return (jax.nn.logsumexp(logits, -1) - logits[:, 0]).mean()

    def step(weights: Tree, images: Any) -> Any:
        gradients = jax.grad(loss)(weights, images)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, weights, gradients)

    def layer(rows: int, columns: int) -> tuple[Shape, Shape]:
        return Shape((rows, columns), dtype), Shape((rows,), dtype)

    vectors = Shape((WIDTH,), dtype), Shape((WIDTH,), dtype)
    block = {
        "norm1": vectors, "in1": layer(TOKENS, patches), "out1": layer(patches, TOKENS),
        "norm2": vectors, "in2": layer(HIDDEN, WIDTH), "out2": layer(WIDTH, HIDDEN),
    }  # fmt: skip
    first = {"w": Shape((WIDTH, 3, PATCH, PATCH), dtype), "head": Shape((WIDTH, 1000), dtype)}
    return step, ([first, *[block] * blocks], Shape((images * DEVICES, 3, 224, 224), dtype)), (0,)


_IMAGES = (16, 32, 64, 96, 104, 112, 128, 136, 256)
PROGRAMS = (
    *(named(f"mixer_timm_4_{n}", of_timm, 4, n, 14, "gelu") for n in _IMAGES),
    *(named(f"mixer_timm_{b}_64", of_timm, b, 64, 14, "gelu") for b in (12, 14, 15, 16, 20, 24)),
    *(named(f"mixer_timm_16_{n}", of_timm, 16, n, 14, "gelu") for n in (16, 24, 32, 128)),
    named("mixer_timm_4_128_tanh", of_timm, 4, 128, 14, "tanh"),
    named("mixer_timm_16_64_tanh", of_timm, 16, 64, 14, "tanh"),
    named("mixer_timm_16_64_silu", of_timm, 16, 64, 14, "silu"),
    named("mixer_timm_16_64_of_49", of_timm, 16, 64, 7, "gelu"),
    named("mixer_timm_4_128_of_256", of_timm, 4, 128, 16, "gelu"),
    named("mixer_timm_16_64_of_256", of_timm, 16, 64, 16, "gelu"),
    named("mixer_jax_16_64", of_jax, 16, 64, BF16, narrow=False),
    named("mixer_jax_24_64", of_jax, 24, 64, BF16, narrow=False),
    named("mixer_jax_4_128", of_jax, 4, 128, BF16, narrow=False),
    named("mixer_jax_16_64_narrow", of_jax, 16, 64, BF16, narrow=True),
    named("mixer_jax_16_32_f32", of_jax, 16, 32, F32, narrow=False),
)

if __name__ == "__main__":
    lower(__doc__, PROGRAMS, compressed=True)
