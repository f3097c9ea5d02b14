"""One engine in a process of its own, as the race sees it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import BinaryIO

from autoshard.problem.model import Ints
from autoshard.solve.exact.lazy import Progress
from autoshard.solve.exact.question import Question

Message = Ints | Progress | None  # a choice as it is found, the end of a round, the end of the process


class Member:
    """Started at once; what it says arrives in `said` as (name, message)."""

    def __init__(self, name: str, introduction: bytes, said: SimpleQueue[tuple[str, Message]]) -> None:
        self.name, self._said = name, said
        self._introduction: bytes | None = introduction
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autoshard.solve.exact.worker", name, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input = self._process.stdin
        Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()

    def _listen(self, output: BinaryIO) -> None:
        with output:
            try:
                while True:
                    self._said.put((self.name, pickle.load(output)))
            except Exception:  # whatever pickle makes of a process that dies in the middle of a word
                self._said.put((self.name, None))

    def ask(self, question: Question) -> None:
        """Nothing happens if the process is gone: it has said so, or will."""
        try:
            if self._introduction is not None:
                self._input.write(self._introduction)
                self._introduction = None
            pickle.dump(question, self._input, pickle.HIGHEST_PROTOCOL)
            self._input.flush()
        except OSError:
            pass

    def hurry(self) -> None:
        """Ask for an answer now."""
        self.signal(signal.SIGVTALRM)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(OSError):
            self._input.close()


def _environment() -> dict[str, str]:
    """The worker imports the same autoshard, also when that is a checkout that only `sys.path` knows."""
    package = str(Path(__file__).parents[3])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")])),
    }
