"""Plans that the real compiler confirms to fit: where it finds that one needs more than a device has, the next one gets as much less."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.loading import Loaded
from autoshard.mlir.write import Constraints
from autoshard.pipeline import plan_loaded, write_planned
from autoshard.plans import Plan
from autoshard.progress import Progress, silent
from autoshard.report.units import bytes_text
from autoshard.xla.compiled import DoesNotFitError
from autoshard.xla.compiling import compile_planned
from autoshard.xla.targets import Target, parse_target, require_compiler

MOST_TRIES = 4
_LESS = 0.99  # of the budget before, at most


@dataclass(frozen=True, slots=True)
class Try:
    """Bytes a device: the budget of a plan (None: none), its predicted peak, what the compiler needs, and has where that is too much."""

    budget_bytes: int | None
    predicted_bytes: int
    compiled_bytes: int
    available_bytes: int | None = None

    @property
    def fits(self) -> bool:
        return self.available_bytes is None

    def text(self) -> str:
        needed, predicted = bytes_text(self.compiled_bytes), bytes_text(self.predicted_bytes)
        if self.available_bytes is not None:
            return f"does not fit: {needed} needed of {bytes_text(self.available_bytes)} a device, {predicted} predicted"
        return f"fits: {needed} a device, {predicted} predicted"

    def data(self) -> dict[str, Any]:
        return {
            "fits": self.fits,
            "budget_bytes": self.budget_bytes,
            "predicted_bytes": self.predicted_bytes,
            "compiled_bytes": self.compiled_bytes,
            "available_bytes": self.available_bytes,
        }


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The last plan and its module (None where there is no plan), and what the compiler said of each in turn."""

    plan: Plan
    module: str | None
    target: str
    tries: tuple[Try, ...]

    @property
    def fits(self) -> bool:
        return self.module is not None and bool(self.tries) and self.tries[-1].fits

    def text(self) -> str:
        return "\n".join(f"compiled for {self.target}: {one.text()}" for one in self.tries)

    def data(self) -> dict[str, Any]:
        tries = [one.data() for one in self.tries]
        return {"confirmed": {"target": self.target, "fits": self.fits, "tries": tries}}


Compile = Callable[[str, Plan], int]
"""Bytes a device of a planned module."""


def plan_confirmed(
    loaded: Loaded,
    target: str,
    *,
    constraints: Constraints = "minimal",
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    progress: Progress = silent,
) -> Confirmed:
    """Plan and compile for `target`, at most `MOST_TRIES` times, until the compiler finds that the program fits.

    Each further plan has a budget less by the share that was needed too much.

    Args:
        time_limit_s: of each plan.

    Raises:
        AutoshardError: no such target or its compiler is not installed, another number of devices, XLA's refusal.
    """
    found = confirmed_target(loaded, target)

    def compiled_bytes(module: str, plan: Plan) -> int:
        compiled = compile_planned(module.encode(), found, device_order=plan.device_order, progress=progress)
        return compiled.memory.total_bytes

    def planned(memory_bytes: int | None) -> Plan:
        limits: dict[str, Any] = {"time_limit_s": time_limit_s, "seed": seed, "threads": threads}
        return plan_loaded(replace(loaded, memory_bytes=memory_bytes), progress=progress, **limits)

    def written(plan: Plan) -> str:
        progress("writing the module", None)
        return write_planned(loaded, plan, constraints=constraints)

    return tried(loaded.memory_bytes, planned, written, compiled_bytes, target)


def confirmed_target(loaded: Loaded, target: str) -> Target:
    """That target, of as many devices as are planned for, its compiler at hand."""
    found = parse_target(target)
    require_compiler(found)
    if found.num_devices != loaded.mesh.num_devices:
        raise AutoshardError(
            f"{target} has {found.num_devices} devices, the mesh {loaded.mesh.num_devices}",
            where="--confirm",
            fix="confirm on a target of as many devices",
        )
    return found


def tried(
    budget: int | None,
    planned: Callable[[int | None], Plan],
    written: Callable[[Plan], str],
    compiled_bytes: Compile,
    target: str,
) -> Confirmed:
    """Args: how to plan within a budget, to write a plan's module, and to compile that."""
    tries: list[Try] = []
    while True:
        plan = planned(budget)
        if not plan.fits or plan.status not in ("optimal", "feasible"):
            return Confirmed(plan, None, target, tuple(tries))
        module, predicted = written(plan), plan.price.peak_bytes
        try:
            tries.append(Try(budget, predicted, compiled_bytes(module, plan)))
        except DoesNotFitError as error:
            tries.append(Try(budget, predicted, error.used_bytes, error.available_bytes))
            before = predicted if budget is None else min(predicted, budget)
            budget = int(before * min(_LESS, error.available_bytes / error.used_bytes))
        if tries[-1].fits or len(tries) == MOST_TRIES:
            return Confirmed(plan, module, target, tuple(tries))
