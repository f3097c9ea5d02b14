"""Does the price of one kernel hold against the compiler's own cycles?

Products of random sizes and types, and what streams through memory (additions, sums of rows, softmaxes, products with one row), each once
in one module on one chip, compiled through code generation: XLA:TPU writes `estimated_cycles` of each fusion into what it compiles. Those
are the figures that it chooses tilings by, not measurements; operands that it brings to vector memory ahead of time have no memory time.

python experiments/fidelity/compute.py FOLDER --judge PATH --judge-python PYTHON [--target tpu:v5e:2x2 --hardware tpu-v5e --mhz 1500]

Answers are kept in FOLDER, results of all targets in results/compute.csv.
"""

import argparse
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import costmodels

RESULTS = Path(__file__).parent / "results" / "compute.csv"
BYTES = {"bf16": 2, "f32": 4, "i8": 1, "i32": 4}
_CYCLES = re.compile(r'op_name="[^"]*?case(\d+)".*"estimated_cycles":"(\d+)"')


@dataclass(frozen=True, slots=True)
class Case:
    """Text of one kernel with `#` for its number; `product` is m, k, n and batch where it is one on the matrix unit."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    operands: tuple[str, ...]
    result: str
    text: str
    bytes: int
    product: tuple[int, int, int, int] | None = None

    def predicted_ns(self, hardware: costmodels.Hardware) -> int:
        if self.product is None:
            return hardware.kernel_ns(0, float(self.bytes), self.dtype)
        m, k, n, batch = self.product
        return int(hardware.matmul_ns(m=m, k=k, n=n, batch=batch, dtype=self.dtype, bytes=self.bytes))


def tensor(dtype: str, *shape: int) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{dtype}>"


def product(dtype: str, m: int, k: int, n: int, batch: int = 1, *, flipped: bool = False) -> Case:
    """[m, k] by [k, n], or by [n, k] turned round; integers add up in 32 bits."""
    wide = "i32" if dtype == "i8" else dtype
    lead, at = ((batch,), 1) if batch > 1 else ((), 0)
    left, result = tensor(dtype, *lead, m, k), tensor(wide, *lead, m, n)
    right = tensor(dtype, *lead, *((n, k) if flipped else (k, n)))
    dims = "batching_dims = [0] x [0], " if lead else ""
    text = f"%r# = stablehlo.dot_general %a#, %b#, {dims}contracting_dims = [{at + 1}] x [{at + flipped}] : ({left}, {right}) -> {result}"
    bytes_ = batch * ((m * k + k * n) * BYTES[dtype] + m * n * BYTES[wide])
    kind = "product" if min(m, n) > 1 else "one row"
    return Case(kind, dtype, (batch, m, k, n), (left, right), result, text, bytes_, (m, k, n, batch))


def added(dtype: str, *shape: int) -> Case:
    type_, count = tensor(dtype, *shape), pd.Series(shape).prod()
    return Case(
        "add",
        dtype,
        shape,
        (type_, type_),
        type_,
        f"%r# = stablehlo.add %a#, %b# : {type_}",
        3 * count * BYTES[dtype],
    )


def summed(dtype: str, *shape: int) -> Case:
    type_, scalar, result = tensor(dtype, *shape), tensor(dtype), tensor(dtype, *shape[:-1])
    text = f"%z# = stablehlo.constant dense<0.0> : {scalar}\n    " + _reduced(
        "r#", "a#", "z#", "add", len(shape), type_, scalar, result
    )
    return Case("sum", dtype, shape, (type_,), result, text, int(pd.Series(shape).prod()) * BYTES[dtype])


def softmax(dtype: str, *shape: int) -> Case:
    type_, scalar, result = tensor(dtype, *shape), tensor(dtype), tensor(dtype, *shape[:-1])
    spread = f"dims = {list(range(len(shape) - 1))} : ({result}) -> {type_}"
    least = "0xFF80" if dtype == "bf16" else "0xFF800000"
    lines = [
        f"%z# = stablehlo.constant dense<0.0> : {scalar}",
        f"%n# = stablehlo.constant dense<{least}> : {scalar}",
        _reduced("m#", "a#", "n#", "maximum", len(shape), type_, scalar, result),
        f"%w# = stablehlo.broadcast_in_dim %m#, {spread}",
        f"%d# = stablehlo.subtract %a#, %w# : {type_}",
        f"%e# = stablehlo.exponential %d# : {type_}",
        _reduced("s#", "e#", "z#", "add", len(shape), type_, scalar, result),
        f"%v# = stablehlo.broadcast_in_dim %s#, {spread}",
        f"%r# = stablehlo.divide %e#, %v# : {type_}",
    ]
    text = ' loc("case#")\n    '.join(lines)
    return Case(
        "softmax", dtype, shape, (type_,), type_, text, 2 * int(pd.Series(shape).prod()) * BYTES[dtype]
    )


def _reduced(to: str, of: str, start: str, op: str, rank: int, type_: str, scalar: str, result: str) -> str:
    dims = f"across dimensions = [{rank - 1}]"
    return f"%{to} = stablehlo.reduce(%{of} init: %{start}) applies stablehlo.{op} {dims} : ({type_}, {scalar}) -> {result}"


def cases() -> Iterator[Case]:
    """The same each time."""
    numbers = random.Random(1)
    for dtype, count in (("bf16", 40), ("f32", 30), ("i8", 15)):
        for _ in range(count):
            m, k, n = (128 * 2 ** numbers.randint(0, 6) for _ in range(3))
            yield product(dtype, m, k, n, flipped=numbers.random() < 0.5)
    for dtype in ("bf16", "f32"):
        for size in (64, 128):
            yield product(dtype, 512, size, 512, 16, flipped=True)
            yield product(dtype, 512, 512, size, 16)
        yield product(dtype, 1, 1024, 4096)
        yield product(dtype, 1, 128, 1024, 64)
        yield added(dtype, 4096, 4096)
        yield summed(dtype, 4096, 4096)
        yield summed(dtype, 64, 16, 1024)
        yield softmax(dtype, 128, 512, 512)


def module(of: list[Case]) -> str:
    names = [("a", "b")[: len(case.operands)] for case in of]
    arguments = ", ".join(
        f"%{name}{i}: {type_}"
        for i, case in enumerate(of)
        for name, type_ in zip(names[i], case.operands, strict=True)
    )
    body = "\n".join(f'    {case.text} loc("case#")'.replace("#", str(i)) for i, case in enumerate(of))
    results = ", ".join(case.result for case in of)
    made = ", ".join(f"%r{i}" for i in range(len(of)))
    return f"module @kernels {{\n  func.func public @main({arguments}) -> ({results}) {{\n{body}\n    return {made} : {results}\n  }}\n}}\n"


def cycles(hlo: str) -> dict[int, int]:
    """By case, of all its fusions."""
    found: dict[int, int] = {}
    for number, count in _CYCLES.findall(hlo):
        found[int(number)] = found.get(int(number), 0) + int(count)
    return found


def compiled(text: str, folder: Path, target: str, judge: Path | None, python: str) -> str:
    """The HLO of the target, asked for once."""
    hlo = folder / f"kernels.{target.replace(':', '_')}.hlo"
    if not hlo.exists() and judge is not None:
        (folder / "kernels.mlir").write_text(text)
        command = [python, judge, folder / "kernels.mlir", "--target", target, "--hlo-out", hlo]
        environment = {**os.environ, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "JAX_PLATFORMS": "cpu"}
        subprocess.run(command, check=True, capture_output=True, env=environment)
    return hlo.read_text()


def rows(of: list[Case], hlo: str, target: str, hardware: costmodels.Hardware, mhz: float) -> pd.DataFrame:
    """A row a case that XLA gives cycles for: its time, and what bounds it by peak and nominal bandwidth, in us."""
    known = cycles(hlo)
    found: list[dict[str, object]] = []
    for number, case in enumerate(of):
        if number in known:
            dims = case.product
            flops = 0 if dims is None else 2 * dims[0] * dims[1] * dims[2] * dims[3]
            found.append(
                {
                    "target": target,
                    "kind": case.kind,
                    "dtype": case.dtype,
                    "shape": "x".join(map(str, case.shape)),
                    "xla_us": known[number] / mhz,
                    "peak_us": 1e6 * flops / hardware.peak_flop_per_s(case.dtype),
                    "memory_us": 1e6 * case.bytes / hardware.hbm_bytes_per_s,
                    "predicted_us": case.predicted_ns(hardware) / 1e3,
                }
            )
    return pd.DataFrame(found)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Median of predicted / XLA's by target, kind and type; of large products (ten million ns at the peak rate) peak / XLA's."""
    table = table.assign(
        ratio=table["predicted_us"] / table["xla_us"], of_peak=table["peak_us"] / table["xla_us"]
    )
    table["of_peak"] = table["of_peak"].where(
        (table["peak_us"] > 50) & (table["peak_us"] > 1.5 * table["memory_us"])
    )
    groups = table.groupby(["target", "kind", "dtype"])
    return groups.agg(
        cases=("ratio", "size"), ratio=("ratio", "median"), large_of_peak=("of_peak", "median")
    ).reset_index()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--judge", type=Path, help="script that compiles a module and writes its HLO")
    parser.add_argument("--judge-python", default=sys.executable)
    parser.add_argument("--target", default="tpu:v5e:2x2")
    parser.add_argument("--hardware", default="tpu-v5e")
    parser.add_argument("--mhz", type=float, default=1500, help="cycles a us: v5e 1500, v5p and v6e 1750")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    all_ = list(cases())
    hlo = compiled(module(all_), arguments.folder, arguments.target, arguments.judge, arguments.judge_python)
    table = rows(all_, hlo, arguments.target, costmodels.load(arguments.hardware), arguments.mhz)
    if RESULTS.exists():
        before = pd.read_csv(RESULTS).to_dict("records")
        others = [row for row in before if row["target"] != arguments.target]
        table = pd.DataFrame(others + table.to_dict("records"))
    table.round(2).to_csv(RESULTS, index=False)
    print(summary(table).round(2).to_string(index=False))


if __name__ == "__main__":
    main()
