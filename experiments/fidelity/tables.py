"""One small recommender whose tables differ: how wide, how many, of what type, how they are looked up and updated.

    JAX_PLATFORMS=cpu python experiments/fidelity/tables.py FOLDER [NAME...]

16384 examples; a perceptron on what is looked up tells clicks. State is donated.
Lowered with jax 0.10.2 and optax 0.2.8 on abstract shapes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import ShapeDtypeStruct as Shape
from policies import read_by
from programs import BF16, F32, I32, Program, Reader, lower, named

EXAMPLES = 16384


@dataclass(frozen=True)
class Tables:
    """What they are.

    Attributes:
        ids: looked up in each table by an example; 1 is a plain lookup, more are summed, kept side by side, or read in their order.
        reads: "sum", "beside" or "order".
    """

    count: int = 2
    rows: int = 500_000
    columns: int = 64
    ids: int = 1
    reads: str = "sum"
    is_narrow: bool = True
    narrows_rows: bool = False
    optimizer: Callable[[], optax.GradientTransformation] = lambda: optax.adamw(1e-3)


def looked_up(t: Tables, table: Any, ids: Any) -> Any:
    rows = table.astype(BF16)[ids] if t.is_narrow and not t.narrows_rows else table[ids]
    rows = rows.astype(BF16) if t.narrows_rows else rows
    if t.ids == 1:
        return rows[:, 0]
    if t.reads == "sum":
        return rows.sum(1)
    if t.reads == "beside":
        return rows.reshape(rows.shape[0], -1)
    return jax.nn.tanh(rows).mean(1)


def loss(t: Tables, w: Reader, ids: Any, clicked: Any) -> Any:
    x = jnp.concatenate(
        [looked_up(t, w(f"table{n}", t.rows, t.columns), ids[:, n]) for n in range(t.count)], -1
    )
    for n, columns in enumerate((512, 256, 1)):
        x = x @ w(f"weight{n}", x.shape[-1], columns).astype(x.dtype) + w(f"bias{n}", columns).astype(x.dtype)
        x = jax.nn.relu(x) if columns > 1 else x
    return optax.sigmoid_binary_cross_entropy(x[:, 0].astype(F32), clicked).mean()


def trained(t: Tables) -> Program:
    inputs = Shape((EXAMPLES, t.count, t.ids), I32), Shape((EXAMPLES,), F32)
    return read_by(partial(loss, t), t.optimizer(), *inputs)


TABLES: dict[str, Tables] = {
    "plain": Tables(),
    "wide": Tables(is_narrow=False),
    "narrow_rows": Tables(narrows_rows=True),
    "one": Tables(count=1),
    "four": Tables(count=4, rows=250_000),
    "eight": Tables(count=8, rows=250_000),
    "columns16": Tables(columns=16),
    "columns32": Tables(columns=32),
    "columns128": Tables(columns=128, rows=250_000),
    "columns512": Tables(columns=512, rows=100_000),
    "few_rows": Tables(count=8, rows=10_000),
    "many_rows": Tables(rows=4_000_000, columns=32),
    "bags": Tables(ids=20),
    "bags_wide": Tables(ids=20, is_narrow=False),
    "beside": Tables(ids=20, reads="beside"),
    "order": Tables(ids=100, reads="order"),
    "order_wide": Tables(ids=100, reads="order", is_narrow=False),
    "order_one": Tables(ids=100, reads="order", count=1),
    "sgd": Tables(optimizer=lambda: optax.sgd(1e-2)),
    "sgd_wide": Tables(optimizer=lambda: optax.sgd(1e-2), is_narrow=False),
    "momentum": Tables(optimizer=lambda: optax.sgd(1e-2, momentum=0.9)),
    "adagrad": Tables(optimizer=lambda: optax.adagrad(1e-2)),
    "adagrad_wide": Tables(optimizer=lambda: optax.adagrad(1e-2), is_narrow=False),
    "rmsprop": Tables(optimizer=lambda: optax.rmsprop(1e-3)),
    "clipped": Tables(optimizer=lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))),
    "sgd_one": Tables(count=1, optimizer=lambda: optax.sgd(1e-2)),
    "sgd_four": Tables(count=4, rows=250_000, optimizer=lambda: optax.sgd(1e-2)),
    "sgd_bags": Tables(ids=20, optimizer=lambda: optax.sgd(1e-2)),
    "momentum_wide": Tables(optimizer=lambda: optax.sgd(1e-2, momentum=0.9), is_narrow=False),
    "adagrad_one": Tables(count=1, optimizer=lambda: optax.adagrad(1e-2)),
    "adagrad_four": Tables(count=4, rows=250_000, optimizer=lambda: optax.adagrad(1e-2)),
    "adagrad_bags": Tables(ids=20, optimizer=lambda: optax.adagrad(1e-2)),
    "lion": Tables(optimizer=lambda: optax.lion(1e-4)),
}


def programs() -> Iterator[Callable[[], Program]]:
    for name, tables in TABLES.items():
        yield named(name, trained, tables)


if __name__ == "__main__":
    lower(__doc__, [*programs()], compressed=True, for_tpu=True)
