"""The automatic partitioner that Shardy does not have: StableHLO in, optimally sharded StableHLO out."""

from typing import TYPE_CHECKING, Any

from autoshard.errors import AutoshardError

if TYPE_CHECKING:
    from autoshard.api import explain, plan, plan_meshes, plan_placements, price, sensitivity, why
    from autoshard.plans import Plan
    from autoshard.queries import reshard, resharder
    from autoshard.xla.compiled import Compiled, DoesNotFitError
    from autoshard.xla.compiling import compile_planned

__all__ = [
    "AutoshardError",
    "Compiled",
    "DoesNotFitError",
    "Plan",
    "compile_planned",
    "explain",
    "plan",
    "plan_meshes",
    "plan_placements",
    "price",
    "reshard",
    "resharder",
    "sensitivity",
    "why",
]


def __getattr__(name: str) -> Any:
    """All of these load the compiler bindings and the solver; they are imported when first asked for."""
    if name in ("explain", "plan", "plan_meshes", "plan_placements", "price", "sensitivity", "why"):
        from autoshard import api

        return getattr(api, name)
    if name in ("reshard", "resharder"):
        from autoshard import queries

        return getattr(queries, name)
    if name == "compile_planned":
        from autoshard.xla import compiling

        return compiling.compile_planned
    if name in ("Compiled", "DoesNotFitError"):
        from autoshard.xla import compiled

        return getattr(compiled, name)
    if name == "Plan":
        from autoshard.plans import Plan

        return Plan
    raise AttributeError(f"module 'autoshard' has no attribute {name!r}")
