"""Plans to compare with, as choices of the problem: everything replicated, data parallelism as Shardy propagates it, and that with
arrays and state split besides."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import PricedGraph, follow
from autoshard.errors import AutoshardError
from autoshard.loading import Loaded, keeps_partial_sums
from autoshard.mlir import passes
from autoshard.problem import evaluate
from autoshard.program import Batch, FlowKind, batch_arguments
from autoshard.sharding import AxisRef, TensorSharding, total_size

DATA_PARALLEL, FULLY_SHARDED = "data parallel", "fully sharded"
SMALL = 1024  # arrays of so many times fewer elements than the largest stay whole
BaselineChoice = tuple[str, NDArray[np.int64] | None, str]
"""A name, its choice where there is one, and what it is or why there is none."""


def baseline_choices(loaded: Loaded, priced: PricedGraph) -> list[BaselineChoice]:
    """The plans to compare with, as choices of the problem; the solver of `plan_loaded` starts from those that there are."""
    return [_replicated(priced), *_data_parallel(loaded, priced)]


def propagation(
    loaded: Loaded,
) -> Callable[[Mapping[int, TensorSharding]], dict[int, TensorSharding]]:
    """Shardy's propagation of the module's shardings and given ones, partial sums in the forms that have them only."""
    through = passes.propagation(loaded.handles, loaded.listing, as_xla=loaded.lowering == "xla-tpu")

    def propagated(demands: Mapping[int, TensorSharding]) -> dict[int, TensorSharding]:
        given = through.of(demands)
        if keeps_partial_sums(loaded.form):
            return given
        return {value: sharding.summed() for value, sharding in given.items()}

    return propagated


def _replicated(priced: PricedGraph) -> BaselineChoice:
    return followed("fully replicated", priced, {}, "", splits_work=False)


def _data_parallel(loaded: Loaded, priced: PricedGraph) -> Iterator[BaselineChoice]:
    """Batch arguments split into as many parts as axes divide them, everything else as Shardy propagates it; then beside that all other
    large arguments split, what is made of them as Shardy propagates these.
    """
    batch = batch_arguments(loaded.program)
    if not batch:
        why = "no argument holds a batch dimension that the program's work follows"
        yield from ((name, None, why) for name in (DATA_PARALLEL, FULLY_SHARDED))
        return
    axes = [loaded.mesh.axis(axis.name) for axis in loaded.mesh.axes if axis.size > 1]
    over = _dividing(batch[0].size, axes)
    left = [axis for axis in axes if axis not in over]
    split = _split_batch(batch, over, ())
    whole = "whole: no axis divides the batch" if axes else "on one device"
    where = f"over {_names(over)}" if over else whole
    names = f"{', '.join(flow.name for flow, _ in batch[:3])}{', ...' if len(batch) > 3 else ''}"
    propagated = propagation(loaded)
    try:
        activations = propagated(split)
    except AutoshardError as error:
        yield DATA_PARALLEL, None, f"Shardy's propagation failed: {error.reason}"
        yield FULLY_SHARDED, None, "there is no data parallelism to begin with"
        return
    yield followed(DATA_PARALLEL, priced, activations, f"{names} {where}")
    arrays = dict(_split_arrays(loaded, split, axes))
    if not arrays:
        yield FULLY_SHARDED, None, "no other array can be split"
        return
    split_too = f"{len(arrays)} arrays along their largest dimensions" if len(arrays) > 1 else "one array"
    note = f"the same and {split_too}"
    try:
        if left:
            activations = propagated(_split_batch(batch, over, left))
            note += f", what follows the batch over {_names(left)}"
        given = propagated(arrays)
    except AutoshardError as error:
        yield FULLY_SHARDED, None, f"Shardy's propagation failed: {error.reason}"
        return
    with_batch = {v: s for v, s in activations.items() if not s.is_fully_replicated}
    yield followed(FULLY_SHARDED, priced, given | with_batch, note)


def _split_batch(
    batch: Sequence[Batch], over: Sequence[AxisRef], left: Sequence[AxisRef]
) -> dict[int, TensorSharding]:
    """The batch and, over those that divide it of the axes that are left, the dimension behind it: positions of texts, rows of images."""
    found: dict[int, TensorSharding] = {}
    for flow, dim in batch:
        behind = {dim + 1: _dividing(flow.type.shape[dim + 1], left)} if dim + 1 < flow.type.rank else {}
        found[flow.value] = _split_along(flow.type.rank, {dim: over, **behind})
    return found


def _split_arrays(
    loaded: Loaded, batch: Collection[int], axes: Sequence[AxisRef]
) -> Iterator[tuple[int, TensorSharding]]:
    """Arguments that are no batch and whose sharding is open, along the dimension that most devices divide, the largest of those."""
    arrays = [f for f in loaded.program.flows if f.kind is FlowKind.ARGUMENT and f.value not in batch]
    most = max((flow.type.num_elements for flow in arrays), default=0)
    for flow in arrays:
        is_open = all(demand.says_nothing for demand in flow.demands)
        if flow.type.rank and is_open and flow.type.num_elements * SMALL >= most:
            over = [_dividing(size, axes) for size in flow.type.shape]
            dim = max(range(flow.type.rank), key=lambda d: (total_size(over[d]), flow.type.shape[d]))
            if over[dim]:
                yield flow.value, _split_along(flow.type.rank, {dim: over[dim]})


def _dividing(size: int, axes: Sequence[AxisRef]) -> Sequence[AxisRef]:
    """The axes that divide a dimension evenly into the most parts; of equals the fewest, the first."""
    chosen = (some for count in range(len(axes) + 1) for some in combinations(axes, count))
    return max((some for some in chosen if size % total_size(some) == 0), key=total_size)


def _split_along(rank: int, axes: Mapping[int, Sequence[AxisRef]]) -> TensorSharding:
    return TensorSharding.closed([tuple(axes.get(dim, ())) for dim in range(rank)])


def _names(axes: Sequence[AxisRef]) -> str:
    return ",".join(axis.name for axis in axes)


def followed(
    name: str,
    priced: PricedGraph,
    given: Mapping[int, TensorSharding],
    note: str,
    *,
    splits_work: bool = True,
) -> BaselineChoice:
    """The choice that follows given shardings, or why it cannot."""
    try:
        choice = follow(priced, given, splits_work=splits_work)
    except AutoshardError as error:
        return name, None, error.reason
    if evaluate(priced.problem, choice).cost is None:
        return name, None, "what a loop adds up would be brought to another sharding on the way"
    return name, choice, note
