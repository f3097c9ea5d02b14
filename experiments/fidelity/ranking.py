"""Do plans come in the order in which the compiler's estimate puts them?

For each program, Kendall's tau-b [1] over all pairs of plans that compile, of the judge's `est_step_us` (matrix products at peak and the
collectives as XLA's scheduler prices them, those that run behind compute left out) against

- `step`: the predicted step, which has elementwise and memory-bound work beside,
- `scheduled step`: the same at the prices of the compiler's scheduler (`--hardware NAME:scheduler`), in whose terms the estimate is,
- `communication`: the judge's own time of the products and the predicted communication, which leaves elementwise work out on both sides,
- `kinds and bytes`: the judge's own time of the products and the predicted collectives at the scheduler's prices, one after another,
- `compute`: the predicted compute and the judge's own time of collectives: what the memory traffic does to the order that the estimate
  leaves out,
- `serial`: the judge's own products and all its collectives one after another: what hiding alone does to the order.

Beside them `step in full`: the predicted step against the estimate of a compilation through code generation, which has the cycles of every
fusion, for plans that were asked for with `--full`.

Without `--judge` plans and answers are those that the folder has. With `--as-written` the prediction is what `autoshard cost` says of each
written module, so that plans drawn by several versions are priced by one; only then it is said at the scheduler's prices too.

python experiments/fidelity/ranking.py PROGRAM.mlir.gz... --folder FOLDER [--also FOLDER...] [--count 30 --judge PATH --judge-python PYTHON]
    [--as-written] [--keep-others]

[1] Kendall, Rank Correlation Methods, 1945: with corrections for ties in either order.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pandas as pd
from plans import (
    Drawn,
    add_options,
    judged_plans,
    kept,
    priced_as_written,
    program_name,
    setting_of,
)
from plot import scatter

from autoshard.plans import Plan

RESULTS = Path(__file__).parent / "results"
Judged = tuple[Path, Drawn, dict[str, Any]]


def tau_b(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation of two orders of the same things; nan where either puts all in one place."""
    agreeing = ties_in_first = ties_in_second = 0
    for i, j in combinations(range(len(first)), 2):
        a = (first[i] > first[j]) - (first[i] < first[j])
        b = (second[i] > second[j]) - (second[i] < second[j])
        agreeing += a * b
        ties_in_first += a == 0
        ties_in_second += b == 0
    pairs = len(first) * (len(first) - 1) / 2
    scale = ((pairs - ties_in_first) * (pairs - ties_in_second)) ** 0.5
    return agreeing / scale if scale else float("nan")


def row_of(
    program: Path, drawn: Drawn, scheduled: Plan | None, said: dict[str, Any], target: str
) -> dict[str, Any]:
    price = drawn.plan.price
    full = drawn.judged(target, is_full=True) or {}
    row = {
        "program": program_name(program),
        "plan": drawn.name,
        "step_us": price.step_ns / 1e3,
        "compute_us": price.compute_ns / 1e3,
        "communication_us": price.communication_ns / 1e3,
        **_at_scheduler(scheduled),
        "compiles": bool(said.get("ok")),
    }
    if not said.get("ok"):
        return {**row, "error": said.get("error", "")[:60]}
    return {
        **row,
        "est_step_us": said["est_step_us"],
        "judge_matmul_us": said["matmul_us"],
        "judge_exposed_us": said["lhs"]["comm_us"],
        "judge_serial_us": said["comm_serial_us"],
        "full_est_step_us": full.get("est_step_us", math.nan),
    }


def _at_scheduler(plan: Plan | None) -> dict[str, float]:
    """The step, and all collectives one after another, of what is emitted."""
    if plan is None:
        return {"scheduled_step_us": math.nan, "scheduled_us": math.nan}
    hidden_ns = sum(one.hidden_ns * one.repeat for one in plan.price.collectives if one.emitted)
    before_ns = plan.made_before_ns
    assert plan.price.scheduled is not None, "it is at a scheduler's prices, for XLA on TPUs"
    return {
        "scheduled_step_us": plan.price.scheduled.step_ns / 1e3,
        "scheduled_us": (plan.price.communication_ns - before_ns + hidden_ns) / 1e3,
    }


def judged_before(folders: Sequence[Path], programs: Sequence[Path], target: str) -> Iterator[Judged]:
    """Judged plans of other folders."""
    for program in programs:
        for folder in folders:
            for drawn in kept(folder, program_name(program)):
                said = drawn.judged(target)
                if said is not None:
                    yield program, drawn, said


def taus(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a program."""
    found: list[dict[str, Any]] = []
    compiled = rows[rows["compiles"]]
    for program, mine in compiled.groupby("program"):
        judged = mine["est_step_us"].tolist()
        mixed = (mine["judge_matmul_us"] + mine["communication_us"]).tolist()
        scheduled = (mine["judge_matmul_us"] + mine["scheduled_us"]).tolist()
        compute = (mine["compute_us"] + mine["judge_exposed_us"]).tolist()
        serial = (mine["judge_matmul_us"] + mine["judge_serial_us"]).tolist()
        full = mine[mine["full_est_step_us"] > 0]
        found.append(
            {
                "program": program,
                "plans": len(mine),
                "do not compile": len(rows[rows["program"] == program]) - len(mine),
                "tau of step": tau_b(mine["step_us"].tolist(), judged),
                "tau of scheduled step": tau_b(mine["scheduled_step_us"].tolist(), judged),
                "tau of communication": tau_b(mixed, judged),
                "tau of kinds and bytes": tau_b(scheduled, judged),
                "tau of compute": tau_b(compute, judged),
                "tau of serial": tau_b(serial, judged),
                "plans in full": len(full),
                "tau of step in full": tau_b(full["step_us"].tolist(), full["full_est_step_us"].tolist()),
            }
        )
    return pd.DataFrame(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument(
        "--as-written", action="store_true", help="price the written modules, by today's version"
    )
    parser.add_argument(
        "--keep-others", action="store_true", help="leave rows of other programs in the tables"
    )
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="folders with more judged plans")
    arguments = parser.parse_args()
    setting = setting_of(arguments)
    rows: list[dict[str, Any]] = []
    more = judged_before(arguments.also, arguments.programs, setting.target)
    for program, drawn, said in chain(judged_plans(arguments), more):
        is_new = arguments.as_written and said.get("ok")
        one, scheduled = priced_as_written(drawn, program, setting) if is_new else (drawn, None)
        rows.append(row_of(program, one, scheduled, said, setting.target))
    plans_file = RESULTS / "ranking-plans.csv"
    if arguments.keep_others and plans_file.exists():
        asked = {program_name(program) for program in arguments.programs}
        before = pd.read_csv(plans_file).to_dict("records")
        rows = [row for row in before if row["program"] not in asked] + rows
        rows.sort(key=lambda row: (row["program"], row["plan"]))
    table = pd.DataFrame(rows)
    summary = taus(table)
    RESULTS.mkdir(exist_ok=True)
    table.round(3).to_csv(plans_file, index=False)
    summary.round(3).to_csv(RESULTS / "ranking.csv", index=False)
    compiled = table[table["compiles"]]
    series = {
        str(program): list(zip(mine["step_us"], mine["est_step_us"], strict=True))
        for program, mine in compiled.groupby("program")
    }
    (RESULTS / "ranking.svg").write_text(scatter(series, "predicted step, µs", "judge's estimate, µs"))
    print(summary.round(3).to_string(index=False))


if __name__ == "__main__":
    main()
