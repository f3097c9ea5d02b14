"""What a program exchanges with the world outside of it while it runs, which nobody answers on the CPU devices of `run` and `verify`.

XLA waits for ever at an infeed or outfeed, has no send and recv on CPUs, and dies at a callback of a process that is gone.
"""

import re

from autoshard.errors import AutoshardError
from autoshard.mlir.context import ir
from autoshard.mlir.locations import Locations
from autoshard.mlir.walk import ops_named
from autoshard.xla.module import Program

_CUSTOM_CALL = "stablehlo.custom_call"
_EXCHANGES = frozenset(
    {_CUSTOM_CALL, *(f"stablehlo.{name}" for name in ("infeed", "outfeed", "recv", "send"))}
)
_CALLBACK = re.compile(r"xla_(ffi_)?(partitioned_)?python_\w+_callback")  # as JAX names them


def refuse_outside(program: Program) -> None:
    """Raises AutoshardError at the first op that waits for a host, for another program or for a Python function."""
    for op in ops_named(program.module, _EXCHANGES):
        what = op.name
        if op.name == _CUSTOM_CALL:
            target = ir.StringAttr(op.attributes["call_target_name"]).value
            if not _CALLBACK.fullmatch(target):
                continue
            what = f"a callback into Python (@{target})"
        raise AutoshardError(
            f"{what} cannot run here: nothing is there to answer it on CPU devices",
            where=Locations(program.name).text(op.location),
            fix="verify a module lowered without it; `autoshard check` runs nothing",
        )
