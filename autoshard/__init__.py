"""The automatic partitioner that Shardy does not have: StableHLO in, optimally sharded StableHLO out."""

from typing import TYPE_CHECKING, Any

from autoshard.errors import AutoshardError

if TYPE_CHECKING:
    from autoshard.api import cost, plan
    from autoshard.plan import Plan

__all__ = ["AutoshardError", "Plan", "cost", "plan"]


def __getattr__(name: str) -> Any:
    """`plan`, `cost` and `Plan` load the compiler bindings and the solver; they are imported when first asked for."""
    if name in ("plan", "cost"):
        from autoshard import api

        return getattr(api, name)
    if name == "Plan":
        from autoshard.plan import Plan

        return Plan
    raise AttributeError(f"module 'autoshard' has no attribute {name!r}")
