"""Compiled code is ready when it is needed: a process compiles it into numba's cache while this one reads and presolves.

python -m autoshard.solve.warm
"""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress

_PATIENCE_S = 30.0


class Warming:
    """Started once; where it cannot run, the code is compiled when it is first called, as ever."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-m", "autoshard.solve.warm"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is for the one that waits
            )

    def wait(self, time_limit_s: float) -> None:
        """Until the code is in the cache; the process ends either way."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, min(time_limit_s, _PATIENCE_S)))
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.end()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def main() -> None:
    """Run every compiled function once."""
    import numpy as np

    from autoshard.problem import ProblemBuilder, Table
    from autoshard.solve.anytime import Anytime
    from autoshard.solve.clock import Clock
    from autoshard.solve.core import flatten
    from autoshard.solve.load import load

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    builder = ProblemBuilder()
    for node in range(4):
        builder.add_node([3, 1, 2])
        builder.add_node_usage(node, node, node + 3, [1, 3, 2])
    for node in range(3):
        edge = builder.add_edge(node, node + 1, Table(np.arange(9).reshape(3, 3)))
        builder.add_edge_usage(edge, node, node + 2, np.arange(9).reshape(3, 3))
    engine = Anytime(flatten(load(builder.build(12))), seed=0)
    for _ in range(3):
        engine.round(Clock(600))


if __name__ == "__main__":
    main()
