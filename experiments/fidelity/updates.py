"""Training steps of plain blocks whose weights differ in the order of their dimensions: in which layout their updates are made.

    python experiments/fidelity/updates.py FOLDER [NAME...]

writes NAME.mlir.gz; jax and optax alone. Each block is a product by a weight in a given order (`n` heads, `d` columns that are summed over,
`h` columns of a head, `k` of two), GELU, and a product back.
"""

import argparse
import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax import ShapeDtypeStruct as Shape

F32, BF16 = jnp.float32, jnp.bfloat16
BATCH, ROWS = 32, 512
ADAMW, ADAFACTOR = optax.adamw(1e-3), optax.adafactor(1e-3)


@dataclass(frozen=True)
class Blocks:
    """`order`: of the first weight's dimensions; "z" is heads and their columns in one."""

    order: str
    dtype: Any = BF16
    optimizer: Any = ADAMW
    count: int = 24
    width: int = 2048
    heads: int = 8
    head: int = 256


STEPS = {
    "rows": Blocks("dz", F32),
    "wide": Blocks("dz", F32, head=1024),
    "nine": Blocks("dz", count=12, width=1024, heads=9, head=1024),
    "loops": Blocks("dz", count=12, width=2304, heads=7, head=640),
    "turned": Blocks("zd", F32),
    "dnh": Blocks("dnh", width=2560),
    "nhd": Blocks("nhd", count=12, heads=24, head=128),
    "ndh": Blocks("ndh", F32),
    "ndh16": Blocks("ndh", F32, count=16, heads=16, head=128),
    "kndh": Blocks("kndh"),
    "hdn": Blocks("hdn", count=12, heads=24, head=128),
    "ada": Blocks("ndh", optimizer=ADAFACTOR, count=12, width=2560),
}


def lowered(blocks: Blocks) -> str:
    columns = blocks.heads * blocks.head
    is_pair = "k" in blocks.order
    sizes = {
        "n": blocks.heads // 2 if is_pair else blocks.heads,
        "d": blocks.width,
        "h": blocks.head,
        "z": columns,
        "k": 2,
    }
    made = "".join(dim for dim in "knhz" if dim in blocks.order)
    first = Shape(tuple(sizes[dim] for dim in blocks.order), blocks.dtype)
    weights = [
        {"in": first, "out": Shape((columns, blocks.width), blocks.dtype)} for _ in range(blocks.count)
    ]
    state = jax.eval_shape(blocks.optimizer.init, weights)

    def loss(weights: Any, x: Array) -> Array:
        for block in weights:
            hidden = jnp.einsum(f"btd,{blocks.order}->bt{made}", x, block["in"].astype(BF16))
            hidden = jax.nn.gelu(hidden.reshape(BATCH, ROWS, columns))
            x = x + jnp.einsum("btz,zd->btd", hidden, block["out"].astype(BF16))
        return jnp.mean(jnp.square(x.astype(F32)))

    def step(state: Any, x: Array) -> Any:
        weights, moments = state
        value, gradients = jax.value_and_grad(loss)(weights, x)
        updates, moments = blocks.optimizer.update(gradients, moments, weights)
        return (optax.apply_updates(weights, updates), moments), value

    x = Shape((BATCH, ROWS, blocks.width), BF16)
    return jax.jit(step, donate_argnums=0).lower((weights, state), x).as_text()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *STEPS], help=", ".join(STEPS))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or STEPS:
        text = lowered(STEPS[name])
        (arguments.folder / f"{name}.mlir.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main()
