"""Compiling ahead: the process ends, and leaves nothing to compile for the one that searches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoshard.solve.warm import Warming

ROOT = Path(__file__).parents[2]
SEARCH = """
from autoshard.solve import anytime, messages, moves
from autoshard.solve.anytime import Anytime
from autoshard.solve.clock import Clock
from tests.solve.cores import layered_core
engine = Anytime(layered_core(1), 0)
for _ in range(3):
    engine.round(Clock(600))
kernels = [moves.run_moves, messages.sweep, messages.float_bound, messages.exact_bound, messages.decode]
print(sum(sum(k.stats.cache_misses.values()) for k in kernels), sum(sum(k.stats.cache_hits.values()) for k in kernels))
"""


@pytest.mark.slow
def test_the_search_finds_all_compiled(tmp_path: Path) -> None:
    """Same functions, same types of arguments: every kernel comes from the cache."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "autoshard.solve.warm"], check=True, env=environment, cwd=ROOT)
    done = subprocess.run(
        [sys.executable, "-c", SEARCH], check=True, env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.split() == ["0", "5"]


def test_it_ends_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting no time at all, or twice, or without a start leaves no process behind."""
    started: list[subprocess.Popen[bytes]] = []

    class Seen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Seen)
    warming = Warming()
    warming.wait(0.0)
    warming.start()
    warming.wait(0.0)
    warming.wait(0.0)
    warming.end()
    (process,) = started
    assert process.returncode is not None
