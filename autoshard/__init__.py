"""The automatic partitioner that Shardy does not have: StableHLO in, optimally sharded StableHLO out."""

from typing import TYPE_CHECKING, Any

from autoshard.errors import AutoshardError

if TYPE_CHECKING:
    from autoshard.api import plan, price
    from autoshard.plans import Plan

__all__ = ["AutoshardError", "Plan", "plan", "price"]


def __getattr__(name: str) -> Any:
    """`plan`, `price` and `Plan` load the compiler bindings and the solver; they are imported when first asked for."""
    if name in ("plan", "price"):
        from autoshard import api

        return getattr(api, name)
    if name == "Plan":
        from autoshard.plans import Plan

        return Plan
    raise AttributeError(f"module 'autoshard' has no attribute {name!r}")
