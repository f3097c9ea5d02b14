"""Plans to compare with, as choices of the problem: everything replicated, and data parallelism as Shardy propagates it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import PricedGraph, follow
from autoshard.errors import AutoshardError
from autoshard.loading import Loaded, keeps_partial_sums
from autoshard.mlir import passes
from autoshard.problem import evaluate
from autoshard.program import batch_arguments
from autoshard.sharding import AxisRef, TensorSharding, total_size

BaselineChoice = tuple[str, NDArray[np.int64] | None, str]
"""A name, its choice where there is one, and what it is or why there is none."""


def baseline_choices(loaded: Loaded, priced: PricedGraph) -> list[BaselineChoice]:
    """The plans to compare with, as choices of the problem; the solver of `plan_loaded` starts from those that there are."""
    return [_replicated(priced), _data_parallel(loaded, priced)]


def propagated(loaded: Loaded, demands: Mapping[int, TensorSharding]) -> dict[int, TensorSharding]:
    """Shardy's propagation of the module's shardings and these, partial sums in the forms that have them only."""
    is_xla = loaded.lowering == "xla-tpu"
    given = passes.propagate(loaded.handles, loaded.listing, demands, as_xla=is_xla)
    if keeps_partial_sums(loaded.form):
        return dict(given)
    return {value: replace(sharding, unreduced=()) for value, sharding in given.items()}


def _replicated(priced: PricedGraph) -> BaselineChoice:
    return followed("fully replicated", priced, {}, "")


def _data_parallel(loaded: Loaded, priced: PricedGraph) -> BaselineChoice:
    """Batch arguments split over as many axes as divide them, everything else as Shardy propagates it."""
    name = "data parallel"
    batch = batch_arguments(loaded.program)
    if not batch:
        return name, None, "no argument holds a batch dimension that the program's work follows"
    axes = [loaded.mesh.axis(axis.name) for axis in loaded.mesh.axes if axis.size > 1]
    while axes and batch[0].size % total_size(axes):
        axes.pop()
    demands = {flow.value: _split_along(flow.type.rank, dim, axes) for flow, dim in batch}
    try:
        given = propagated(loaded, demands)
    except AutoshardError as error:
        return name, None, f"Shardy's propagation failed: {error.reason}"
    names = f"{', '.join(flow.name for flow, _ in batch[:3])}{', ...' if len(batch) > 3 else ''}"
    over = f"over {','.join(a.name for a in axes)}" if axes else "whole: no axis divides the batch"
    return followed(name, priced, given, f"{names} {over}")


def _split_along(rank: int, dim: int, axes: Sequence[AxisRef]) -> TensorSharding:
    return TensorSharding.closed([tuple(axes) if d == dim else () for d in range(rank)])


def followed(
    name: str, priced: PricedGraph, given: Mapping[int, TensorSharding], note: str
) -> BaselineChoice:
    """The choice that follows given shardings, or why it cannot."""
    try:
        choice = follow(priced, given)
    except AutoshardError as error:
        return name, None, error.reason
    if evaluate(priced.problem, choice).cost is None:
        return name, None, "what a loop adds up would be brought to another sharding on the way"
    return name, choice, note
