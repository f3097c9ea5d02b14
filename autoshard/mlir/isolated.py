"""Any pass pipeline, run where its failure is an error and not the end of the process."""

import atexit
import io
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from multiprocessing import Pipe
from pathlib import Path
from threading import Lock

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
        NativeAbortError: a pass killed its process, or did not end in time.
    """
    try:
        status, answer = _runner_of(os.getpid()).answer(passes, bytecode(module), timeout_s)
    except TimeoutError:
        raise NativeAbortError(f"{passes} did not end within {timeout_s:g} s") from None
    if status == 0:
        return ir.Module.parse(answer, module.context)
    said = answer.decode(errors="replace").strip()
    if status == worker.REFUSED:
        raise AutoshardError(said)
    raise NativeAbortError(f"{passes} died ({_cause(status)}), saying:\n{_last_lines(said)}")


@cache
def _runner_of(process: int) -> "PassRunner":
    """The one of this process; a fork of it has another."""
    runner = PassRunner()
    atexit.register(lambda: runner.end() if os.getpid() == process else None)
    return runner


class PassRunner:
    """The worker process, started for the first pass, and again where it was stopped."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.process: subprocess.Popen[bytes] | None = None

    def answer(self, passes: str, module: bytes, timeout_s: float) -> tuple[int, bytes]:
        """The exit status, 0 with the module that was made, another with what was said. TimeoutError: it takes longer."""
        with self._lock:
            process = self._running()
            try:
                self._connection.send((passes, module))
                if self._connection.poll(timeout_s):
                    return self._connection.recv()
            except (EOFError, OSError):  # the latter also where it died in the middle of an answer
                return self._last_word(process)
            except BaseException:
                self.end()
                raise
            self.end()
            raise TimeoutError

    def _last_word(self, process: "subprocess.Popen[bytes]") -> tuple[int, bytes]:
        """Of a worker that died itself; one that could not start says why."""
        self._connection.close()
        status = process.wait()
        with self._said:
            self._said.seek(0)
            return status, self._said.read()

    def _running(self) -> "subprocess.Popen[bytes]":
        if self.process is not None and self.process.poll() is None:
            return self.process
        if self.process is not None:
            self._close()
        self._connection, theirs = Pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", worker.__name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=_environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # killed as one with what it runs
            )
        return self.process

    def end(self) -> None:
        if self.process is not None:
            self._close()
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _close(self) -> None:
        self._connection.close()
        self._said.close()


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
