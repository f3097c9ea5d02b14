"""Any pass pipeline, run where its failure is an error and not the end of the process."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

from autoshard.errors import AutoshardError, NativeAbortError
from autoshard.mlir import worker
from autoshard.mlir.context import ir

TIMEOUT_S = 600


def bytecode(module: ir.Operation) -> bytes:
    buffer = io.BytesIO()
    module.write_bytecode(buffer)
    return buffer.getvalue()


def run_isolated(module: ir.Operation, passes: str, timeout_s: float = TIMEOUT_S) -> ir.Module:
    """The module that `passes` (MLIR's notation, inside builtin.module) make of this one, which is not changed.

    Raises:
        AutoshardError: a pass refused the module.
        NativeAbortError: a pass killed the worker process, or did not end in time.
    """
    try:
        ended = subprocess.run(
            [sys.executable, "-m", worker.__name__],
            input=passes.encode() + b"\n" + bytecode(module),
            capture_output=True,
            timeout=timeout_s,
            env=_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NativeAbortError(f"{passes} did not end within {timeout_s:g} s") from None
    if ended.returncode == 0:
        return ir.Module.parse(ended.stdout, module.context)
    said = ended.stderr.decode(errors="replace").strip()
    if ended.returncode == worker.REFUSED:
        raise AutoshardError(said)
    raise NativeAbortError(f"{passes} died ({_cause(ended.returncode)}), saying:\n{_last_lines(said)}")


def _environment() -> dict[str, str]:
    """The worker imports the same autoshard, also when that is a checkout that only `sys.path` knows."""
    package = str(Path(__file__).parents[2])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")])),
    }


def _cause(returncode: int) -> str:
    return signal.Signals(-returncode).name if returncode < 0 else f"exit status {returncode}"


def _last_lines(text: str, count: int = 8) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-count:]) or "  nothing"
