"""A process that runs one engine on one core: a native crash ends it and not the planner.

    python -m autoshard.solve.exact.worker ENGINE PARENT_PID

Standard input: pickled (core, seed), then a Question for every round. Standard output: pickled choices (arrays) as
they are found, and at the end of a round its Progress. It ends with its input or its parent; an engine that cannot
be imported or does not suit the core ends it at once. SIGINT is ignored, because a terminal sends it to the whole
group; SIGVTALRM makes toulbar2 stop and answer.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from importlib import import_module
from typing import Any, BinaryIO

from autoshard.problem.model import Ints
from autoshard.solve.clock import Clock
from autoshard.solve.exact.engine import UnsuitableError
from autoshard.solve.exact.lazy import solve_lazily
from autoshard.solve.exact.question import ENGINES

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(name: str, parent: int) -> None:
    for ignored in (signal.SIGINT, signal.SIGVTALRM):
        signal.signal(ignored, signal.SIG_IGN)
    _end_with(parent)
    sys.modules.setdefault("mpi4py", None)  # type: ignore[arg-type]  # toulbar2 would begin to talk MPI where it is installed
    module, class_name = ENGINES[name]
    make_engine = getattr(import_module(module), class_name)
    with _answers() as answers:
        core, seed = pickle.load(sys.stdin.buffer)
        engine = make_engine(core, seed)

        def say(message: object) -> None:
            pickle.dump(message, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()

        def found(choice: Ints) -> None:
            say(choice)

        while (question := _next(sys.stdin.buffer)) is not None:
            say(
                solve_lazily(
                    engine,
                    core,
                    Clock(question.time_limit_s),
                    rows=question.rows,
                    budget=question.budget,
                    hint=question.hint,
                    cutoff=question.cutoff,
                    found=found,
                )
            )


def _answers() -> BinaryIO:
    """The standard output as a stream of our own; what else anybody prints leads nowhere."""
    stream = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    return stream


def _next(questions: BinaryIO) -> Any:
    try:
        return pickle.load(questions)
    except EOFError:
        return None


def _end_with(parent: int) -> None:
    """Linux kills us with our parent, even in the middle of native code; elsewhere the time limit ends us."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except (UnsuitableError, ImportError, BrokenPipeError):
        sys.exit(1)
