"""What may be chosen: shardings of tensors, strategies of kernels. Knows no prices."""

from autoshard.space.shardings import flow_shardings, searched_axes, tensor_shardings, wanted_shardings
from autoshard.space.strategies import WINDOWED, Strategy, strategies, strategy_of, wanted_strategies

__all__ = [
    "WINDOWED",
    "Strategy",
    "flow_shardings",
    "searched_axes",
    "strategies",
    "strategy_of",
    "tensor_shardings",
    "wanted_shardings",
    "wanted_strategies",
]
