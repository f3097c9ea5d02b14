"""Whether MLIR survives reading a file, asked of a process of its own: damaged bytecode and deep nesting can kill the one that reads them.

As a program: the module on standard input; exits with 0 if MLIR read or refused it.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from autoshard.errors import AutoshardError

MAX_DEPTH = 150
"""Regions inside regions, and brackets inside brackets without a probe; real programs have some 10."""

_SECONDS = 60  # and one for each megabyte
_CHUNK = 1 << 20
_PACKAGE = str(Path(__file__).parents[2])  # the process imports the same autoshard, also from a checkout


def require_readable(data: bytes, name: str) -> None:
    """Raises AutoshardError: reading the file kills the process that reads it, does not end, or finds ops nested too deep."""
    try:
        ended = subprocess.run(
            [sys.executable, "-m", __name__],
            input=data,
            capture_output=True,
            timeout=_SECONDS + len(data) / 1e6,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [_PACKAGE, os.environ.get("PYTHONPATH")])),
            },
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _damaged(name, "MLIR does not end reading it") from None
    if ended.returncode:
        raise _damaged(name, "reading it kills MLIR")
    if int(ended.stdout or 0) > MAX_DEPTH:
        raise AutoshardError(
            f"ops are nested {int(ended.stdout)} deep",
            where=name,
            fix=f"nest at most {MAX_DEPTH} loops and branches",
        )


def _damaged(name: str, what: str) -> AutoshardError:
    return AutoshardError(
        f"not a module, or damaged: {what}",
        where=name,
        fix="copy or write the file again, and give it as MLIR text",
    )


def bracket_depth(text: bytes) -> int:
    """How deep brackets are nested in MLIR text, those in strings included: never less than the real depth by more than stray ones."""
    steps = np.zeros(256, np.int8)
    steps[[*b"([{<"]] = 1
    steps[[*b")]}>"]] = -1
    bare = text.replace(b"->", b"")
    depth = deepest = 0
    for begin in range(0, len(bare), _CHUNK):
        depths = np.cumsum(
            steps[np.frombuffer(bare, np.uint8, min(_CHUNK, len(bare) - begin), begin)], dtype=np.int64
        )
        deepest = max(deepest, depth + int(depths.max()))
        depth += int(depths[-1])
    return deepest


def _region_depth(data: bytes) -> int:
    from autoshard.mlir.context import ir, new_context

    try:
        module = ir.Module.parse(data, new_context())
    except (ir.MLIRError, ValueError):
        return 0
    depth = 0
    blocks = [module.body]
    while blocks:
        depth += 1
        blocks = [
            block
            for outer in blocks
            for op in outer.operations
            for region in op.operation.regions
            for block in region.blocks
        ]
    return depth


if __name__ == "__main__":
    sys.stdout.write(str(_region_depth(sys.stdin.buffer.read())))
