"""A process that runs one pass pipeline on a module, so that a native abort kills it and not the planner.

Standard input: a line with the passes, then the module as bytecode. Standard output: the module as bytecode. A pass that refuses the module
exits with `REFUSED` and its diagnostics on standard error.
"""

import io
import sys

REFUSED = 3


def main() -> int:
    from autoshard.errors import AutoshardError
    from autoshard.mlir.context import ir, new_context
    from autoshard.mlir.diagnostics import as_user_error
    from autoshard.mlir.pipeline import run_pipeline

    passes, _, data = sys.stdin.buffer.read().partition(b"\n")
    context = new_context()
    context.allow_unregistered_dialects = True  # a caller may hide ops from the passes
    module = ir.Module.parse(data, context)
    try:
        run_pipeline(module.operation, passes.decode())
        with as_user_error(f"{passes.decode()} made an invalid module"):
            module.operation.verify()
    except AutoshardError as error:
        sys.stderr.write(str(error))
        return REFUSED
    answer = io.BytesIO()
    module.operation.write_bytecode(answer)
    sys.stdout.buffer.write(answer.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main())
