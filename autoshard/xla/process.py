"""Compiles and runs a module in a child process: whatever XLA does to it is at worst an error here."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autoshard.errors import AutoshardError, NativeAbortError
from autoshard.xla import storage
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
    where = f"XLA on {num_devices} CPU device{'s' if num_devices > 1 else ''}"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "autoshard.xla.worker", str(folder)],
            capture_output=True,
            env=_environment(),
            timeout=time_limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AutoshardError(
            f"not done after {time_limit_s:g} s",
            where=where,
            fix="allow more time or verify a smaller program",
        ) from error
    if done.returncode != 0:
        raise _failure(done.returncode, done.stderr.decode(errors="replace"), where)


def _environment() -> dict[str, str]:
    """Ours, with XLA's flags added, and with this very autoshard first on the path."""
    root = str(Path(__file__).parents[2])
    return {
        "TF_CPP_MIN_LOG_LEVEL": "1",  # without the chatter of level 0
        **os.environ,
        "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *_XLA_FLAGS]),
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
    }


def _failure(status: int, stderr: str, where: str) -> AutoshardError:
    if status == -signal.SIGKILL:
        return NativeAbortError("the process was killed, most likely for want of memory", where=where)
    if status < 0:
        return NativeAbortError(f"{signal.Signals(-status).name}: {_native_words(stderr)}", where=where)
    refusal = re.search(
        r"^(?:\w+\.)*(?:XlaRuntimeError|AutoshardError|JaxRuntimeError)(?:: )?(.*)", stderr, re.M | re.S
    )
    assert refusal is not None, stderr
    return AutoshardError(refusal[1].strip()[:2000], where=where)


def _native_words(stderr: str) -> str:
    """The last lines that are not the log's chatter."""
    lines = [line for line in stderr.splitlines() if line.strip() and not re.match(r"[IW]\d{4} |\s+@ ", line)]
    return "\n".join(lines[-5:]) or "it printed nothing"
