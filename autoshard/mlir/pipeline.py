"""A pass pipeline run on a module in this process: for the passes that report bad input and never abort."""

from jaxlib.mlir import passmanager

from autoshard.mlir.context import ir
from autoshard.mlir.diagnostics import as_user_error


def run_pipeline(module: ir.Operation, passes: str) -> None:
    """Run `passes`, in MLIR's notation for pipelines inside builtin.module, in place, without verifying between them.

    Raises:
        AutoshardError: a pass refused the module.
    """
    manager = passmanager.PassManager.parse(f"builtin.module({passes})", module.context)
    manager.enable_verifier(False)
    with as_user_error(f"{passes} refused the module"):
        manager.run(module)
