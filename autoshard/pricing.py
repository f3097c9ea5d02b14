"""A program priced: every choice of it, at the prices of its hardware and of whoever compiles it."""

from collections.abc import Mapping

from autoshard.cost import (
    Decompose,
    Given,
    Graph,
    PricedGraph,
    Wanted,
    assemble,
    build_graph,
    wanted_at_levels,
)
from autoshard.loading import Loaded, keeps_partial_sums
from autoshard.mlir import passes
from autoshard.program import demands_of, priority_levels
from autoshard.progress import Progress, silent


def graph_of(loaded: Loaded, wanted: Wanted | None = None, given: Given | None = None) -> Graph:
    """The choices that the form and its compiler leave, without prices; `wanted` and `given` as in `price`."""
    keeps = keeps_partial_sums(loaded.form)
    is_xla = loaded.lowering == "xla-tpu"
    return build_graph(
        loaded.program,
        loaded.mesh,
        given,
        wanted,
        keeps_partial_sums=keeps,
        hoists=is_xla,
        adds_first=is_xla,
        merges_slices=not is_xla,
    )


def price(loaded: Loaded, wanted: Wanted | None = None, given: Given | None = None) -> PricedGraph:
    """The problem behind a plan, in which demands are met; with `wanted`, one in which those may be met or not; with `given`, one that
    leaves no choice where that can be had.
    """
    return _assembled(loaded, graph_of(loaded, wanted, given), passes.decompose_reshards)


def repriced(
    loaded: Loaded, priced: PricedGraph, waited_percent: Mapping[int, int] | None = None
) -> PricedGraph:
    """The same choices in the same order at the prices of `loaded`, which has other figures, or as their edges wait (`assemble`)."""
    return _assembled(loaded, priced.graph, priced.reshards.known, waited_percent)


def _assembled(
    loaded: Loaded, graph: Graph, decompose: Decompose, waited_percent: Mapping[int, int] | None = None
) -> PricedGraph:
    return assemble(
        graph,
        loaded.hardware,
        loaded.communication,
        decompose,
        loaded.memory_bytes,
        lowering=loaded.lowering,
        overlap=loaded.overlap,
        waited_percent=waited_percent,
    )


def price_for_planning(loaded: Loaded, progress: Progress = silent) -> PricedGraph:
    """The problem that a plan solves.

    Raises:
        AutoshardError: there is no sharding that all members of a sharding group can take.
    """
    progress("pricing", None)
    levels = priority_levels(loaded.listing)
    wanted = wanted_at_levels(demands_of(loaded.listing), levels) if len(levels) > 1 else None
    return price(loaded, wanted)
