"""Are our plans at most what people write by hand, in the compiler's estimate?

The judge prices the plans of `textbook.py` (data parallel, FSDP, Megatron, with and without constraints on activations) and the plan that
autoshard makes of the unannotated module; state is donated in all of them.

python experiments/fidelity/handwritten.py PROGRAM.mlir.gz... --folder FOLDER --judge PATH --judge-python PYTHON [--target tpu:v5e:4x4]
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from plans import Judge, add_options, draw, judge, judge_written, load_program, program_name, setting_of
from textbook import STYLES, annotated

TABLE = Path(__file__).parent / "results" / "handwritten.csv"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.judge is None:
        parser.error("name the judge: --judge PATH")
    setting = replace(setting_of(arguments), memory_share=None)
    by = Judge(arguments.judge, arguments.judge_python)
    rows: list[dict[str, Any]] = []
    for program in arguments.programs:
        loaded = load_program(program, setting)
        drawn = {one.name: one for one in draw(program, setting, arguments.folder, 0, arguments.seed)}
        answers = {"autoshard": judge(drawn["best"], setting.target, by)} if "best" in drawn else {}
        for style in STYLES:
            base = arguments.folder / program_name(program) / f"hand-{style.replace(' ', '-')}"
            base.with_name(f"{base.name}.mlir").write_text(annotated(loaded, style))
            answers[style] = judge_written(base, setting.target, by)
        for style, said in answers.items():
            rows.append(_row(program_name(program), setting.target, style, said))
            print(rows[-1], flush=True)
        _keep(rows)


def _keep(rows: list[dict[str, Any]]) -> None:
    """Beside what the table has of other programs and targets."""
    found = pd.DataFrame(rows)
    if TABLE.exists():
        old = pd.read_csv(TABLE)
        mine = set(zip(found["program"], found["target"], strict=True))
        is_other = [key not in mine for key in zip(old["program"], old["target"], strict=True)]
        found = pd.concat([old[is_other], found])
    found.to_csv(TABLE, index=False)


def _row(program: str, target: str, style: str, said: dict[str, Any]) -> dict[str, Any]:
    if not said.get("ok"):
        return {"program": program, "target": target, "plan": style, "error": said.get("error", "")[:60]}
    return {
        "program": program,
        "target": target,
        "plan": style,
        "est_step_us": said["est_step_us"],
        "matmul_us": said["matmul_us"],
        "exposed_us": said["lhs"]["comm_us"],
        "serial_us": said["comm_serial_us"],
        "hbm_gb": round(said["memory"]["hbm_total"] / 1e9, 2),
    }


if __name__ == "__main__":
    main()
