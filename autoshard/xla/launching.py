"""Runs a worker of this room in a process of its own: whatever a compiler does to it is at worst an error here."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autoshard.errors import AutoshardError, NativeAbortError

_POLL_S = 0.05
_REFUSAL = re.compile(
    r"^(?:\w+\.)*(?:XlaRuntimeError|AutoshardError|JaxRuntimeError)(?:: )?(.*)", re.M | re.S
)


def run_worker(
    worker: str,
    folder: Path,
    where: str,
    *,
    environment: Mapping[str, str],
    time_limit_s: float | None = None,
    spent_s: float = 0.0,
    fix: str = "",
    has_enough: Callable[[], bool] | None = None,
) -> None:
    """`python -m worker folder`, until it ends, or until `has_enough` says so, which then ends it.

    spent_s: how much of the time is gone already.

    Raises:
        AutoshardError: it refused, or the time ran out; `fix` is then what to do.
        NativeAbortError: it was ended by a signal.
    """
    with (folder / "stderr").open("wb") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", worker, str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=dict(environment),
        )
        try:
            left_s = None if time_limit_s is None else max(time_limit_s - spent_s, 0.0)
            is_ended = _wait(child, left_s, has_enough)
        except subprocess.TimeoutExpired as error:
            raise AutoshardError(f"not done after {time_limit_s:g} s", where=where, fix=fix) from error
        finally:
            child.kill()
            child.wait()
    if is_ended and child.returncode != 0:
        raise _failure(child.returncode, (folder / "stderr").read_text(errors="replace"), where)


def _wait(
    child: "subprocess.Popen[bytes]", time_limit_s: float | None, has_enough: Callable[[], bool] | None
) -> bool:
    """Whether it ended by itself."""
    if has_enough is None:
        child.wait(time_limit_s)
        return True
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    while child.poll() is None:
        if has_enough():
            return False
        if deadline is not None and time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(child.args, time_limit_s or 0)
        time.sleep(_POLL_S)
    return True


def worker_environment(xla_flags: Sequence[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Ours, with XLA's flags added, `defaults` for what it does not set, and with this very autoshard first on the path."""
    root = str(Path(__file__).parents[2])
    return {
        "TF_CPP_MIN_LOG_LEVEL": "1",  # without the chatter of level 0
        **defaults,
        **os.environ,
        "XLA_FLAGS": " ".join([os.environ.get("XLA_FLAGS", ""), *xla_flags]),
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
    }


def _failure(status: int, stderr: str, where: str) -> AutoshardError:
    if status == -signal.SIGKILL:
        return NativeAbortError("the process was killed, most likely for want of memory", where=where)
    if status < 0:
        return NativeAbortError(f"{signal.Signals(-status).name}: {_native_words(stderr)}", where=where)
    refusal = _REFUSAL.search(stderr)
    if refusal is None:
        return AutoshardError(f"the process ended with status {status}: {_native_words(stderr)}", where=where)
    return AutoshardError(refusal[1].strip()[:2000], where=where)


def _native_words(stderr: str) -> str:
    """The last lines that are not the log's chatter."""
    lines = [line for line in stderr.splitlines() if line.strip() and not re.match(r"[IW]\d{4} |\s+@ ", line)]
    return "\n".join(lines[-5:]) or "it printed nothing"
