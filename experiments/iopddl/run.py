"""Contest instances through the command line at the contest's time limits, beside its best team; a table and a CSV.

    python experiments/iopddl/run.py [NAME[=SECONDS] | FILE=SECONDS ...] [--folder ../shared/iopddl] [--cold]

Every row is one process of `autoshard solve FILE --json`, timed from start to end.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Timer
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
DEFAULT = ["G", "A", "M", "S"]
_SIZES = ["nodes", "edges", "strategies", "time points"]
_DIGITS = {"gap_percent": 4, "cost_to_best_team": 6, "max_rss_gb": 3}
_GRACE_S = 120  # beyond the time limit before a process is killed
COLUMNS = [
    "instance",
    *(size.replace(" ", "_") for size in _SIZES),
    "limit_s",
    "read_s",
    "presolve_s",
    "solve_s",
    "wall_s",
    "status",
    "cost",
    "bound",
    "gap_percent",
    "best_team_cost",
    "cost_to_best_team",
    "peak",
    "memory_limit",
    "smallest_core_nodes",
    "engine",
    "max_rss_gb",
    "error",
]


@dataclass(frozen=True, slots=True)
class Instance:
    name: str
    path: Path
    limit_s: float  # for the whole process
    best_team_cost: int | None


def main() -> None:
    arguments = _arguments()
    if not arguments.folder.is_dir():
        print(f"no folder {arguments.folder} with contest instances (--folder): skipped what is not a file")
    rows: list[dict[str, Any]] = []
    for instance in arguments.instances:
        if not instance.path.is_file():
            print(f"{instance.name}: there is no {instance.path}: skipped")
            continue
        row = _row(instance, instance.limit_s - arguments.reserve, arguments)
        print({key: value for key, value in row.items() if value is not None}, flush=True)
        rows.append(row)
        _write(rows, arguments.output or ("iopddl-cold" if arguments.cold else "iopddl"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("instances", nargs="*", default=DEFAULT, metavar="NAME[=SECONDS]|FILE=SECONDS")
    parser.add_argument("--folder", type=Path, default=ROOT.parent / "shared" / "iopddl", help="of instances")
    parser.add_argument(
        "--time-limit", type=float, help="of all that name none, in seconds; default: the contest's"
    )
    parser.add_argument(
        "--reserve", type=float, default=5, help="seconds of it for starting, reading and printing"
    )
    parser.add_argument("--cold", action="store_true", help="with an empty cache of compiled code")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="", help="name of the result files")
    arguments = parser.parse_args()
    try:
        arguments.instances = [
            _instance(text, arguments.folder, arguments.time_limit) for text in arguments.instances
        ]
    except ValueError as error:
        parser.error(str(error))
    if any(instance.limit_s <= arguments.reserve for instance in arguments.instances):
        parser.error(f"no time limit can be within the reserve of {arguments.reserve:g} s (--reserve)")
    return arguments


def _instance(text: str, folder: Path, limit_s: float | None) -> Instance:
    """`G`, `G=20`, `p.json.gz=20`"""
    name, _, seconds = text.partition("=")
    is_file = Path(name).is_file()
    path = Path(name) if is_file else folder / f"asplos-2025-iopddl-{name}.json.gz"
    contest = pd.read_csv(HERE / "teams.csv", index_col="instance")
    known = name in contest.index
    if seconds:
        limit_s = float(seconds)
    elif limit_s is None and known:
        limit_s = float(contest.loc[name, "time_limit_s"])
    if limit_s is None:
        raise ValueError(f"{name} has no known time limit: write {name}=SECONDS")
    best_team_cost = int(contest.loc[name, "best_team_cost"]) if known else None
    return Instance(path.name if is_file else name, path, limit_s, best_team_cost)


def _row(instance: Instance, solve_limit_s: float, arguments: argparse.Namespace) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"instance": instance.name, "limit_s": instance.limit_s}
    with get_context("spawn").Pool(1) as reader:  # the memory of this process would count for the next row
        row |= reader.apply(_sizes, (instance.path,))
    command = [sys.executable, "-m", "autoshard", "solve", str(instance.path), "--json"]
    command += ["--time-limit", f"{solve_limit_s:g}"]
    command += ["--threads", str(arguments.threads), "--seed", str(arguments.seed)]
    row |= _timed(command, arguments.cold, instance.limit_s + _GRACE_S)
    row["best_team_cost"] = instance.best_team_cost
    if instance.best_team_cost is not None and row["cost"] is not None:
        row["cost_to_best_team"] = row["cost"] / instance.best_team_cost
    return {
        key: round(value, _DIGITS.get(key, 2)) if type(value) is float else value
        for key, value in row.items()
    }


def _sizes(path: Path) -> dict[str, int]:
    from autoshard.cli.solving import size_text
    from autoshard.problem import read_iopddl

    found = re.findall(rf"(\d+) ({'|'.join(_SIZES)})", size_text(read_iopddl(path)))
    return {name.replace(" ", "_"): int(count) for count, name in found}


def _timed(command: list[str], cold: bool, kill_after_s: float) -> dict[str, Any]:
    """What one run of the command prints as JSON, with its wall time and memory."""
    with ExitStack() as stack:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        if cold:
            environment["NUMBA_CACHE_DIR"] = stack.enter_context(TemporaryDirectory())
        output, errors = (stack.enter_context(TemporaryFile("w+")) for _ in range(2))
        began = time.monotonic()
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, env=environment, start_new_session=True
        )
        stack.callback(_kill, process.pid)
        alarm = Timer(kill_after_s, _kill, (process.pid,))
        alarm.daemon = True
        alarm.start()
        stack.callback(alarm.cancel)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        row: dict[str, Any] = {"wall_s": wall_s, "max_rss_gb": usage.ru_maxrss * 1024 / 1e9}
        try:
            return row | _figures(json.loads(output.read()))
        except ValueError:
            said = [f"exit status {process.returncode}", *errors.read().strip().splitlines()][-1]
            return row | {"error": f"killed after {wall_s:.0f} s" if wall_s >= kill_after_s else said[:100]}


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _figures(data: dict[str, Any]) -> dict[str, Any]:
    statistics: dict[str, Any] = data["statistics"]
    cores = [int(text.split()[0]) for name, text in statistics.items() if name.startswith("core ")]
    return {
        "read_s": data["seconds"]["read"],
        "presolve_s": statistics.get("presolve_s"),
        "solve_s": data["seconds"]["solve"],
        "bound": data["lower_bound"],
        "gap_percent": None if data["gap"] is None else 100 * data["gap"],
        "smallest_core_nodes": min(cores, default=None),
        **{name: data[name] for name in ("status", "cost", "peak", "memory_limit", "engine")},
    }


def _write(rows: list[dict[str, Any]], name: str) -> None:
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    table = pd.DataFrame(rows, columns=COLUMNS, dtype=object).dropna(axis="columns", how="all")
    table.to_csv(results / f"{name}.csv", index=False)
    text = table.map(lambda value: "-" if value is None else value).to_string(index=False)
    (results / f"{name}.txt").write_text(text + "\n")


if __name__ == "__main__":
    main()
