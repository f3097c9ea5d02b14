"""How well are the problems of real programs solved, with and without a tight memory limit? A table and a CSV.

    python experiments/solver/run.py [NAME ...] [--folder ../shared/models] [--mesh 4,4] [--factors 1.1] [--time-limit 60]

NAME is a module of the folder; left out: all, the small ones first. Every row is solved in a process of its own.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from autoshard.problem import Problem
    from autoshard.problem.model import Ints

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
COLUMNS = [
    "model",
    "nodes",
    "edges",
    "factor",
    "limit_gb",
    "status",
    "cost_ms",
    "bound_ms",
    "gap_percent",
    "peak_gb",
    "presolve_s",
    "solve_s",
    "first_choice_s",
    "engine",
    "smallest_peak_gb",
    "peak_bound_gb",
    "max_rss_gb",
    "error",
]
_SPAWN = get_context("spawn")  # a process of its own inherits no memory and no compiled code


def main() -> None:
    arguments = _arguments()
    if not arguments.folder.is_dir():
        print(f"no folder {arguments.folder} with modules (--folder): nothing measured")
        return
    rows: list[dict[str, Any]] = []
    for module in _modules(arguments):
        for row in _rows(module, arguments):
            rows.append({key: _rounded(row[key]) for key in COLUMNS if row.get(key) is not None})
            print(rows[-1], flush=True)
            _write(rows, arguments.output)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="left out: all")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT.parent / "shared" / "models",
        help="of NAME.mlir.gz and meta/NAME.json",
    )
    parser.add_argument("--mesh", default="4,4", help="sizes of the axes")
    parser.add_argument("--hardware", default="tpu-v5e")
    parser.add_argument(
        "--factors", default="1.1", help="memory limits, as multiples of the smallest peak found"
    )
    parser.add_argument("--time-limit", type=float, default=60, help="for a row, in seconds")
    parser.add_argument("--peak-time-limit", type=float, default=40, help="for the smallest peak, in seconds")
    parser.add_argument("--kill-after", type=float, default=600, help="seconds for a process in all")
    parser.add_argument("--output", default="solver", help="name of the result files")
    return parser.parse_args()


def _modules(arguments: argparse.Namespace) -> list[Path]:
    if arguments.names:
        return [arguments.folder / f"{name}.mlir.gz" for name in arguments.names]
    return sorted(arguments.folder.glob("*.mlir.gz"), key=lambda path: path.stat().st_size)


def _rows(module: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One without a memory limit, and one for each factor."""

    def run(function: Callable[..., dict[str, Any]], *values: object) -> dict[str, Any]:
        return _in_a_process(function, values, arguments.kill_after)

    row: dict[str, Any] = {"model": module.name.removesuffix(".mlir.gz")}
    posed = run(_pose, module, arguments.mesh, arguments.hardware)
    if "error" in posed:
        yield row | posed
        return
    problem, hints = posed["problem"], posed["hints"]
    row |= {"nodes": problem.node_count, "edges": problem.edge_count}
    free = run(_solve, problem, hints, None, arguments.time_limit)
    yield row | {"factor": "none"} | free
    tightest = run(_solve, problem, hints, 0, arguments.peak_time_limit)
    peaks = [found["smallest_peak"] for found in (free, tightest) if found.get("smallest_peak") is not None]
    if not peaks:
        yield row | {"factor": "smallest peak", "error": tightest.get("error", "no choice is known")}
        return
    row |= {"smallest_peak_gb": min(peaks) / 1e9}
    if "error" not in tightest:
        row |= {"peak_bound_gb": tightest["peak_bound"] / 1e9}
    for factor in map(float, arguments.factors.split(",")):
        limit = int(factor * min(peaks))
        solved = run(_solve, problem, hints, limit, arguments.time_limit)
        yield row | {"factor": f"{factor:g}", "limit_gb": limit / 1e9} | solved


def _pose(module: Path, mesh: str, hardware: str) -> dict[str, Any]:
    """The problem of a plan and the choices that its solver starts from."""
    from autoshard.pipeline import Request, baseline_choices, load_module, price_for_planning

    meta = module.parent / "meta" / f"{module.name.removesuffix('.mlir.gz')}.json"
    carry = json.loads(meta.read_text())["carry"] if meta.is_file() else "auto"
    sizes = [int(size) for size in mesh.split(",")]
    request = Request(mesh=list(zip("xyzw", sizes, strict=False)), hardware=hardware, carry=carry)
    loaded = load_module(module, request)
    priced = price_for_planning(loaded)
    hints = [choice for _, choice, _ in baseline_choices(loaded, priced) if choice is not None]
    return {"problem": priced.problem, "hints": hints}


def _solve(
    problem: "Problem", hints: "list[Ints]", memory_limit: int | None, time_limit_s: float
) -> dict[str, Any]:
    """One row; with a limit of 0 bytes, which nothing fits in, the solver looks for the smallest peak."""
    from autoshard.solve import solve

    first_choice_s: list[float] = []

    def progress(phase: str, gap: float | None) -> None:
        if gap is not None and not first_choice_s:
            first_choice_s.append(time.monotonic() - began)

    began = time.monotonic()
    found = solve(
        replace(problem, memory_limit=memory_limit),
        time_limit_s=time_limit_s,
        hints=hints,
        progress=progress,
    )
    return {
        "solve_s": time.monotonic() - began,
        "status": found.status.name.lower(),
        "cost_ms": None if found.cost is None else found.cost / 1e6,
        "bound_ms": found.lower_bound / 1e6,
        "gap_percent": None if found.gap is None else 100 * found.gap,
        "peak_gb": None if found.peak is None else found.peak / 1e9,
        "presolve_s": found.statistics.get("presolve_s"),
        "first_choice_s": first_choice_s[0] if first_choice_s else None,
        "engine": found.statistics.get("engine"),
        "smallest_peak": found.smallest_peak,
        "peak_bound": found.peak_lower_bound,
        "max_rss_gb": _max_rss_gb(),
    }


def _max_rss_gb() -> float:
    """Of the largest of this process and its engines. Linux says it of a process alone; what getrusage says begins
    with the memory of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024 / 1e9


def _in_a_process(
    function: Callable[..., dict[str, Any]], values: tuple[object, ...], kill_after_s: float
) -> dict[str, Any]:
    receiver, sender = _SPAWN.Pipe(duplex=False)
    process = _SPAWN.Process(target=_tell, args=(sender, function, values))
    process.start()
    sender.close()
    try:
        if receiver.poll(kill_after_s):
            return receiver.recv()
        return {"error": f"killed after {kill_after_s:g} s"}
    except EOFError:
        return {"error": "ended without an answer"}
    finally:
        process.kill()
        process.join()


def _tell(sender: Connection, function: Callable[..., dict[str, Any]], values: tuple[object, ...]) -> None:
    try:
        sender.send(function(*values))
    except Exception as error:
        sender.send({"error": f"{type(error).__name__}: {error}".splitlines()[0][:100]})
        raise


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _write(rows: list[dict[str, Any]], name: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    table = pd.DataFrame(rows, columns=COLUMNS, dtype=object).dropna(axis="columns", how="all")
    table.to_csv(RESULTS / f"{name}.csv", index=False)
    text = table.map(lambda value: "-" if pd.isna(value) else value).to_string(index=False)
    (RESULTS / f"{name}.txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
