"""Does the predicted peak hold against what the compiler allocates (argument + output - alias + temporary)?

    python experiments/fidelity/memory.py PROGRAM... --folder FOLDER --table TABLE.csv [--target tpu:v5e:4x4] [--names best,dp]
        [--held-out PROGRAM...] [--compile]

Reads the plans of FOLDER and what the judge said of them (`plans.py` makes both); predicts each plan anew, as `autoshard check` does, so
that a change of the model needs no new compilation. Writes a row a plan: predicted bytes, compiled bytes, their ratio, whether it
compiled, and whether nothing was looked up in the program before (`--held-out`), and plots both beside the table; prints the share of
compiled plans within 10 % of the prediction, the largest excess, the largest among plans predicted within a tenth of their budget (what
`TPU_MARGIN` has to cover), and every plan that was said to fit and did not compile. A prediction beyond the plan's budget is of a
plan that was not said to fit. `--compile` asks `autoshard compile` instead of reading what a judge said, for slices of which a fast
compilation's own report counts what computations on the sparse core are given a second time (v5p, v6e).
"""

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plans
from plot import scatter

from autoshard.check import Subject, check
from autoshard.loading import Loaded, analyse, read_planned

WITHIN = 0.1
TIGHT = 0.9
"""Part of its budget from which on a plan is tight."""


@dataclass(frozen=True, slots=True)
class Row:
    program: str
    plan: str
    predicted_bytes: int
    compiled_bytes: int | None  # None: it ran out of memory, or the judge failed
    said_to_fit: bool
    is_tight: bool
    error: str

    @property
    def ratio(self) -> float | None:
        return None if self.compiled_bytes is None else self.compiled_bytes / self.predicted_bytes


def compiled_here(drawn: plans.Drawn, target: str) -> dict[str, Any]:
    """What `autoshard compile` says, as a judge would; kept beside the plan where it compiles."""
    kept = drawn.base.with_name(f"{drawn.name}.{target.replace(':', '_')}.compiled.json")
    if not kept.exists():
        planned = str(drawn.base.with_name(f"{drawn.name}.mlir"))
        asked = [sys.executable, "-m", "autoshard", "compile", planned, "--target", target]
        done = subprocess.run([*asked, "--no-predict", "--json"], capture_output=True, text=True)
        if done.returncode:
            return {"ok": False, "error": done.stderr}
        memory = json.loads(done.stdout)["compiled"]["memory"]
        kept.write_text(json.dumps({"ok": True, "memory": {"hbm_total": memory["total_bytes"]}}))
    return json.loads(kept.read_text())


def rows(
    program: Path, folder: Path, target: str, names: list[str], *, compiles: bool = False
) -> Iterator[Row]:
    read: dict[object, Loaded] = {}
    for drawn in plans.kept(folder, plans.program_name(program)):
        if names and not drawn.name.startswith(tuple(names)):
            continue
        said = compiled_here(drawn, target) if compiles else drawn.judged(target)
        if said is None:
            continue
        key = (drawn.plan.mesh, drawn.plan.topology, drawn.plan.carry)
        if key not in read:
            read[key] = analyse(read_planned(program, drawn.plan))
        loaded = read[key]
        report = check(Subject(loaded.program, loaded.hardware, loaded.communication), drawn.plan)
        peaks = [f.expected for f in report.findings if f.name == "peak" and isinstance(f.expected, int)]
        if not peaks:
            print(f"{plans.program_name(program)} {drawn.name}: not a plan of this version")
            continue
        (predicted,) = peaks
        limit = drawn.plan.memory_bytes
        compiled = said["memory"]["hbm_total"] if said.get("ok") else None
        fits = limit is None or predicted <= limit
        is_tight = limit is not None and predicted >= TIGHT * limit
        error = "" if compiled is not None else str(said.get("error", "")).split("\n")[0][:160]
        yield Row(plans.program_name(program), drawn.name, predicted, compiled, fits, is_tight, error)


def summary(found: list[Row]) -> Iterator[str]:
    compiled = [(row.ratio, row) for row in found if row.ratio is not None and row.said_to_fit]
    ratios = sorted(compiled, key=lambda pair: pair[0])
    if ratios:
        inside = sum(abs(ratio - 1) <= WITHIN for ratio, _ in ratios)
        yield f"{len(ratios)} plans said to fit compiled, {inside} of them within {WITHIN:.0%} of the prediction"
        for ratio, row in (ratios[0], ratios[len(ratios) // 2], ratios[-1]):
            yield f"compiled / predicted {ratio:.3f}: {row.program} {row.plan}"
    tight = [(ratio, row) for ratio, row in ratios if row.is_tight]
    for ratio, row in tight[-1:]:
        yield f"{len(tight)} of them tight, at most {ratio:.3f}: {row.program} {row.plan}"
    failed = [row for row in found if row.said_to_fit and row.compiled_bytes is None]
    yield f"said to fit and not compiled: {len(failed)}"
    yield from (f"  {row.program} {row.plan}: {row.error}" for row in failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", type=Path, nargs="+", metavar="PROGRAM")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--target", default="tpu:v5e:4x4")
    parser.add_argument("--names", default="", help="Only plans whose names begin so, comma-separated.")
    parser.add_argument("--held-out", type=Path, nargs="+", default=[], metavar="PROGRAM")
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--compile", action="store_true", help="Ask `autoshard compile`, not a judge.")
    given = parser.parse_args()
    names = [name for name in given.names.split(",") if name]
    found: list[Row] = []
    for program in (*given.programs, *given.held_out):
        for row in rows(program, given.folder, given.target, names, compiles=given.compile):
            found.append(row)
            ratio = "out of memory" if row.ratio is None else f"{row.ratio:.3f}"
            print(
                f"{row.program:32} {row.plan:16} {row.predicted_bytes:>13} {row.compiled_bytes or 0:>13} {ratio}",
                flush=True,
            )
    given.table.parent.mkdir(parents=True, exist_ok=True)
    with given.table.open("w", newline="") as out:
        table = csv.writer(out, lineterminator="\n")
        table.writerow(
            (
                "program",
                "plan",
                "held_out",
                "predicted_bytes",
                "compiled_bytes",
                "ratio",
                "said_to_fit",
                "error",
            )
        )
        held_out = {plans.program_name(program) for program in given.held_out}
        for row in found:
            ratio = "" if row.ratio is None else f"{row.ratio:.4f}"
            table.writerow(
                (
                    row.program,
                    row.plan,
                    row.program in held_out,
                    row.predicted_bytes,
                    row.compiled_bytes,
                    ratio,
                    row.said_to_fit,
                    row.error,
                )
            )
    series: dict[str, list[tuple[float, float]]] = {}
    for row in found:
        if row.compiled_bytes is not None:
            series.setdefault(row.program, []).append((row.predicted_bytes, row.compiled_bytes))
    given.table.with_suffix(".svg").write_text(scatter(series, "predicted bytes", "compiled bytes"))
    print("\n".join(summary(found)))
    print("held out:")
    print("\n".join(summary([row for row in found if row.program in held_out])))


if __name__ == "__main__":
    main()
