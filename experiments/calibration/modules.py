"""Times of whole StableHLO modules on the one accelerator at hand, op by op, beside which a prediction can be laid.

Arguments are random: floats of a fiftieth, integers below 100. Donated arguments are the results of the call before. A step's time is
that of a call among many that do not wait for each other (`step_us`), and of one that is waited for (`alone_us`).

    python experiments/calibration/modules.py FOLDER MODULE... [--seconds 240]

writes measured.csv (name, step_us, alone_us, compile_s, argument, output and temporary bytes) into FOLDER, each row as soon as it is
measured, and of each module NAME.json.gz: time of each kernel in the profile of a step, and the HLO that XLA compiled it to.
"""

import argparse
import csv
import gzip
import json
import re
import statistics
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import mlir
from jaxlib import xla_client
from jaxlib.mlir import ir
from kernels import timed

_ROUND_S = 0.2
_ROUNDS = 5
_POOL = np.random.default_rng(0).standard_normal(2**22 - 3, dtype=np.float32) * 0.02


def read(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


def argument(type_: Any, seed: int) -> np.ndarray[Any, Any]:
    """Random values of a tensor type."""
    shape, element = tuple(type_.shape), str(type_.element_type)
    names = {"f32": "float32", "bf16": "bfloat16", "f16": "float16", "f64": "float64", "i1": "bool"}
    dtype = jax.numpy.dtype(names.get(element) or re.sub(r"^(u?)i", r"\1int", element))
    values = np.resize(np.roll(_POOL, seed), shape)
    if dtype.kind == "b":
        return values > 0
    return (
        (np.abs(values) * 1000).astype(np.int64).clip(0, 99).astype(dtype)
        if dtype.kind in "iu"
        else values.astype(dtype)
    )


def kernels(call: Any) -> tuple[list[dict[str, Any]], list[float]]:
    """Kernels of one call by the op of the HLO that they are of, nanoseconds and how often; and the gaps between kernels."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            call()
        data = jax.profiler.ProfileData.from_file(str(next(iter(Path(folder).rglob("*.xplane.pb")))))
    times: dict[str, list[float]] = defaultdict(list)
    spans: list[tuple[float, float]] = []
    for plane in data.planes:
        for line in plane.lines if plane.name.startswith("/device:") else ():
            for event in line.events if line.name.startswith("Stream") else ():
                stats = dict(event.stats)
                times[f"{stats.get('hlo_op', '')}|{event.name}"].append(event.duration_ns)
                spans.append((event.start_ns, event.duration_ns))
    spans.sort()
    gaps = [start - before - took for (before, took), (start, _) in pairwise(spans)]
    return [{"op": op, "ns": sum(each), "times": len(each)} for op, each in times.items()], gaps


def measure(path: Path, folder: Path) -> dict[str, Any]:
    with mlir.make_ir_context():
        module = ir.Module.parse(read(path))
        main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
        function = ir.FunctionType(main.attributes["function_type"].value)
        types = [ir.RankedTensorType(each) for each in function.inputs]
        state = _state(main, len(types))
        shown = [argument(type_, i) for i, type_ in enumerate(types)]
        with ThreadPoolExecutor(1) as beside:
            made = beside.submit(lambda: [jax.device_put(each) for each in shown])
            device = jax.devices()[0]
            start = time.perf_counter()
            executable = device.client.compile_and_load(
                module, xla_client.DeviceList((device,)), xla_client.CompileOptions()
            )
            compiling = time.perf_counter() - start
            arguments = made.result()
    jax.block_until_ready(arguments)

    def call() -> Any:
        results = executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
        for i, result in state.items():
            arguments[i] = results[result][0]
        return results

    jax.block_until_ready(call())
    one = min(timed(call, 1) for _ in range(3))
    times = max(2, min(int(_ROUND_S / one), 200))
    rounds = [timed(call, times) / times for _ in range(_ROUNDS)]
    memory = executable.get_compiled_memory_stats()
    name = path.name.partition(".")[0]
    kept = {
        "hlo": executable.hlo_modules()[0].to_string(),
        "rounds_us": [r * 1e6 for r in rounds],
        "alone_us": one * 1e6,
    }
    try:
        kept["kernels"], kept["gaps_ns"] = kernels(lambda: jax.block_until_ready(call()))
    except Exception as error:
        print(f"no profile of {name}: {error!r}"[:300])
    (folder / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(kept).encode()))
    return {
        "name": name, "step_us": f"{statistics.median(rounds) * 1e6:.1f}", "alone_us": f"{one * 1e6:.1f}", "compile_s": f"{compiling:.1f}",
        "argument_bytes": memory.argument_size_in_bytes, "output_bytes": memory.output_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
    }  # fmt: skip


def _state(main: Any, count: int) -> dict[int, int]:
    """Donated arguments and the results that take their memory."""
    found: dict[int, int] = {}
    for i in range(count):
        attributes = ir.ArrayAttr(main.attributes["arg_attrs"])[i] if "arg_attrs" in main.attributes else {}
        if "tf.aliasing_output" in attributes:
            found[i] = ir.IntegerAttr(attributes["tf.aliasing_output"]).value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("modules", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no module after so many")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    columns = ["name", "step_us", "alone_us", "compile_s", "argument_bytes", "output_bytes", "temp_bytes"]
    with (options.folder / "measured.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        for path in options.modules:
            if time.perf_counter() - start > options.seconds:
                print(f"out of time before {path.name}")
                break
            try:
                row = measure(path, options.folder)
            except Exception as error:  # what this device cannot run or hold
                print(f"{path.name}: {error!r}"[:400], flush=True)
                continue
            table.writerow(row)
            file.flush()
            print(f"{time.perf_counter() - start:6.1f} s {row}", flush=True)


if __name__ == "__main__":
    main()
