"""Do predicted peaks hold where a bias is added to the scores of attention? Training steps of six layers, whole on each device.

Drawn over a grid: a dimension for sequences and heads each, or one for both as torch's `matmul` is lowered; bfloat16 with softmaxes in
float32 and without, and float32; a bias that is looked up in a table, learnt, an argument by head, by sequence or as large as the scores,
a causal mask, or none. Results in results/biases.csv: a row for each module and target.

python experiments/fidelity/biases.py FOLDER [--target tpu:v5e:4x4...] [--rows 512]
"""

import itertools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from attention import command_line, measure, on_mesh
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32, layer_norm

RESULTS = Path(__file__).parent / "results" / "biases.csv"
BATCH, HEADS, HEAD_WIDTH, LAYERS, TABLE = 8, 16, 64, 6, 32
WIDTH = HEADS * HEAD_WIDTH
BIASES = ("none", "causal", "table", "learnt", "by head", "by sequence", "as large")


class Kind(NamedTuple):
    is_merged: bool  # sequences and heads in one dimension
    precision: str  # bfloat16, softmax (of float32), float32
    bias: str
    rows: int

    def __str__(self) -> str:
        merged = "merged" if self.is_merged else "apart"
        return f"{merged}-{self.precision}-{self.bias.replace(' ', '_')}-{self.rows}"


def given_shape(kind: Kind) -> tuple[int, ...]:
    """Of what the bias is made of."""
    square = (kind.rows, kind.rows)
    shapes = {
        "table": (TABLE, HEADS),
        "by sequence": (BATCH, 1, *square),
        "as large": (BATCH, HEADS, *square),
    }
    return shapes.get(kind.bias, (1, HEADS, *square) if kind.bias in ("learnt", "by head") else (1,))


def bias_of(kind: Kind, given: Any, dtype: Any) -> Any:
    """[sequences or 1, heads or 1, queries, keys], or None."""
    places = jnp.arange(kind.rows)
    if kind.bias == "none":
        return None
    if kind.bias == "causal":
        return jnp.where(places[:, None] >= places, 0.0, -1e9).astype(dtype)[None, None]
    if kind.bias == "table":
        apart = jnp.clip(jnp.abs(places[:, None] - places), 0, TABLE - 1)
        return given.astype(dtype)[apart].transpose(2, 0, 1)[None]
    return given.astype(dtype)


def attended(kind: Kind, q: Any, k: Any, v: Any, bias: Any) -> Any:
    """Of [sequence, row, head, width]."""
    lead = (BATCH, HEADS)
    if kind.is_merged:
        q, k, v = (x.transpose(0, 2, 1, 3).reshape(BATCH * HEADS, kind.rows, HEAD_WIDTH) for x in (q, k, v))
        scores = jnp.einsum("bqd,bkd->bqk", q, k).reshape(*lead, kind.rows, kind.rows)
    else:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = scores * HEAD_WIDTH**-0.5
    scores = scores if bias is None else scores + bias
    wide = scores.astype(F32) if kind.precision == "softmax" else scores
    quotients = jax.nn.softmax(wide, axis=-1).astype(q.dtype)
    if not kind.is_merged:
        return jnp.einsum("bhqk,bkhd->bqhd", quotients, v)
    made = jnp.einsum("bqk,bkd->bqd", quotients.reshape(BATCH * HEADS, kind.rows, kind.rows), v)
    return made.reshape(*lead, kind.rows, HEAD_WIDTH).transpose(0, 2, 1, 3)


def lowered(kind: Kind) -> str:
    """The module's text."""
    dtype = F32 if kind.precision == "float32" else BF16
    is_learnt = kind.bias in ("table", "learnt")

    def forward(layers: Any, given: Any, x: Any) -> Any:
        bias = bias_of(kind, given, dtype)
        for layer in layers:
            w = jax.tree.map(lambda weight: weight.astype(dtype), layer)
            normal = layer_norm(x, w["scale"]).astype(dtype)
            q, k, v = ((normal @ w[name]).reshape(*x.shape[:2], HEADS, HEAD_WIDTH) for name in "qkv")
            x = x + attended(kind, q, k, v, bias).reshape(x.shape) @ w["o"]
            x = x + jax.nn.gelu(layer_norm(x, w["scale"]).astype(dtype) @ w["up"]) @ w["down"]
        return x

    def step(layers: Any, given: Any, x: Any) -> Any:
        def loss(layers: Any, given: Any) -> Any:
            return (forward(layers, given, x).astype(F32) ** 2).mean()

        return jax.grad(loss, argnums=(0, 1) if is_learnt else 0)(layers, given)

    layer = {name: Shape((WIDTH, WIDTH), F32) for name in "qkvo"}
    layer |= {"up": Shape((WIDTH, 4 * WIDTH), F32), "down": Shape((4 * WIDTH, WIDTH), F32)}
    layer |= {"scale": Shape((WIDTH,), F32)}
    given = Shape(given_shape(kind), F32 if is_learnt else dtype)
    x = Shape((BATCH, kind.rows, WIDTH), dtype)
    return on_mesh(jax.jit(step, keep_unused=True).lower([layer] * LAYERS, given, x).as_text())


def main() -> None:
    asked = command_line(__doc__, RESULTS, [512]).parse_args()
    grid = itertools.product((True, False), ("bfloat16", "softmax", "float32"), BIASES, asked.rows)
    kinds = itertools.starmap(Kind, grid)
    measure(((str(kind), lowered(kind)) for kind in kinds), asked)


if __name__ == "__main__":
    main()
