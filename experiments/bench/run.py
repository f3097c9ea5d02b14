"""Seconds and memory of every phase between a module and its planned text; a table and a CSV.

    python experiments/bench/run.py [NAME ...] [--folder ../shared/models] [--mesh 4,4] [--hardware tpu-v5e] [--time-limit 20]

NAME is a module of the folder, a program of tests/programs, or `example`. Every row is measured in a process of its own.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
DEFAULT = [
    "llama3_8b_levanter_scan_train",
    "resnet50_haiku_train",
    "llama3_8b_levanter_unrolled_fwd",
    "gpt2_medium_flax_train",
    "gemma2_2b_train",
    "segformer_b5_torchax_train",
]
WITHOUT_FOLDER = ["example", "mlp_train", "convnet_train", "moe_train", "transformer_train"]
_COUNTS = ["nodes", "edges", "presolved_nodes"]
_SECONDS = [
    f"{phase}_s" for phase in ("read", "analyse", "build", "baselines", "presolve", "solve", "write", "total")
]
COLUMNS = ["name", *_COUNTS, *_SECONDS, "status", "cost", "gap_percent", "max_rss_gb", "error"]


def main() -> None:
    arguments = _arguments()
    if arguments.child is not None:
        print(json.dumps(_measured(arguments)))
        return
    rows: list[dict[str, Any]] = []
    default = DEFAULT if arguments.folder.is_dir() else WITHOUT_FOLDER
    for name in arguments.names or default:
        rows.append(_in_a_process(name, arguments))
        print({key: value for key, value in rows[-1].items() if value is not None}, flush=True)
        _write(rows, arguments.output)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="left out: a handful of each size")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT.parent / "shared" / "models",
        help="of NAME.mlir.gz and meta/NAME.json",
    )
    parser.add_argument("--mesh", default="4,4", help="sizes of the axes")
    parser.add_argument("--hardware", default="tpu-v5e")
    parser.add_argument("--time-limit", type=float, default=20, help="for solving, in seconds")
    parser.add_argument("--kill-after", type=float, default=600, help="seconds for a row in all")
    parser.add_argument("--output", default="bench", help="name of the result files")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_a_process(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--child",
        name,
        "--folder",
        str(arguments.folder),
        "--mesh",
        arguments.mesh,
    ]
    command += ["--hardware", arguments.hardware, "--time-limit", str(arguments.time_limit)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}  # programs of the tests
    row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"name": name}
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            timeout=arguments.kill_after,
        )
        row |= json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        row["error"] = f"killed after {arguments.kill_after:g} s"
    except (ValueError, IndexError):
        row["error"] = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:100]
    return row | {"total_s": time.monotonic() - began}


def _measured(arguments: argparse.Namespace) -> dict[str, Any]:
    return _module(arguments) | {"max_rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


class _Phases:
    """When each phase was first told."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}

    def __call__(self, phase: str, fraction: float | None) -> None:
        self.began.setdefault(phase, time.monotonic())

    def between(self, phase: str, until: str) -> float | None:
        if phase not in self.began or until not in self.began:
            return None
        return self.began[until] - self.began[phase]


def _module(arguments: argparse.Namespace) -> dict[str, Any]:
    from autoshard.pipeline import Request, load_module, plan_loaded, write_planned

    sizes = [int(size) for size in arguments.mesh.split(",")]
    module, carry = _source(arguments.child, arguments.folder)
    request = Request(mesh=list(zip("xyzw", sizes, strict=False)), hardware=arguments.hardware, carry=carry)
    phases = _Phases()
    loaded = load_module(module, request, phases)
    phases("loaded", None)
    plan = plan_loaded(loaded, time_limit_s=arguments.time_limit, progress=phases)
    phases("writing", None)
    write_planned(loaded, plan)
    phases("end", None)
    statistics = plan.statistics
    core = statistics.get("core 0")
    return {
        "read_s": phases.between("reading the module", "analysing the program"),
        "analyse_s": phases.between("analysing the program", "loaded"),
        "build_s": statistics["build_s"],
        "baselines_s": statistics["baselines_s"],
        "presolve_s": statistics.get("presolve_s"),
        "solve_s": statistics["solve_s"],
        "write_s": phases.between("writing", "end"),
        "nodes": statistics["nodes"],
        "edges": statistics["edges"],
        "presolved_nodes": None if core is None else int(str(core).split()[0]),
        "status": plan.status,
        "cost": plan.price.step_ns,
        "gap_percent": 100 * (1 - plan.lower_bound_ns / plan.price.step_ns) if plan.lower_bound_ns else None,
    }


def _source(name: str, folder: Path) -> tuple[str | bytes | Path, Any]:
    """The module and its carried pairs."""
    if (folder / f"{name}.mlir.gz").is_file():
        meta = folder / "meta" / f"{name}.json"
        carry = json.loads(meta.read_text())["carry"] if meta.is_file() else "auto"
        return folder / f"{name}.mlir.gz", carry
    if name == "example":
        return ROOT / "autoshard" / "examples" / "transformer_train.mlir", "auto"
    from tests.programs import PROGRAMS

    return PROGRAMS[name]().encode(), "auto"


def _write(rows: list[dict[str, Any]], name: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    table = pd.DataFrame(rows, columns=COLUMNS).dropna(axis="columns", how="all")
    table.to_csv(RESULTS / f"{name}.csv", index=False, float_format="%.3f")
    (RESULTS / f"{name}.txt").write_text(table.to_string(index=False, float_format="%.2f", na_rep="-") + "\n")


if __name__ == "__main__":
    main()
