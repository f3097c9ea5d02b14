"""What may be chosen: shardings of tensors, strategies of kernels. Knows no prices."""

from autoshard.space.cuts import ProgramCuts, find_cuts
from autoshard.space.factors import WINDOWED
from autoshard.space.shardings import Cut, flow_shardings, searched_axes, tensor_shardings, wanted_shardings
from autoshard.space.strategies import Strategy, strategies, strategy_of, wanted_strategies

__all__ = [
    "WINDOWED",
    "Cut",
    "ProgramCuts",
    "Strategy",
    "find_cuts",
    "flow_shardings",
    "searched_axes",
    "strategies",
    "strategy_of",
    "tensor_shardings",
    "wanted_shardings",
    "wanted_strategies",
]
