"""Compiles and runs a module in a child process: whatever XLA does to it is at worst an error here."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoshard.xla import storage
from autoshard.xla.launching import run_worker, worker_environment
from autoshard.xla.module import Program

_HOUR_S = 3600  # devices are threads that share few cores: waiting long for each other is no deadlock
_XLA_FLAGS = (
    f"--xla_cpu_collective_call_warn_stuck_timeout_seconds={_HOUR_S}",
    f"--xla_cpu_collective_call_terminate_timeout_seconds={24 * _HOUR_S}",
    f"--xla_cpu_collective_timeout_seconds={24 * _HOUR_S}",
)


@dataclass(frozen=True, slots=True)
class Execution:
    """`outputs[run]`: full arrays, one for each result of main; `spreads[run]`: how far copies of them differ."""

    outputs: list[list[np.ndarray]]
    spreads: list[list[float]]
    hlo_text: str
    temp_bytes: int


def execute(
    program: Program,
    num_devices: int,
    runs: Sequence[Sequence[np.ndarray]],
    time_limit_s: float | None = None,
) -> Execution:
    """Compile the prepared program once and run it on each of the given lists of inputs.

    Raises:
        AutoshardError: XLA refused the module, or the time ran out.
        NativeAbortError: XLA ended its own process.
    """
    with tempfile.TemporaryDirectory(prefix="autoshard-xla-") as name:
        folder = Path(name)
        request = {
            "num_devices": num_devices,
            "runs": len(runs),
            "arguments": [(port.type.shape, port.type.dtype) for port in program.arguments],
            "results": [(port.type.shape, port.type.dtype) for port in program.results],
            "is_annotated": program.is_annotated,
        }
        (folder / "request.json").write_text(json.dumps(request))
        with (folder / "module.mlir").open("wb") as file:
            program.module.write_bytecode(file)
        for run, inputs in enumerate(runs):
            storage.save_all(folder / "inputs" / str(run), inputs)
        _run_worker(folder, num_devices, time_limit_s)
        types = [port.type for port in program.results]
        answer = json.loads((folder / "result.json").read_text())
        return Execution(
            [storage.load_all(folder / "outputs" / str(run), types) for run in range(len(runs))],
            answer["spreads"],
            (folder / "compiled.hlo").read_text(),
            answer["temp_bytes"],
        )


def _run_worker(folder: Path, num_devices: int, time_limit_s: float | None) -> None:
    run_worker(
        "autoshard.xla.worker",
        folder,
        f"XLA on {num_devices} CPU device{'s' if num_devices > 1 else ''}",
        environment=worker_environment(_XLA_FLAGS, {}),
        time_limit_s=time_limit_s,
        fix="allow more time or verify a smaller program",
    )
