"""How long a solver may still run: wall time, a number of steps, or until the user interrupts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clock:
    """Steps are the unit of a `work_limit`: one sweep or one batch of moves of an engine."""

    time_limit_s: float
    work_limit: int | None = None
    steps: int = 0
    interrupted: bool = False
    _began: float = field(default_factory=time.monotonic)

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def left_s(self) -> float:
        return 0.0 if self.interrupted else self.time_limit_s - self.elapsed_s()

    def step(self) -> None:
        self.steps += 1

    def over(self) -> bool:
        spent = self.work_limit is not None and self.steps >= self.work_limit
        return spent or self.left_s() <= 0
