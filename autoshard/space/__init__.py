"""What may be chosen: shardings of tensors, strategies of kernels. Knows no prices."""

from autoshard.space.additions import Meeting, reads_addends, with_addends
from autoshard.space.cuts import ProgramCuts, find_cuts
from autoshard.space.partial import PartialSums, reducible_axes, with_partial_sums
from autoshard.space.partitioned import partitioned
from autoshard.space.shardings import (
    Cut,
    flow_shardings,
    searched_axes,
    tensor_shardings,
    wanted_shardings,
    with_unreduced,
)
from autoshard.space.strategies import (
    Strategy,
    distinct,
    reduced_axes,
    strategies,
    strategy_of,
    wanted_strategies,
)

__all__ = [
    "Cut",
    "Meeting",
    "PartialSums",
    "ProgramCuts",
    "Strategy",
    "distinct",
    "find_cuts",
    "flow_shardings",
    "partitioned",
    "reads_addends",
    "reduced_axes",
    "reducible_axes",
    "searched_axes",
    "strategies",
    "strategy_of",
    "tensor_shardings",
    "wanted_shardings",
    "wanted_strategies",
    "with_addends",
    "with_partial_sums",
    "with_unreduced",
]
