"""Plans StableHLO modules on meshes and writes one row each, as CSV and as a table, while it goes.

python experiments/models/run.py FOLDER [--only REGEX] [--meshes 4,16] [--hardware tpu-v5e,tpu-v5p] [--time-limit 60]
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

RESULTS = Path(__file__).parent / "results"
COLUMNS = [
    "model",
    "mesh",
    "hardware",
    "status",
    "step_ms",
    "compute_ms",
    "communication_ms",
    "bound_ms",
    "gap_percent",
    "peak_gb",
    "budget_gb",
    "data_parallel_ms",
    "data_parallel_gb",
    "data_parallel_fits",
    "replicated_ms",
    "build_s",
    "baselines_s",
    "solve_s",
    "total_s",
    "nodes",
    "edges",
    "max_rss_gb",
    "error",
]


def main() -> None:
    arguments = _arguments()
    models = sorted(p for p in arguments.folder.glob("*.mlir.gz") if re.search(arguments.only, p.name))
    rows: list[dict[str, Any]] = []
    for model in models:
        for size in arguments.meshes.split(","):
            for row in _fitting(model, int(size), arguments.hardware.split(","), arguments.time_limit):
                rows.append(row)
                print({k: v for k, v in row.items() if v is not None}, flush=True)
                _write(rows, arguments.name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--meshes", default="4,16", help="n for a mesh of n by n")
    parser.add_argument("--hardware", default="tpu-v5e,tpu-v5p", help="tried in turn until the program fits")
    parser.add_argument("--time-limit", type=float, default=60)
    parser.add_argument("--name", default="models", help="of the result files")
    return parser.parse_args()


def _fitting(model: Path, size: int, hardware: list[str], time_limit: float) -> Iterator[dict[str, Any]]:
    for name in hardware:
        row = _plan(model, size, name, time_limit)
        yield row
        if row["status"] in ("optimal", "feasible"):
            return


def _plan(model: Path, size: int, hardware: str, time_limit: float) -> dict[str, Any]:
    """One run of the command line, as a user runs it."""
    meta = model.parent / "meta" / model.name.replace(".mlir.gz", ".json")
    command = [
        sys.executable,
        "-m",
        "autoshard",
        "plan",
        str(model),
        "--mesh",
        f"x={size},y={size}",
        "--hardware",
        hardware,
    ]
    command += ["--time-limit", str(time_limit), "--json"]
    if meta.exists():
        command += ["--carry", str(meta)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    total = time.monotonic() - began
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"model": model.name.removesuffix(".mlir.gz"), "mesh": f"{size}x{size}", "hardware": hardware}
    row |= {"total_s": round(total, 1), "status": f"exit {done.returncode}"}
    row["max_rss_gb"] = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6, 2)
    try:
        return row | _figures(json.loads(done.stdout))
    except ValueError:
        return row | {"error": done.stderr[-300:]}


def _figures(data: dict[str, Any]) -> dict[str, Any]:
    predicted, statistics = data["predicted"], data["statistics"]
    parallel, replicated = data["baselines"]["data parallel"], data["baselines"]["fully replicated"]
    return {
        "status": data["status"],
        "step_ms": predicted["step_ns"] / 1e6,
        "compute_ms": predicted["compute_ns"] / 1e6,
        "communication_ms": predicted["communication_ns"] / 1e6,
        "bound_ms": data["lower_bound_ns"] / 1e6,
        "gap_percent": 100 * data["gap"] if data["lower_bound_ns"] else None,
        "peak_gb": predicted["peak_bytes"] / 1e9,
        "budget_gb": data["memory_bytes"] / 1e9,
        "data_parallel_ms": parallel["step_ns"] / 1e6,
        "data_parallel_gb": parallel["peak_bytes"] / 1e9,
        "data_parallel_fits": parallel["fits"],
        "replicated_ms": replicated["step_ns"] / 1e6,
        **{key: statistics.get(key) for key in ("build_s", "baselines_s", "solve_s", "nodes", "edges")},
    }


def _write(rows: list[dict[str, Any]], name: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    table = pd.DataFrame(rows, columns=COLUMNS)
    table.to_csv(RESULTS / f"{name}.csv", index=False, float_format="%.3f")
    (RESULTS / f"{name}.txt").write_text(table.to_string(index=False, float_format="%.2f", na_rep="-") + "\n")


if __name__ == "__main__":
    main()
