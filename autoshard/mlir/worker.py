"""A process that runs pass pipelines on modules, each in a fork of its own: a native abort kills the fork, and not the planner, and what
MLIR loads is loaded once.

python -m autoshard.mlir.worker FD: at the socket FD come (passes, module as bytecode); (0, module as bytecode) goes back, or (exit status,
what was said), where the status of a pass that refuses the module is `REFUSED`. It ends when the other end is closed.
"""

import io
import os
import signal
import sys
import tempfile
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir, new_context
from autoshard.mlir.diagnostics import as_user_error
from autoshard.mlir.pipeline import run_pipeline

REFUSED = 3


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the one that waits
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it is not told how a fork ended
    connection = Connection(int(sys.argv[1]))
    context = new_context()
    context.allow_unregistered_dialects = True  # a caller may hide ops from the passes
    with suppress(EOFError, ConnectionError):
        while True:
            connection.send(answer(connection, context, *connection.recv()))


def answer(connection: Connection, context: ir.Context, passes: str, module: bytes) -> tuple[int, bytes]:
    """It comes whole from the fork before any of it is sent: a fork may die while it writes.

    The fork is ended where nobody waits for it any more.
    """
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as said, os.fdopen(reader, "rb") as written:
        fork = os.fork()
        if fork == 0:
            _write_passed(context, passes, module, writer, said.fileno())
        os.close(writer)
        if connection in wait(
            [reader, connection]
        ):  # its other end is closed: nothing is asked before this is answered
            os.kill(fork, signal.SIGKILL)
        made = written.read()
        status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        said.seek(0)
        return status, made if status == 0 else said.read()


def _write_passed(context: ir.Context, passes: str, module: bytes, writer: int, said: int) -> None:
    """Write what the passes make of the module; the process ends here, with 0 only where that was written."""
    status = 1
    try:
        os.dup2(said, 2)
        with os.fdopen(writer, "wb") as made:
            made.write(_passed(context, passes, module))
        status = 0
    except AutoshardError as error:
        os.write(2, str(error).encode())
        status = REFUSED
    except BaseException as error:
        os.write(2, repr(error).encode())
    finally:
        os._exit(status)


def _passed(context: ir.Context, passes: str, data: bytes) -> bytes:
    module = ir.Module.parse(data, context)
    run_pipeline(module.operation, passes)
    with as_user_error(f"{passes} made an invalid module"):
        module.operation.verify()
    made = io.BytesIO()
    module.operation.write_bytecode(made)
    return made.getvalue()


if __name__ == "__main__":
    main()
