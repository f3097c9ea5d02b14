"""Plans that the real compiler confirms to fit: where it finds that one needs more than a device has, the next one gets as much less."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from autoshard.errors import AutoshardError
from autoshard.hardware import layout_of, profile_of
from autoshard.loading import Loaded
from autoshard.mlir.write import Constraints
from autoshard.pipeline import plan_loaded, write_planned
from autoshard.plans import Plan
from autoshard.progress import Progress, silent
from autoshard.report import shape_text
from autoshard.report.units import bytes_text
from autoshard.xla.compiled import DoesNotFitError
from autoshard.xla.compiling import compile_planned
from autoshard.xla.gpus import gpu_names
from autoshard.xla.targets import PROFILES, Target, parse_target, require_compiler

MOST_TRIES = 4
_LESS = 0.99  # of the budget before, at most


@dataclass(frozen=True, slots=True)
class Try:
    """Bytes a device: the budget of a plan (None: none), its predicted peak, what the compiler needs, and has where that is too much;
    `refused`: what it said, if it is not about memory."""

    budget_bytes: int | None
    predicted_bytes: int
    compiled_bytes: int | None = None
    available_bytes: int | None = None
    refused: str = ""

    @property
    def fits(self) -> bool:
        return self.compiled_bytes is not None and self.available_bytes is None

    def text(self) -> str:
        budget = "no budget" if self.budget_bytes is None else f"a budget of {bytes_text(self.budget_bytes)}"
        predicted = f"{bytes_text(self.predicted_bytes)} predicted within {budget}"
        if self.compiled_bytes is None:
            return f"{predicted}; refused: {self.refused}"
        needed = f"{bytes_text(self.compiled_bytes)} a device"
        if self.available_bytes is not None:
            return f"{predicted}; does not fit, {needed} of {bytes_text(self.available_bytes)}"
        return f"{predicted}; fits, {needed}"

    def data(self) -> dict[str, Any]:
        return {
            "fits": self.fits,
            "budget_bytes": self.budget_bytes,
            "predicted_bytes": self.predicted_bytes,
            "compiled_bytes": self.compiled_bytes,
            "available_bytes": self.available_bytes,
            "refused": self.refused,
        }


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The last plan and its module (None where there is none), what the compiler said of each in turn, and the last plan's budget."""

    plan: Plan
    module: str | None
    target: str
    tries: tuple[Try, ...]
    budget_bytes: int | None

    @property
    def fits(self) -> bool:
        return self.module is not None and self.tries[-1].fits

    def text(self) -> str:
        lines = [f"compiled for {self.target}: {one.text()}" for one in self.tries]
        if self.module is None and self.tries and self.budget_bytes is not None:
            lines.append(f"no plan within {bytes_text(self.budget_bytes)}, to which the budget was cut")
        elif not self.fits and self.tries:
            lines.append("no plan that compiles")
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        tries = [one.data() for one in self.tries]
        said = {"target": self.target, "fits": self.fits, "budget_bytes": self.budget_bytes, "tries": tries}
        return {"confirmed": said}


def plan_confirmed(
    loaded: Loaded,
    target: str | Target,
    *,
    constraints: Constraints = "minimal",
    time_limit_s: float = 60,
    seed: int = 0,
    threads: int = 2,
    progress: Progress = silent,
) -> Confirmed:
    """Plan and compile for `target`, at most `MOST_TRIES` times, until the compiler finds that the program fits.

    Each further plan has a budget less by the share that was needed too much, or the least that a plan was found for.

    Args:
        time_limit_s: of each plan; compiling has none.

    Raises:
        AutoshardError: no such target or its compiler is not installed, another chip, topology or number of devices than is planned for.
    """
    found = confirmed_target(target)
    require_same(loaded, found)

    def compiled_bytes(module: str, plan: Plan) -> int:
        source = module.encode()
        compiled = compile_planned(source, found, device_order=plan.device_order, progress=progress)
        return compiled.memory.total_bytes

    def planned(memory_bytes: int | None) -> Plan:
        limits: dict[str, Any] = {"time_limit_s": time_limit_s, "seed": seed, "threads": threads}
        return plan_loaded(replace(loaded, memory_bytes=memory_bytes), progress=progress, **limits)

    def written(plan: Plan) -> str:
        progress("writing the module", None)
        return write_planned(loaded, plan, constraints=constraints)

    return tried(loaded.memory_bytes, planned, written, compiled_bytes, str(found))


def confirmed_target(target: str | Target) -> Target:
    """That target, its compiler at hand; not CPUs, which have all the memory there is."""
    found = parse_target(target) if isinstance(target, str) else target
    if found.kind == "cpu":
        raise AutoshardError(
            "CPUs have no memory of their own that a plan has to fit",
            where=f"--confirm {target}",
            fix="name a TPU or GPU target, as tpu:v5e:4x4, or run `autoshard compile`",
        )
    require_compiler(found)
    return found


def require_same(loaded: Loaded, target: Target) -> None:
    """Raises AutoshardError: the target is another chip, or has another number of devices or shape, than is planned for."""
    name, devices = profile_of(loaded.hardware.name), loaded.mesh.num_devices
    layout = layout_of(loaded.communication, loaded.hardware)
    reason, fix = "", "confirm on what is planned for, or plan for the target"
    if target.num_devices != devices:
        reason = f"{target} has {target.num_devices} devices, the mesh {devices}"
    elif name in {*PROFILES.values(), *gpu_names()} and target.profile != name:
        reason = f"{target} is another chip than {name}"
    elif (layout.slices or 1) > 1 or (target.kind == "tpu" and layout.topology != target.topology):
        reason = (
            f"the mesh is laid on {shape_text(layout.topology or (), layout.slices)}, the target is {target}"
        )
    if reason:
        raise AutoshardError(reason, where=f"--confirm {target}", fix=fix)


def tried(
    budget: int | None,
    planned: Callable[[int | None], Plan],
    written: Callable[[Plan], str],
    compiled_bytes: Callable[[str, Plan], int],
    target: str,
) -> Confirmed:
    """Args: how to plan within a budget, to write a plan's module, and to compile that: bytes a device."""
    tries: list[Try] = []
    before: int | None = None  # what did not fit
    while True:
        plan = planned(budget)
        if not plan.fits or plan.status not in ("optimal", "feasible"):
            least = plan.smallest_peak_bytes
            is_between = before is not None and budget is not None and budget < least <= before * _LESS
            if not is_between:
                return Confirmed(plan, None, target, tuple(tries), budget)
            budget = least
            continue
        module, predicted = written(plan), plan.price.peak_bytes
        try:
            tries.append(Try(budget, predicted, compiled_bytes(module, plan)))
        except DoesNotFitError as error:
            tries.append(Try(budget, predicted, error.used_bytes, error.available_bytes))
            before = predicted if budget is None else min(predicted, budget)
            if len(tries) < MOST_TRIES:
                budget = int(before * min(_LESS, error.available_bytes / error.used_bytes))
                continue
        except AutoshardError as error:
            tries.append(Try(budget, predicted, refused=error.reason))
        return Confirmed(plan, module, target, tuple(tries), budget)
