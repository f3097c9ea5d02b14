"""What is predicted beside what `modules.py` measured: a table and a plot.

    python experiments/calibration/compare.py MODULES results/h200/measured.csv --hardware h200 -o results/h200/programs

MODULES is the folder of the modules, named as in the table. `autoshard cost` prices each on one device. Writes programs.csv (predicted
step, and peak memory beside the compiler's arguments, temporaries and results that are no donated arguments) and programs.svg.
"""

import argparse
import csv
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "fidelity"))
from plot import scatter


def predicted(module: Path, hardware: str) -> dict[str, Any]:
    command = [
        "autoshard",
        "cost",
        "module",
        str(module),
        "--mesh",
        "x=1",
        "--hardware",
        hardware,
        "--memory",
        "none",
        "--json",
    ]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        sys.exit(f"{module}: {answer.stderr}")
    return json.loads(answer.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", type=Path)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--hardware", required=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="without ending")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for row in csv.DictReader(options.measured.open()):
        module = next(options.modules.glob(f"{row['name']}.mlir*"))
        plan = predicted(module, options.hardware)
        donated = sum(argument["bytes"] for argument in plan["arguments"] if argument["carried"])
        compiled = sum(int(row[f"{kind}_bytes"]) for kind in ("argument", "output", "temp")) - donated
        step, peak = plan["predicted"]["step_ns"] / 1e3, plan["predicted"]["peak_bytes"]
        rows.append(
            {
                "name": row["name"], "measured_us": row["step_us"], "predicted_us": f"{step:.1f}",
                "ratio": f"{step / float(row['step_us']):.3f}", "compiled_bytes": compiled, "predicted_bytes": peak,
                "memory_ratio": f"{compiled / peak:.3f}",
            }
        )  # fmt: skip
        print(rows[-1], flush=True)
    with options.output.with_suffix(".csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    points = [(float(row["measured_us"]), float(row["predicted_us"])) for row in rows]
    plot = scatter({options.hardware: points}, "measured, us a step", "predicted, us a step")
    options.output.with_suffix(".svg").write_text(plot)
    ratios = [float(row["ratio"]) for row in rows]
    for share in (0.1, 0.2):
        print(f"within {share:.0%}: {sum(abs(ratio - 1) <= share for ratio in ratios)} of {len(ratios)}")
    print(
        f"geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}, median {statistics.median(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
