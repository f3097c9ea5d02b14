"""Which convolutions XLA:TPU runs inside the one that reads them: what the inner one makes is not stored then.

Two convolutions with a bias and a rectifier each, forward, in float32 or bfloat16, and a mean over rows and columns, on 128 images of 56
rows a device; what lies between them is larger than vector memory. Of each pair (channels of the images, window and channels of the
first and of the second) how much of what lies between `autoshard compile` has in temporary buffers, a half where float32 is stored as
bfloat16, and whether it is predicted there (`autoshard/program/nested_gain.py`).

python experiments/fidelity/nesting.py [tpu:v5e:4x4 tpu:v6e:4x4 tpu:v5p:2x2x4] [--type bf16]
"""

import argparse
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from autoshard.loading import load_module
from autoshard.requests import Request
from autoshard.xla.compiling import compile_planned

DEVICES, IMAGES, ROWS = 16, 128, 56
TARGETS = ("tpu:v5e:4x4", "tpu:v6e:4x4", "tpu:v5p:2x2x4")
PAIRS = (  # window and channels of the first, then of the second
    (64, 1, 256, 1, 64),
    (64, 1, 256, 1, 256),
    (256, 1, 256, 1, 256),
    (256, 1, 512, 1, 512),
    (512, 1, 512, 1, 512),
    (512, 1, 1024, 1, 1024),
    (64, 3, 128, 1, 256),
    (128, 3, 128, 1, 512),
    (256, 3, 256, 1, 1024),
    (512, 3, 512, 1, 256),
    (32, 1, 128, 3, 128),
    (128, 1, 256, 3, 128),
    (64, 1, 160, 3, 128),
    (256, 1, 256, 3, 512),
    (64, 3, 128, 3, 128),
    (128, 3, 128, 3, 128),
    (128, 3, 256, 3, 256),
    (256, 3, 256, 3, 256),
    (3, 3, 128, 3, 128),
    (3, 3, 128, 1, 128),
)


def module(pair: Sequence[int], dtype: jnp.dtype) -> str:
    channels, first, between, second, behind = pair

    def shape(*sizes: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, dtype)

    def convolution(images: jax.Array, filters: jax.Array, bias: jax.Array) -> jax.Array:
        dims = ("NHWC", "HWIO", "NHWC")
        made = lax.conv_general_dilated(images, filters, (1, 1), "SAME", dimension_numbers=dims)
        return jnp.maximum(made + bias, 0)

    def network(images: jax.Array, *layers: jax.Array) -> jax.Array:
        return convolution(convolution(images, *layers[:2]), *layers[2:]).mean((1, 2))

    images = shape(DEVICES * IMAGES, ROWS, ROWS, channels)
    layers = (
        shape(first, first, channels, between),
        shape(between),
        shape(second, second, between, behind),
        shape(behind),
    )
    head, _, body = jax.jit(network).lower(images, *layers).as_text().partition("%arg0: ")
    type_, _, rest = body.partition(">")
    opening, newline, main = head.partition("\n")
    split = '{sdy.sharding = #sdy.sharding<@mesh, [{"x", "y"}, {}, {}, {}]>}'
    return f'{opening}{newline}sdy.mesh @mesh = <["x"=4, "y"=4]>\n{main}%arg0: {type_}> {split}{rest}'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", default=TARGETS, metavar="TARGET")
    parser.add_argument("--type", choices=("f32", "bf16"), default="f32")
    arguments = parser.parse_args()
    dtype = jnp.dtype(jnp.float32 if arguments.type == "f32" else jnp.bfloat16)
    for target in arguments.targets:
        _, chip, slice_ = target.split(":")
        for pair in PAIRS:
            text = module(pair, dtype).encode()
            between = IMAGES * ROWS**2 * pair[2] * dtype.itemsize
            stored = compile_planned(text, target).memory.temporary_bytes / between
            topology = tuple(map(int, slice_.split("x")))
            loaded = load_module(text, Request(hardware=f"tpu-{chip}", topology=topology))
            (made,) = next(op for op in loaded.listing.ops if op.is_matmul).results
            said = "stored" if loaded.program.lifetimes[made].is_own_buffer else "inside"
            print(target, arguments.type, *pair, f"stored {stored:.2f}, predicted {said}", flush=True)


if __name__ == "__main__":
    main()
