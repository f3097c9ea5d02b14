"""Fixed shardings of operands and results: our plan costs at most what Shardy's own reshards do, by the same model."""

import random
from collections.abc import Callable

import pytest

from autoshard import pipeline
from autoshard.mlir.passes import run_isolated
from autoshard.mlir.source import load
from autoshard.pipeline import Request

AXES = {"x": 2, "y": 2, "z": 4}
MESH = f"sdy.mesh @mesh = <[{', '.join(f'{chr(34)}{a}{chr(34)}={n}' for a, n in AXES.items())}]>\n"
_SHARDYS = "func.func(sdy-insert-explicit-reshards{enable-full-version=true})"


def tensor(shape: tuple[int, ...]) -> str:
    return f"tensor<{'x'.join(map(str, shape))}xf32>"


def op(text: str) -> Callable[[list[str], str, str], str]:
    """An op on %a0, %a1 with a place for its sharding."""

    def written(operands: list[str], result: str, sharding: str) -> str:
        return f"%0 = {text.format(sharding=sharding)} : ({', '.join(operands)}) -> {result}"

    return written


SUM = "stablehlo.reduce(%a0 init: %c) applies stablehlo.add across dimensions = [1] {sharding}"
OPS: dict[str, tuple[list[tuple[int, ...]], tuple[int, ...], str]] = {
    "matmul": (
        [(8, 16), (16, 32)],
        (8, 32),
        "stablehlo.dot_general %a0, %a1, contracting_dims = [1] x [0] {sharding}",
    ),
    "batch matmul": (
        [(4, 8, 16), (4, 16, 32)],
        (4, 8, 32),
        "stablehlo.dot_general %a0, %a1, batching_dims = [0] x [0], contracting_dims = [2] x [1] {sharding}",
    ),
    "add": ([(16, 32), (16, 32)], (16, 32), "stablehlo.add %a0, %a1 {sharding}"),
    "transpose": ([(16, 32)], (32, 16), "stablehlo.transpose %a0, dims = [1, 0] {sharding}"),
    "split": ([(16, 32)], (4, 4, 32), "stablehlo.reshape %a0 {sharding}"),
    "merge": ([(4, 8, 16)], (32, 16), "stablehlo.reshape %a0 {sharding}"),
    "broadcast": ([(16,)], (16, 32), "stablehlo.broadcast_in_dim %a0, dims = [0] {sharding}"),
    "concatenate": ([(16, 32), (16, 32)], (16, 64), "stablehlo.concatenate %a0, %a1, dim = 1 {sharding}"),
    "slice": ([(16, 64)], (16, 32), "stablehlo.slice %a0 [0:16, 16:48] {sharding}"),
    "sum": ([(16, 32)], (16,), SUM),
}


def some_sharding(rng: random.Random, shape: tuple[int, ...]) -> str:
    """Whole axes on dimensions that they divide, in any order."""
    dims: list[list[str]] = [[] for _ in shape]
    shards = [1] * len(shape)
    for axis in rng.sample(list(AXES), len(AXES)):
        home = rng.randrange(-1, len(shape))
        if home >= 0 and shape[home] % (shards[home] * AXES[axis]) == 0:
            dims[home].append(f'"{axis}"')
            shards[home] *= AXES[axis]
    return f"[{', '.join('{' + ', '.join(dim) + '}' for dim in dims)}]"


def function(rng: random.Random) -> str:
    operands, result, text = OPS[rng.choice(list(OPS))]
    given = [some_sharding(rng, shape) for shape in operands]
    wanted = some_sharding(rng, result)
    arguments = ", ".join(
        f"%a{i}: {tensor(shape)} {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}"
        for i, (shape, sharding) in enumerate(zip(operands, given, strict=True))
    )
    types = [tensor(shape) for shape in operands] + (["tensor<f32>"] if text == SUM else [])
    annotated = f"{{sdy.sharding = #sdy.sharding_per_value<[<@mesh, {wanted}>]>}}"
    body = op(text)(types, tensor(result), annotated)
    return (
        f"{MESH}func.func @main({arguments}) -> ({tensor(result)} {{sdy.sharding = #sdy.sharding<@mesh, {wanted}>}}) {{\n"
        f"%c = stablehlo.constant dense<0.0> : tensor<f32>\n{body}\nreturn %0 : {tensor(result)}\n}}"
    )


def request() -> Request:
    return Request(form="shardy", memory_bytes=None)


def shardys(text: str) -> int:
    """ns of a step with the reshards that Shardy inserts."""
    done = run_isolated(load(text.encode()).module.operation.clone().operation, _SHARDYS)
    return pipeline.cost_loaded(pipeline.load_module(str(done).encode(), request())).price.step_ns


def ours(text: str) -> int:
    plan = pipeline.plan_loaded(pipeline.load_module(text.encode(), request()), time_limit_s=20)
    assert plan.status == "optimal"
    return plan.price.step_ns


@pytest.mark.parametrize("seed", range(6))
def test_our_reshards_cost_at_most_shardys(seed: int) -> None:
    text = function(random.Random(seed))
    assert ours(text) <= shardys(text), text


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 300))
def test_our_reshards_cost_at_most_shardys_on_many(seed: int) -> None:
    text = function(random.Random(seed))
    assert ours(text) <= shardys(text), text
