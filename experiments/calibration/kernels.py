"""Times of single kernels that XLA makes on the accelerator at hand, as tables for `autoshard calibrate`.

Each point is a program of several equal ops on operands of their own, called again and again without a wait, so that a
kernel's time is what it adds to a busy stream: its work and its launch. What a program's own calls take is below a kernel's.

    python experiments/calibration/kernels.py FOLDER [--seconds 150]

writes matmul.csv (kind, m, k, n, batch, dtype, time_us), memory.csv (kind, bytes, time_us, of long streams) and others.csv (what else
programs consist of: op, shape, dtype, bytes, time_us) into FOLDER, each row as soon as it is measured, and device.json.
"""

import argparse
import csv
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_SET_BYTES = 400_000_000  # of all operands together: several times a cache
_MOST_SETS = 48
_IN_CACHE = 100_000_000
_ROUND_S = 0.03
_ROUNDS = 5


@dataclass(frozen=True)
class Point:
    """An op, its operands' shapes, and what a table says of it."""

    table: str
    row: dict[str, Any]
    op: Callable[..., Any]
    operands: tuple[tuple[tuple[int, ...], Any], ...]
    bytes: int


def _bytes(shape: tuple[int, ...], dtype: Any) -> int:
    return math.prod(shape) * jnp.dtype(dtype).itemsize


_NAMES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "int8": "i8",
    "float8_e4m3fn": "f8E4M3FN",
}


def product(m: int, k: int, n: int, dtype: Any = jnp.bfloat16, batch: int = 1) -> Point:
    left, right = ((m, k), (k, n)) if batch == 1 else ((batch, m, k), (batch, k, n))
    out = jnp.int32 if dtype == jnp.int8 else jnp.bfloat16 if jnp.dtype(dtype).itemsize == 1 else dtype

    def op(a: Any, b: Any) -> Any:
        return jnp.matmul(a, b, preferred_element_type=out)

    moved = _bytes(left, dtype) + _bytes(right, dtype) + batch * m * n * jnp.dtype(out).itemsize
    row = {"kind": "matmul", "m": m, "k": k, "n": n, "batch": batch, "dtype": _NAMES[jnp.dtype(dtype).name]}
    return Point("matmul", row, op, ((left, dtype), (right, dtype)), moved)


def stream(read: int) -> Point:
    """Reads and writes `read` bytes each of float32; a chain of less than `_IN_CACHE` measures the cache, and is no memory traffic."""
    shape = (max(read // 4, 1),)
    moved = 8 * shape[0]
    row: dict[str, Any] = {"op": "multiply", "shape": str(shape[0]), "dtype": "f32", "bytes": moved}
    is_cached = moved < _IN_CACHE
    table, row = ("others", row) if is_cached else ("memory", {"kind": "memory", "bytes": moved})
    return Point(table, row, lambda x: x * 1.0001, ((shape, jnp.float32),), moved)


def other(name: str, op: Callable[..., Any], *operands: tuple[tuple[int, ...], Any]) -> Point:
    made = jax.eval_shape(op, *(jax.ShapeDtypeStruct(*each) for each in operands))
    moved = sum(_bytes(*each) for each in operands) + sum(
        _bytes(x.shape, x.dtype) for x in jax.tree.leaves(made)
    )
    shape = " ".join("x".join(map(str, s)) for s, _ in operands)
    row = {
        "op": name,
        "shape": shape,
        "dtype": _NAMES.get(jnp.dtype(operands[0][1]).name, "i32"),
        "bytes": moved,
    }
    return Point("others", row, op, operands, moved)


def products() -> Iterator[Point]:
    for size in (4096, 8192, 1024, 2048, 512, 256, 128, 16384):
        yield product(size, size, size)
    for tokens in (8192, 1024, 128, 16, 1):
        for k, n in ((4096, 4096), (4096, 14336), (14336, 4096), (1024, 4096)):
            yield product(tokens, k, n)
    for size in (4096, 1024, 8192, 2048, 512, 256):
        yield product(size, size, size, jnp.float32)
    for batch, m, k, n in (
        (64, 1024, 128, 1024), (64, 1024, 1024, 128), (512, 512, 64, 512), (512, 512, 512, 64), (256, 64, 64, 64),
        (16, 2048, 2048, 2048), (1024, 1, 128, 1024), (8, 1024, 4096, 1024),
    ):  # fmt: skip
        yield product(m, k, n, batch=batch)
    for m, k, n in (
        (32768, 64, 4096), (32768, 256, 256), (256, 32768, 256), (1000, 1000, 1000), (4000, 4000, 4000), (4095, 4095, 4095),
        (2048, 50257, 1024), (2048, 1024, 50257), (8192, 1024, 32000), (65536, 1024, 1024), (1280, 4096, 4096), (3072, 3072, 3072),
        (768, 8192, 3072), (1536, 1536, 1536), (4224, 4096, 4096), (8192, 8192, 128),
    ):  # fmt: skip
        yield product(m, k, n)
    for size in (4096, 8192, 1024):
        yield product(size, size, size, jnp.float16)
        yield product(size, size, size, jnp.float8_e4m3fn)
        yield product(size, size, size, jnp.int8)
    for size in (2048, 4096, 1024):
        yield product(size, size, size, jnp.float64)
    for batch, m, k, n in ((512, 512, 64, 512), (16, 1024, 1024, 1024)):
        yield product(m, k, n, jnp.float32, batch)
    for m, k, n in ((8192, 1024, 4096), (1024, 8192, 1024), (128, 4096, 4096)):
        yield product(m, k, n, jnp.float32)


def streams() -> Iterator[Point]:
    for read in (
        4,
        4096,
        2**16,
        2**18,
        2**20,
        2**22,
        2**24,
        2**26,
        2**28,
        2**30,
        2**31,
        3 * 2**20,
        3 * 2**22,
        2**23,
        2**25,
        2**27,
        2**29,
    ):
        yield stream(read)


def others() -> Iterator[Point]:
    bf16, f32, i32 = jnp.bfloat16, jnp.float32, jnp.int32
    wide = ((8192, 8192), f32)
    yield other("add", lambda x, y: x + y, wide, wide)
    yield other("exp", jnp.exp, wide)
    yield other("tanh", jnp.tanh, wide)
    yield other("erf_16_times", lambda x: [x := jax.lax.erf(x) for _ in range(16)][-1], wide)
    yield other(
        "fma_256_times", lambda x: lax.fori_loop(0, 256, lambda _, y: y * 1.0001 + 0.001, x, unroll=256), wide
    )
    yield other("sum_rows", lambda x: x.sum(1), wide)
    yield other("sum_columns", lambda x: x.sum(0), wide)
    yield other("sum_all", lambda x: x.sum(), wide)
    yield other("transpose_bf16_heads", lambda x: jnp.transpose(x, (0, 2, 1, 3)), ((64, 1024, 16, 64), bf16))
    yield other("softmax_rows", lambda x: jax.nn.softmax(x), ((65536, 1024), f32))
    yield other(
        "softmax_rows_bf16", lambda x: jax.nn.softmax(x.astype(f32)).astype(bf16), ((65536, 1024), bf16)
    )
    yield other("softmax_vocabulary", lambda x: jax.nn.log_softmax(x), ((4096, 50257), f32))

    def layer_norm(x: Any, scale: Any) -> Any:
        y = x.astype(f32)
        y = y - y.mean(-1, keepdims=True)
        return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-5) * scale).astype(x.dtype)

    yield other("layer_norm", layer_norm, ((65536, 1024), bf16), ((1024,), f32))
    yield other("take_rows", lambda t, i: t[i % 50257], ((50257, 1024), f32), ((65536,), i32))
    yield other("take_rows_bf16", lambda t, i: t[i % 32000], ((32000, 4096), bf16), ((8192,), i32))
    yield other(
        "add_at_rows",
        lambda t, i, x: t.at[i % 50257].add(x),
        ((50257, 1024), f32),
        ((65536,), i32),
        ((65536, 1024), f32),
    )
    yield other("sort", lambda x: jnp.sort(x), ((4096, 4096), f32))
    yield other("top_k", lambda x: lax.top_k(x, 8), ((8192, 4096), f32))
    yield other("cumsum", lambda x: jnp.cumsum(x, -1), ((4096, 4096), f32))
    yield other("concatenate", lambda x, y: jnp.concatenate([x, y], 1), wide, wide)
    yield other("pad", lambda x: jnp.pad(x, ((1, 1), (1, 1))), wide)
    yield other(
        "max_pool",
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        ((64, 112, 112, 64), f32),
    )

    def conv(stride: int) -> Callable[..., Any]:
        def op(x: Any, w: Any) -> Any:
            return lax.conv_general_dilated(
                x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        return op

    for batch, size, into, out, window, stride, dtype in (
        (128, 56, 64, 64, 3, 1, bf16), (128, 28, 128, 128, 3, 1, bf16), (128, 14, 256, 256, 3, 1, bf16), (128, 7, 512, 512, 3, 1, bf16),
        (128, 224, 3, 64, 7, 2, bf16), (128, 56, 256, 64, 1, 1, bf16), (128, 56, 64, 64, 3, 1, f32), (16, 64, 320, 320, 3, 1, bf16),
    ):  # fmt: skip
        yield other(
            f"conv_{window}x{window}_by_{stride}",
            conv(stride),
            ((batch, size, size, into), dtype),
            ((window, window, into, out), dtype),
        )
    for batch, length, heads, size in ((16, 1024, 16, 64), (4, 4096, 16, 128)):
        shape = ((batch, length, heads, size), bf16)

        def attend(q: Any, k: Any, v: Any) -> Any:
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(f32)
            return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(bf16), v)

        yield other("attention", attend, shape, shape, shape)


def measure(point: Point, pool: Any) -> tuple[float, int, float]:
    """Microseconds of one op, how many ran in one call, and seconds that compiling took."""
    sets = int(min(max(_SET_BYTES // point.bytes, 2), _MOST_SETS))
    sets = 1 if point.bytes * sets > 20_000_000_000 else sets
    operands = [
        tuple(
            _filled(pool, i + j, shape, jnp.dtype(dtype)) for j, (shape, dtype) in enumerate(point.operands)
        )
        for i in range(sets)
    ]
    made = jax.tree.leaves(jax.eval_shape(point.op, *operands[0]))
    is_chain = [(one.shape, one.dtype) for one in made] == [(operands[0][0].shape, operands[0][0].dtype)]

    @jax.jit
    def run(operands: Any) -> Any:
        """One after another, so that none are fused with each other; of a chain, whose results are operands, only the last is returned."""
        made: list[Any] = []
        for each in operands:
            if made:
                each, made[-1] = lax.optimization_barrier((each, made[-1]))
            if made and is_chain:
                each = (made.pop(), *each[1:])
            made.append(point.op(*each))
        return made

    start = time.perf_counter()
    jax.block_until_ready(run(operands))
    compiling = time.perf_counter() - start
    calls, last = 1, 0.0
    while True:
        last = timed(lambda: run(operands), calls)
        if last > _ROUND_S / 2:
            break
        calls *= 4
    calls = max(1, round(calls * _ROUND_S / last))
    rounds = [timed(lambda: run(operands), calls) / calls / sets for _ in range(_ROUNDS)]
    return statistics.median(rounds) * 1e6, sets, compiling


def timed(call: Callable[[], Any], calls: int) -> float:
    """Seconds of so many calls that do not wait for each other."""
    start = time.perf_counter()
    out = None
    for _ in range(calls):
        out = call()
    jax.block_until_ready(out)
    return time.perf_counter() - start


@partial(jax.jit, static_argnums=(2, 3))
def _filled(pool: Any, seed: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Random values, other ones for each seed, so small that products of products stay finite."""
    values = jnp.resize(jnp.roll(pool, seed), (math.prod(shape),)).reshape(shape)
    if dtype == jnp.int32:
        return (jnp.abs(values) * 1e6).astype(dtype)
    if dtype == jnp.int8:
        return (values * 20).astype(dtype)
    return (values * shape[-2] ** -0.5 if len(shape) > 1 else values).astype(dtype)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=1e9, help="start no point after so many")
    parser.add_argument("--skip", type=Path, help="a folder whose points are not measured again")
    parser.add_argument(
        "--scale", type=int, default=1, help="leave out points of more than 2^34 / scale bytes"
    )
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    options.folder.mkdir(parents=True, exist_ok=True)
    device = jax.devices()[0]
    about = {
        "device": device.device_kind,
        "platform": device.platform,
        "jax": jax.__version__,
        "version": device.client.platform_version,
    }
    (options.folder / "device.json").write_text(json.dumps(about, indent=1))
    pool = jax.jit(lambda: jax.random.normal(jax.random.key(0), (2**24 - 3,), jnp.float32))()
    columns = {
        "matmul": ["kind", "m", "k", "n", "batch", "dtype", "time_us"],
        "memory": ["kind", "bytes", "time_us"],
        "others": ["op", "shape", "dtype", "bytes", "time_us"],
    }
    files = {name: (options.folder / f"{name}.csv").open("w", newline="") for name in columns}
    tables = {name: csv.DictWriter(files[name], columns[name]) for name in columns}
    for table in tables.values():
        table.writeheader()
    start = time.perf_counter()
    points = [*streams(), *products(), *others()]
    done: set[str] = set()
    for name, names in columns.items():
        if options.skip is not None and (options.skip / f"{name}.csv").exists():
            rows = csv.DictReader((options.skip / f"{name}.csv").open())
            done |= {str([row[each] for each in names[:-1]]) for row in rows}
    order = sorted(range(len(points)), key=lambda i: i % 3 if points[i].table != "memory" else -1)
    for index in order:
        point = points[index]
        if time.perf_counter() - start > options.seconds:
            print(f"out of time before {point.row}")
            break
        key = str([str(point.row[each]) for each in columns[point.table][:-1]])
        if point.bytes > 2**34 // options.scale or key in done:
            continue
        try:
            us, sets, compiling = measure(point, pool)
        except Exception as error:  # a type or size that this device has no kernel for
            print(f"{point.row}: {str(error)[:200]}", flush=True)
            continue
        tables[point.table].writerow({**point.row, "time_us": f"{us:.3f}"})
        files[point.table].flush()
        print(
            f"{time.perf_counter() - start:6.1f} s {point.row} {us:.2f} us, {sets} a call, compiled in {compiling:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
