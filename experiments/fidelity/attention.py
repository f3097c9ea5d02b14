"""Do predicted peaks hold for attention, where its scores are all that a program holds? Layers of it, forward and of training steps.

Drawn over a grid: queries that share keys or do not, heads of 64 and 128 elements, keys as the projection's reshape, its product itself or
rotated, rows of 1024 to 4096, causal or not; a batch of two, `jax.nn.dot_product_attention` in bfloat16. Every module is whole on each
device. Results in results/attention.csv: a row for each module and target.

python experiments/fidelity/attention.py FOLDER [--target tpu:v5e:4x4...] [--rows 1024 2048 3072 4096] [--gradients]
"""

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pandas as pd
from jax import ShapeDtypeStruct as Shape
from programs import BF16, F32

RESULTS = Path(__file__).parent / "results" / "attention.csv"
TARGETS = ("tpu:v5e:4x4", "tpu:v5p:2x2x4", "tpu:v6e:4x4")
BATCH, HEADS, LAYERS, MESH = 2, 8, 3, 'sdy.mesh @mesh = <["x"=16]>'


class Kind(NamedTuple):
    groups: int  # queries that share a key's head
    keys: str  # reshaped, direct, rotated
    width: int
    rows: int
    is_causal: bool
    is_gradient: bool

    def __str__(self) -> str:
        mask, pass_ = ("causal", "whole")[not self.is_causal], ("step", "forward")[not self.is_gradient]
        return f"{self.groups}-{self.keys}-{self.width}-{self.rows}-{mask}-{pass_}"


def rotated(x: Any) -> Any:
    rows, width = x.shape[1], x.shape[-1]
    angles = jnp.arange(rows, dtype=F32)[:, None] * 1e4 ** (-jnp.arange(width // 2) / (width // 2))[None]
    cos, sin = (
        jnp.concatenate([f(angles)] * 2, -1)[None, :, None].astype(x.dtype) for f in (jnp.cos, jnp.sin)
    )
    low, high = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-high, low], -1) * sin


def lowered(kind: Kind) -> str:
    """The module's text."""
    count = {"q": HEADS, "k": HEADS // kind.groups, "v": HEADS // kind.groups}
    wide = HEADS * kind.width

    def projected(x: Any, w: Any) -> Any:
        if kind.keys == "direct":
            return jnp.einsum("bsw,whd->bshd", x, w)
        return (x @ w).reshape(BATCH, kind.rows, -1, kind.width)

    def forward(layers: Any, x: Any) -> Any:
        for w in layers:
            q, k, v = (projected(x, w[name]) for name in "qkv")
            if kind.keys == "rotated":
                q, k = rotated(q), rotated(k)
            made = jax.nn.dot_product_attention(q, k, v, is_causal=kind.is_causal)
            x = x + made.reshape(x.shape) @ w["o"]
        return x

    def step(layers: Any, x: Any) -> Any:
        return jax.grad(lambda layers: (forward(layers, x).astype(F32) ** 2).mean())(layers)

    def weights(heads: int) -> Shape:
        return Shape((wide, heads, kind.width) if kind.keys == "direct" else (wide, heads * kind.width), BF16)

    layer = {name: weights(heads) for name, heads in count.items()} | {"o": Shape((wide, wide), BF16)}
    given = [layer] * (LAYERS if kind.is_gradient else 1), Shape((BATCH, kind.rows, wide), BF16)
    return on_mesh(jax.jit(step if kind.is_gradient else forward).lower(*given).as_text())


def compiled(module: Path, target: str) -> dict[str, int]:
    """Predicted and compiled peak, bytes."""
    chip = target.split(":")[1]
    command = [
        "-m",
        "autoshard",
        "compile",
        str(module),
        "--hardware",
        f"tpu-{chip}",
        "--target",
        target,
        "--json",
    ]
    found = json.loads(subprocess.run([sys.executable, *command], capture_output=True, check=True).stdout)
    return {
        "predicted": found["prediction"]["peak_bytes"],
        "compiled": found["compiled"]["memory"]["total_bytes"],
    }


def on_mesh(text: str) -> str:
    """A module's text with the mesh on which it is whole on each device."""
    end = text.index("\n", text.index("module @")) + 1
    return f"{text[:end]}  {MESH}\n{text[end:]}"


def command_line(description: str | None, results: Path, lengths: list[int]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", nargs="+", default=list(TARGETS))
    parser.add_argument("--rows", nargs="+", type=int, default=lengths)
    parser.add_argument("--table", type=Path, default=results)
    return parser


def measure(modules: Iterable[tuple[str, str]], asked: argparse.Namespace) -> None:
    """A row for each (name, text) and target, printed and written as it is there."""
    asked.folder.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    for name, text in modules:
        module = asked.folder / f"{name}.mlir"
        module.write_text(text)
        for target in asked.target:
            sizes = compiled(module, target)
            ratio = round(sizes["compiled"] / max(sizes["predicted"], 1), 3)
            found.append({"module": name, "target": target, **sizes, "ratio": ratio})
            print(f"{name:40} {target:14} {ratio:.3f}", flush=True)
            pd.DataFrame(found).to_csv(asked.table, index=False)
    for target, mine in pd.DataFrame(found).groupby("target"):
        print(f"{target}: {int(mine['ratio'].between(0.9, 1.1).sum())} of {len(mine)} within 10 %")


def main() -> None:
    parser = command_line(__doc__, RESULTS, [1024, 2048, 3072, 4096])
    parser.add_argument(
        "--gradients", action="store_true", help="of three layers; forward passes of one without"
    )
    asked = parser.parse_args()
    grid = itertools.product((1, 4), ("reshaped", "direct", "rotated"), (64, 128), asked.rows, (True, False))
    kinds = (Kind(*parts, asked.gradients) for parts in grid)
    measure(((str(kind), lowered(kind)) for kind in kinds), asked)


if __name__ == "__main__":
    main()
