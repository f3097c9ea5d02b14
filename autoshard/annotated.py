"""The shardings that a module already has, completed by Shardy's propagation, and their price; nothing is searched."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autoshard.baselines import propagation
from autoshard.breakdown import Breakdown, break_down
from autoshard.cost import PricedGraph, follow, look_through, read_back
from autoshard.hardware import scheduler_of
from autoshard.held import HeldMemory, held_memory
from autoshard.loading import Loaded, compiler_of, with_figures
from autoshard.mlir import passes
from autoshard.plans import Plan
from autoshard.pricing import price, repriced
from autoshard.program import build_program, demands_of, moved_for_products
from autoshard.progress import Progress, silent
from autoshard.recording import plan_of_choice, scheduled_step


@dataclass(frozen=True, slots=True)
class AsWritten:
    """The shardings that a module already has, as a choice of the problem."""

    loaded: Loaded
    priced: PricedGraph
    choice: NDArray[np.int64]

    def plan(self) -> Plan:
        """Their price."""
        proved = "priced as it is; nothing was searched"
        return plan_of_choice(self.loaded, self.priced, self.choice, "feasible", proved, 0, (), {})

    def plan_with_schedule(self) -> Plan:
        """Their price, and beside it the step in the order of the compiler's scheduler, where its prices are known."""
        found, scheduler = self.plan(), self.loaded.hardware.at_scheduler()
        is_there = found.price.scheduled is not None or found.lowering != "xla-tpu"
        if scheduler is None or is_there or (found.slices or 1) > 1:
            return found
        theirs = self._as(with_figures(self.loaded, scheduler))
        chosen = read_back(theirs.priced, theirs.choice)
        scheduled = scheduled_step(theirs.loaded, theirs.priced, theirs.choice, chosen)
        return replace(found, price=replace(found.price, scheduled=scheduled))

    def at_scheduler_of(self, hardware: str) -> "AsWritten | None":
        """The same choice at the prices of a profile's scheduler; None where they are not known, or devices are joined in another way."""
        scheduler = scheduler_of(hardware)
        if scheduler is None or not isinstance(self.loaded.hardware.topology, type(scheduler.topology)):
            return None
        return self._as(with_figures(self.loaded, scheduler))

    def _as(self, loaded: Loaded) -> "AsWritten":
        return AsWritten(loaded, repriced(loaded, self.priced), self.choice)

    def breakdown(self) -> Breakdown:
        """Where the time goes."""
        return break_down(self.priced, self.choice, self.loaded.hardware)

    def held(self) -> HeldMemory:
        """Where the memory goes."""
        return held_memory(self.priced, self.choice)


def cost_loaded(loaded: Loaded, progress: Progress = silent) -> Plan:
    """The price of the shardings that the module already has, completed by Shardy's propagation."""
    return price_as_written(loaded, progress).plan_with_schedule()


def price_as_written(loaded: Loaded, progress: Progress = silent) -> AsWritten:
    """What `cost_loaded` prices, ready to be explained too."""
    progress("propagating", None)
    values = propagation(loaded)({})
    values |= {
        demand.value: demand.sharding
        for demand in demands_of(loaded.listing)
        if demand.result is None and demand.sharding.is_foreign  # on which propagation is silent
    }
    if loaded.lowering == "xla-tpu":
        values |= {widened: values[narrow] for widened, narrow in moved_for_products(loaded.listing).items()}
    progress("pricing", None)
    listing, given = look_through(
        loaded.listing,
        values,
        passes.decompose_reshards,
        merges_slices=loaded.lowering == "shardy",
    )
    compiler = compiler_of(loaded.form, loaded.hardware, loaded.mesh.num_devices)
    program = build_program(listing, loaded.program.carried_pairs, compiler)
    loaded = replace(loaded, listing=listing, program=program)
    priced = price(loaded, given=given)
    return AsWritten(loaded, priced, follow(priced, values))
