"""Training steps of plain blocks whose weights differ in the order of their dimensions: in which layout their updates are made.

    python experiments/fidelity/updates.py FOLDER [NAME...]

writes NAME.mlir.gz; jax and optax alone. Each block is a product by a weight in a given order (`n` heads, `d` columns that are summed over,
`h` columns of a head, `k` of two), GELU, and a product back.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, Program, lower, named
from zoo import training

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


def program(blocks: Blocks) -> Program:
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

    def loss(weights: Any, x: Array) -> Array:
        for block in weights:
            hidden = jnp.einsum(f"btd,{blocks.order}->bt{made}", x, block["in"].astype(BF16))
            hidden = jax.nn.gelu(hidden.reshape(BATCH, ROWS, columns))
            x = x + jnp.einsum("btz,zd->btd", hidden, block["out"].astype(BF16))
        return jnp.mean(jnp.square(x.astype(F32)))

    return training(loss, blocks.optimizer, weights, Shape((BATCH, ROWS, blocks.width), BF16))


if __name__ == "__main__":
    lower(__doc__, [named(name, program, blocks) for name, blocks in STEPS.items()], compressed=True)
